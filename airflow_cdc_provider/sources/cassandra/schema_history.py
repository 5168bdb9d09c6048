"""The schema history: every version of every table, from the log's updates of ``system_schema``.

Cassandra stores its schema in tables, and every node writes each schema change to its own log before it takes
effect (reference §13). All rows of a statement have one write time, which is the same on every node: replayed
in that order, the rows are the schema at each point in time. So the log entries of a table that was dropped,
or re-created under its old name, can still be decoded by the definition that they were written with.

A log that starts late lacks earlier statements. So each run also records the schema that it reads from the
source, once per change (:func:`observed`), in place of them. Records of kind ``schema``, with any form of
payload (:mod:`~airflow_cdc_provider.sources.cassandra.payload`), are the history's only input.

What is recorded of a keyspace is bounded. Records say where updates were skipped: from there on its history
is unknown. The next run records the schema again and repeats the snapshots of the keyspace's tables, since
``cdc`` may have been off; until a later statement of the same log switches it, changes count as captured.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.cell_row import CellRow, read_cell_row
from airflow_cdc_provider.changes.cells import CELL_TOMBSTONE, ROW_DELETION, ROW_LIVENESS
from airflow_cdc_provider.changes.contribution import PARTITION_DELETION, RANGE_DELETION
from airflow_cdc_provider.changes.record import SCHEMA
from airflow_cdc_provider.exceptions import SchemaUnknown
from airflow_cdc_provider.formats.kernels import Flags
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.sources.cassandra.commit_log.system_tables import system_table
from airflow_cdc_provider.sources.cassandra.decoding.decode import UpdateDecoder
from airflow_cdc_provider.sources.cassandra.payload import OBSERVED_TAG, SKIPPED_TAG
from airflow_cdc_provider.sources.cql.comparable import encode_clustering
from airflow_cdc_provider.sources.cql.json_text import value_to_json
from airflow_cdc_provider.sources.cql.programs import compile_clustering
from airflow_cdc_provider.sources.cql.schema import TableSchema
from airflow_cdc_provider.sources.cql.scratch import new_scratch
from airflow_cdc_provider.sources.cql.system_schema import Row, schemas_from_rows

log = logger(__name__)

_TABLE_ID: Final = re.compile("[0-9a-f]{32}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

MOST_RECORDED_BYTES: Final = 32 << 20
"""Recorded updates of the schema of a keyspace: each node has a copy, which counts once."""
_MOST_COPIED_BYTES: Final = 256 << 20
"""The same with all copies."""
_RECORD_BYTES: Final = 1_000
"""What a record takes beyond its payload."""
_READ: Final = ("tables", "views", "columns", "dropped_columns", "types")
_NEEDED: Final = {
    "tables": ("keyspace_name", "table_name", "id", "flags", "cdc"),
    "views": ("keyspace_name", "view_name", "base_table_name", "where_clause", "id", "cdc"),
    "columns": ("keyspace_name", "table_name", "column_name", "kind", "position", "type", "clustering_order"),
    "dropped_columns": ("keyspace_name", "table_name", "column_name", "kind", "type", "dropped_time"),
    "types": ("keyspace_name", "type_name", "field_names", "field_types"),
}
"""Columns that affect decoding; a change of others (comments, compaction ...) is not a version."""


@dataclass(frozen=True)
class SchemaVersion:
    """A table's definition after one statement.

    Args:
        at_us: Write time of the statement in µs since 1970, or when the schema was read from the source.
        table: ``keyspace.table``.
        table_id: 32 hex digits.
        schema: The table's definition; None: the statement dropped it.
        positions: Position of the statement in the nodes' logs, by origin.
    """

    at_us: int
    table: str
    table_id: str
    schema: TableSchema | None
    positions: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def cdc(self) -> bool:
        """Whether the table's changes are captured from this version on."""
        return self.schema is not None and self.schema.cdc


@dataclass(frozen=True)
class SchemaHistory:
    """All known versions.

    Args:
        versions: The versions, ordered by their statements.
        observed: By keyspace, the serialized schema that was last read from the source.
        full: Keyspaces with so many recorded updates that no further ones are.
        skipped: By keyspace and origin, positions from which on updates are not recorded, ordered.
        incomplete: Keyspaces whose schema was not read from the source since updates were skipped.
        read_again_us: By keyspace, when it last was after updates were skipped, µs since 1970.
    """

    versions: tuple[SchemaVersion, ...] = ()
    observed: Mapping[str, bytes] = field(default_factory=dict)
    full: frozenset[bytes] = frozenset()
    skipped: Mapping[str, Mapping[str, Sequence[bytes]]] = field(default_factory=dict)
    incomplete: frozenset[str] = frozenset()
    read_again_us: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def by_id(self) -> dict[str, TableSchema]:
        """The last definition of each table that ever existed, by id: it also decodes earlier updates."""
        return {v.table_id: v.schema for v in self.versions if v.schema is not None}

    @cached_property
    def switches(self) -> dict[str, list[SchemaVersion]]:
        """The versions of each table, by id, whose ``cdc`` differs from the version before."""
        found: dict[str, list[SchemaVersion]] = defaultdict(list)
        for version in self.versions:
            before = found[version.table_id]
            if version.schema is not None and (not before or before[-1].cdc != version.cdc):
                before.append(version)
        return found

    def was_captured(self, table_id: str) -> bool:
        """Return whether a table ever had ``cdc = true``."""
        return any(version.cdc for version in self.switches.get(table_id, ()))

    def off_since(self, table_id: str) -> int | None:
        """Return when ``cdc`` was switched off for a table, µs; None if it is on, or never was."""
        switches = self.switches.get(table_id, ())
        return switches[-1].at_us if len(switches) > 1 and not switches[-1].cdc else None

    def resumed_at(self, table: TableSchema) -> int:
        """Return when ``cdc`` was last switched on again, or may have been, µs; 0 if never or it is off."""
        switches = self.switches.get(table.id, ())
        if switches and not switches[-1].cdc:
            return 0
        switched_at = switches[-1].at_us if len(switches) > 2 else 0
        return max(switched_at, self.read_again_us.get(table.keyspace, 0))

    def captured(self, table_id: str, origins: pa.Array, positions: pa.Array) -> Flags:
        """Return which updates were written while their table had ``cdc = true``, by their log positions.

        If the log of an update's node has no statement that switched it on, the update counts as captured. So
        does one after skipped updates of the schema, until the next statement that switches it.

        Args:
            table_id: The table's id.
            origins: Origin of each update.
            positions: Position of each update.

        Returns:
            A boolean for each update.
        """
        on = np.ones(len(origins), bool)
        for number, version in enumerate(self.switches.get(table_id, ())):
            if number == 0:
                on[:] = version.cdc
                continue
            for origin in pc.unique(origins).to_pylist():
                after = pc.equal(origins, origin)
                if origin in version.positions:
                    switched_at = pa.scalar(version.positions[origin], pa.binary())
                    after = pc.and_(after, pc.greater(positions, switched_at))
                elif not version.cdc:
                    continue
                on[after.to_numpy(zero_copy_only=False)] = version.cdc
        for origin in pc.unique(origins).to_pylist():
            for since, until in self._unknown(table_id, origin):
                within = pc.and_(
                    pc.equal(origins, origin), pc.greater(positions, pa.scalar(since, pa.binary()))
                )
                if until is not None:
                    within = pc.and_(within, pc.less(positions, pa.scalar(until, pa.binary())))
                on[within.to_numpy(zero_copy_only=False)] = True
        return on

    def _unknown(self, table_id: str, origin: str) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the parts of a log in which ``cdc`` is unknown: from skipped updates to the next switch."""
        keyspace = self.by_id[table_id].keyspace if table_id in self.by_id else ""
        known = sorted(v.positions[origin] for v in self.switches.get(table_id, ()) if origin in v.positions)
        ends = set()
        for since in self.skipped.get(keyspace, {}).get(origin, ()):
            number = bisect_right(known, since)
            if number not in ends:
                ends.add(number)
                yield since, known[number] if number < len(known) else None

    @cached_property
    def existing(self) -> dict[str, TableSchema]:
        """The tables that were not dropped, by name."""
        tables: dict[str, TableSchema] = {}
        for version in self.versions:
            if version.schema is not None:
                tables[version.table] = version.schema
            elif version.table in tables and tables[version.table].id == version.table_id:
                del tables[version.table]
        return tables


def read_history(records: pa.Table) -> SchemaHistory:
    """Replay the schema changes.

    Args:
        records: Records of ``CHANGE_SCHEMA``, in any order and from any number of nodes; other kinds are
            skipped. Unreadable records are skipped, too: the same change in another record, from another
            node, or the schema read from the source replaces them.

    Returns:
        The history.
    """
    records = records.filter(pc.equal(records["kind"], SCHEMA))
    tags = pc.binary_slice(records["payload"], 0, 1)
    seen, skips = (pc.equal(tags, bytes([tag])) for tag in (OBSERVED_TAG, SKIPPED_TAG))
    updates = records.filter(pc.invert(pc.or_(seen, skips)))
    skipped = _skipped(records.filter(skips))
    steps: dict[int, list[_Fact]] = defaultdict(list)
    for fact in _facts(records.filter(seen), updates):
        steps[fact.at_us].append(fact)
    replay = _Replay()
    for at_us in sorted(steps):
        # A statement that overwrites a row deletes the old one a microsecond before (deletePrevious).
        replay.step(at_us, steps[at_us], complete=at_us + 1 not in steps)
    return SchemaHistory(
        tuple(replay.versions),
        replay.observed,
        _full(updates),
        skipped,
        frozenset(name for name in skipped if replay.skips.get(name, 0) != _count(skipped, name)),
        replay.read_again_us,
    )


def _full(updates: pa.Table) -> frozenset[bytes]:
    """Return the keyspaces with too many recorded updates: each run's driver reads all of them."""
    copies = updates.group_by(["key", "payload"]).aggregate([([], "count_all")])
    lengths = pc.binary_length(copies["payload"]).cast(pa.int64())
    of_copies = pc.multiply(lengths, copies["count_all"])
    sizes = pa.table({"key": copies["key"], "one": pc.add(lengths, _RECORD_BYTES), "all": of_copies})
    of_keyspace = sizes.group_by("key").aggregate([("one", "sum"), ("all", "sum")])
    return frozenset(
        found["key"]
        for found in of_keyspace.to_pylist()
        if found["one_sum"] > MOST_RECORDED_BYTES or found["all_sum"] > _MOST_COPIED_BYTES
    )


def _skipped(records: pa.Table) -> Mapping[str, Mapping[str, Sequence[bytes]]]:
    """Return by keyspace and origin the distinct positions, ordered."""
    found: dict[str, dict[str, list[bytes]]] = defaultdict(lambda: defaultdict(list))
    places = records.group_by(["key", "origin", "position"]).aggregate([]).to_pylist()
    for one in sorted(places, key=lambda one: one["position"]):
        found[one["key"].decode(errors="replace")][one["origin"]].append(one["position"])
    return {keyspace: dict(of_keyspace) for keyspace, of_keyspace in found.items()}


def _count(skipped: Mapping[str, Mapping[str, Sequence[bytes]]], keyspace: str) -> int:
    return sum(map(len, skipped.get(keyspace, {}).values()))


def observed(
    rows: Mapping[str, Iterable[Row]], history: SchemaHistory, at_us: int
) -> Iterator[dict[str, Any]]:
    """Build records of the schema read from the source, for keyspaces that differ from the last record.

    A record has the number of places at which updates of the keyspace were skipped before it. So there is a
    new one after each, whatever the clocks of those that skipped them. There also is one where recorded
    statements end with another ``cdc`` of a table, though the schema is the same as at the last record.

    Args:
        rows: Table of ``system_schema`` -> its rows.
        history: The history recorded so far.
        at_us: The current time, µs since 1970.

    Yields:
        Records as mappings; their columns ``origin`` and ``position`` are empty.
    """
    keyspaces: dict[str, dict[str, Any]] = defaultdict(lambda: {n: [] for n in _READ})
    for name, needed in _NEEDED.items():
        for row in rows.get(name, ()):
            projected = {column: row.get(column) for column in needed}
            keyspaces[row["keyspace_name"]][name].append(projected)
    for keyspace, found in sorted(keyspaces.items()):
        for part in found.values():
            part.sort(key=lambda row: json.dumps(row, sort_keys=True, default=str))
        if count := _count(history.skipped, keyspace):
            found["skipped"] = count
        text = json.dumps(found, sort_keys=True, default=str).encode()
        if history.observed.get(keyspace) != text or _is_contradicted(history, keyspace, found):
            yield {
                "kind": SCHEMA,
                "origin": "",
                "position": b"",
                "generation": 0,
                "key": keyspace.encode(),
                "committed_at": at_us,
                "payload": bytes([OBSERVED_TAG]) + zlib.compress(text),
            }


def _is_contradicted(history: SchemaHistory, keyspace: str, found: Mapping[str, Sequence[Row]]) -> bool:
    """Return whether ``cdc`` of a table was switched by a statement that the log lacked."""
    known = ((row, history.existing.get(f"{keyspace}.{_name(row)}")) for row in found["tables"])
    return any(schema is not None and schema.cdc != bool(row["cdc"]) for row, schema in known)


class _Fact(NamedTuple):
    """A change by one statement of one row, or of a range of rows.

    ``begin``     of the row, its clustering in byte-comparable form
    ``end``       of a deletion: exclusive, None for all that follow
    ``row``       values by column name, to set; None to delete the rows from ``begin`` up to ``end``
    ``positions``   of the log entries, by origin
    """

    at_us: int
    keyspace: str
    table: str
    begin: bytes
    end: bytes | None
    row: Mapping[str, Any] | None
    positions: Mapping[str, bytes] = {}


def _facts(seen: pa.Table, updates: pa.Table) -> Iterator[_Fact]:
    """Parse records; deletions of a statement come after its rows, because deletions win ties."""
    deletions: list[_Fact] = []
    for record in seen.to_pylist():
        at_us = (record["committed_at"] - _EPOCH) // timedelta(microseconds=1)
        try:
            text = zlib.decompress(record["payload"][1:])
            keyspace = record["key"].decode()
            found = json.loads(text)
            row = {"text": text, "rows": _observed_rows(found, keyspace), "skips": found.get("skipped", 0)}
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError, zlib.error) as error:
            log.warning(
                "skipped an unreadable schema snapshot of a keyspace: %s: %s", type(error).__name__, error
            )
            continue
        yield _Fact(at_us, keyspace, "", b"", None, row)
    for name in _READ:
        full_name = f"system_schema.{name}"
        mine, places = _distinct(updates.filter(pc.equal(updates["source_table"], full_name)))
        # The generation carries the number of the record that a contribution is from.
        numbers = pa.array(range(mine.num_rows), pa.int64())
        mine = mine.set_column(mine.schema.get_field_index("generation"), "generation", numbers)
        for batch in mine.to_batches():
            decoded = _decoder(full_name).decode(batch, ())
            for reason in decoded.reasons:
                log.warning("skipped an unreadable change of %s: %s", full_name, reason)
            for line in decoded.contributions.to_pylist():
                number = line["generation"]
                try:
                    facts = list(_facts_of(name, line))
                except (ValueError, struct.error) as error:
                    # A text that is not UTF-8, or a truncated value.
                    log.warning("skipped an unreadable row of %s: %s", full_name, error)
                    continue
                for one in facts:
                    fact = one._replace(positions=places[number])
                    if fact.row is None:
                        deletions.append(fact)
                    else:
                        yield fact
    yield from deletions


def _distinct(updates: pa.Table) -> tuple[pa.Table, list[dict[str, bytes]]]:
    """Return one of the copies of each update, and the first position of all in the logs, by origin."""
    updates = updates.combine_chunks()
    numbers = pc.rank(updates["payload"], tiebreaker="dense").to_numpy() - 1
    _, firsts = np.unique(numbers, return_index=True)
    places: list[dict[str, bytes]] = [{} for _ in firsts]
    of_updates = (updates[name].to_pylist() for name in ("origin", "position"))
    for number, origin, position in zip(numbers, *of_updates, strict=True):
        known = places[number].get(origin, position)
        places[number][origin] = min(known, position)
    return updates.take(firsts).combine_chunks(), places


def _observed_rows(found: Mapping[str, Any], keyspace: str) -> dict[str, dict[bytes, Row]]:
    """Parse the output of :func:`observed`: the rows of each table by their clustering."""
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
        deleted = cell.flags & CELL_TOMBSTONE
        values[cell.time_us][column.name] = (
            None if deleted else json.loads(value_to_json(column.type, cell.value))
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
    """The rows of ``system_schema`` during the replay, and the resulting versions."""

    def __init__(self) -> None:
        self.versions: list[SchemaVersion] = []
        self.observed: dict[str, bytes] = {}
        self.skips: dict[str, int] = {}
        self.read_again_us: dict[str, int] = {}
        self._rows: dict[str, dict[str, dict[bytes, dict[str, Any]]]] = defaultdict(
            lambda: {name: {} for name in _READ}
        )
        self._latest: dict[str, TableSchema] = {}
        self._touched: set[tuple[str, str]] = set()
        self._positions: dict[str, bytes] = {}

    def step(self, at_us: int, facts: Sequence[_Fact], *, complete: bool) -> None:
        """Apply facts of one write time; record versions unless more of the statement follows."""
        for fact in facts:
            self._touched.update((fact.keyspace, name) for name in self._apply(fact))
            for origin, position in fact.positions.items():
                self._positions[origin] = min(self._positions.get(origin, position), position)
        if complete:
            for keyspace, name in sorted(self._touched):
                self._record_version(at_us, keyspace, name)
            self._touched.clear()
            self._positions = {}

    def _apply(self, fact: _Fact) -> set[str]:
        """Change rows; return the names of tables whose definition may have changed."""
        keyspace = self._rows[fact.keyspace]
        if not fact.table:
            return self._replace_keyspace(fact)
        rows = keyspace[fact.table]
        if fact.row is not None:
            rows.setdefault(fact.begin, {}).update(fact.row)
            changed = [fact.row]
        else:
            deleted = [k for k in rows if fact.begin <= k and (fact.end is None or k < fact.end)]
            changed = [rows.pop(k) for k in deleted]
        if fact.table == "types":
            return self._names(fact.keyspace)
        return {_name(row) for row in changed}

    def _replace_keyspace(self, fact: _Fact) -> set[str]:
        """Replace all rows of a keyspace by those read from the source."""
        assert fact.row is not None
        before = self._names(fact.keyspace)
        self.observed[fact.keyspace] = fact.row["text"]
        if fact.row["skips"] != self.skips.get(fact.keyspace, 0):
            self.skips[fact.keyspace] = fact.row["skips"]
            self.read_again_us[fact.keyspace] = fact.at_us
        self._rows[fact.keyspace].update(fact.row["rows"])
        return before | self._names(fact.keyspace)

    def _names(self, keyspace: str) -> set[str]:
        rows = self._rows[keyspace]
        return {_name(row) for kind in ("tables", "views") for row in rows[kind].values()}

    def _record_version(self, at_us: int, keyspace: str, name: str) -> None:
        """Record a table's definition if it has changed."""
        full_name = f"{keyspace}.{name}"
        known = self._latest.get(full_name)
        schema = self._define(keyspace, name)
        if schema == known or (schema is None and known is None):
            return
        if known is not None and (schema is None or schema.id != known.id):
            self.versions.append(SchemaVersion(at_us, full_name, known.id, None, self._positions))
            del self._latest[full_name]
        if schema is not None:
            self.versions.append(SchemaVersion(at_us, full_name, schema.id, schema, self._positions))
            self._latest[full_name] = schema

    def _define(self, keyspace: str, name: str) -> TableSchema | None:
        """Build a table from the current rows; None if it doesn't exist, or was never known completely."""
        rows = self._rows[keyspace]
        mine = {k: [row for row in rows[k].values() if _name(row) == name] for k in _READ if k != "types"}
        bases = {row.get("base_table_name") for row in mine["views"]}
        mine["columns"] += [row for row in rows["columns"].values() if _name(row) in bases]
        try:
            found = schemas_from_rows({**mine, "types": rows["types"].values()})
        except SchemaUnknown:
            # The log started after a CREATE TYPE that the table needs; its earlier definition decodes most.
            known = self._latest.get(f"{keyspace}.{name}")
            ids = {_id(row) for kind in ("tables", "views") for row in mine[kind]}
            return known if known is not None and known.id in ids else None
        schema = found.tables.get(f"{keyspace}.{name}")
        valid = schema is not None and _TABLE_ID.fullmatch(schema.id) and schema.partition_key
        return schema if valid else None


def _id(row: Row) -> str:
    return str(row.get("id") or "").replace("-", "").lower()


def _name(row: Row) -> str:
    return str(row.get("table_name") or row.get("view_name") or "")


def _comparable(schema: TableSchema, row: Row) -> bytes:
    """Return a row's clustering in the form of contributions."""
    values = [str(row[column.name]).encode() for column in schema.clustering]
    native = np.frombuffer(b"".join(struct.pack("<i", len(v)) + v for v in values), np.uint8)
    program = compile_clustering(schema)
    out = np.empty(2 * len(native) + 64, np.uint8)
    scratch = new_scratch(len(native))
    end = encode_clustering(
        program.nodes, program.roots, program.descending, len(values), native, 0, len(native), scratch, out, 0
    )
    return out[:end].tobytes()
