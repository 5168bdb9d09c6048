"""Operator that copies a Cassandra node's commit-log segments to a folder that Spark can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from airflow_cdc_provider.connector.declaration import ConnectorLike, to_connector
from airflow_cdc_provider.exceptions import ConfigurationError, PositionLost, TransientError
from airflow_cdc_provider.feeds.cassandra_offset import is_captured
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.operators._on_connector import ConnectorOperator
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.plugin import options_of
from airflow_cdc_provider.tasks.parameters import one_of, to_flag, to_mapping, to_number
from airflow_cdc_provider.tasks.run_folder import unwritable
from airflow_cdc_provider.tasks.state import stored_offset, with_state
from airflow_cdc_provider.tasks.stats import Stats
from airflow_cdc_provider.transfer.chunks import ChunkedSegments
from airflow_cdc_provider.transfer.disposal import load_transfer
from airflow_cdc_provider.transfer.errors import ERRORS
from airflow_cdc_provider.transfer.layout import Source
from airflow_cdc_provider.transfer.pace import Pace
from airflow_cdc_provider.transfer.segments import require_host_id
from airflow_cdc_provider.transfer.stores import FolderStore, Store
from airflow_cdc_provider.transfer.transfer import (
    AFTER_COMMIT,
    AFTER_TRANSFER,
    AfterCommit,
    AfterTransfer,
    Transfer,
    TransferCounts,
)
from airflow_cdc_provider.transfer.whole import WholeSegments

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_cdc_provider.connector import Connector

_log = logger("airflow_cdc_provider.operators")


_S3: Final = "s3://"
_LAYOUTS: Final = ("whole", "chunks")


class CommitLogTransferOperator(ConnectorOperator):
    """Copies a node's new and grown segments to ``<landing>/<host id>``, and disposes of captured ones.

    A reader of the landing folder never sees a partial segment, nor an idx ahead of its data. The next run
    completes a killed one. Segments that can't be copied are moved to ``<landing>/errors/<host id>`` with the
    reason, and don't block the others.

    XCom: ``copied``, ``copied_bytes``, ``unchanged``, ``vanished``, ``deleted``, ``archived``, ``errors``,
    ``failed``, ``lost``; the same are metrics ``cdc.transfer.*``.

    Args:
        connector: The connector, its declaration as a mapping, or the path of its YAML file (templated).
        cdc_raw: Source of the segments (templated): the node's ``cdc_raw``, as a folder of the worker, or of
            the node with ``ssh_conn_id``; or ``s3://bucket/prefix``, to which ``cdc-shipper`` writes, with a
            folder per host id; None if another program copies them, to dispose of captured ones only.
        layout: ``whole``, or ``chunks`` if ``cdc-shipper`` writes chunks to a folder, with a subfolder per
            host id; ``s3://`` always has chunks.
        host_id: The node's host id, as returned by ``SELECT host_id FROM system.local`` (templated).
        landing: The landing folder (templated); default: the connector's ``cdc_raw``.
        ssh_conn_id: Connection of type ``ssh`` or ``sftp`` through which ``cdc_raw`` is reached.
        aws_conn_id: Connection of type ``aws`` for ``s3://``; default: boto3's own credentials.
        after_transfer: ``delete`` frees space in ``cdc_raw`` as soon as a finished segment is copied;
            ``keep``.
        after_commit: What to do with segments that were captured to their end, at both ends: ``delete``,
            ``archive`` (move the landing copy to ``<archive>/<host id>``) or ``keep``.
        archive: The archive folder (templated), for ``archive``.
        offset: The offset of capture, as a mapping or JSON (templated), for example a sync's XCom; default:
            the copy in the connector's asset state.
        transfer_class: Dotted path of a subclass of
            :class:`~airflow_cdc_provider.transfer.disposal.CommitLogTransfer`, which receives captured
            segments and errors.
        transfer_options: Its keyword arguments.
        retry_errors: Copy the segments of the errors folder unchanged, so that capture reads their intact
            part (templated).
        parallel: The number of segments copied at once.
        max_bytes_per_second: Total bandwidth (templated); None or 0 for no limit.
    """

    template_fields: Sequence[str] = (
        "connector",
        "cdc_raw",
        "host_id",
        "landing",
        "archive",
        "offset",
        "retry_errors",
        "max_bytes_per_second",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"connector": "json", "offset": "json"}
    ui_color = "#f0ead6"

    def __init__(
        self,
        *,
        connector: ConnectorLike,
        cdc_raw: str | None,
        host_id: str,
        landing: str | None = None,
        layout: Literal["whole", "chunks"] = "whole",
        ssh_conn_id: str | None = None,
        aws_conn_id: str | None = None,
        after_transfer: AfterTransfer = "delete",
        after_commit: AfterCommit = "delete",
        archive: str | None = None,
        offset: Mapping[str, Any] | str | None = None,
        transfer_class: str | None = None,
        transfer_options: Mapping[str, Any] | None = None,
        retry_errors: bool | str = False,
        parallel: int = 4,
        max_bytes_per_second: float | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(connector=connector, **with_state(connector, kwargs))
        self.cdc_raw = cdc_raw
        self.host_id = host_id
        self.landing = landing
        self.layout = layout
        self.ssh_conn_id = ssh_conn_id
        self.aws_conn_id = aws_conn_id
        self.after_transfer = after_transfer
        self.after_commit = after_commit
        self.archive = archive
        self.offset = offset
        self.transfer_class = transfer_class
        self.transfer_options = transfer_options
        self.retry_errors = retry_errors
        self.parallel = parallel
        self.max_bytes_per_second = max_bytes_per_second

    def perform(self, context: Context) -> dict[str, int]:
        """Transfer once.

        Raises:
            ConfigurationError: A folder, a connection or an option is invalid.
            PositionLost: The node dropped segments before they were copied, so that changes are lost.
            TransientError: The disk is full, the connection was lost, or another transfer of the node runs.
        """
        one_of("after_transfer", self.after_transfer, AFTER_TRANSFER)
        one_of("after_commit", self.after_commit, AFTER_COMMIT)
        one_of("layout", self.layout, _LAYOUTS)
        connector = to_connector(self.connector)
        landing = self._landing(connector)
        self._refuse_contradictions()
        if self.after_transfer == self.after_commit == "keep":
            _log.warning(
                "Segments in %s are never removed: both after_transfer and after_commit are keep. "
                "When it is full, Cassandra refuses writes to tables with CDC",
                self.cdc_raw or landing,
            )
        with ExitStack() as opened:
            source = self._source(landing, opened)
            counts = self._run(context, connector, landing, source)
        self._report(connector, counts)
        if counts.lost:
            raise PositionLost(
                f"node {self.host_id} dropped {counts.lost} segments before they were completely copied",
                expected="cdc_block_writes: true, or more frequent transfers",
                found=f"their remainders, in {Path(landing, ERRORS, self.host_id)}",
                remedy="reset the offset and sync, which takes new snapshots: airflow cdc offsets reset",
            )
        if counts.failed:
            raise TransientError(
                f"{counts.failed} segments of node {self.host_id} were not copied or handed over",
                found="the reasons above in this log",
                remedy="the next try continues with them",
            )
        return dict(vars(counts))

    def _refuse_contradictions(self) -> None:
        """Refuse arguments that would have no effect: an archive contradicts deleting segments."""
        if self.after_commit == "archive" and not self.archive:
            raise ConfigurationError("the archive folder is missing", expected="archive")
        if self.archive and self.after_commit != "archive":
            raise ConfigurationError(
                "no segment would be archived",
                expected="after_commit archive",
                found=f"archive {self.archive} and after_commit {self.after_commit}",
            )
        if not self.cdc_raw and to_flag("retry_errors", self.retry_errors):
            raise ConfigurationError(
                "retry_errors needs the source of the segments",
                expected="cdc_raw",
                remedy="without cdc_raw the task only disposes of captured segments",
            )
        if self.ssh_conn_id and (self.cdc_raw or _S3).startswith(_S3):
            raise ConfigurationError(
                "ssh_conn_id requires a folder", expected="a folder as cdc_raw", found=repr(self.cdc_raw)
            )

    def _landing(self, connector: Connector) -> str:
        landing = self.landing or options_of(connector, CassandraOptions).cdc_raw
        if not landing or not self.host_id:
            raise ConfigurationError(
                "the landing folder is missing", expected="landing, or option source.cdc_raw; and host_id"
            )
        require_host_id(self.host_id)
        if landing.startswith(_S3):
            raise ConfigurationError(
                "a bucket can't be the landing folder",
                expected="a folder that Spark's executors can read",
                found=landing,
                remedy="name the bucket as cdc_raw; segments are copied from it to the landing folder",
            )
        return landing

    def _source(self, landing: str, opened: ExitStack) -> Source | None:
        if not self.cdc_raw:
            return None
        if self.cdc_raw.startswith(_S3):
            from airflow_cdc_provider.connections.stores import s3_store

            bucket = s3_store(self.aws_conn_id, f"{self.cdc_raw.rstrip('/')}/{self.host_id}")
            return ChunkedSegments(bucket, self.host_id)
        below = [self.host_id] if self.layout == "chunks" else []
        folder = Path(self.cdc_raw, *below)
        store: Store = FolderStore(Path(self.cdc_raw), *below)
        if self.ssh_conn_id:
            from airflow_cdc_provider.connections.stores import SftpStore

            store = SftpStore(self.ssh_conn_id, str(folder))
            opened.callback(store.close)
        elif Path(landing, self.host_id).resolve() == folder.resolve():
            raise ConfigurationError("cdc_raw is the landing folder itself", found=self.cdc_raw)
        elif not folder.is_dir():
            raise ConfigurationError(
                f"folder {folder} can't be read",
                expected="a node's cdc_raw",
                remedy="mount it where this task runs, give the task a queue on the node, or use ssh_conn_id",
            )
        segments = ChunkedSegments if self.layout == "chunks" else WholeSegments
        return segments(store, self.host_id)

    def _run(
        self, context: Context, connector: Connector, landing: str, source: Source | None
    ) -> TransferCounts:
        offset = to_mapping("offset", self.offset) or stored_offset(context, connector)
        limit = to_number("max_bytes_per_second", self.max_bytes_per_second)
        transfer = Transfer(
            source=source,
            target=self._segments(landing),
            after_transfer=self.after_transfer,
            after_commit=self.after_commit,
            is_captured=lambda segment: is_captured(segment, offset),
            archive=self._segments(self.archive) if self.archive else None,
            errors=self._segments(landing, ERRORS),
            retry_errors=to_flag("retry_errors", self.retry_errors),
            transfer_class=load_transfer(self.transfer_class, dict(self.transfer_options or {}))
            if self.transfer_class
            else None,
            parallel=self.parallel,
            pace=Pace(limit or None, _log.info),
        )
        try:
            return transfer.run()
        except OSError as error:
            raise unwritable(Path(error.filename or landing), error) from error

    def _segments(self, folder: str, *below: str) -> WholeSegments:
        return WholeSegments(FolderStore(Path(folder), *below, self.host_id), self.host_id)

    def _report(self, connector: Connector, counts: TransferCounts) -> None:
        tags = {**connector.tags, "host": self.host_id}
        for name, count in vars(counts).items():
            Stats.incr(f"cdc.transfer.{name}", count, tags=tags)
        _log.info("Segments of node %s: %s", self.host_id, vars(counts))
