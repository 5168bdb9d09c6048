"""Sensor of the health of a connector's continuous application."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.connector.declaration import ConnectorLike, to_connector
from airflow_cdc_provider.links.connector import ConnectorAssetsLink
from airflow_cdc_provider.sensors.observing import ObservingSensor
from airflow_cdc_provider.tasks.debezium_gauges import emit_debezium_gauges
from airflow_cdc_provider.tasks.parameters import to_number
from airflow_cdc_provider.tasks.stats import Stats
from airflow_cdc_provider.tasks.work_folder import stream_folder

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_cdc_provider.triggers.stream import StreamHealthTrigger


class CdcStreamHealthSensor(ObservingSensor):
    """Monitors a continuous application; succeeds when it stops normally, or after ``watch_seconds``.

    It fails if the application failed, is dead, is silent or is too far behind; a retry monitors it again.

    Args:
        connector: The connector, its declaration as a mapping, or the path of its YAML file (templated).
        watch_seconds: Succeed after this time (templated); None to monitor it until the application ends.
        max_lag_seconds: The greatest allowed lag; None for no limit.
        heartbeat_timeout_seconds: The longest allowed time between heartbeats: longer than the longest round.
        stop_on_kill: Stop the application if a user kills the waiting task.
        work_folder: The work folder of the operator that started it (templated).
        kwargs: As for :class:`~airflow_cdc_provider.sensors.observing.ObservingSensor`.
    """

    template_fields: Sequence[str] = ("connector", "work_folder", "watch_seconds")
    operator_extra_links = (ConnectorAssetsLink(),)

    def __init__(
        self,
        *,
        connector: ConnectorLike,
        watch_seconds: float | str | None = None,
        max_lag_seconds: float | None = None,
        heartbeat_timeout_seconds: float = 900.0,
        stop_on_kill: bool = False,
        work_folder: str | None = None,
        poke_interval: float = 30.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.connector = connector
        self.watch_seconds = watch_seconds
        self.max_lag_seconds = max_lag_seconds
        self.heartbeat_timeout_seconds = heartbeat_timeout_seconds
        self.stop_on_kill = stop_on_kill
        self.work_folder = work_folder

    def trigger(self, context: Context) -> StreamHealthTrigger:
        """Return the trigger."""
        from airflow_cdc_provider.triggers.stream import StreamHealthTrigger

        until = None
        seconds = to_number("watch_seconds", self.watch_seconds)
        if seconds is not None:
            instance: Any = context["ti"]
            first = instance.get_first_reschedule_date(context) if self.reschedule else None
            until = (first or instance.start_date or datetime.now(UTC)).timestamp() + seconds
        return StreamHealthTrigger(
            folder=str(stream_folder(self.work_folder, to_connector(self.connector).name).path),
            heartbeat_timeout_seconds=self.heartbeat_timeout_seconds,
            max_lag_seconds=self.max_lag_seconds,
            watch_until=until,
            stop_on_kill=self.stop_on_kill,
            poll_seconds=self.poke_interval,
        )

    def on_kill(self) -> None:
        """Stop the application if ``stop_on_kill``."""
        if self.stop_on_kill:
            stream_folder(self.work_folder, to_connector(self.connector).name).request_stop()

    def seen(self, value: Mapping[str, Any]) -> None:
        """Emit the lag, and the application's metrics by Debezium's names."""
        connector = to_connector(self.connector)
        if value.get("lag_seconds") is not None:
            Stats.gauge("cdc.lag_seconds", value["lag_seconds"], tags=connector.tags)
        emit_debezium_gauges(connector, value.get("metrics", {}))
