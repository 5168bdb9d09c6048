"""Sensors of a Vitess keyspace's changes and shards. Each check reads one change at most, never bulk data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.sensors.feed import FeedSensor
from airflow_cdc_provider.sources.plugin import options_of
from airflow_cdc_provider.sources.vitess.options import VitessOptions
from airflow_cdc_provider.tasks.stats import Stats

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.triggers.vitess import VitessLagTrigger, VitessNewsTrigger, VitessReshardTrigger


class _VStreamSensor(FeedSensor):
    """Checks the stream after the connector's stored offset."""

    template_fields: Sequence[str] = ("connector", "vitess_conn_id")
    source_options = VitessOptions

    def __init__(self, *, vitess_conn_id: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.vitess_conn_id = vitess_conn_id

    @property
    def own_conn_id(self) -> str | None:
        """Connection to use instead of the declared one."""
        return self.vitess_conn_id

    def feed(self, connector: Connector) -> dict[str, Any]:
        """Return the keyspace, shards and tablets of the stream."""
        options = options_of(connector, VitessOptions)
        return {
            "keyspace": options.keyspace,
            "shards": list(options.shards),
            "tablet_type": options.tablet_type,
            "exclude_empty_shards": options.exclude_empty_shards,
            "cells": list(options.stream.cells),
        }

    def seen(self, value: Mapping[str, Any]) -> None:
        """Emit the lag, and the number of transactions that each shard is behind."""
        super().seen(value)
        tags = self.own_connector().tags
        for shard, transactions in (value.get("shards") or {}).items():
            Stats.gauge("cdc.transactions_behind", transactions, tags={**tags, "shard": shard})
        if value.get("resharding") is not None:
            Stats.gauge("cdc.resharding", int(bool(value["resharding"])), tags=tags)


class VitessNewsSensor(_VStreamSensor):
    """Waits until there are changes after the connector's stored offset, or until there is no offset yet.

    XCom: ``news``, ``lag_seconds`` (age of the oldest change), ``table`` (its table), ``shards`` (the number
    of transactions of each shard after the offset), ``resharding`` (source and target shards of a reshard in
    progress), ``lost`` (whether the source no longer has the changes after the offset; the sensor fails then,
    unless the connector's runs recover automatically).

    Args:
        connector: The connector, its declaration as a mapping, or the path of its YAML file (templated).
        vitess_conn_id: Connection to use instead of the declared one (templated).
        kwargs: As for :class:`~airflow_cdc_provider.sensors.observing.ObservingSensor`.
    """

    def __init__(self, *, poke_interval: float = 10.0, **kwargs: Any) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)

    def trigger(self, context: Context) -> VitessNewsTrigger:
        """Return the trigger."""
        from airflow_cdc_provider.triggers.vitess import VitessNewsTrigger

        return VitessNewsTrigger(**self.trigger_arguments())


class VitessLagSensor(_VStreamSensor):
    """Waits until the oldest uncaptured change of all shards is at most ``max_lag_seconds`` old.

    XCom: as for :class:`VitessNewsSensor`.

    Args:
        connector: The connector, its declaration as a mapping, or the path of its YAML file (templated).
        max_lag_seconds: The greatest allowed age.
        vitess_conn_id: Connection to use instead of the declared one (templated).
        kwargs: As for :class:`~airflow_cdc_provider.sensors.observing.ObservingSensor`.
    """

    def __init__(self, *, max_lag_seconds: float, poke_interval: float = 30.0, **kwargs: Any) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.max_lag_seconds = max_lag_seconds

    def trigger(self, context: Context) -> VitessLagTrigger:
        """Return the trigger."""
        from airflow_cdc_provider.triggers.vitess import VitessLagTrigger

        return VitessLagTrigger(max_lag_seconds=self.max_lag_seconds, **self.trigger_arguments())


class VitessReshardSensor(_VStreamSensor):
    """Waits until no reshard is in progress and the capture has switched to the serving shards.

    Then no row is in two shards, so whole tables can be compared or copied, and the old shards may be
    deleted. Before the first capture only the reshard counts.

    XCom: ``resharding`` (shards that have tablets and share keys: the source and the target shards),
    ``serving`` (the serving shards), ``missing`` (serving shards without a position in the stored offset).

    Args:
        connector: The connector, its declaration as a mapping, or the path of its YAML file (templated).
        vitess_conn_id: Connection to use instead of the declared one (templated).
        kwargs: As for :class:`~airflow_cdc_provider.sensors.observing.ObservingSensor`.
    """

    def __init__(self, *, poke_interval: float = 30.0, **kwargs: Any) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)

    def trigger(self, context: Context) -> VitessReshardTrigger:
        """Return the trigger."""
        from airflow_cdc_provider.triggers.vitess import VitessReshardTrigger

        return VitessReshardTrigger(**self.trigger_arguments())
