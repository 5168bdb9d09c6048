"""Snapshots: full reads of tables over CQL, by token ranges, which are independent and can be repeated.

Each row becomes one change of kind ``snapshot`` (and each partition's static row another) with the write time
and TTL of every value, so it merges with changes from the log by the database's rules, in any order. Rows
stay bytes from the socket to the payload (:mod:`.select_rows`).

Guarantees: every row that existed before planning and was not deleted is read, at the configured consistency
level, or the read fails. Concurrent writes may be read or not: the log has them. Reading a range again
returns its rows at that time. Expiry times can be off by one second.

Not guaranteed: deletions are not read (keys of the mirror that are missing from a snapshot are read again
after its merge), and paths of list elements, the liveness of rows and, before Cassandra 5.0, write times of
elements are unknown; merging marks keys that depend on them as unresolved. A materialized view with a
liveness column is read from its base.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import contribution
from airflow_cdc_provider.changes.record import SNAPSHOT, STATIC, change_batch
from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput, SchemaUnknown, TransientError
from airflow_cdc_provider.formats.arrow_bytes import column_of, fixed_width_binary
from airflow_cdc_provider.formats.kernels import Bytes, Ints
from airflow_cdc_provider.sources.contract import Reader, ReadMetrics, SnapshotPlan
from airflow_cdc_provider.sources.cql.connection import consistency_level, driver_errors, open_session
from airflow_cdc_provider.sources.cql.programs import OPS
from airflow_cdc_provider.sources.cql.schema import Column, TableSchema
from airflow_cdc_provider.sources.cql.select_rows import (
    COUNTER,
    ELEMENTS,
    PLAIN,
    UNTIMED_ELEMENTS,
    Records,
    SelectProgram,
    read_page,
)
from airflow_cdc_provider.sources.cql.snapshot_payload import snapshot_prefix
from airflow_cdc_provider.sources.cql.types import cql_name, quote_name

if TYPE_CHECKING:
    from cassandra.cluster import Session

    from airflow_cdc_provider.sources.cql.driver.raw_results import RawPage

LEAST_TOKEN: Final = -(1 << 63)
GREATEST_TOKEN: Final = (1 << 63) - 1
PARTITIONER: Final = "org.apache.cassandra.dht.Murmur3Partitioner"

_BYTES_PER_RANGE: Final = 64 * 1024 * 1024
_MOST_RANGES: Final = 4096
_ATTEMPTS: Final = 4
_FIRST_WAIT_SECONDS: Final = 0.5
_PREFETCHED_QUERIES: Final = 16


class SnapshotRange(NamedTuple):
    """A part of a table's token ring. Small, and without secrets: it is stored with the snapshot's progress.

    Args:
        table: ``keyspace.table``.
        after: Start of the tokens, exclusive.
        through: End of the tokens, inclusive.
        where: Further conditions in CQL, empty for none.
        origin: Feed of the snapshot's position, so that truncations before it don't apply.
        position: The snapshot's position.
    """

    table: str
    after: int
    through: int
    where: str = ""
    origin: str = ""
    position: bytes = b""


def plan_ranges(
    session: Session,
    table: TableSchema,
    *,
    least_ranges: int,
    where: str,
    origin: str,
    position: bytes,
    reads_all_replicas: bool = False,
) -> SnapshotPlan:
    """Split a table into ranges, more for a large table.

    Args:
        session: A session with the cluster.
        table: The table.
        least_ranges: Minimum number of ranges.
        where: Further conditions in CQL, empty for none.
        origin: As in :class:`SnapshotRange`.
        position: As in :class:`SnapshotRange`.
        reads_all_replicas: Whether the reads include the data of every replica.

    Returns:
        The plan.

    Raises:
        ConfigurationError: The cluster's partitioner is unsupported.
    """
    with driver_errors(f"planning the snapshot of {table.full_name}"):
        partitioner = session.execute("SELECT partitioner FROM system.local").one().partitioner
        partitions, size_bytes = _estimate(session, table)
        now = session.execute("SELECT toUnixTimestamp(now()) AS ms FROM system.local").one().ms
    if partitioner != PARTITIONER:
        raise ConfigurationError(
            "unsupported partitioner for snapshots", expected=PARTITIONER, found=partitioner
        )
    count = min(max(least_ranges, size_bytes // _BYTES_PER_RANGE), _MOST_RANGES)
    step = (1 << 64) // count
    bounds = [LEAST_TOKEN + i * step for i in range(count)] + [GREATEST_TOKEN]
    return SnapshotPlan(
        table=table.full_name,
        ranges=[
            SnapshotRange(table.full_name, after, through, where, origin, position)
            for after, through in pairwise(bounds)
        ],
        position=position,
        origin="",
        estimated_rows=partitions or None,
        read_after_us=now * 1000 if reads_all_replicas else 0,
    )


def _estimate(session: Session, table: TableSchema) -> tuple[int, int]:
    """Return the contacted node's estimates of partitions and bytes; zeros if it has none yet."""
    rows = session.execute(
        "SELECT mean_partition_size, partitions_count FROM system.size_estimates "
        "WHERE keyspace_name = %s AND table_name = %s",
        (table.keyspace, table.name),
    )
    partitions = size_bytes = 0
    for row in rows:
        partitions += row.partitions_count
        size_bytes += row.partitions_count * row.mean_partition_size
    return partitions, size_bytes


@dataclass(frozen=True)
class SnapshotReads:
    """Settings of a snapshot's queries.

    Args:
        consistency: Consistency level.
        fetch_size: Rows per page.
        request_timeout_seconds: Timeout of one request.
    """

    consistency: str
    fetch_size: int
    request_timeout_seconds: float


@dataclass(frozen=True)
class SnapshotReader(Reader):
    """Reads ranges, on any machine with access to the cluster. Picklable.

    Args:
        connection: The Airflow connection's values.
        options: Settings of the queries.
        tables: Schemas by name.
    """

    connection: Mapping[str, Any] = field(repr=False)
    options: SnapshotReads
    tables: Mapping[str, TableSchema]

    def read(self, parts: Iterable[SnapshotRange], metrics: ReadMetrics) -> Iterator[pa.RecordBatch]:
        """Read ranges in sequence, over one connection, as batches of ``CHANGE_SCHEMA``, one per page.

        Raises:
            TransientError: The cluster doesn't respond at this consistency level, after several attempts.
            ConfigurationError: The cluster rejects the query.
        """
        with self._connected() as session:
            for part in parts:
                schema = self.tables.get(part.table)
                if schema is None:
                    raise SchemaUnknown(f"table {part.table} no longer exists", remedy="reset its snapshot")
                token = _token(schema)
                conditions = _filtered(f"{token} > ? AND {token} <= ?", [*_conditions(schema), part.where])
                bounds = [[struct.pack(">q", token) for token in (part.after, part.through)]]
                query = _Query(session, schema, conditions, self.options)
                yield from query.changes(bounds, part.origin, part.position, part.after - LEAST_TOKEN)

    def read_keys(
        self, table: str, keys: Sequence[bytes], origin: str = "", position: bytes = b""
    ) -> Iterator[pa.RecordBatch]:
        """Read whole partitions again, by their keys, at consistency ALL.

        Args:
            table: ``keyspace.table``.
            keys: Partition keys in the format of change records.
            origin: As in :class:`SnapshotRange`.
            position: As in :class:`SnapshotRange`.

        Yields:
            Batches of ``CHANGE_SCHEMA``.
        """
        schema = self.tables[table]
        own = _equal([c.name for c in schema.partition_key])
        # Missing rows count as deleted, so every replica must be read.
        options = replace(self.options, consistency="ALL")
        with self._connected() as session:
            if schema.definition and schema.liveness_column:
                base_key = [*schema.definition.partition_key, *schema.definition.clustering]
                find = _Query(session, schema, own, options, names=base_key)
                query = _Query(session, schema, _equal(base_key), options)
                yield from _from_base(find, query, keys, origin, position)
                return
            query = _Query(session, schema, own, options)
            yield from query.changes([split_key(schema, k) for k in keys], origin, position, 0)

    @contextmanager
    def _connected(self) -> Iterator[Session]:
        timeout = self.options.request_timeout_seconds
        session = open_session(self.connection, timeout_seconds=timeout, raw_results=True)
        try:
            yield session
        finally:
            session.cluster.shutdown()


def _from_base(
    find: _Query, query: _Query, keys: Sequence[bytes], origin: str, position: bytes
) -> Iterator[pa.RecordBatch]:
    """Read partitions of a view from its base, in sequence.

    Args:
        find: Query for the base's keys of a partition of the view.
        query: Query for the row of one base key.
        keys: Partition keys of the view.
        origin: As in :class:`SnapshotRange`.
        position: As in :class:`SnapshotRange`.

    Yields:
        A batch per row. Rows that have moved to another partition in the meantime are omitted.
    """
    number = 0
    for key in keys:
        found = [
            values
            for page, _ in find.pages([split_key(query.schema, key)])
            for values in page.values(len(find.names))
        ]
        for batch in query.changes(found, origin, position, number):
            number += batch.num_rows
            if (own := batch.filter(pc.equal(batch["key"], pa.scalar(key, pa.binary())))).num_rows:
                yield own


class _Query:
    """One prepared query on one connection: for a table's rows, or for key columns (``names``).

    Rows of a view with a liveness column are read from its base.
    """

    def __init__(
        self,
        session: Session,
        schema: TableSchema,
        conditions: str,
        options: SnapshotReads,
        *,
        names: Sequence[str] = (),
    ) -> None:
        self.session = session
        self.schema = schema
        self.options = options
        self.doing = f"reading {schema.full_name}"
        version = self._single("SELECT release_version FROM system.local").decode()
        elements_have_times = int(version.partition(".")[0]) >= 5
        self.program = compile_select(schema, elements_have_times=elements_have_times)
        self.names = names
        of_base = bool(schema.liveness_column) and not names
        source = schema.definition.base if schema.definition and of_base else schema.full_name
        selected = map(quote_name, names) if names else select_list(schema, self.program)
        with driver_errors(self.doing):
            self.prepared = session.prepare(
                f"SELECT {', '.join(selected)} FROM {cql_name(source)} WHERE {conditions}"
            )
        self.prepared.consistency_level = consistency_level(options.consistency)
        self.prepared.fetch_size = options.fetch_size
        # Write times and TTLs are compared with the server's clock.
        started = time.monotonic_ns()
        now_ms = int.from_bytes(self._single("SELECT toUnixTimestamp(now()) FROM system.local"), "big")
        self.clock_us = now_ms * 1000 - started // 1000

    def changes(
        self, values: Sequence[Sequence[bytes]], origin: str, position: bytes, first_number: int
    ) -> Iterator[pa.RecordBatch]:
        """Run the query with each of the values; yield a batch per page, except empty ones."""
        number = first_number
        for page, read_us in self.pages(values):
            batch = self.to_changes(page, read_us, origin, position, number)
            number += batch.num_rows
            if batch.num_rows:
                yield batch

    def pages(self, values: Sequence[Sequence[bytes]]) -> Iterator[tuple[RawPage, int]]:
        """Yield the pages of each query in sequence, with the time of each request, in us.

        The first pages of several queries are prefetched, because queries of single keys have no others.
        """
        prefetched: deque[tuple[Any, int, Any]] = deque()
        for bound in values:
            prefetched.append(self._request(bound))
            if len(prefetched) == _PREFETCHED_QUERIES:
                yield from self._pages(*prefetched.popleft())
        while prefetched:
            yield from self._pages(*prefetched.popleft())

    def _request(self, values: Sequence[bytes]) -> tuple[Any, int, Any]:
        from cassandra.query import BoundStatement

        statement = BoundStatement(self.prepared)
        statement.values = list(values)
        return statement, self._clock_us(), self.session.execute_async(statement)

    def _pages(self, statement: Any, read_us: int, response: Any) -> Iterator[tuple[RawPage, int]]:
        result, read_us = self._result(statement, None, response, read_us)
        while True:
            if result.current_rows:
                yield result.current_rows[0], read_us
            paging_state = result.paging_state
            if not paging_state:
                return
            read_us = self._clock_us()
            response = self.session.execute_async(statement, paging_state=paging_state)
            result, read_us = self._result(statement, paging_state, response, read_us)

    def _clock_us(self) -> int:
        return self.clock_us + time.monotonic_ns() // 1000

    def _result(
        self, statement: Any, paging_state: bytes | None, response: Any, read_us: int
    ) -> tuple[Any, int]:
        """Wait for a response, retrying if necessary; return it with the time of the request."""
        for attempt in range(_ATTEMPTS):
            try:
                with driver_errors(self.doing):
                    if attempt:
                        read_us = self._clock_us()
                        response = self.session.execute_async(statement, paging_state=paging_state)
                    return response.result(), read_us
            except TransientError:
                if attempt + 1 == _ATTEMPTS:
                    raise
                time.sleep(_FIRST_WAIT_SECONDS * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def _single(self, query: str) -> bytes:
        with driver_errors(self.doing):
            return self.session.execute(query).current_rows[0].first()

    def to_changes(
        self, page: RawPage, read_us: int, origin: str, position: bytes, number: int
    ) -> pa.RecordBatch:
        """Convert a page to changes; ``number`` makes positions unique inside the snapshot."""
        keys, payloads = page_records(self.program, page.data, page.rows, read_us, self.schema.full_name)
        count = len(keys)
        static = pc.equal(pc.binary_slice(payloads, 1, 2), bytes([contribution.STATIC]))
        width = len(position) + 8
        positions = np.empty((count, width), np.uint8)
        positions[:, :-8] = np.frombuffer(position, np.uint8)
        positions[:, -8:] = (
            (number + np.arange(count, dtype=np.uint64)).astype(">u8").view(np.uint8).reshape(-1, 8)
        )
        return change_batch(
            count,
            source_table=self.schema.full_name,
            kind=SNAPSHOT,
            origin=origin,
            position=fixed_width_binary(positions),
            key=keys,
            captured_at=time.time_ns() // 1000,
            schema_id=self.schema.id or None,
            reason=pc.if_else(static, STATIC, pa.scalar(None, pa.string())),
            payload=payloads,
        )


def page_records(
    program: SelectProgram, data: bytes, rows: int, read_us: int, table: str
) -> tuple[pa.Array, pa.Array]:
    """Convert a page's bytes to keys and payloads.

    Args:
        program: The compiled query.
        data: The page's bytes.
        rows: Number of rows in it.
        read_us: Time of reading, by the server's clock.
        table: The table, for errors.

    Returns:
        The keys and the payloads.

    Raises:
        CorruptInput: The page doesn't match the query.
    """
    if 4 * rows * (program.partition + program.clustering + len(program.shapes)) > len(data):
        raise CorruptInput(f"{rows} rows of a page of {table} can't be in {len(data)} bytes")
    content = np.frombuffer(data, np.uint8)
    records_at_most = 2 * rows
    headers = program.row_prefix.size + program.static_prefix.size + 48 * (2 + program.shapes.size)
    payload_capacity = 3 * len(data) + rows * headers
    while True:
        records = Records(
            np.empty(2 * len(data), np.uint8),
            np.zeros(records_at_most, np.int64),
            np.empty(payload_capacity, np.uint8),
            np.zeros(records_at_most, np.int64),
            np.zeros(3, np.int64),
        )
        broken = read_page(program, content, rows, read_us, read_us // 1_000_000, records)
        if broken >= 0:
            raise CorruptInput(f"row {broken} of a page of {table} can't be read")
        count, key_bytes, payload_bytes = (int(n) for n in records.totals)
        if payload_bytes <= payload_capacity:
            break
        payload_capacity = payload_bytes
    return (
        _binary(records.keys[:key_bytes], records.key_ends[:count]),
        _binary(records.payloads[:payload_bytes], records.payload_ends[:count]),
    )


def _binary(data: Bytes, ends: Ints) -> pa.Array:
    return column_of(pa.binary(), data, np.concatenate([np.zeros(1, np.int64), ends]))


def compile_select(schema: TableSchema, *, elements_have_times: bool) -> SelectProgram:
    """Compile the query of a table."""
    cells = [*schema.static, *schema.regular]
    return SelectProgram(
        partition=len(schema.partition_key),
        clustering=len(schema.clustering),
        static_count=len(schema.static),
        shapes=np.array([_shape(c, elements_have_times) for c in cells], np.int32),
        kinds=np.array([OPS[c.type.name] if c.type.multi_cell else -1 for c in cells], np.int32),
        strict=bool(schema.liveness_column),
        row_prefix=_prefix(schema.regular, static=False),
        static_prefix=_prefix(schema.static, static=True),
    )


def _shape(column: Column, elements_have_times: bool) -> int:
    if column.type.name == "counter":
        return COUNTER
    if column.type.multi_cell:
        return ELEMENTS if elements_have_times else UNTIMED_ELEMENTS
    return PLAIN


def _prefix(columns: Sequence[Column], *, static: bool) -> Bytes:
    return np.frombuffer(snapshot_prefix([c.name for c in columns], static=static), np.uint8)


def select_list(schema: TableSchema, program: SelectProgram) -> Iterator[str]:
    """Yield the query's selectors, in the order that the kernel expects."""
    for column in (*schema.partition_key, *schema.clustering):
        yield quote_name(column.name)
    for column, shape in zip((*schema.static, *schema.regular), program.shapes, strict=True):
        name = quote_name(column.name)
        yield name
        if shape in (PLAIN, ELEMENTS):
            yield f"WRITETIME({name})"
            yield f"TTL({name})"
    if program.strict:
        yield f"WRITETIME({quote_name(schema.liveness_column)})"
        yield f"TTL({quote_name(schema.liveness_column)})"


def split_key(schema: TableSchema, key: bytes) -> list[bytes]:
    """Split a partition key into its columns' values."""
    if len(schema.partition_key) == 1:
        return [key]
    parts, at = [], 0
    while at < len(key):
        (length,) = struct.unpack_from(">H", key, at)
        parts.append(key[at + 2 : at + 2 + length])
        at += 3 + length
    return parts


def _token(schema: TableSchema) -> str:
    names: Iterable[str] = (c.name for c in schema.partition_key)
    if schema.definition and schema.liveness_column:
        names = schema.definition.partition_key
    return f"token({', '.join(map(quote_name, names))})"


def _conditions(schema: TableSchema) -> Sequence[str]:
    """Return the conditions on rows of a view's base to be in the view."""
    return schema.definition.conditions if schema.definition and schema.liveness_column else ()


def _equal(names: Iterable[str]) -> str:
    return " AND ".join(f"{quote_name(name)} = ?" for name in names)


def _filtered(conditions: str, more: Iterable[str]) -> str:
    """Add conditions that the server evaluates by filtering."""
    filters = [condition for condition in more if condition]
    return " AND ".join([conditions, *filters]) + " ALLOW FILTERING" if filters else conditions
