"""The Cassandra source: commit-log segments from cdc_raw, schemas and snapshots over CQL; or all from files.

With a connection the schema is the cluster's own; offline it is that of ``schema_file``, or what the log
itself says. Segments are read from ``cdc_raw`` either way. Tables that are gone at the source are known from
the schema's history (:mod:`.commit_log.schema_history`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.exceptions import ConfigurationError, SchemaUnknown, TransientError
from airflow_cdc_provider.sources.base import Finding, Lag, Offset, Plan, ReadLimit, SnapshotPlan
from airflow_cdc_provider.sources.cassandra.check import (
    check_folder,
    check_segments,
    check_source,
    node_settings,
)
from airflow_cdc_provider.sources.cassandra.codec import CassandraCodec, recall_codec
from airflow_cdc_provider.sources.cassandra.commit_log import capture
from airflow_cdc_provider.sources.cassandra.commit_log.encryption import Keys, open_keys
from airflow_cdc_provider.sources.cassandra.commit_log.gaps import find_gaps
from airflow_cdc_provider.sources.cassandra.commit_log.log_reader import (
    SegmentReader,
    read_segments,
    retry_quarantined,
)
from airflow_cdc_provider.sources.cassandra.commit_log.offsets import NodeOffset, read_offset, write_offset
from airflow_cdc_provider.sources.cassandra.commit_log.schema_history import (
    SchemaHistory,
    observed,
    read_history,
)
from airflow_cdc_provider.sources.cassandra.commit_log.segments import ONLY_NODE
from airflow_cdc_provider.sources.cassandra.commit_log.tables import LogTables, log_tables, schema_alone
from airflow_cdc_provider.sources.cassandra.nodes import (
    NodeState,
    host_ids,
    node_states,
    snapshot_place,
    truncation_rows,
)
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.cassandra.views import require_capturable
from airflow_cdc_provider.sources.cql.describe import parse_cql
from airflow_cdc_provider.sources.cql.driver.connect import driver_errors, open_session
from airflow_cdc_provider.sources.cql.lake_types import LakeTypes
from airflow_cdc_provider.sources.cql.reasons import MUTATION_CODES
from airflow_cdc_provider.sources.cql.schema import Schemas, TableSchema
from airflow_cdc_provider.sources.cql.snapshot_payload import state_payload
from airflow_cdc_provider.sources.cql.snapshots.token_ranges import (
    SnapshotRange,
    SnapshotReader,
    SnapshotReads,
    plan_ranges,
)
from airflow_cdc_provider.sources.cql.system_schema import Row, read_rows, schemas_from_rows
from airflow_cdc_provider.sources.planned_ranges import PlannedRanges

if TYPE_CHECKING:
    from cassandra.cluster import Session

    from airflow_cdc_provider.sources.base import Codec


_NODES_FRESH_SECONDS: Final = 10.0
"""How old the nodes' answers may be: a snapshot may count as read too early, never as too late."""


log = logging.getLogger(__name__)


class CassandraSource:
    """Implements :class:`~airflow_cdc_provider.sources.base.Source`.

    Args:
        options: The declaration's source part.
        connection: The Airflow connection's values (:func:`~.connect.open_session`); empty offline.
        selects: Tells whether the declaration wants a table.
        names: Tells whether it spells out a table's name, as it must for a materialized view.
        recorded: The segments are a recording: nobody writes there any more.
    """

    type = "cassandra"
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
        self._nodes: Sequence[NodeState] = ()
        self._asked_at = -_NODES_FRESH_SECONDS

    def __repr__(self) -> str:
        return f"CassandraSource({self.options!r})"

    def that_asks_nobody(self) -> CassandraSource:
        """Return one for other processes: it knows the same tables and has no connection."""
        alone = CassandraSource(self.options, {}, self._selects, names=self._names, recorded=self._recorded)
        alone._history = self._history
        alone.__dict__["schemas"] = self.schemas
        return alone

    def check(self) -> list[Finding]:
        """Look at cluster, tables, rights, and cdc_raw."""
        if self._connection:
            findings = list(check_source(self.options, self._connection, self._takes))
        else:
            findings = [Finding("ok", "connection", "none: offline"), *check_folder(self.options, {})]
        if not any(finding.level == "error" and finding.subject == "cdc_raw" for finding in findings):
            findings += check_segments(lambda: self._folder)
        return findings

    def tables(self) -> list[str]:
        """List the selected tables that have ``cdc = true``, or once had it, sorted; views if they are named.

        A table that has it no more keeps its mirror: what was written before is still to come out of the log.

        Raises:
            ConfigurationError: A view is named that can't be captured.
        """
        selected = [t for t in self.schemas.tables.values() if self._takes(t)]
        captured = {t.full_name for t in selected if t.cdc or self._history.was_captured(t.id)}
        for table in selected:
            if table.view:
                require_capturable(table, captured=table.full_name in captured)
        return sorted(captured)

    def codec(self, table: str, memory: Mapping[str, Any] | None = None) -> CassandraCodec:
        """Return the decoder of a table by its present schema.

        Raises:
            SchemaUnknown: There is no such table.
        """
        return self.codec_of(self._schema(table), memory)

    def codec_of(self, schema: TableSchema, memory: Mapping[str, Any] | None = None) -> CassandraCodec:
        """Return the decoder of a table by a schema, which may be that of one that is gone."""
        advanced = self.options.advanced
        return recall_codec(schema, memory, advanced.rules, LakeTypes(advanced.timestamps))

    def remember(self, codec: Codec) -> Mapping[str, Any]:
        """Return the JSON with the column ids of a codec."""
        assert isinstance(codec, CassandraCodec)
        return codec.remember()

    def reserve(self, codec: Codec, memory: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Return the memory with the column ids of a codec beside those that it was recalled from."""
        assert isinstance(codec, CassandraCodec)
        return codec.reserve(memory)

    def start(self) -> Offset | None:
        """Begin at the earliest segment: what it holds merges with a snapshot in any order."""
        return None

    def after_loss(self) -> Offset | None:
        """Begin at the earliest segment that is left."""
        return None

    def head(self) -> Offset:
        """Return the place up to which all nodes' logs are durable.

        What lies before it is decoded by a schema that is read after it: a column that is new there is known.
        So are the truncations that the nodes tell.
        """
        head = capture.head(self._folder)
        for cached in ("schemas", "_schema_rows"):
            self.__dict__.pop(cached, None)
        self._ask_nodes()
        return head

    def earliest(self) -> Offset:
        """Return the offset before all segments there are."""
        return capture.earliest(self._folder)

    def lag(self, offset: Offset | None) -> Lag:
        """Tell what is in cdc_raw and not read."""
        return capture.lag(self._folder, offset)

    def gaps(self, offset: Offset | None) -> tuple[Sequence[str], Offset]:
        """Tell of segments that are lost unread."""
        return find_gaps(self._folder, offset, self._drops_above)

    def validate_offset(self, offset: Offset) -> None:
        """Refuse an offset of another form."""
        capture.validate_offset(offset)

    def plan(self, start: Offset | None, head: Offset, limit: ReadLimit) -> Plan:
        """Cut the next batch out of the segments."""
        plan = capture.plan_segments(self._folder, self._log_tables(), start, head, limit)
        return self._with_truncations(plan)

    def reader(self) -> Callable[[Any], Iterator[pa.RecordBatch]]:
        """Return the function that reads one partition of a plan; it carries the keys."""
        return SegmentReader(self._keys)

    def learn(self, records: pa.Table) -> None:
        """Replay the schema's history; offline, what it adds is part of the schema from now on."""
        self._history = read_history(records)
        if not self._connection:
            self.__dict__.pop("schemas", None)

    def learn_from_log(self) -> None:
        """Replay the schema's history from all segments there are, as :meth:`learn` does from records."""
        found: list[pa.RecordBatch] = []
        offset, stop = None, capture.head(self._folder)
        while True:
            plan = capture.plan_segments(self._folder, schema_alone(), offset, stop, ReadLimit())
            for part in plan.partitions:
                found += read_segments(replace(part, damage=(), strict=False), keys=self._keys)
            if plan.at_head:
                break
            offset = plan.end
        self.learn(pa.Table.from_batches(found, CHANGE_SCHEMA))

    def schema_records(self) -> Iterator[Mapping[str, Any]]:
        """Make records of the cluster's schema as it is now, if it was not seen so before."""
        if self._connection and self._schema_rows is not None:
            yield from observed(self._schema_rows, self._history, time.time_ns() // 1000)

    def written_while_captured(self, table_id: str, changes: pa.RecordBatch) -> NDArray[np.bool_]:
        """Tell which changes of a table were written while it had ``cdc = true``.

        Segments hold others too, which were kept for the sake of other tables. A mirror takes them, they are
        the table's; as events nobody has asked for them.
        """
        return self._history.captured(table_id, changes["origin"], changes["position"])

    def resumed_at(self, table: str) -> int:
        """Return when ``cdc`` was switched on again for a table after it had been off, µs; 0 for never."""
        return self._history.resumed_at(self._schema(table).id)

    def schema_findings(self) -> list[str]:
        """Tell of tables whose ``cdc`` is off."""
        found = []
        if self._connection and self._schema_rows is None:
            found.append(
                "the cluster doesn't answer: what lies in cdc_raw was read by the schema of an earlier run. "
                "Snapshots and keys in doubt wait"
            )
        for name in self.tables():
            schema = self._schema(name)
            if schema.cdc:
                continue
            off = self._history.off_since(schema.id)
            since = f" since {datetime.fromtimestamp(off / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC" if off else ""
            found.append(
                f"{name} has cdc = false{since}: its mirror follows no longer. Switch it on again, which "
                "takes a new snapshot, or exclude the table"
            )
        return found

    def may_land(self, reason: str) -> bool:
        """Tell so of mutations; bytes of a segment that are damaged stay what they are."""
        return reason in MUTATION_CODES

    def quarantine_reader(self) -> Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]:
        """Return the function that reads mutations again by all schemas that are known now."""
        return partial(retry_quarantined, tables=self._log_tables())

    def former_tables(self) -> list[TableSchema]:
        """List the selected tables that had ``cdc = true`` and are gone, also those made anew since.

        Their changes in the log are captured under their names.
        """
        known = self.schemas.by_id
        return [
            table
            for table_id, table in self._history.by_id.items()
            if table_id not in known and self._history.was_captured(table_id) and self._takes(table)
        ]

    def plan_snapshot(self, table: str, where: str | None = None) -> SnapshotPlan:
        """Cut a table into token ranges; ``where`` is CQL that may follow ``AND``.

        Raises:
            ConfigurationError: There is no connection, or the cluster's partitioner has no such ranges.
            SchemaUnknown: There is no such table.
        """
        origin, position = self._place(table)
        return plan_ranges(
            self._session,
            self._schema(table),
            least_ranges=self.options.advanced.ranges_per_snapshot,
            where=where or "",
            origin=origin,
            position=position,
            sees_all=self.options.consistency == "ALL" and not where,
        )

    def snapshot_reader(self) -> Callable[[SnapshotRange], Iterator[pa.RecordBatch]]:
        """Return the function that reads one token range; it carries the connection's values."""
        return self._snapshot_reader()

    def read_keys(self, table: str, keys: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
        """Read whole partitions again, by their keys, as snapshot changes."""
        origin, position = self._place(table)
        return self._snapshot_reader().read_keys(table, keys, origin, position)

    def state_payload(self, codec: Codec, state: bytes) -> bytes:
        """Return the payload of a snapshot change that contributes just this cell row."""
        assert isinstance(codec, CassandraCodec)
        return state_payload(codec.schema, state)

    def row_count(self, table: str) -> int | None:
        """Return None: Cassandra can't count a table without reading it."""
        del table
        return None

    def cluster_name(self) -> str:
        """Return the cluster's name as it says itself; empty offline, or while it doesn't answer."""
        if not self._connection or self._schema_rows is None:
            return ""
        return str(self._session.cluster.metadata.cluster_name or "")

    def close(self) -> None:
        """End the connection."""
        if "_session" in self.__dict__:
            self._session.cluster.shutdown()
            del self.__dict__["_session"]

    @cached_property
    def schemas(self) -> Schemas:
        """The schema at the first use after :meth:`head`: the cluster's, or that of the file and the log.

        While the cluster doesn't answer it is that of the history, if this was learnt.

        Raises:
            ConfigurationError: There is none, or the file is missing.
            TransientError: The cluster doesn't answer, and there is no history.
        """
        if self._connection:
            rows = self._schema_rows
            return with_history(Schemas(), self._history) if rows is None else schemas_from_rows(rows)
        if self.options.schema_file:
            return with_history(_read_schema_file(Path(self.options.schema_file)), self._history)
        if not self._history.living:
            raise ConfigurationError(
                "there is no schema",
                expected="a connection, or source.schema_file, or segments in which the tables are created",
                remedy="give what DESCRIBE KEYSPACE ... WITH INTERNALS prints as --schema",
            )
        return with_history(Schemas(), self._history)

    @cached_property
    def _schema_rows(self) -> Mapping[str, Sequence[Row]] | None:
        """What the cluster says of its schema; None if it doesn't answer and the history stands in."""
        try:
            with driver_errors("reading the schema"):
                return read_rows(self._session)
        except TransientError as error:
            if not self._history.living:
                raise
            log.warning("the schema is that of an earlier run: %s", error)
            return None

    def _takes(self, table: TableSchema) -> bool:
        """Tell whether the declaration wants a table; a view only if it is named there."""
        return self._selects(table.full_name) and (not table.view or self._names(table.full_name))

    def _log_tables(self) -> LogTables:
        former = [t for table_id, t in self._history.by_id.items() if table_id not in self.schemas.by_id]
        captured = {table.id for table in self.former_tables()}
        # What a counter is now only the cluster can tell.
        counters = bool(self._connection)
        return log_tables(self.schemas.tables.values(), self.tables(), former, captured, counters=counters)

    @cached_property
    def _session(self) -> Session:
        if not self._connection:
            raise ConfigurationError("this needs a cluster", expected="source.conn_id", found="offline input")
        return open_session(self._connection, timeout_seconds=self.options.advanced.request_timeout_seconds)

    @cached_property
    def _keys(self) -> Keys | None:
        return open_keys(self.options.encryption, self._connection)

    @property
    def _folder(self) -> capture.LogFolder:
        if not self.options.cdc_raw:
            raise ConfigurationError("no segments can be found", expected="option source.cdc_raw")
        # A recording may hold segments alone; the index files of a live node are never all missing.
        bare = not self._connection and not any(Path(self.options.cdc_raw).glob("**/*_cdc.idx"))
        return capture.LogFolder(
            self.options.cdc_raw,
            self.options.node,
            beyond_index=bare or self.options.advanced.beyond_index,
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
                f"there is no table {table}", expected=", ".join(self.tables()) or "a table with cdc = true"
            ) from None

    def _snapshot_reader(self) -> SnapshotReader:
        tables = {name: self._schema(name) for name in self.tables()}
        advanced = self.options.advanced
        reads = SnapshotReads(self.options.consistency, advanced.fetch_size, advanced.request_timeout_seconds)
        return SnapshotReader(self._connection, reads, tables)

    def _drops_above(self, origin: str) -> int | None:
        """Tell how much a node's cdc_raw may hold, if it drops segments when it is full; else None."""
        if not self._connection:
            return None
        try:
            with driver_errors("asking the nodes for their settings"):
                settings = node_settings(self._session)
                address = host_ids(self._session).get(origin, "")
            told = {node: own for node, own in settings.items() if own.blocks_writes is not None}
            own = told.get(address) or next(iter(told.values()), None)
        except TransientError as error:
            raise TransientError(
                f"segments of node {origin} are missing, and no node tells whether it drops any",
                found=str(error),
                remedy="run again when the cluster answers",
            ) from error
        return None if own is None or own.blocks_writes is not False else own.total_space_bytes or 0

    def _ask_nodes(self) -> None:
        if not self._connection:
            return
        self._asked_at = time.monotonic()
        try:
            with driver_errors("asking the nodes what they truncated"):
                nodes = node_states(self._session)
        except TransientError as error:
            # Like a node that is down: what they would tell is still there when they are up again.
            log.warning("no node tells what it truncated: %s", error)
            nodes = []
        # Of a cluster of several that are down but for one, it needn't be the one whose segments these are.
        alone = len(nodes) == 1 == len(host_ids(self._session))
        if alone and not self.options.node and ONLY_NODE in capture.earliest(self._folder):
            nodes = [replace(nodes[0], host_id=ONLY_NODE)]
        self._nodes = nodes

    def _place(self, table: str) -> tuple[str, bytes]:
        """Return feed and position of what is read now: truncations up to there are older than it."""
        if time.monotonic() - self._asked_at > _NODES_FRESH_SECONDS:
            self._ask_nodes()
        if self._connection and not self._nodes:
            raise TransientError(
                f"no node tells what it truncated of {table}, so what is read now has no place in the log",
                remedy="run again when the cluster answers",
            )
        return snapshot_place(self._nodes, self._schema(table).id)

    def _with_truncations(self, plan: Plan) -> Plan:
        """Add what the nodes told of truncations and no batch before has."""
        nodes = read_offset(plan.end)
        tables = {self._schema(name).id: name for name in self.tables()}
        told = {(o, table): ms for o, node in nodes.items() for table, ms in node.truncated.items()}
        records = list(truncation_rows(self._nodes, tables, told))
        for row in records:
            node = nodes.get(row["origin"], NodeOffset())
            truncated = {**node.truncated, row["source_table"]: row["committed_at"] // 1000}
            nodes[row["origin"]] = replace(node, truncated=truncated)
        return replace(plan, end=write_offset(nodes), records=records) if records else plan


def with_history(schemas: Schemas, history: SchemaHistory) -> Schemas:
    """Add the tables that a recording's log shows and its schema doesn't.

    Of two tables of one name the one that was created later counts: a table's id tells when.
    """
    tables = dict(schemas.tables)
    for name, table in history.living.items():
        known = tables.get(name)
        if known is None or (table.id != known.id and created_at(table) > created_at(known)):
            tables[name] = table
    return replace(schemas, tables=tables)


def created_at(table: TableSchema) -> int:
    """Return when a table was created, by its id, in 100 ns since 1582; 0 for an id that doesn't tell."""
    table_id = UUID(hex=table.id)
    return table_id.time if table_id.version == 1 else 0


def _read_schema_file(path: Path) -> Schemas:
    try:
        schemas = parse_cql(path.read_text())
    except OSError as error:
        raise ConfigurationError(
            f"the schema file {path} can't be read", found=str(error.strerror)
        ) from error
    if nameless := sorted(name for name, table in schemas.tables.items() if not table.id):
        raise ConfigurationError(
            f"the schema file {path} doesn't say the ids by which a commit log names its tables",
            expected="CREATE TABLE ... WITH ID = ...",
            found=f"none for {', '.join(nameless)}",
            remedy="write it with: cqlsh -e 'DESCRIBE SCHEMA WITH INTERNALS'",
        )
    return schemas
