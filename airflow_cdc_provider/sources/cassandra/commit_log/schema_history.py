"""The schema's history: every version of every table, from what the log says of ``system_schema``.

Cassandra keeps its schema in tables, and every node writes each change of them to its own log before it takes
effect (reference §13). A statement's rows all have one write time, which is the same on every node: replayed
in that order the rows are the schema at each moment. So a table that is gone at the source, or that was made
anew under its old name, still has the definition that its entries in the log were written by.

A log that begins late lacks the statements before it. What a run sees at the source is therefore recorded
too, once per change (:func:`observed`), and stands in for them: records of kind ``schema``, with either form
of payload (:mod:`~airflow_cdc_provider.sources.cassandra.payload`), are the history's only input.
"""

from __future__ import annotations

import json
import logging
import re
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from airflow_cdc_provider.changes.cell_row import CellRow, read_cell_row
from airflow_cdc_provider.changes.cells import CELL_TOMBSTONE, ROW_DELETION, ROW_LIVENESS
from airflow_cdc_provider.changes.contribution import PARTITION_DELETION, RANGE_DELETION
from airflow_cdc_provider.changes.record import SCHEMA
from airflow_cdc_provider.exceptions import SchemaUnknown
from airflow_cdc_provider.sources.cassandra.commit_log.system_tables import system_table
from airflow_cdc_provider.sources.cassandra.decoding.decode import UpdateDecoder
from airflow_cdc_provider.sources.cassandra.payload import OBSERVED_TAG
from airflow_cdc_provider.sources.cql.comparable import encode_clustering
from airflow_cdc_provider.sources.cql.json_text import value_to_json
from airflow_cdc_provider.sources.cql.programs import compile_clustering
from airflow_cdc_provider.sources.cql.schema import TableSchema
from airflow_cdc_provider.sources.cql.scratch import new_scratch
from airflow_cdc_provider.sources.cql.system_schema import Row, schemas_from_rows

log = logging.getLogger(__name__)

_TABLE_ID: Final = re.compile("[0-9a-f]{32}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_READ: Final = ("tables", "views", "columns", "dropped_columns", "types")
_NEEDED: Final = {
    "tables": ("keyspace_name", "table_name", "id", "flags", "cdc"),
    "views": ("keyspace_name", "view_name", "base_table_name", "where_clause", "id", "cdc"),
    "columns": ("keyspace_name", "table_name", "column_name", "kind", "position", "type", "clustering_order"),
    "dropped_columns": ("keyspace_name", "table_name", "column_name", "kind", "type", "dropped_time"),
    "types": ("keyspace_name", "type_name", "field_names", "field_types"),
}
"""What decides how bytes are read; the rest (comments, compaction ...) makes no version."""


@dataclass(frozen=True)
class SchemaVersion:
    """A table from one statement on.

    Args:
        at_us: Write time of the statement in µs since 1970; of what was seen at the source, when.
        table: ``keyspace.table``.
        table_id: 32 hex digits.
        schema: The table's definition; None: the statement dropped it.
        places: Where the nodes' logs have the statement: position by origin.
    """

    at_us: int
    table: str
    table_id: str
    schema: TableSchema | None
    places: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def cdc(self) -> bool:
        """Whether the table's changes are captured from here on."""
        return self.schema is not None and self.schema.cdc


@dataclass(frozen=True)
class SchemaHistory:
    """All versions that are known.

    Args:
        versions: In the order of their statements.
        observed: Per keyspace, the text of what was last seen at the source.
    """

    versions: tuple[SchemaVersion, ...] = ()
    observed: Mapping[str, bytes] = field(default_factory=dict)

    @cached_property
    def by_id(self) -> dict[str, TableSchema]:
        """The last definition of each table that ever was, by id: it also reads what was written before."""
        return {v.table_id: v.schema for v in self.versions if v.schema is not None}

    @cached_property
    def switches(self) -> dict[str, list[SchemaVersion]]:
        """The versions of each table, by id, that have another value of ``cdc`` than the one before."""
        found: dict[str, list[SchemaVersion]] = defaultdict(list)
        for version in self.versions:
            before = found[version.table_id]
            if version.schema is not None and (not before or before[-1].cdc != version.cdc):
                before.append(version)
        return found

    def was_captured(self, table_id: str) -> bool:
        """Tell whether a table ever had ``cdc = true``."""
        return any(version.cdc for version in self.switches.get(table_id, ()))

    def off_since(self, table_id: str) -> int | None:
        """Return since when ``cdc`` is off for a table that had it, µs; None if it is on, or never was."""
        switches = self.switches.get(table_id, ())
        return switches[-1].at_us if len(switches) > 1 and not switches[-1].cdc else None

    def resumed_at(self, table_id: str) -> int:
        """Return when ``cdc`` was last switched on again after it had been on and off, µs; 0 for never."""
        switches = self.switches.get(table_id, ())
        return switches[-1].at_us if len(switches) > 2 and switches[-1].cdc else 0

    def captured(self, table_id: str, origins: pa.Array, positions: pa.Array) -> NDArray[np.bool_]:
        """Tell which updates were written while their table had ``cdc = true``, by their places in the log.

        Where the log of its node doesn't show a statement that switched it on, an update is taken to be.

        Args:
            table_id: The table's.
            origins: Of each update.
            positions: Likewise.
        """
        on = np.ones(len(origins), bool)
        for number, version in enumerate(self.switches.get(table_id, ())):
            if number == 0:
                on[:] = version.cdc
                continue
            for origin in pc.unique(origins).to_pylist():
                after = pc.equal(origins, origin)
                if origin in version.places:
                    place = pa.scalar(version.places[origin], pa.binary())
                    after = pc.and_(after, pc.greater(positions, place))
                elif not version.cdc:
                    continue
                on[after.to_numpy(zero_copy_only=False)] = version.cdc
        return on

    @cached_property
    def living(self) -> dict[str, TableSchema]:
        """The tables that were not dropped, by name."""
        tables: dict[str, TableSchema] = {}
        for version in self.versions:
            if version.schema is not None:
                tables[version.table] = version.schema
            elif version.table in tables and tables[version.table].id == version.table_id:
                del tables[version.table]
        return tables


def read_history(records: pa.Table) -> SchemaHistory:
    """Replay the schema's changes.

    Args:
        records: Records of ``CHANGE_SCHEMA``, in any order and from any number of nodes; those of other kinds
            are passed over. A record that can't be read is left out: its node's others, or another node's
            copy, or what is seen at the source, make up for it.
    """
    steps: dict[int, list[_Fact]] = defaultdict(list)
    for fact in _facts(records.filter(pc.equal(records["kind"], SCHEMA))):
        steps[fact.at_us].append(fact)
    replay = _Replay()
    for at_us in sorted(steps):
        # A statement that writes a row anew deletes what was there a microsecond before (deletePrevious).
        replay.step(at_us, steps[at_us], complete=at_us + 1 not in steps)
    return SchemaHistory(tuple(replay.versions), replay.observed)


def observed(
    rows: Mapping[str, Iterable[Row]], history: SchemaHistory, at_us: int
) -> Iterator[dict[str, Any]]:
    """Make records of what is seen at the source, for keyspaces of which something else was seen last.

    Args:
        rows: Table of ``system_schema`` -> its rows.
        history: What was recorded before.
        at_us: Now, µs since 1970.

    Yields:
        Records as mappings; their columns ``origin`` and ``position`` are empty.
    """
    keyspaces: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: {n: [] for n in _READ})
    for name, needed in _NEEDED.items():
        for row in rows.get(name, ()):
            shown = {column: row.get(column) for column in needed}
            keyspaces[row["keyspace_name"]][name].append(shown)
    for keyspace, found in sorted(keyspaces.items()):
        for part in found.values():
            part.sort(key=lambda row: json.dumps(row, sort_keys=True, default=str))
        text = json.dumps(found, sort_keys=True, default=str).encode()
        if history.observed.get(keyspace) != text:
            yield {
                "kind": SCHEMA,
                "origin": "",
                "position": b"",
                "generation": 0,
                "key": keyspace.encode(),
                "committed_at": at_us,
                "payload": bytes([OBSERVED_TAG]) + zlib.compress(text),
            }


class _Fact(NamedTuple):
    """Something that one statement did to one row, or to several.

    ``begin``     of the row, its clustering as it compares
    ``end``       of a deletion: exclusive, None for all that follow
    ``row``       values by column name: they are set; None: the rows from ``begin`` on, up to ``end``, go
    ``origin``, ``position``   where it was logged
    """

    at_us: int
    keyspace: str
    table: str
    begin: bytes
    end: bytes | None
    row: Mapping[str, Any] | None
    origin: str = ""
    position: bytes = b""


def _facts(records: pa.Table) -> Iterator[_Fact]:
    """Take records apart; deletions of a statement come after its rows, because ties go to them."""
    deletions: list[_Fact] = []
    tags = pc.binary_slice(records["payload"], 0, 1)
    for record in records.filter(pc.equal(tags, bytes([OBSERVED_TAG]))).to_pylist():
        at_us = (record["committed_at"] - _EPOCH) // timedelta(microseconds=1)
        try:
            text = zlib.decompress(record["payload"][1:])
            keyspace = record["key"].decode()
            seen = _rows_seen(text, keyspace)
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError, zlib.error) as error:
            log.warning(
                "what was seen of a keyspace can't be read and is left out: %s: %s",
                type(error).__name__,
                error,
            )
            continue
        yield _Fact(at_us, keyspace, "", b"", None, {"text": text, "seen": seen})
    updates = records.filter(pc.not_equal(tags, bytes([OBSERVED_TAG])))
    for name in _READ:
        full_name = f"system_schema.{name}"
        mine = updates.filter(pc.equal(updates["source_table"], full_name)).combine_chunks()
        # A contribution's generation says which record it is from.
        numbers = pa.array(range(mine.num_rows), pa.int64())
        mine = mine.set_column(mine.schema.get_field_index("generation"), "generation", numbers)
        origins, positions = mine["origin"].to_pylist(), mine["position"].to_pylist()
        for batch in mine.to_batches():
            decoded = _decoder(full_name).decode(batch, ())
            for reason in decoded.reasons:
                log.warning("a change of %s can't be read and is left out: %s", full_name, reason)
            for line in decoded.contributions.to_pylist():
                number = line["generation"]
                try:
                    told = list(_facts_of(name, line))
                except (ValueError, struct.error) as error:
                    # A text that is no UTF-8, or a value that is cut short.
                    log.warning("a row of %s can't be read and is left out: %s", full_name, error)
                    continue
                for found in told:
                    fact = found._replace(origin=origins[number], position=positions[number])
                    if fact.row is None:
                        deletions.append(fact)
                    else:
                        yield fact
    yield from deletions


def _rows_seen(text: bytes, keyspace: str) -> dict[str, dict[bytes, Row]]:
    """Read what :func:`observed` wrote: the rows of each table by their clustering."""
    found = json.loads(text)
    seen: dict[str, dict[bytes, Row]] = {}
    for name in _READ:
        schema = system_table(f"system_schema.{name}")
        seen[name] = {_comparable(schema, row): {**row, "keyspace_name": keyspace} for row in found[name]}
    return seen


@cache
def _decoder(full_name: str) -> UpdateDecoder:
    return UpdateDecoder(system_table(full_name))


def _facts_of(name: str, line: Mapping[str, Any]) -> Iterator[_Fact]:
    keyspace, begin = line["key"].decode(), line["clustering"]
    state = read_cell_row(line["state"])
    if line["scope"] == PARTITION_DELETION:
        yield _Fact(state.deletion_us, keyspace, name, b"", None, None)
        return
    if line["scope"] == RANGE_DELETION:
        yield _Fact(state.deletion_us, keyspace, name, begin, line["clustering_end"], None)
        return
    if state.flags & ROW_DELETION:
        yield _Fact(state.deletion_us, keyspace, name, begin, begin + b"\0", None)
    values: dict[int, dict[str, Any]] = defaultdict(dict)
    if state.flags & ROW_LIVENESS:
        values[state.liveness_us] = {}
    schema = system_table(f"system_schema.{name}")
    columns = {column.id: column for column in schema.regular}
    for cell in state.cells:
        column = columns[cell.column]
        gone = cell.flags & CELL_TOMBSTONE
        values[cell.time_us][column.name] = (
            None if gone else json.loads(value_to_json(column.type, cell.value))
        )
    key = {"keyspace_name": keyspace, **_clustering(schema, state)}
    for at_us, row in values.items():
        yield _Fact(at_us, keyspace, name, begin, None, {**key, **row})


def _clustering(schema: TableSchema, state: CellRow) -> dict[str, Any]:
    values, at = {}, 0
    for column in schema.clustering:
        (length,) = struct.unpack_from("<i", state.clustering, at)
        values[column.name] = state.clustering[at + 4 : at + 4 + length].decode()
        at += 4 + length
    return values


class _Replay:
    """The rows of ``system_schema`` while they change, and the versions that come out."""

    def __init__(self) -> None:
        self.versions: list[SchemaVersion] = []
        self.observed: dict[str, bytes] = {}
        self._rows: dict[str, dict[str, dict[bytes, dict[str, Any]]]] = defaultdict(
            lambda: {name: {} for name in _READ}
        )
        self._latest: dict[str, TableSchema] = {}
        self._touched: set[tuple[str, str]] = set()
        self._places: dict[str, bytes] = {}

    def step(self, at_us: int, facts: Sequence[_Fact], *, complete: bool) -> None:
        """Apply what has one write time; note versions unless more of the statement follows."""
        for fact in facts:
            self._touched.update((fact.keyspace, name) for name in self._apply(fact))
            if fact.origin:
                known = self._places.get(fact.origin, fact.position)
                self._places[fact.origin] = min(known, fact.position)
        if complete:
            for keyspace, name in sorted(self._touched):
                self._version(at_us, keyspace, name)
            self._touched.clear()
            self._places = {}

    def _apply(self, fact: _Fact) -> set[str]:
        """Change rows; return the names of tables whose definition may have changed."""
        keyspace = self._rows[fact.keyspace]
        if not fact.table:
            return self._see(fact)
        rows = keyspace[fact.table]
        if fact.row is not None:
            rows.setdefault(fact.begin, {}).update(fact.row)
            changed = [fact.row]
        else:
            gone = [k for k in rows if fact.begin <= k and (fact.end is None or k < fact.end)]
            changed = [rows.pop(k) for k in gone]
        if fact.table == "types":
            return self._names(fact.keyspace)
        return {_name(row) for row in changed}

    def _see(self, fact: _Fact) -> set[str]:
        """Put what was seen at the source in the place of all that is known of a keyspace."""
        assert fact.row is not None
        before = self._names(fact.keyspace)
        self.observed[fact.keyspace] = fact.row["text"]
        self._rows[fact.keyspace].update(fact.row["seen"])
        return before | self._names(fact.keyspace)

    def _names(self, keyspace: str) -> set[str]:
        rows = self._rows[keyspace]
        return {_name(row) for kind in ("tables", "views") for row in rows[kind].values()}

    def _version(self, at_us: int, keyspace: str, name: str) -> None:
        """Note a table's definition if it has become another one."""
        full_name = f"{keyspace}.{name}"
        known = self._latest.get(full_name)
        schema = self._define(keyspace, name)
        if schema == known or (schema is None and known is None):
            return
        if known is not None and (schema is None or schema.id != known.id):
            self.versions.append(SchemaVersion(at_us, full_name, known.id, None, self._places))
            del self._latest[full_name]
        if schema is not None:
            self.versions.append(SchemaVersion(at_us, full_name, schema.id, schema, self._places))
            self._latest[full_name] = schema

    def _define(self, keyspace: str, name: str) -> TableSchema | None:
        """Build a table from the rows as they are; None if it isn't there, or was never known in full."""
        rows = self._rows[keyspace]
        mine = {k: [row for row in rows[k].values() if _name(row) == name] for k in _READ if k != "types"}
        bases = {row.get("base_table_name") for row in mine["views"]}
        mine["columns"] += [row for row in rows["columns"].values() if _name(row) in bases]
        try:
            found = schemas_from_rows({**mine, "types": rows["types"].values()})
        except SchemaUnknown:
            # The log began after a CREATE TYPE that it needs; what it was before still reads most of it.
            known = self._latest.get(f"{keyspace}.{name}")
            ids = {_id(row) for kind in ("tables", "views") for row in mine[kind]}
            return known if known is not None and known.id in ids else None
        schema = found.tables.get(f"{keyspace}.{name}")
        sound = schema is not None and _TABLE_ID.fullmatch(schema.id) and schema.partition_key
        return schema if sound else None


def _id(row: Row) -> str:
    return str(row.get("id") or "").replace("-", "").lower()


def _name(row: Row) -> str:
    return str(row.get("table_name") or row.get("view_name") or "")


def _comparable(schema: TableSchema, row: Row) -> bytes:
    """Return a row's clustering as contributions have it."""
    values = [str(row[column.name]).encode() for column in schema.clustering]
    native = np.frombuffer(b"".join(struct.pack("<i", len(v)) + v for v in values), np.uint8)
    program = compile_clustering(schema)
    out = np.empty(2 * len(native) + 64, np.uint8)
    scratch = new_scratch(len(native))
    end = encode_clustering(
        program.nodes,
        program.roots,
        program.descending,
        len(values),
        native,
        0,
        len(native),
        scratch,
        out,
        0,
    )
    return out[:end].tobytes()
