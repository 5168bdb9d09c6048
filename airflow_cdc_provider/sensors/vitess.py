"""Sensors on a Vitess keyspace's changes. Each look takes one change at most, never the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import Stats

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.hooks.source import ConnectorLike, hook_for, to_connector
from airflow_cdc_provider.hooks.state import stored_offset
from airflow_cdc_provider.links.connector import ConnectorAssetsLink
from airflow_cdc_provider.sensors.observing import ObservingSensor, with_state
from airflow_cdc_provider.sources.vitess.options import VitessOptions

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.triggers.observing import Given
    from airflow_cdc_provider.triggers.vitess import VitessLagTrigger, VitessNewsTrigger


class _FeedSensor(ObservingSensor):
    """Looks at the stream after the connector's stored offset."""

    template_fields: Sequence[str] = ("connector", "vitess_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"connector": "json"}
    operator_extra_links = (ConnectorAssetsLink(),)

    def __init__(
        self,
        *,
        connector: ConnectorLike,
        vitess_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**with_state(connector, kwargs))
        self.connector = connector
        self.vitess_conn_id = vitess_conn_id

    def given(self, context: Context) -> Given:
        """Look up the connection and the stored offset."""
        from airflow_cdc_provider.triggers.observing import Given

        connector = self._vitess()
        values = hook_for(connector, self.vitess_conn_id).connection_values()
        return Given(values, stored_offset(context, connector))

    def seen(self, value: Mapping[str, Any]) -> None:
        """Emit gauges."""
        tags = self._vitess().tags
        if value.get("lag_seconds") is not None:
            Stats.gauge("cdc.lag_seconds", value["lag_seconds"], tags=tags)
        for shard, transactions in (value.get("shards") or {}).items():
            Stats.gauge("cdc.transactions_behind", transactions, tags={**tags, "shard": shard})

    def _vitess(self) -> Connector:
        connector = to_connector(self.connector)
        if connector.type != "vitess":
            raise ConfigurationError(
                f"connector {connector.name} has no VStream",
                expected="source.type vitess",
                found=connector.type,
            )
        return connector

    def _question(self) -> dict[str, Any]:
        connector = self._vitess()
        options = connector.source
        assert isinstance(options, VitessOptions)
        return {
            "source_conn_id": hook_for(connector, self.vitess_conn_id).source_conn_id,
            "connector": connector.name,
            "feed": {
                "keyspace": options.keyspace,
                "shards": list(options.shards),
                "tablet_type": options.tablet_type,
                "exclude_empty_shards": options.exclude_empty_shards,
                "cells": list(options.stream.cells),
                "tables": list(connector.tables),
                "exclude_tables": list(connector.exclude_tables),
                "mends_loss": connector.when_lost(hole=False) != "fail",
            },
            "poll_seconds": self.poke_interval,
        }


class VitessNewsSensor(_FeedSensor):
    """Waits until there are changes after the connector's stored offset, or until there is no offset yet.

    XCom: ``news``, ``lag_seconds`` (age of the oldest change), ``table`` (where it is), ``shards`` (how many
    transactions each shard has after the offset), ``lost`` (whether the source no longer has what follows the
    offset; the sensor fails then, unless the connector's runs make it good by themselves).

    Args:
        connector: The connector, its declaration as a mapping, or the path of its YAML file (templated).
        vitess_conn_id: Connection in place of the declared one (templated).
        kwargs: As for :class:`~airflow_cdc_provider.sensors.observing.ObservingSensor`.
    """

    def __init__(self, *, poke_interval: float = 10.0, **kwargs: Any) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)

    def trigger(self, context: Context) -> VitessNewsTrigger:
        """Return the trigger."""
        from airflow_cdc_provider.triggers.vitess import VitessNewsTrigger

        return VitessNewsTrigger(**self._question())


class VitessLagSensor(_FeedSensor):
    """Waits until the oldest change not captured is at most some seconds old, in all shards.

    XCom: as for :class:`VitessNewsSensor`.

    Args:
        connector: The connector, its declaration as a mapping, or the path of its YAML file (templated).
        max_lag_seconds: The greatest age allowed.
        vitess_conn_id: Connection in place of the declared one (templated).
        kwargs: As for :class:`~airflow_cdc_provider.sensors.observing.ObservingSensor`.
    """

    def __init__(self, *, max_lag_seconds: float, poke_interval: float = 30.0, **kwargs: Any) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.max_lag_seconds = max_lag_seconds

    def trigger(self, context: Context) -> VitessLagTrigger:
        """Return the trigger."""
        from airflow_cdc_provider.triggers.vitess import VitessLagTrigger

        return VitessLagTrigger(max_lag_seconds=self.max_lag_seconds, **self._question())
