"""Sensors on a MongoDB deployment's change stream. Each look takes one event at most, never the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import Stats

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.hooks.source import ConnectorLike, hook_for, to_connector
from airflow_cdc_provider.hooks.state import stored_offset
from airflow_cdc_provider.links.connector import ConnectorAssetsLink
from airflow_cdc_provider.sensors.observing import ObservingSensor, with_state
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.triggers.mongodb import MongodbLagTrigger, MongodbNewsTrigger
    from airflow_cdc_provider.triggers.observing import Given


class _FeedSensor(ObservingSensor):
    """Looks at the change stream after the connector's stored offset."""

    template_fields: Sequence[str] = ("connector", "mongo_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"connector": "json"}
    operator_extra_links = (ConnectorAssetsLink(),)

    def __init__(
        self,
        *,
        connector: ConnectorLike,
        mongo_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**with_state(connector, kwargs))
        self.connector = connector
        self.mongo_conn_id = mongo_conn_id

    def given(self, context: Context) -> Given:
        """Look up the connection and the stored offset."""
        from airflow_cdc_provider.triggers.observing import Given

        connector = self._mongodb()
        values = hook_for(connector, self.mongo_conn_id).connection_values()
        return Given(values, stored_offset(context, connector))

    def seen(self, value: Mapping[str, Any]) -> None:
        """Emit gauges."""
        tags = self._mongodb().tags
        if value.get("lag_seconds") is not None:
            Stats.gauge("cdc.lag_seconds", value["lag_seconds"], tags=tags)
        if value.get("window_seconds") is not None:
            Stats.gauge("cdc.oplog_window_seconds", value["window_seconds"], tags=tags)

    def _mongodb(self) -> Connector:
        connector = to_connector(self.connector)
        if connector.type != "mongodb":
            raise ConfigurationError(
                f"connector {connector.name} has no change stream",
                expected="source.type mongodb",
                found=connector.type,
            )
        return connector

    def _question(self) -> dict[str, Any]:
        connector = self._mongodb()
        options = connector.source
        assert isinstance(options, MongodbOptions)
        return {
            "source_conn_id": hook_for(connector, self.mongo_conn_id).source_conn_id,
            "connector": connector.name,
            "feed": {
                "scope": options.scope,
                "target": options.target,
                "tables": list(connector.tables),
                "exclude_tables": list(connector.exclude_tables),
                "mends_loss": connector.when_lost(hole=False) != "fail",
                "authentication_class": options.authentication_class,
            },
            "poll_seconds": self.poke_interval,
        }


class MongodbNewsSensor(_FeedSensor):
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

        return MongodbNewsTrigger(**self._question())


class MongodbLagSensor(_FeedSensor):
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

        return MongodbLagTrigger(max_lag_seconds=self.max_lag_seconds, **self._question())
