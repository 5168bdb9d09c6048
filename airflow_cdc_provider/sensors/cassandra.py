"""Sensors of a Cassandra node's ``cdc_raw`` folder.

They list folders, so the worker, or the triggerer if deferred, must have access to them: on the node itself,
mounted, or as the landing folder of
:class:`~airflow_cdc_provider.operators.transfer.CommitLogTransferOperator`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.connector.declaration import ConnectorLike, to_connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.feeds.cassandra import NodeSettings
from airflow_cdc_provider.links.connector import ConnectorAssetsLink
from airflow_cdc_provider.sensors.observing import ObservingSensor
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.plugin import options_of
from airflow_cdc_provider.tasks.parameters import to_integer, to_number
from airflow_cdc_provider.tasks.state import stored_offset, with_state
from airflow_cdc_provider.tasks.stats import Stats

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_cdc_provider.triggers.cassandra import CdcRawNewSegmentsTrigger, CdcRawSpaceTrigger
    from airflow_cdc_provider.triggers.observing import Given


_GAUGES: Final = (
    "used_bytes",
    "used_ratio",
    "total_bytes",
    "bytes_per_second",
    "seconds_to_full",
    "segments",
    "oldest_seconds",
    "unread_segments",
    "oldest_unread_seconds",
)


class CdcRawSpaceSensor(ObservingSensor):
    """Waits until ``cdc_raw`` exceeds a limit, or soon will: time to capture before writes fail.

    XCom: ``used_bytes``, ``total_bytes``, ``used_ratio``, ``bytes_per_second``, ``seconds_to_full``,
    ``segments``, ``oldest_seconds``, ``host`` of the node that exceeds a limit; with ``connector`` also
    ``unread_segments`` and ``oldest_unread_seconds``. The same numbers are gauges ``cdc.cdc_raw.*``.

    Args:
        cdc_raw: A node's ``cdc_raw``, or a folder with one per node (templated); default: that of
            ``cassandra_yaml``.
        cassandra_yaml: Path of a node's ``cassandra.yaml``, which has the folder and the limit (templated).
        total_space_bytes: A node's limit; default: that of ``cassandra_yaml``, else Cassandra's default, the
            lesser of 4096 MiB and an eighth of the volume.
        max_used_ratio: Succeed at this fraction of the limit (templated); None to ignore it.
        max_used_bytes: Succeed at this number of bytes (templated); None to ignore it.
        min_seconds_to_full: Succeed if it will be full in less than this, at the rate of the last 15 minutes
            (templated); None to ignore it.
        connector: The connector whose stored offset defines which segments were captured, its declaration as
            a mapping, or the path of its YAML file (templated); None if unknown.
        host_id: Host id in the offset of the node whose segments are directly in the folder (templated);
            default: the connector's ``source.node``.
        max_unread_seconds: Succeed if the oldest segment that wasn't captured to its end is older than this
            (templated); needs ``connector``; None to ignore it.
        kwargs: As for :class:`~airflow_cdc_provider.sensors.observing.ObservingSensor`.
    """

    template_fields: Sequence[str] = (
        "cdc_raw",
        "cassandra_yaml",
        "max_used_ratio",
        "max_used_bytes",
        "min_seconds_to_full",
        "connector",
        "host_id",
        "max_unread_seconds",
    )

    def __init__(
        self,
        *,
        cdc_raw: str | None = None,
        cassandra_yaml: str | None = None,
        total_space_bytes: int | None = None,
        max_used_ratio: float | str | None = 0.5,
        max_used_bytes: int | str | None = None,
        min_seconds_to_full: float | str | None = None,
        connector: ConnectorLike | None = None,
        host_id: str | None = None,
        max_unread_seconds: float | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**(kwargs if connector is None else with_state(connector, kwargs)))
        self.cdc_raw = cdc_raw
        self.cassandra_yaml = cassandra_yaml
        self.total_space_bytes = total_space_bytes
        self.max_used_ratio = max_used_ratio
        self.max_used_bytes = max_used_bytes
        self.min_seconds_to_full = min_seconds_to_full
        self.connector = connector
        self.host_id = host_id
        self.max_unread_seconds = max_unread_seconds

    def trigger(self, context: Context) -> CdcRawSpaceTrigger:
        """Return the trigger; it polls no more often than the node's own checks."""
        from airflow_cdc_provider.triggers.cassandra import CdcRawSpaceTrigger

        folder, total, at_least = self.cdc_raw, self.total_space_bytes, 0.0
        if self.cassandra_yaml:
            node = NodeSettings.read(self.cassandra_yaml)
            if not node.enabled:
                raise ConfigurationError(
                    f"{self.cassandra_yaml} doesn't enable CDC", expected="cdc_enabled: true"
                )
            folder, total = folder or node.cdc_raw, total or node.total_bytes
            at_least = node.check_interval_seconds
        if not folder:
            raise ConfigurationError(
                "the cdc_raw folder is missing",
                expected="cdc_raw, or cassandra_yaml with cdc_raw_directory",
            )
        limits = ("max_used_ratio", "min_seconds_to_full", "max_unread_seconds")
        most = {limit: to_number(limit, getattr(self, limit)) for limit in limits}
        size = to_integer("max_used_bytes", self.max_used_bytes)
        if {size, *most.values()} == {None}:
            raise ConfigurationError("no limit is set", expected=" or ".join([*limits, "max_used_bytes"]))
        connector = None if self.connector is None else to_connector(self.connector)
        if connector is None and most["max_unread_seconds"] is not None:
            raise ConfigurationError("max_unread_seconds needs the offset of capture", expected="connector")
        declared = options_of(connector, CassandraOptions).node if connector else ""
        return CdcRawSpaceTrigger(
            cdc_raw=folder,
            total_space_bytes=total,
            max_used_bytes=size,
            **most,
            connector=connector.name if connector else "",
            node=self.host_id or declared,
            poll_seconds=max(self.poke_interval, at_least),
        )

    def given(self, context: Context) -> Given:
        """Return the stored offset, if a connector is given."""
        from airflow_cdc_provider.triggers.observing import Given

        if self.connector is None:
            return Given()
        return Given(offset=stored_offset(context, to_connector(self.connector)))

    def seen(self, value: Mapping[str, Any]) -> None:
        """Emit gauges."""
        own = {} if self.connector is None else to_connector(self.connector).tags
        tags = {**own, "host": value.get("host") or "node"}
        for name in _GAUGES:
            if value.get(name) is not None:
                Stats.gauge(f"cdc.cdc_raw.{name}", value[name], tags=tags)


class CdcRawNewSegmentsSensor(ObservingSensor):
    """Waits until there are durable changes after the connector's stored offset.

    XCom: ``new_segments`` and their number per host.

    Args:
        connector: The connector, its declaration as a mapping, or the path of its YAML file (templated).
        cdc_raw: Folder to check instead of the connector's (templated).
        completed_only: Only count segments that the node has finished.
        kwargs: As for :class:`~airflow_cdc_provider.sensors.observing.ObservingSensor`.
    """

    template_fields: Sequence[str] = ("connector", "cdc_raw")
    operator_extra_links = (ConnectorAssetsLink(),)

    def __init__(
        self,
        *,
        connector: ConnectorLike,
        cdc_raw: str | None = None,
        completed_only: bool = False,
        poke_interval: float = 10.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **with_state(connector, kwargs))
        self.connector = connector
        self.cdc_raw = cdc_raw
        self.completed_only = completed_only

    def trigger(self, context: Context) -> CdcRawNewSegmentsTrigger:
        """Return the trigger."""
        from airflow_cdc_provider.triggers.cassandra import CdcRawNewSegmentsTrigger

        connector = to_connector(self.connector)
        options = options_of(connector, CassandraOptions)
        folder = self.cdc_raw or options.cdc_raw
        if not folder:
            raise ConfigurationError(
                f"connector {connector.name} has no segment folder", expected="option source.cdc_raw"
            )
        return CdcRawNewSegmentsTrigger(
            cdc_raw=folder,
            connector=connector.name,
            node=options.node,
            completed_only=self.completed_only,
            poll_seconds=self.poke_interval,
        )

    def given(self, context: Context) -> Given:
        """Return the stored offset."""
        from airflow_cdc_provider.triggers.observing import Given

        return Given(offset=stored_offset(context, to_connector(self.connector)))
