"""Sensors of the lag and the streams of a ScyllaDB cluster's logs. No check reads a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sensors.feed import FeedSensor
from airflow_cdc_provider.sources.plugin import options_of
from airflow_cdc_provider.sources.scylla.options import ScyllaOptions
from airflow_cdc_provider.tasks.stats import Stats

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.triggers.scylla import ScyllaGenerationTrigger, ScyllaLagTrigger


class _LogSensor(FeedSensor):
    """Compares the cluster's logs with the connector's stored offset."""

    template_fields: Sequence[str] = ("connector", "scylla_conn_id")
    source_options = ScyllaOptions
    continues_after_loss = True

    def __init__(self, *, scylla_conn_id: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scylla_conn_id = scylla_conn_id

    @property
    def own_conn_id(self) -> str | None:
        """Connection to use instead of the declared one."""
        return self.scylla_conn_id

    @property
    def options(self) -> ScyllaOptions:
        """The source's options."""
        return options_of(self.own_connector(), ScyllaOptions)

    def feed(self, connector: Connector) -> dict[str, Any]:
        """Return the system keyspaces to query."""
        advanced = self.options.advanced
        names = ("distributed_keyspace", "system_keyspace", "schema_keyspace")
        return {name: getattr(advanced, name) for name in names}


class ScyllaLagSensor(_LogSensor):
    """Waits until no group of streams of any table is more than ``max_lag_seconds`` behind the clock.

    The lag is that of the group that is furthest behind, by the clock of the node with the slowest clock.

    XCom: ``lag_seconds`` (of that group; null before the first capture), ``table`` (its table), ``tables``
    (by table ``seconds``, the lag of its slowest group; ``group``, that group's name, empty if all groups are
    at the same position; ``ahead``, the lag of the groups that are further ahead; ``generation``, the start
    of the streams that are read, ms since 1970), ``lost`` (tables whose logs have expired past the offset;
    the sensor fails then, unless the connector's runs recover automatically).

    Args:
        connector: The connector, its declaration as a mapping, or the path of its YAML file (templated).
        max_lag_seconds: The greatest allowed lag, more than ``source.confidence_window_seconds``.
        scylla_conn_id: Connection to use instead of the declared one (templated).
        kwargs: As for :class:`~airflow_cdc_provider.sensors.observing.ObservingSensor`.
    """

    def __init__(self, *, max_lag_seconds: float, poke_interval: float = 30.0, **kwargs: Any) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.max_lag_seconds = max_lag_seconds

    def seen(self, value: Mapping[str, Any]) -> None:
        """Emit the lag, and that of each table."""
        super().seen(value)
        tags = self.own_connector().tags
        for table, lag in value["tables"].items():
            Stats.gauge("cdc.table_lag_seconds", lag["seconds"], tags={**tags, "table": table})

    def trigger(self, context: Context) -> ScyllaLagTrigger:
        """Return the trigger.

        Raises:
            ConfigurationError: No capture can reach this lag.
        """
        from airflow_cdc_provider.triggers.scylla import ScyllaLagTrigger

        least = self.options.confidence_window_seconds
        if self.max_lag_seconds <= least:
            raise ConfigurationError(
                "max_lag_seconds is too small",
                expected=f"more than source.confidence_window_seconds, {least:g}: logs are read up to that "
                "far behind the clock",
                found=f"{self.max_lag_seconds:g}",
            )
        return ScyllaLagTrigger(max_lag_seconds=self.max_lag_seconds, **self.trigger_arguments())


class ScyllaGenerationSensor(_LogSensor):
    """Waits until there are streams that the capture hasn't switched to.

    With vnodes that is a new generation, because a node joined or left; with tablets a new stream set of a
    table, because its tablets were split or merged. It may be announced before it starts. Runs switch
    automatically. Before the first capture the sensor waits.

    XCom: ``changed`` (the tables with such streams), ``tables`` (by table ``generation``, the start of the
    streams that are read, and ``newest``, the start of the newest ones, ms since 1970).

    Args:
        connector: The connector, its declaration as a mapping, or the path of its YAML file (templated).
        scylla_conn_id: Connection to use instead of the declared one (templated).
        kwargs: As for :class:`~airflow_cdc_provider.sensors.observing.ObservingSensor`.
    """

    def __init__(self, *, poke_interval: float = 30.0, **kwargs: Any) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)

    def trigger(self, context: Context) -> ScyllaGenerationTrigger:
        """Return the trigger."""
        from airflow_cdc_provider.triggers.scylla import ScyllaGenerationTrigger

        return ScyllaGenerationTrigger(**self.trigger_arguments())
