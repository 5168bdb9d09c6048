"""Sensors of a MongoDB deployment's change stream. Each check reads one event at most, never bulk data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.options import to_plain
from airflow_cdc_provider.sensors.feed import FeedSensor
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.plugin import options_of
from airflow_cdc_provider.tasks.stats import Stats

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.triggers.mongodb import MongodbLagTrigger, MongodbNewsTrigger


class _ChangeStreamSensor(FeedSensor):
    """Checks the change stream after the connector's stored offset."""

    template_fields: Sequence[str] = ("connector", "mongo_conn_id")
    source_options = MongodbOptions

    def __init__(self, *, mongo_conn_id: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mongo_conn_id = mongo_conn_id

    @property
    def own_conn_id(self) -> str | None:
        """Connection to use instead of the declared one."""
        return self.mongo_conn_id

    def feed(self, connector: Connector) -> dict[str, Any]:
        """Return what determines the stream's events."""
        return {
            "source": to_plain(options_of(connector, MongodbOptions)),
            "signals": connector.signals.collection,
        }

    def seen(self, value: Mapping[str, Any]) -> None:
        """Emit the lag, and the oplog's window."""
        super().seen(value)
        if value.get("window_seconds") is not None:
            window, tags = value["window_seconds"], self.own_connector().tags
            Stats.gauge("cdc.oplog_window_seconds", window, tags=tags)


class MongodbNewsSensor(_ChangeStreamSensor):
    """Waits until there are changes after the connector's stored offset, or until there is no offset yet.

    XCom: ``news``, ``lag_seconds`` (age of the oldest change), ``table`` (its collection), ``window_seconds``
    (time from the oplog's first entry to the offset), ``lost`` (whether the oplog no longer reaches back to
    the offset; the sensor fails then, unless the connector's runs recover automatically).

    Args:
        connector: The connector, its declaration as a mapping, or the path of its YAML file (templated).
        mongo_conn_id: Connection to use instead of the declared one (templated).
        kwargs: As for :class:`~airflow_cdc_provider.sensors.observing.ObservingSensor`.
    """

    def __init__(self, *, poke_interval: float = 10.0, **kwargs: Any) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)

    def trigger(self, context: Context) -> MongodbNewsTrigger:
        """Return the trigger."""
        from airflow_cdc_provider.triggers.mongodb import MongodbNewsTrigger

        return MongodbNewsTrigger(**self.trigger_arguments())


class MongodbLagSensor(_ChangeStreamSensor):
    """Waits until the oldest uncaptured change is at most ``max_lag_seconds`` old.

    XCom: as for :class:`MongodbNewsSensor`.

    Args:
        connector: The connector, its declaration as a mapping, or the path of its YAML file (templated).
        max_lag_seconds: The greatest allowed age.
        mongo_conn_id: Connection to use instead of the declared one (templated).
        kwargs: As for :class:`~airflow_cdc_provider.sensors.observing.ObservingSensor`.
    """

    def __init__(self, *, max_lag_seconds: float, poke_interval: float = 30.0, **kwargs: Any) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.max_lag_seconds = max_lag_seconds

    def trigger(self, context: Context) -> MongodbLagTrigger:
        """Return the trigger."""
        from airflow_cdc_provider.triggers.mongodb import MongodbLagTrigger

        return MongodbLagTrigger(max_lag_seconds=self.max_lag_seconds, **self.trigger_arguments())
