"""The Cassandra source: commit-log segments from cdc_raw, schemas and snapshots over CQL; or all from files.

With a connection, the schema is read from the cluster; offline, from ``schema_file`` or the log itself.
Segments are read from ``cdc_raw`` either way. Dropped tables are known from the schema history
(:mod:`.schema_history`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pyarrow as pa

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.exceptions import (
    CdcError,
    ConfigurationError,
    PositionLost,
    SchemaUnknown,
    TransientError,
)
from airflow_cdc_provider.formats.kernels import Flags
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.sources.cassandra import capture
from airflow_cdc_provider.sources.cassandra.check import (
    check_folder,
    check_segments,
    check_source,
    node_settings,
)
from airflow_cdc_provider.sources.cassandra.codec import CassandraCodec, recall_codec
from airflow_cdc_provider.sources.cassandra.commit_log.encryption import Keys, open_keys
from airflow_cdc_provider.sources.cassandra.commit_log.segments import ONLY_NODE
from airflow_cdc_provider.sources.cassandra.commit_log.tables import LogTables, log_tables, schema_tables_only
from airflow_cdc_provider.sources.cassandra.gaps import find_gaps
from airflow_cdc_provider.sources.cassandra.nodes import (
    NodeState,
    host_ids,
    node_states,
    snapshot_position,
    truncation_rows,
)
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.cassandra.position import NodeOffset, read_offset, write_offset
from airflow_cdc_provider.sources.cassandra.quarantine import retry_quarantined
from airflow_cdc_provider.sources.cassandra.reader import SegmentReader, read_segments
from airflow_cdc_provider.sources.cassandra.schema_history import SchemaHistory, observed, read_history
from airflow_cdc_provider.sources.cassandra.views import refusal_of
from airflow_cdc_provider.sources.contract import Finding, Lag, Offset, Plan, ReadLimit, SnapshotPlan, Source
from airflow_cdc_provider.sources.cql.connection import driver_errors, open_session
from airflow_cdc_provider.sources.cql.describe import parse_cql
from airflow_cdc_provider.sources.cql.lake_types import LakeTypes
from airflow_cdc_provider.sources.cql.reasons import MUTATION_CODES
from airflow_cdc_provider.sources.cql.schema import Schemas, TableSchema
from airflow_cdc_provider.sources.cql.snapshot import (
    SnapshotRange,
    SnapshotReader,
    SnapshotReads,
    plan_ranges,
)
from airflow_cdc_provider.sources.cql.system_schema import Row, read_rows, schemas_from_rows
from airflow_cdc_provider.sources.filters import CQL_FUNCTIONS, refused_filter
from airflow_cdc_provider.sources.planned_ranges import PlannedRanges

if TYPE_CHECKING:
    from cassandra.cluster import Session


_NODES_FRESH_SECONDS: Final = 10.0
"""Maximum age of the nodes' states: a snapshot's position may be too early, never too late."""


log = logger(__name__)


class CassandraSource(Source):
    """A Cassandra cluster, or a recording of its commit log.

    Args:
        options: The declaration's source part.
        connection: The Airflow connection's values (:func:`~..cql.connection.open_session`); empty offline.
        selects: Returns whether the declaration selects a table.
        names: Returns whether it has the table's literal name, which a materialized view requires.
        recorded: Whether the segments are a recording that no node writes to.
    """

    has_schema_history = True
    rereads_keys = True
    planned_ranges = PlannedRanges({"tokens": SnapshotRange})

    def __init__(
        self,
        options: CassandraOptions,
        connection: Mapping[str, Any],
        selects: Callable[[str], bool],
        *,
        names: Callable[[str], bool] = lambda table: False,
        recorded: bool = False,
    ) -> None:
        self.options = options
        self._recorded = recorded
        self._connection = dict(connection)
        self._selects = selects
        self._names = names
        self._history = SchemaHistory()
        self._faults: capture.Faults | None = None if recorded else {}
        self._nodes: Sequence[NodeState] = ()
        self._queried_at = -_NODES_FRESH_SECONDS

    def __repr__(self) -> str:
        return f"CassandraSource({self.options!r})"

    def detached(self) -> CassandraSource:
        """Return a copy for other processes, with the same tables and without a connection."""
        copy = CassandraSource(self.options, {}, self._selects, names=self._names, recorded=self._recorded)
        copy._history = self._history
        copy.__dict__["schemas"] = self.schemas
        return copy

    def check(self) -> list[Finding]:
        """Check the cluster, tables, permissions, and cdc_raw."""
        if self._connection:
            findings = list(check_source(self.options, self._connection, self._is_selected, self._names))
        else:
            findings = [Finding("ok", "connection", "none: offline"), *check_folder(self.options, {})]
        if not any(finding.level == "error" and finding.subject == "cdc_raw" for finding in findings):
            findings += check_segments(lambda: self._folder)
        return findings

    def tables(self) -> list[str]:
        """List the selected tables that have or had ``cdc = true``, sorted; views if they are named.

        A table whose flag was switched off keeps its mirror: the log may still have earlier changes. A named
        table or view that can't be captured is listed, too, but nothing of it is read, and it has no codec.
        """
        selected = [t for t in self.schemas.tables.values() if self._is_selected(t)]
        return sorted(t.full_name for t in selected if self._is_captured(t) or self._names(t.full_name))

    def _is_captured(self, table: TableSchema) -> bool:
        return table.cdc or self._history.was_captured(table.id)

    def _refusal(self, table: str) -> ConfigurationError | None:
        if not self._names(table):
            return None
        schema = self._schema(table)
        return refusal_of(schema, captured=self._is_captured(schema))

    def _captured_tables(self) -> list[str]:
        return [table for table in self.tables() if not self._refusal(table)]

    def _capturable(self, table: str) -> TableSchema:
        if refusal := self._refusal(table):
            raise refusal
        return self._schema(table)

    def requires_name(self, table: str) -> bool:
        """Return whether a table is a materialized view."""
        return self._schema(table).view

    def codec(self, table: str, memory: Mapping[str, Any] | None = None) -> CassandraCodec:
        """Return the codec of a table with its current schema.

        Raises:
            ConfigurationError: It is named and can't be captured.
        """
        return self.codec_of(self._capturable(table), memory)

    def codec_of(self, schema: TableSchema, memory: Mapping[str, Any] | None = None) -> CassandraCodec:
        """Return the codec of a schema, which may be that of a dropped table."""
        advanced = self.options.advanced
        return recall_codec(schema, memory, advanced.rules, LakeTypes(advanced.timestamps))

    def head(self) -> Offset:
        """Return the position up to which all nodes' logs are durable.

        The schema and the nodes' truncations are read after it, so they cover all changes before it.
        """
        self._faults = None if self._recorded else {}
        head = capture.head(self._folder, self._faults)
        for cached in ("schemas", "_schema_rows"):
            self.__dict__.pop(cached, None)
        self._query_nodes()
        return head

    def lag(self, offset: Offset | None) -> Lag:
        """Return how much data in cdc_raw is unread."""
        return capture.lag(self._folder, offset)

    def gaps(self, offset: Offset | None) -> tuple[Sequence[PositionLost], Offset]:
        """Find segments that were deleted unread."""
        found, after = find_gaps(self._folder, offset, self._drops_above)
        return [PositionLost(text) for text in found], after

    def validate_offset(self, offset: Offset) -> None:
        """Reject a malformed offset."""
        read_offset(offset)

    def plan(self, start: Offset | None, head: Offset, limit: ReadLimit) -> Plan:
        """Plan the next batch of the segments."""
        plan = capture.plan_segments(self._folder, start, head, limit, self._faults)
        return self._with_truncations(plan)

    def left_out(self) -> Mapping[str, CdcError]:
        """Return the nodes of which a segment can't be read; it is captured once it can."""
        return {
            f"node {origin}": error for origin, error in capture.faults_by_node(self._faults or {}).items()
        }

    def reader(self) -> SegmentReader:
        """Return the reader of segments; it carries the tables and the keys."""
        return SegmentReader(self._log_tables(), self._keys, self._history.full)

    def learn(self, records: pa.Table) -> None:
        """Replay the schema history; offline, the tables that it adds become part of the schema."""
        self._history = read_history(records)
        if not self._connection:
            self.__dict__.pop("schemas", None)

    def learn_from_log(self) -> None:
        """Replay the schema history from all segments, as :meth:`learn` does from records."""
        found: list[pa.RecordBatch] = []
        tables = schema_tables_only()
        offset, stop = None, capture.head(self._folder, self._faults)
        while True:
            plan = capture.plan_segments(self._folder, offset, stop, ReadLimit(), self._faults)
            for part in plan.partitions:
                found += read_segments(replace(part, damage=(), strict=False), tables, keys=self._keys)
            if plan.at_head:
                break
            offset = plan.end
        self.learn(pa.Table.from_batches(found, CHANGE_SCHEMA))

    def schema_records(self) -> Iterator[Mapping[str, Any]]:
        """Build records of the cluster's current schema, if it differs from the last record."""
        if self._connection and self._schema_rows is not None:
            yield from observed(self._schema_rows, self._history, time.time_ns() // 1000)

    def written_while_captured(self, table_id: str, changes: pa.RecordBatch) -> Flags:
        """Return which changes of a table were written while it had ``cdc = true``.

        Segments kept because of other tables contain further changes of the table. Mirrors include them;
        events don't.
        """
        return self._history.captured(table_id, changes["origin"], changes["position"])

    def resumed_at(self, table: str) -> int:
        """Return when ``cdc`` was last switched on again for a table, or may have been, µs; 0 for never."""
        return self._history.resumed_at(self._schema(table))

    def schema_findings(self) -> list[str]:
        """List tables whose writes aren't in the log, and whether the schema is outdated."""
        found = []
        if self._connection and self._schema_rows is None:
            found.append(
                "the cluster doesn't respond: cdc_raw was read with the schema of an earlier run. "
                "Snapshots and unresolved keys are pending"
            )
        keyspaces = {table.keyspace for table in self.schemas.tables.values() if self._is_selected(table)}
        found += [
            f"{keyspace}: its schema had too many changes to record all. Its tables need new snapshots, "
            "which the next run takes as snapshot.mode says. Tables captured only meanwhile are unknown"
            for keyspace in sorted(keyspaces & self._history.incomplete)
        ]
        for name in self._captured_tables():
            schema = self._schema(name)
            if schema.cdc:
                keyspace = self.schemas.keyspaces.get(schema.keyspace)
                if keyspace is not None and not keyspace.durable_writes:
                    found.append(
                        f"{name}: its keyspace has durable_writes = false, so its writes never reach the "
                        "commit log. Set it to true, and take a new snapshot of the table"
                    )
                continue
            off = self._history.off_since(schema.id)
            since = f" since {datetime.fromtimestamp(off / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC" if off else ""
            found.append(
                f"{name} has cdc = false{since}: its mirror is no longer updated. Switch it on again, which "
                "takes a new snapshot, or exclude the table"
            )
        return found

    def may_become_readable(self, reason: str) -> bool:
        """Return whether reading again may succeed: for mutations, but not for corrupt bytes."""
        return reason in MUTATION_CODES

    def quarantine_reader(self) -> Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]:
        """Return the function that reads mutations again with all schemas known now."""
        return partial(retry_quarantined, tables=self._log_tables())

    def former_tables(self) -> list[TableSchema]:
        """List the selected tables that had ``cdc = true`` and were dropped, including re-created ones.

        Their changes in the log are captured under their names.
        """
        known = self.schemas.by_id
        return [
            table
            for table_id, table in self._history.by_id.items()
            if table_id not in known and self._history.was_captured(table_id) and self._is_selected(table)
        ]

    def refused_filter(self, where: str) -> str:
        """Refuse all but comparisons of columns."""
        return refused_filter(where, CQL_FUNCTIONS)

    def plan_snapshot(self, table: str, where: str | None = None) -> SnapshotPlan:
        """Split a table into token ranges; ``where`` is CQL that may follow ``AND``."""
        origin, position = self._snapshot_position(table)
        return plan_ranges(
            self._session,
            self._capturable(table),
            least_ranges=self.options.advanced.ranges_per_snapshot,
            where=where or "",
            origin=origin,
            position=position,
            reads_all_replicas=self.options.consistency == "ALL" and not where,
        )

    def snapshot_reader(self) -> SnapshotReader:
        """Return the reader of token ranges; it carries the connection's values."""
        tables = {name: self._schema(name) for name in self.tables()}
        advanced = self.options.advanced
        reads = SnapshotReads(self.options.consistency, advanced.fetch_size, advanced.request_timeout_seconds)
        return SnapshotReader(self._connection, reads, tables)

    def read_keys(self, table: str, keys: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
        """Read whole partitions again, by their keys, as snapshot changes."""
        origin, position = self._snapshot_position(table)
        return self.snapshot_reader().read_keys(table, keys, origin, position)

    def cluster_name(self) -> str:
        """Return the cluster's name; empty offline, or while the cluster doesn't respond."""
        if not self._connection or self._schema_rows is None:
            return ""
        return str(self._session.cluster.metadata.cluster_name or "")

    def close(self) -> None:
        """Close the connection."""
        if "_session" in self.__dict__:
            self._session.cluster.shutdown()
            del self.__dict__["_session"]

    @cached_property
    def schemas(self) -> Schemas:
        """The schema at the first use after :meth:`head`: from the cluster, or from the file and the log.

        While the cluster doesn't respond, it is the schema of the history.

        Raises:
            ConfigurationError: There is no schema, or the file is missing.
            TransientError: The cluster doesn't respond, and there is no history.
        """
        if self._connection:
            rows = self._schema_rows
            return with_history(Schemas(), self._history) if rows is None else schemas_from_rows(rows)
        if self.options.schema_file:
            return with_history(_read_schema_file(Path(self.options.schema_file)), self._history)
        if not self._history.existing:
            raise ConfigurationError(
                "no schema found",
                expected="a connection, or source.schema_file, or segments in which the tables are created",
                remedy="pass the output of DESCRIBE KEYSPACE ... WITH INTERNALS as --schema",
            )
        return with_history(Schemas(), self._history)

    @cached_property
    def _schema_rows(self) -> Mapping[str, Sequence[Row]] | None:
        """The cluster's schema rows; None if it doesn't respond and the history replaces them."""
        try:
            with driver_errors("reading the schema"):
                return read_rows(self._session)
        except TransientError as error:
            if not self._history.existing:
                raise
            log.warning("using the schema of an earlier run: %s", error)
            return None

    def _is_selected(self, table: TableSchema) -> bool:
        """Return whether the declaration selects a table; a view must be named."""
        return self._selects(table.full_name) and (not table.view or self._names(table.full_name))

    def _log_tables(self) -> LogTables:
        former = [t for table_id, t in self._history.by_id.items() if table_id not in self.schemas.by_id]
        captured = {table.id for table in self.former_tables()}
        # Current values of counters can only be read from the cluster.
        counters = bool(self._connection)
        names = self._captured_tables()
        return log_tables(self.schemas.tables.values(), names, former, captured, counters=counters)

    @cached_property
    def _session(self) -> Session:
        if not self._connection:
            raise ConfigurationError(
                "this requires a cluster", expected="source.conn_id", found="offline input"
            )
        return open_session(self._connection, timeout_seconds=self.options.advanced.request_timeout_seconds)

    @cached_property
    def _keys(self) -> Keys | None:
        return open_keys(self.options.encryption, self._connection)

    @property
    def _folder(self) -> capture.LogFolder:
        if not self.options.cdc_raw:
            raise ConfigurationError("no folder of segments is declared", expected="option source.cdc_raw")
        # A recording may have only segments; the index files of a live node are never all missing.
        no_indexes = not self._connection and not any(Path(self.options.cdc_raw).glob("**/*_cdc.idx"))
        return capture.LogFolder(
            self.options.cdc_raw,
            self.options.node,
            beyond_index=no_indexes or self.options.advanced.beyond_index,
            recorded=self._recorded,
            trust_zero_checksum=self.options.advanced.trust_zero_checksum,
            strict=self.options.advanced.strict,
            keys=self._keys,
        )

    def _schema(self, table: str) -> TableSchema:
        try:
            return self.schemas.tables[table]
        except KeyError:
            raise SchemaUnknown(
                f"table {table} doesn't exist", expected=", ".join(self.tables()) or "a table with cdc = true"
            ) from None

    def _drops_above(self, origin: str) -> int | None:
        """Return the capacity of a node's cdc_raw if the node deletes segments when it is full; else None."""
        if not self._connection:
            return None
        try:
            with driver_errors("reading the nodes' settings"):
                settings = node_settings(self._session)
                address = host_ids(self._session).get(origin, "")
            exposed = {node: own for node, own in settings.items() if own.blocks_writes is not None}
            own = exposed.get(address) or next(iter(exposed.values()), None)
        except TransientError as error:
            raise TransientError(
                f"segments of node {origin} are missing, and no node responds with its cdc_block_writes",
                found=str(error),
                remedy="retry when the cluster is reachable",
            ) from error
        return None if own is None or own.blocks_writes is not False else own.total_space_bytes or 0

    def _query_nodes(self) -> None:
        if not self._connection:
            return
        self._queried_at = time.monotonic()
        try:
            with driver_errors("reading the nodes' truncations"):
                nodes = node_states(self._session)
        except TransientError as error:
            # As for a node that is down: their records can be read when they are up again.
            log.warning("the nodes' truncations can't be read: %s", error)
            nodes = []
        # If other nodes of the cluster are down, the segments may be those of another node.
        single = len(nodes) == 1 == len(host_ids(self._session))
        if single and not self.options.node and ONLY_NODE in capture.earliest(self._folder):
            nodes = [replace(nodes[0], host_id=ONLY_NODE)]
        self._nodes = nodes

    def _snapshot_position(self, table: str) -> tuple[str, bytes]:
        """Return feed and position of rows that are read now, which follow the truncations up to there."""
        if time.monotonic() - self._queried_at > _NODES_FRESH_SECONDS:
            self._query_nodes()
        if self._connection and not self._nodes:
            raise TransientError(
                f"no node returns its truncations of {table}, so rows read now have no position in the log",
                remedy="retry when the cluster is reachable",
            )
        return snapshot_position(self._nodes, self._schema(table).id)

    def _with_truncations(self, plan: Plan) -> Plan:
        """Add truncations found on the nodes that no earlier batch has."""
        nodes = read_offset(plan.end)
        tables = {self._schema(name).id: name for name in self._captured_tables()}
        recorded = {(o, table): ms for o, node in nodes.items() for table, ms in node.truncated.items()}
        records = list(truncation_rows(self._nodes, tables, recorded))
        for row in records:
            node = nodes.get(row["origin"], NodeOffset())
            truncated = {**node.truncated, row["source_table"]: row["committed_at"] // 1000}
            nodes[row["origin"]] = replace(node, truncated=truncated)
        return replace(plan, end=write_offset(nodes), records=records) if records else plan


def with_history(schemas: Schemas, history: SchemaHistory) -> Schemas:
    """Add the tables of a recording's log that its schema lacks.

    Of two tables with one name, the one that was created later is used, according to its id.

    Args:
        schemas: The recording's schemas.
        history: The schema history of its log.

    Returns:
        The schemas with the added tables.
    """
    tables = dict(schemas.tables)
    for name, table in history.existing.items():
        known = tables.get(name)
        if known is None or (table.id != known.id and created_at(table) > created_at(known)):
            tables[name] = table
    return replace(schemas, tables=tables)


def created_at(table: TableSchema) -> int:
    """Return when a table was created, by its id, in 100 ns since 1582; 0 if the id isn't time-based."""
    table_id = UUID(hex=table.id)
    return table_id.time if table_id.version == 1 else 0


def _read_schema_file(path: Path) -> Schemas:
    try:
        schemas = parse_cql(path.read_text())
    except OSError as error:
        raise ConfigurationError(
            f"the schema file {path} can't be read", found=str(error.strerror)
        ) from error
    if without_id := sorted(name for name, table in schemas.tables.items() if not table.id):
        raise ConfigurationError(
            f"the schema file {path} lacks table ids, which commit logs refer to",
            expected="CREATE TABLE ... WITH ID = ...",
            found=f"none for {', '.join(without_id)}",
            remedy="create it with: cqlsh -e 'DESCRIBE SCHEMA WITH INTERNALS'",
        )
    return schemas
