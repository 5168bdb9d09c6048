"""The operator that brings a Cassandra node's segments to where Spark can read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from airflow.providers.common.compat.sdk import BaseOperator, Stats

from airflow_cdc_provider.assets import changes_asset
from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, PositionLost, TransientError
from airflow_cdc_provider.hooks.commit_log_offset import is_passed
from airflow_cdc_provider.hooks.failures import for_airflow
from airflow_cdc_provider.hooks.parameters import one_of, to_flag, to_mapping, to_number
from airflow_cdc_provider.hooks.source import ConnectorLike, to_connector
from airflow_cdc_provider.hooks.state import stored_offset
from airflow_cdc_provider.links.connector import ConnectorAssetsLink
from airflow_cdc_provider.operators.run_folder import unwritable
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
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

_S3: Final = "s3://"
_LAYOUTS: Final = ("whole", "chunks")


class CommitLogTransferOperator(BaseOperator):
    """Brings a node's new and grown segments to ``<landing>/<host id>`` and clears away those captured.

    A reader of the landing folder never sees half a segment, nor an idx ahead of its data; a killed run is
    made good by the next. Segments that can't be brought go to ``<landing>/errors/<host id>`` with the reason
    and don't keep the others.

    XCom: ``copied``, ``copied_bytes``, ``unchanged``, ``vanished``, ``deleted``, ``archived``, ``errors``,
    ``failed``, ``lost``; the same are metrics ``cdc.transfer.*``.

    Args:
        connector: The connector, its declaration as a mapping, or the path of its YAML file (templated).
        cdc_raw: Where the segments are (templated): the node's ``cdc_raw``, as a folder of the worker, or of
            the node, with ``ssh_conn_id``; or ``s3://bucket/prefix``, where ``cdc-shipper`` puts them, a
            folder per host id; None where something else brings them, to clear away only.
        layout: ``whole``, or ``chunks`` where ``cdc-shipper`` puts chunks into a folder, below it one per
            host id; ``s3://`` always has chunks.
        host_id: The node's host id, as ``SELECT host_id FROM system.local`` shows it (templated).
        landing: The landing folder (templated); default: the connector's ``cdc_raw``.
        ssh_conn_id: Connection of type ``ssh`` or ``sftp`` through which ``cdc_raw`` is reached.
        aws_conn_id: Connection of type ``aws`` for ``s3://``; default: what boto3 finds by itself.
        after_transfer: ``delete`` frees room in ``cdc_raw`` as soon as a finished segment's copy stands;
            ``keep``.
        after_commit: What becomes of segments that were captured to their end, at both ends: ``delete``,
            ``archive`` (the landing copy moves to ``<archive>/<host id>``) or ``keep``.
        archive: The archive folder (templated), for ``archive``.
        offset: The offset that tells what was captured, as a mapping or JSON (templated), for example a
            sync's XCom; default: the copy in the connector's asset state.
        transfer_class: Dotted path of a subclass of
            :class:`~airflow_cdc_provider.transfer.disposal.CommitLogTransfer`, which takes captured segments
            over and hears of errors.
        transfer_options: Its keyword arguments.
        retry_errors: Bring the segments of the errors folder as they are, for capture to read what is sound
            (templated).
        parallel: Segments brought at once.
        max_bytes_per_second: Bandwidth, all of them together (templated); None or 0 for no limit.
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
    operator_extra_links = (ConnectorAssetsLink(),)
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
        if not (isinstance(connector, str) and "{{" in connector):
            kwargs["inlets"] = [*(kwargs.get("inlets") or ()), changes_asset(to_connector(connector))]
        super().__init__(**kwargs)
        self.connector = connector
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

    def execute(self, context: Context) -> dict[str, int]:
        """Transfer once.

        Raises:
            AirflowFailException: A folder, a connection or an option is wrong; or the node dropped segments
                before they were brought, so that changes are lost.
            CdcError: What a retry may get over: a full disk, a lost connection, another transfer of the node.
        """
        try:
            return self._transfer(context)
        except CdcError as error:
            raise for_airflow(error) from None

    def _transfer(self, context: Context) -> dict[str, int]:
        one_of("after_transfer", self.after_transfer, AFTER_TRANSFER)
        one_of("after_commit", self.after_commit, AFTER_COMMIT)
        one_of("layout", self.layout, _LAYOUTS)
        connector = to_connector(self.connector)
        landing = self._landing(connector)
        self._refuse_contradictions()
        if self.after_transfer == self.after_commit == "keep":
            self.log.warning(
                "Nothing clears %s away: both after_transfer and after_commit are keep. When it is full, "
                "Cassandra refuses writes to tables with CDC",
                self.cdc_raw or landing,
            )
        with ExitStack() as opened:
            source = self._source(landing, opened)
            counts = self._run(context, connector, landing, source)
        self._tell(connector, counts)
        if counts.lost:
            raise PositionLost(
                f"node {self.host_id} dropped {counts.lost} segments before their ends were brought",
                expected="cdc_block_writes: true, or transfers often enough",
                found=f"what is left of them, in {Path(landing, ERRORS, self.host_id)}",
                remedy="reset the offset and sync, which takes new snapshots: airflow cdc offsets reset",
            )
        if counts.failed:
            raise TransientError(
                f"{counts.failed} segments of node {self.host_id} were not brought or taken over",
                found="the reasons, above in this log",
                remedy="the next try goes on with them",
            )
        return dict(vars(counts))

    def _refuse_contradictions(self) -> None:
        """Refuse arguments that would do nothing: who gives an archive doesn't want segments deleted."""
        if self.after_commit == "archive" and not self.archive:
            raise ConfigurationError("the archive folder is not known", expected="archive")
        if self.archive and self.after_commit != "archive":
            raise ConfigurationError(
                "nothing would go to the archive",
                expected="after_commit archive",
                found=f"archive {self.archive} and after_commit {self.after_commit}",
            )
        if not self.cdc_raw and to_flag("retry_errors", self.retry_errors):
            raise ConfigurationError(
                "retry_errors needs the place that segments come from",
                expected="cdc_raw",
                remedy="without it captured segments are cleared away, and nothing is brought",
            )
        if self.ssh_conn_id and (self.cdc_raw or _S3).startswith(_S3):
            raise ConfigurationError(
                "ssh_conn_id leads to a folder", expected="a folder as cdc_raw", found=repr(self.cdc_raw)
            )

    def _landing(self, connector: Connector) -> str:
        if not isinstance(connector.source, CassandraOptions):
            raise ConfigurationError(
                f"connector {connector.name} has no segments",
                expected="source.type cassandra",
                found=connector.type,
            )
        landing = self.landing or connector.source.cdc_raw
        if not landing or not self.host_id:
            raise ConfigurationError(
                "the landing folder is not known", expected="landing, or option source.cdc_raw; and host_id"
            )
        require_host_id(self.host_id)
        if landing.startswith(_S3):
            raise ConfigurationError(
                "a bucket can't be the landing folder",
                expected="a folder that Spark's executors see",
                found=landing,
                remedy="name the bucket as cdc_raw; segments are brought from it to the landing folder",
            )
        return landing

    def _source(self, landing: str, opened: ExitStack) -> Source | None:
        if not self.cdc_raw:
            return None
        if self.cdc_raw.startswith(_S3):
            from airflow_cdc_provider.hooks.stores import s3_store

            bucket = s3_store(self.aws_conn_id, f"{self.cdc_raw.rstrip('/')}/{self.host_id}")
            return ChunkedSegments(bucket, self.host_id)
        folder = Path(self.cdc_raw, self.host_id) if self.layout == "chunks" else Path(self.cdc_raw)
        store: Store = FolderStore(folder)
        if self.ssh_conn_id:
            from airflow_cdc_provider.hooks.stores import SftpStore

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
            passed=lambda segment: is_passed(segment, offset),
            archive=self._segments(self.archive) if self.archive else None,
            errors=self._segments(str(Path(landing, ERRORS))),
            retry_errors=to_flag("retry_errors", self.retry_errors),
            transfer_class=load_transfer(self.transfer_class, dict(self.transfer_options or {}))
            if self.transfer_class
            else None,
            parallel=self.parallel,
            pace=Pace(limit or None, self.log.info),
        )
        try:
            return transfer.run()
        except OSError as error:
            raise unwritable(Path(error.filename or landing), error) from error

    def _segments(self, folder: str) -> WholeSegments:
        return WholeSegments(FolderStore(Path(folder, self.host_id)), self.host_id)

    def _tell(self, connector: Connector, counts: TransferCounts) -> None:
        tags = {**connector.tags, "host": self.host_id}
        for name, count in vars(counts).items():
            Stats.incr(f"cdc.transfer.{name}", count, tags=tags)
        self.log.info("Segments of node %s: %s", self.host_id, vars(counts))
