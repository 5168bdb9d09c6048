"""Sensors on a MongoDB deployment's change stream. Each look takes one event at most, never the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import Stats

from airflow_cdc_provider.sensors.feed import FeedSensor
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.triggers.mongodb import MongodbLagTrigger, MongodbNewsTrigger


class _ChangeStreamSensor(FeedSensor):
    """Looks at the change stream after the connector's stored offset."""

    template_fields: Sequence[str] = ("connector", "mongo_conn_id")
    source_type = "mongodb"
    feed_name = "change stream"

    def __init__(self, *, mongo_conn_id: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mongo_conn_id = mongo_conn_id

    @property
    def own_conn_id(self) -> str | None:
        """Connection in place of the declared one."""
        return self.mongo_conn_id

    def feed(self, connector: Connector) -> dict[str, Any]:
        """Return what is looked at."""
        options = connector.source
        assert isinstance(options, MongodbOptions)
        return {
            "scope": options.scope,
            "target": options.target,
            "authentication_class": options.authentication_class,
        }

    def seen(self, value: Mapping[str, Any]) -> None:
        """Emit the lag, and how far the oplog reaches back."""
        super().seen(value)
        if value.get("window_seconds") is not None:
            window, tags = value["window_seconds"], self.own_connector().tags
            Stats.gauge("cdc.oplog_window_seconds", window, tags=tags)


class MongodbNewsSensor(_ChangeStreamSensor):
    """Waits until there are changes after the connector's stored offset, or until there is no offset yet.

    XCom: ``news``, ``lag_seconds`` (age of the oldest change), ``table`` (where it is), ``window_seconds``
    (how far the offset is ahead of the oplog's begin), ``lost`` (whether the oplog no longer reaches back to
    it; the sensor fails then, unless the connector's runs make it good by themselves).

    Args:
        connector: The connector, its declaration as a mapping, or the path of its YAML file (templated).
        mongo_conn_id: Connection in place of the declared one (templated).
        kwargs: As for :class:`~airflow_cdc_provider.sensors.observing.ObservingSensor`.
    """

    def __init__(self, *, poke_interval: float = 10.0, **kwargs: Any) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)

    def trigger(self, context: Context) -> MongodbNewsTrigger:
        """Return the trigger."""
        from airflow_cdc_provider.triggers.mongodb import MongodbNewsTrigger

        return MongodbNewsTrigger(**self.question())


class MongodbLagSensor(_ChangeStreamSensor):
    """Waits until the oldest change not captured is at most some seconds old.

    XCom: as for :class:`MongodbNewsSensor`.

    Args:
        connector: The connector, its declaration as a mapping, or the path of its YAML file (templated).
        max_lag_seconds: The greatest age allowed.
        mongo_conn_id: Connection in place of the declared one (templated).
        kwargs: As for :class:`~airflow_cdc_provider.sensors.observing.ObservingSensor`.
    """

    def __init__(self, *, max_lag_seconds: float, poke_interval: float = 30.0, **kwargs: Any) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.max_lag_seconds = max_lag_seconds

    def trigger(self, context: Context) -> MongodbLagTrigger:
        """Return the trigger."""
        from airflow_cdc_provider.triggers.mongodb import MongodbLagTrigger

        return MongodbLagTrigger(max_lag_seconds=self.max_lag_seconds, **self.question())
