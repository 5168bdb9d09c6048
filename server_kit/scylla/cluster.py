"""An imitation of a ScyllaDB cluster with change data capture, on a real Cassandra.

Statements are executed twice: by the model (:mod:`.base_table`), whose log rows go into the log table, and as
CQL on the base table, so that snapshots find real rows there. What a reader asks (log tables, generations,
streams, options, releases) are real tables, read with real queries. What this can't show stands in
``docs/design/scylla.md``.

Example::

    cluster = ImitatedScylla(session, "shop")
    cluster.create()
    number = CqlType("int")
    item = Table("shop", "item", (Column("sku", number),), regular=(Column("qty", number),))
    cluster.create_table(item)
    cluster.execute(item, Insert((struct.pack(">i", 7),), (), {"qty": struct.pack(">i", 9)}))
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from server_kit.cassandra import create_keyspace
from server_kit.scylla.base_table import BaseTable
from server_kit.scylla.errors import InvalidRequest
from server_kit.scylla.generations import (
    IGNORED_BITS,
    Generation,
    StreamSet,
    Timeline,
    check_timestamp,
    make_generation,
    make_stream_set,
    resized,
)
from server_kit.scylla.images import read_images
from server_kit.scylla.log_rows import Change, LogRow, changes_of
from server_kit.scylla.mutations import mutations
from server_kit.scylla.partitions import Partition
from server_kit.scylla.schemas import (
    META,
    SystemKeyspaces,
    create_base,
    create_log,
    create_system_tables,
    log_columns,
    log_columns_of,
)
from server_kit.scylla.statements import Batch, Statement, as_cql
from server_kit.scylla.system_tables import SystemTables
from server_kit.scylla.tables import LOG_SUFFIX, Column, Table
from server_kit.scylla.timeuuids import log_time
from server_kit.scylla.values import CqlType, Native, quoted

if TYPE_CHECKING:
    from cassandra.cluster import Session

_TABLE_NAME_LIMIT = 48 - len(LOG_SUFFIX)


@dataclass(frozen=True)
class LoggedChange:
    """A change with its place: what the log table has of one write.

    Args:
        table: The base table.
        key: Values of the partition key.
        stream: ``cdc$stream_id``.
        timeuuid: ``cdc$time``.
        change: Its rows.
    """

    table: Table
    key: tuple[bytes, ...]
    stream: bytes
    timeuuid: bytes
    change: Change

    def columns(self, number: int) -> dict[str, bytes]:
        """Return a log row as column values in native bytes; what is null isn't there."""
        row: LogRow = self.change.rows[number]
        found = {
            META + "stream_id": self.stream,
            META + "time": self.timeuuid,
            META + "batch_seq_no": number.to_bytes(4, "big"),
            META + "operation": row.operation.to_bytes(1, "big", signed=True),
        }
        if row.ttl is not None:
            found[META + "ttl"] = row.ttl.to_bytes(8, "big")
        if row.end_of_batch:
            found[META + "end_of_batch"] = b"\1"
        names = [column.name for column in self.table.partition]
        found.update(zip(names, self.key, strict=True))
        names = [column.name for column in self.table.clustering]
        found.update(zip(names, row.clustering, strict=False))
        found.update(row.values)
        found.update({f"{META}deleted_{name}": b"\1" for name in row.deleted})
        found.update({f"{META}deleted_elements_{n}": v for n, v in row.deleted_elements.items()})
        return found


def remove_cluster(session: Session, keyspace: str, names: SystemKeyspaces) -> None:
    """Drop a cluster's keyspace, and leave empty tables of the server for the next cluster.

    To drop and create them, too, would take two seconds of Cassandra's CPU time for each cluster.

    Args:
        session: A session on Cassandra.
        keyspace: The keyspace of the cluster's tables.
        names: Keyspaces of the server's own tables.
    """
    session.execute(f"DROP KEYSPACE IF EXISTS {keyspace}")
    for name in astuple(names):
        create_keyspace(session, name)
    SystemTables(session, names).empty()


@dataclass
class ImitatedScylla:
    """A cluster with one keyspace.

    Args:
        session: A session on Cassandra.
        keyspace: The keyspace of the tables.
        tablets: Tablets of each table; 0 for a keyspace with vnodes.
        nodes: Nodes of the ring, for vnodes.
        vnodes: Vnodes of each node.
        shards: Shards of each node.
        names: Keyspaces of the server's own tables.
        release: The release in ``system.versions``, and its features.
        seed: Of the random bits of ids and of tokens.
        clock_us: The cluster's clock, in us since 1970.
    """

    session: Session
    keyspace: str
    tablets: int = 0
    nodes: int = 1
    vnodes: int = 4
    shards: int = 2
    names: SystemKeyspaces = field(default_factory=SystemKeyspaces)
    release: str = "2026.1.0"
    seed: int = 1
    clock_us: Callable[[], int] = lambda: time.time_ns() // 1000
    tables: dict[str, BaseTable] = field(default_factory=dict)
    generations: Timeline[Generation] = field(default_factory=Timeline)
    stream_sets: dict[str, Timeline[StreamSet]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._system = SystemTables(self.session, self.names)
        self._prepared: dict[str, Any] = {}
        self._last_us = 0

    def create(self, *, first_generation: bool = True) -> None:
        """Create the keyspaces and the server's own tables, and with vnodes the first generation."""
        for name in (self.keyspace, self.names.distributed, self.names.system, self.names.schema):
            create_keyspace(self.session, name)
        for statement in create_system_tables(self.names):
            self.session.execute(statement)
        features = "CDC,CDC_GENERATIONS_V2" + (",CDC_WITH_TABLETS,TABLETS" if self.tablets else "")
        self._system.show_server(self.release, features, self._chance)
        self._system.show_keyspace(self.keyspace, self.tablets)
        if first_generation and not self.tablets:
            self.new_generation()

    def create_as_of_4_3(self) -> None:
        """Leave only the descriptions of release 4.3, with the streams of all generations so far."""
        self._system.describe_as_of_4_3(self.generations.sets)

    # Tables.

    def create_type(self, udt: CqlType) -> None:
        """Create a user-defined type."""
        fields = ", ".join(
            f"{quoted(name)} {kind.cql(self.keyspace)}"
            for name, kind in zip(udt.fields, udt.parameters, strict=True)
        )
        self.session.execute(f"CREATE TYPE IF NOT EXISTS {self.keyspace}.{quoted(udt.udt_name)} ({fields})")

    def create_table(self, table: Table) -> BaseTable:
        """Create a table and, with change data capture on, its log.

        Raises:
            InvalidRequest: Counters can't be captured, nor a log, nor a table whose log's name is taken
                (scylla source, cdc/log.cc, ``on_before_create_column_family``).
        """
        if table.keyspace != self.keyspace or len(table.name) > _TABLE_NAME_LIMIT:
            raise InvalidRequest(f"expected a name of at most {_TABLE_NAME_LIMIT} in {self.keyspace}")
        self._check_log(table)
        self.session.execute(create_base(table))
        self.tables[table.name] = BaseTable(table)
        if self.tablets:
            self.stream_sets[table.name] = Timeline()
            self._add_stream_set(table.name, make_stream_set(self._now_ms(), self.tablets, self._chance))
        self._system.show_options(table)
        if table.cdc.enabled:
            self.session.execute(create_log(table))
        return self.tables[table.name]

    def alter_cdc(self, table: str, **options: Any) -> Table:
        """Change options of a table's log. A disabled log keeps its rows; when enabled again it continues."""
        base = self.tables[table]
        altered = base.table.with_cdc(**options)
        if altered.cdc.enabled and not base.table.cdc.enabled:
            self._check_log(altered)
            present = self.session.execute(
                "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s",
                (self.keyspace, altered.log_name),
            )
            if not present.one():
                self.session.execute(create_log(altered))
        self._change(base, altered)
        self._system.show_options(altered)
        return altered

    def add_column(self, table: str, column: Column, *, static: bool = False) -> Table:
        """Add a column to a table and to its log."""
        base = self.tables[table]
        kind = column.type.cql(self.keyspace)
        self.session.execute(
            f"ALTER TABLE {base.table.cql_name} ADD {quoted(column.name)} {kind}{' static' * static}"
        )
        if base.table.cdc.enabled:
            for name, logged in log_columns_of(column):
                kind = logged.cql(self.keyspace)
                self.session.execute(f"ALTER TABLE {base.table.log_cql_name} ADD {quoted(name)} {kind}")
        if static:
            altered = replace(base.table, static_columns=(*base.table.static_columns, column))
        else:
            altered = replace(base.table, regular=(*base.table.regular, column))
        self._change(base, altered)
        return altered

    def drop_column(self, table: str, name: str) -> Table:
        """Drop a column from a table and from its log. Its name can't be taken again for 5 s."""
        base = self.tables[table]
        self.session.execute(f"ALTER TABLE {base.table.cql_name} DROP {quoted(name)}")
        if base.table.cdc.enabled:
            for logged, _ in log_columns_of(base.table.column(name)):
                self.session.execute(f"ALTER TABLE {base.table.log_cql_name} DROP {quoted(logged)}")
        static_columns = tuple(c for c in base.table.static_columns if c.name != name)
        regular = tuple(c for c in base.table.regular if c.name != name)
        altered = replace(base.table, static_columns=static_columns, regular=regular)
        for partition in base.partitions.values():
            for row in (partition.static, *partition.rows.values()):
                row.cells.pop(name, None)
                row.elements.pop(name, None)
        self._change(base, altered)
        return altered

    def rename_key(self, table: str, name: str, to: str) -> Table:
        """Rename a key column. The log drops the column and gets another, which is null in the rows before.

        Scylla source, cdc/log.cc, ``create_log_schema``: the log's columns are made again from the base's.
        """
        base = self.tables[table]
        self.session.execute(f"ALTER TABLE {base.table.cql_name} RENAME {quoted(name)} TO {quoted(to)}")
        keys = (*base.table.partition, *base.table.clustering)
        if base.table.cdc.enabled:
            log = base.table.log_cql_name
            (kind,) = (column.type.cql(self.keyspace) for column in keys if column.name == name)
            self.session.execute(f"ALTER TABLE {log} DROP {quoted(name)}")
            self.session.execute(f"ALTER TABLE {log} ADD {quoted(to)} {kind}")

        def renamed(columns: tuple[Column, ...]) -> tuple[Column, ...]:
            return tuple(replace(c, name=to) if c.name == name else c for c in columns)

        altered = replace(
            base.table,
            partition=renamed(base.table.partition),
            clustering=renamed(base.table.clustering),
            descending=frozenset(to if one == name else one for one in base.table.descending),
        )
        self._change(base, altered)
        return altered

    def truncate(self, table: str) -> None:
        """Truncate a base table. Its log says nothing of it; the node writes down when it did it."""
        self.session.execute(f"TRUNCATE {self.tables[table].table.cql_name}")
        self.tables[table].truncate()
        self._show_truncation(table)

    def truncate_log(self, table: str) -> None:
        """Truncate the log of a table: its unread rows are lost."""
        found = self.tables[table].table
        self.session.execute(f"TRUNCATE {found.log_cql_name}")
        self._show_truncation(found.log_name)

    def _show_truncation(self, table: str) -> None:
        row = self.session.execute(
            "SELECT id FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s",
            (self.keyspace, table),
        ).one()
        self._system.show_truncation(row.id, self._now_ms())

    def drop_table(self, table: str) -> None:
        """Drop a table, and its log with it."""
        base = self.tables.pop(table)
        self.stream_sets.pop(table, None)
        self._prepared.clear()
        self.session.execute(f"DROP TABLE {base.table.cql_name}")
        self.session.execute(f"DROP TABLE IF EXISTS {base.table.log_cql_name}")
        self._system.forget_table(self.keyspace, table)

    def _check_log(self, table: Table) -> None:
        if not table.cdc.enabled:
            return
        if any(column.type.name == "counter" for column in table.regular):
            raise InvalidRequest(
                f"Cannot create CDC log for table {table.full_name}. Counter support missing"
            )
        if table.name.endswith(LOG_SUFFIX) and table.name.removesuffix(LOG_SUFFIX) in self.tables:
            raise InvalidRequest(f"Cannot create a CDC log for a log: {table.full_name}")
        if table.log_name in self.tables:
            raise InvalidRequest(f"Cannot create CDC log: a table {table.log_name} already exists")

    def _change(self, base: BaseTable, altered: Table) -> None:
        base.table = altered
        for partition in base.partitions.values():
            partition.table = altered
        self._prepared.clear()

    # Streams.

    def new_generation(self, at_ms: int | None = None, *, nodes: int | None = None) -> Generation:
        """Begin a new generation, as when a node joins.

        The descriptions are written before the timestamp, as the server does it: who sees the timestamp finds
        all of them.

        Args:
            at_ms: From when, which may lie ahead. Default: now.
            nodes: Nodes of the ring from then on. Default: as before.
        """
        self.nodes = nodes or self.nodes
        tokens = [self._chance.getrandbits(64) - (1 << 63) for _ in range(self.nodes * self.vnodes)]
        time_ms = self._now_ms() if at_ms is None else at_ms
        generation = make_generation(time_ms, tokens, self.shards, self._chance, IGNORED_BITS)
        self.generations.add(generation)
        self._system.describe(generation)
        self._system.announce(generation)
        return generation

    def resize_tablets(self, table: str, tablets: int, at_ms: int | None = None) -> StreamSet:
        """Split or merge the tablets of a table from a moment on. Default: now."""
        present = self.stream_sets[table].sets[-1]
        time_ms = self._now_ms() if at_ms is None else at_ms
        streams = resized(present, time_ms, tablets, self._chance)
        self._add_stream_set(table, streams)
        return streams

    def _add_stream_set(self, table: str, streams: StreamSet) -> None:
        timeline = self.stream_sets[table]
        before = timeline.sets[-1] if timeline.sets else None
        timeline.add(streams)
        self._system.show_streams(self.tables[table].table, before, streams)

    def stream_for(self, table: Table, key: tuple[bytes, ...], time_us: int) -> bytes:
        """Return the stream that logs a partition at a timestamp."""
        token = token_of_key(table, key)
        if self.tablets:
            return self.stream_sets[table.name].at(time_us).stream_for(token)
        return self.generations.at(time_us).stream_for(token)

    # Writes.

    def execute(
        self, table: Table | str, *statements: Statement | Batch, late: bool = False
    ) -> list[LoggedChange]:
        """Execute statements one after the other, each a request of its own.

        Args:
            table: The table, or its name.
            statements: Statements or batches; what has no timestamp gets the clock's.
            late: Leave the log rows unwritten, as if replicas got them late; :meth:`write_log` writes them.

        Returns:
            What was logged, or is to be.

        Raises:
            InvalidRequest: The server would refuse it. Statements before it are done.
        """
        name = table if isinstance(table, str) else table.name
        logged = [change for statement in statements for change in self._request(name, statement)]
        if not late:
            self.write_log(logged)
        return logged

    def write_log(self, logged: Iterable[LoggedChange]) -> None:
        """Write log rows: those of a change at once, as they are one mutation of the server's too."""
        from cassandra.query import UNSET_VALUE, BatchStatement, BatchType

        for change in logged:
            columns = [name for name, _ in log_columns(change.table)]
            names, marks = ", ".join(map(quoted, columns)), ", ".join("?" * len(columns))
            text = (
                f"INSERT INTO {change.table.log_cql_name} ({names}) VALUES ({marks}) "
                "USING TTL ? AND TIMESTAMP ?"
            )
            using = struct.pack(">i", change.table.cdc.ttl), struct.pack(">q", change.change.time)
            batch = BatchStatement(BatchType.UNLOGGED)
            for number in range(len(change.change.rows)):
                values = change.columns(number)
                batch.add(self._bound(text, [*(values.get(c, UNSET_VALUE) for c in columns), *using]))
            self.session.execute(batch)

    def _request(self, name: str, request: Statement | Batch) -> list[LoggedChange]:
        base = self.tables[name]
        given = request.statements if isinstance(request, Batch) else (request,)
        now_us = self._now_us()
        timed = [s if s.timestamp is not None else replace(s, timestamp=now_us) for s in given]
        made = mutations(base, timed, now_us // 1_000_000)
        logged = self._log(base, made, now_us) if base.table.cdc.enabled else []
        self._execute_base(base.table, timed)
        for mutation in made:
            base.apply(mutation)
        return logged

    def _log(self, base: BaseTable, made: Sequence[Partition], now_us: int) -> list[LoggedChange]:
        logged: list[LoggedChange] = []
        for mutation in made:
            images = read_images(base, mutation, now_us // 1_000_000)
            for change in changes_of(mutation, images):
                self._check_timestamp(base.table, change.time, now_us)
                stream = self.stream_for(base.table, mutation.key, change.time)
                synthetic_time = log_time(change.time, self._chance)
                logged.append(LoggedChange(base.table, mutation.key, stream, synthetic_time, change))
        return logged

    def _check_timestamp(self, table: Table, time_us: int, now_us: int) -> None:
        timeline: Timeline[Any] = self.stream_sets[table.name] if self.tablets else self.generations
        times = [s.time_ms for s in timeline.sets]
        check_timestamp(times, time_us, now_us, tablets=bool(self.tablets))

    def _execute_base(self, table: Table, statements: Sequence[Statement]) -> None:
        from cassandra.query import BatchStatement

        bound = [self._bound(*as_cql(table, statement)) for statement in statements]
        if len(bound) == 1:
            self.session.execute(bound[0])
            return
        batch = BatchStatement()
        for statement in bound:
            batch.add(statement)
        self.session.execute(batch)

    def _bound(self, text: str, values: Sequence[Native]) -> Any:
        from cassandra.query import BoundStatement

        if text not in self._prepared:
            self._prepared[text] = self.session.prepare(text)
        bound = BoundStatement(self._prepared[text])
        bound.values = list(values)
        return bound

    def _now_us(self) -> int:
        """Return the clock; no two requests get one microsecond."""
        self._last_us = max(self._last_us + 1, self.clock_us())
        return self._last_us

    def _now_ms(self) -> int:
        return self.clock_us() // 1000


def token_of_key(table: Table, key: tuple[bytes, ...]) -> int:
    """Return the token of a partition: the same Murmur3 in ScyllaDB and Cassandra."""
    from cassandra.metadata import Murmur3Token

    return int(Murmur3Token.from_key(table.partition_key(key)).value)
