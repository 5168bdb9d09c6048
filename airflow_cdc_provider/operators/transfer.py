"""The operator that brings a Cassandra node's segments to where Spark can read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.providers.common.compat.sdk import BaseOperator, Stats

from airflow_cdc_provider.assets import changes_asset
from airflow_cdc_provider.exceptions import CdcError, ConfigurationError
from airflow_cdc_provider.hooks.failures import for_airflow
from airflow_cdc_provider.hooks.source import ConnectorLike, to_connector
from airflow_cdc_provider.hooks.state import stored_offset
from airflow_cdc_provider.links.connector import ConnectorAssetsLink
from airflow_cdc_provider.operators.parameters import one_of, to_mapping
from airflow_cdc_provider.operators.run_folder import unwritable
from airflow_cdc_provider.operators.segment_transfer import AfterCommit, AfterTransfer, Transfer
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

_AFTER_TRANSFER: Final = ("keep", "delete")
_AFTER_COMMIT: Final = ("keep", "delete", "archive")


class CommitLogTransferOperator(BaseOperator):
    """Copies a node's new and grown segments to ``<landing>/<host id>`` and clears away those captured.

    Both folders are local paths of the worker (a queue on the node, or mounts). A reader of the landing
    folder never sees half a segment, nor an idx ahead of its data; a killed run is made good by the next.

    XCom: ``copied``, ``copied_bytes``, ``unchanged``, ``vanished``, ``deleted``, ``archived``.

    Args:
        connector: The connector, its declaration as a mapping, or the path of its YAML file (templated).
        cdc_raw: The node's ``cdc_raw`` (templated).
        host_id: The node's host id, as ``SELECT host_id FROM system.local`` shows it (templated).
        landing: The landing folder (templated); default: the connector's ``cdc_raw``.
        after_transfer: ``delete`` frees room in ``cdc_raw`` as soon as a finished segment's copy stands;
            ``keep``.
        after_commit: What becomes of segments that were captured to their end, in both folders: ``delete``,
            ``archive`` (the landing copy moves to ``<archive>/<host id>``) or ``keep``.
        archive: The archive folder (templated), for ``archive``.
        offset: The offset that tells what was captured, as a mapping or JSON (templated), for example a
            sync's XCom; default: the copy in the connector's asset state.
    """

    template_fields: Sequence[str] = ("connector", "cdc_raw", "host_id", "landing", "archive", "offset")
    template_fields_renderers: ClassVar[dict[str, str]] = {"connector": "json", "offset": "json"}
    operator_extra_links = (ConnectorAssetsLink(),)
    ui_color = "#f0ead6"

    def __init__(
        self,
        *,
        connector: ConnectorLike,
        cdc_raw: str,
        host_id: str,
        landing: str | None = None,
        after_transfer: AfterTransfer = "delete",
        after_commit: AfterCommit = "delete",
        archive: str | None = None,
        offset: Mapping[str, Any] | str | None = None,
        **kwargs: Any,
    ) -> None:
        if not (isinstance(connector, str) and "{{" in connector):
            kwargs["inlets"] = [*(kwargs.get("inlets") or ()), changes_asset(to_connector(connector))]
        super().__init__(**kwargs)
        self.connector = connector
        self.cdc_raw = cdc_raw
        self.host_id = host_id
        self.landing = landing
        self.after_transfer = after_transfer
        self.after_commit = after_commit
        self.archive = archive
        self.offset = offset

    def execute(self, context: Context) -> dict[str, int]:
        """Transfer once.

        Raises:
            AirflowFailException: A folder or an option is wrong.
            CdcError: What a retry may get over: a full disk, another transfer of the node.
        """
        try:
            return self._transfer(context)
        except CdcError as error:
            raise for_airflow(error) from None

    def _transfer(self, context: Context) -> dict[str, int]:
        one_of("after_transfer", self.after_transfer, _AFTER_TRANSFER)
        one_of("after_commit", self.after_commit, _AFTER_COMMIT)
        connector = to_connector(self.connector)
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
        if self.after_commit == "archive" and not self.archive:
            raise ConfigurationError("the archive folder is not known", expected="archive")
        if Path(landing, self.host_id).resolve() == Path(self.cdc_raw).resolve():
            raise ConfigurationError("cdc_raw is the landing folder itself", found=self.cdc_raw)
        transfer = Transfer(
            cdc_raw=Path(self.cdc_raw),
            landing=Path(landing, self.host_id),
            host=self.host_id,
            offset=to_mapping("offset", self.offset) or stored_offset(context, connector),
            after_transfer=self.after_transfer,
            after_commit=self.after_commit,
            archive=Path(self.archive, self.host_id) if self.archive else None,
        )
        try:
            counts = vars(transfer.run())
        except OSError as error:
            raise unwritable(Path(error.filename or landing), error) from error
        tags = {"connector": connector.name, "host": self.host_id}
        for name, count in counts.items():
            Stats.incr(f"cdc.transfer.{name}", count, tags=tags)
        self.log.info("Segments of node %s: %s", self.host_id, counts)
        return dict(counts)
