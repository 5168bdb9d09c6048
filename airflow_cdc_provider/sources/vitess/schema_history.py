"""Schema history of a table, and the mapping of older rows to its newest schema.

Built from the records of kind ``schema``: each version of the fields with the position at which it was first
seen, and the DDL statements of all shards. Between two consecutive versions the statements are replayed on
the column names of the first. Statements that don't apply (repetitions from other shards) are skipped. If the
statements don't explain a version, or may have changed stored values, the table requires a snapshot.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa

from airflow_cdc_provider.changes.record import SCHEMA
from airflow_cdc_provider.sources.vitess.ddl import (
    Action,
    Added,
    Dropped,
    Modified,
    Renamed,
    TableStatement,
    Unknown,
    read_statement,
)
from airflow_cdc_provider.sources.vitess.defaults import is_known
from airflow_cdc_provider.sources.vitess.fields import Column, ColumnType, TableShape
from airflow_cdc_provider.sources.vitess.lake_types import family_of
from airflow_cdc_provider.sources.vitess.schema_ids import DDL, LINEAGE, REREAD

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LEAD_US: Final = 2_000_000
_INTEGERS: Final = ("tinyint", "smallint", "mediumint", "int", "bigint")


@dataclass(frozen=True)
class FromColumn:
    """A column's values are those of a column of another version.

    Args:
        number: Index of that column.
    """

    number: int


@dataclass(frozen=True)
class FromDefault:
    """A column has the same value in all rows that are older than it.

    Args:
        text: MySQL's text of the value; None for NULL.
    """

    text: str | None


Origin = FromColumn | FromDefault

_ENDS: Final = ("truncate", "drop")


@dataclass(frozen=True)
class SnapshotDue:
    """A table requires a snapshot.

    Args:
        moment_us: Since when, in µs since 1970.
        reason: Why, as text.
    """

    moment_us: int
    reason: str


@dataclass(frozen=True)
class _SchemaRecord:
    """A schema record: its time, shard and position."""

    moment_us: int
    origin: str
    position: bytes


@dataclass(frozen=True)
class _FieldsRecord(_SchemaRecord):
    """A version of the fields, at the position at which it was first seen."""

    digest: bytes
    shape: TableShape
    lead_us: int
    """A snapshot that recorded it has the effects of statements that weren't captured."""


@dataclass(frozen=True)
class _StatementRecord(_SchemaRecord):
    """A statement that affects the table."""

    statement: TableStatement


@dataclass(frozen=True)
class TableRecords:
    """Records of kind ``schema`` that affect a table, in any order.

    Args:
        fields: Those with the table's name.
        statements: Statements of DDL.
    """

    fields: list[Mapping[str, Any]] = field(default_factory=list)
    statements: list[_StatementRecord] = field(default_factory=list)


@dataclass(frozen=True)
class TableHistory:
    """The versions of a table's schema.

    Args:
        table: ``keyspace.table``.
        digests: Digests of the versions, oldest first. The last one may occur twice, if it was restored.
        shapes: Schemas of the versions.
        steps: For each pair of consecutive versions, the origin of each column of the later one.
        due: The last event that requires a snapshot; None for none.
        reread_us: When the last change was read whose values the stream doesn't contain, in µs since 1970.
    """

    table: str
    digests: tuple[bytes, ...] = ()
    shapes: tuple[TableShape, ...] = ()
    steps: tuple[tuple[Origin, ...], ...] = ()
    due: SnapshotDue | None = field(default=None, compare=False)
    reread_us: int = 0

    @classmethod
    def of(cls, table: str, records: Iterable[Mapping[str, Any]]) -> TableHistory:
        """Build the history from records of kind ``schema``; skip other records and other tables.

        Args:
            table: ``keyspace.table``.
            records: Records in any order; the first position of each version is used.
        """
        records = list(records)
        return cls.of_parts(table, by_table(records), lineage_of(records))

    @classmethod
    def of_parts(
        cls, table: str, parts: Mapping[str, TableRecords], resharded: Mapping[str, Sequence[str]]
    ) -> TableHistory:
        """Build the history of one of many tables.

        Args:
            table: ``keyspace.table``.
            parts: From :func:`by_table`.
            resharded: From :func:`lineage_of`.
        """
        records = parts.get(table, TableRecords())
        statements = sorted(records.statements, key=_in_time)
        rereads = [one for one in records.fields if one["schema_id"] == REREAD]
        seen = sorted((_fields(one) for one in records.fields if one["schema_id"] != REREAD), key=_in_time)
        shapes: dict[bytes, _FieldsRecord] = {}
        for fields in _in_order(seen, statements):
            shapes.setdefault(fields.digest, fields)
        steps = []
        dues = [_due(one) for one in statements if _changes_values(one)]
        dues += [
            _due_after_end(one)
            for one in statements
            if one.statement.kind in _ENDS and one.origin in resharded
        ]
        replayed: dict[str, bytes] = {}
        for earlier, later in pairwise(shapes.values()):
            since = max(
                replayed.get(later.origin, b""), earlier.position if earlier.origin == later.origin else b""
            )
            between = [
                one
                for one in statements
                if one.origin == later.origin and since < one.position < later.position
            ]
            if between:
                replayed[later.origin] = max(one.position for one in between)
            step, open_questions = _step(earlier.shape, later.shape, between)
            steps.append(step)
            # A snapshot that started after the statement includes its effects, whenever its fields were seen.
            moment_us = between[-1].moment_us if between else later.moment_us - later.lead_us
            dues += [SnapshotDue(moment_us, question) for question in open_questions]
        chain = list(shapes.values())
        after = _statements_after(chain, statements)
        if after and (restored := _restored_version(chain, after)):
            step, open_questions = _step(chain[-1].shape, restored.shape, after)
            chain.append(restored)
            steps.append(step)
            # Rows from before the column was dropped have the same fields as those with the new column.
            columns = zip(restored.shape.columns, step, strict=True)
            added = [column.name for column, origin in columns if isinstance(origin, FromDefault)]
            open_questions += [f"column {name} was dropped and added again" for name in added]
            dues += [SnapshotDue(after[-1].moment_us, question) for question in open_questions]
        return cls(
            table,
            tuple(one.digest for one in chain),
            tuple(one.shape for one in chain),
            tuple(steps),
            max(reversed(dues), key=lambda due: due.moment_us, default=None),
            max((_micros(one["captured_at"]) for one in rereads), default=0),
        )

    @property
    def newest(self) -> TableShape:
        """The newest version, used by mirrors; without columns if none is recorded."""
        return self.shapes[-1] if self.shapes else TableShape(self.table, ())

    @cached_property
    def by_digest(self) -> dict[bytes, int]:
        """Index of each version; the last one, if it occurs twice."""
        return {digest: number for number, digest in enumerate(self.digests)}

    def origins(self, number: int) -> tuple[Origin, ...]:
        """Return the origin of each column of the newest version in rows of another version."""
        found: list[Origin] = []
        for column in range(len(self.newest.columns)):
            origin: Origin = FromColumn(column)
            for step in reversed(self.steps[number:]):
                if not isinstance(origin, FromColumn):
                    break
                origin = step[origin.number]
            found.append(origin)
        return tuple(found)

    @cached_property
    def column_ids(self) -> tuple[str, ...]:
        """Ids of the newest columns, which are unique over time and don't change with renames."""
        taken: set[str] = set()
        ids: tuple[str, ...] = ()
        for number, shape in enumerate(self.shapes):
            now = []
            for index, column in enumerate(shape.columns):
                origin = self.steps[number - 1][index] if number else None
                now.append(ids[origin.number] if isinstance(origin, FromColumn) else _new(column.name, taken))
                taken.add(now[-1])
            ids = tuple(now)
        return ids


def by_table(records: Iterable[Mapping[str, Any]]) -> dict[str, TableRecords]:
    """Group records of kind ``schema`` by table; skip other records.

    Statements are recorded without their tables, so each one is parsed here, once for all tables.
    """
    found: dict[str, TableRecords] = defaultdict(TableRecords)
    parsed: dict[bytes, dict[str, TableStatement]] = {}
    for record in records:
        if record["kind"] != SCHEMA or record["schema_id"] == LINEAGE:
            continue
        if record["schema_id"] != DDL:
            found[record["source_table"]].fields.append(record)
            continue
        text = bytes(record["payload"])
        if text not in parsed:
            statements = read_statement(text.decode(errors="replace"))
            parsed[text] = {one.table: one for one in reversed(statements)}
        at = (_moment_us(record), record["origin"], bytes(record["position"]))
        for name, statement in parsed[text].items():
            table = f"{record['origin'].partition('/')[0]}.{name}"
            found[table].statements.append(_StatementRecord(*at, statement))
    return dict(found)


def lineage_of(records: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Return all direct and indirect ancestors of each shard that a reshard created."""
    parents: dict[str, set[str]] = {}
    for record in records:
        if record["kind"] == SCHEMA and record["schema_id"] == LINEAGE:
            for child, ancestors in json.loads(record["payload"]).items():
                parents.setdefault(child, set()).update(ancestors)
    return {child: tuple(sorted(_ancestors(child, parents))) for child in sorted(parents)}


def families_of(lineage: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return, for each shard of a reshard, one name for all shards that share rows with it.

    Args:
        lineage: All ancestors of each shard that a reshard created.
    """
    families: dict[str, frozenset[str]] = {}
    for child, ancestors in lineage.items():
        joined = frozenset({child, *ancestors}).union(*(families.get(s, ()) for s in (child, *ancestors)))
        families |= dict.fromkeys(joined, joined)
    return {shard: min(family) for shard, family in sorted(families.items())}


def records_of(table: pa.Table) -> list[dict[str, Any]]:
    """Extract the columns that histories need from a table of records."""
    columns = ["kind", "source_table", "origin", "position", "committed_at", "captured_at", "schema_id"]
    found: list[dict[str, Any]] = table.select([*columns, "payload"]).to_pylist()
    return found


def _ancestors(child: str, parents: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    pending = [child]
    while pending:
        new = parents.get(pending.pop(), set()) - found
        found |= new
        pending += new
    return found - {child}


def _fields(record: Mapping[str, Any]) -> _FieldsRecord:
    return _FieldsRecord(
        _moment_us(record),
        record["origin"],
        bytes(record["position"]),
        digest=bytes.fromhex(record["schema_id"]),
        shape=TableShape.parse(bytes(record["payload"])),
        lead_us=0 if record["committed_at"] else _LEAD_US,
    )


def _in_time(one: _SchemaRecord) -> tuple[int, bytes, str]:
    return one.moment_us, one.position, one.origin


def _moment_us(record: Mapping[str, Any]) -> int:
    return _micros(record["committed_at"] or record["captured_at"])


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


@dataclass
class _ShardedStatement:
    """A statement that several shards ran independently, with its position in each."""

    statement: TableStatement
    moment_us: int
    positions: dict[str, bytes]


def _in_order(seen: Sequence[_FieldsRecord], statements: Sequence[_StatementRecord]) -> list[_FieldsRecord]:
    """Order versions by the statements that their shards had run, as the clocks of shards differ.

    Args:
        seen: Versions in the order of time.
        statements: Statements in the order of time.
    """
    runs: list[_ShardedStatement] = []
    for one in statements:
        first = max((n for n, run in enumerate(runs) if one.origin in run.positions), default=-1) + 1
        same = (run for run in runs[first:] if run.statement == one.statement)
        run = next(same, None)
        if run is None:
            runs.append(run := _ShardedStatement(one.statement, one.moment_us, {}))
        run.positions[one.origin] = one.position

    def before(fields: _FieldsRecord) -> int:
        """Count the earlier statements by position in the same shard; if it has none, by time."""
        own = [
            (n, run.positions[fields.origin]) for n, run in enumerate(runs) if fields.origin in run.positions
        ]
        if own:
            return max((n for n, position in own if position < fields.position), default=-1)
        return max((n for n, run in enumerate(runs) if run.moment_us < fields.moment_us), default=-1)

    return sorted(seen, key=before)


def _statements_after(
    chain: Sequence[_FieldsRecord], statements: Sequence[_StatementRecord]
) -> list[_StatementRecord]:
    """Return the statements after the newest version, in the shard in which it was first seen."""
    if not chain:
        return []
    newest = chain[-1]
    return [one for one in statements if one.origin == newest.origin and one.position > newest.position]


def _restored_version(
    chain: Sequence[_FieldsRecord], after: Sequence[_StatementRecord]
) -> _FieldsRecord | None:
    """Return the older version that statements after the newest one restored, or this one with other columns.

    Fields that were seen before are not recorded again, so only statements show that a column was dropped
    again, or replaced by another one.
    """
    newest = chain[-1].shape
    names: dict[str, str | Added] = {column.name: column.name for column in newest.columns}
    for one in after:
        names = _replay(one.statement, names)
    if all(names.get(name) == name for name in newest.index) and len(names) == len(newest.columns):
        return None
    return next((one for one in reversed(chain) if one.shape.index.keys() == names.keys()), None)


def _changes_values(one: _StatementRecord) -> bool:
    return any(_is_open(action) for action in one.statement.actions)


def _due_after_end(one: _StatementRecord) -> SnapshotDue:
    """Require a snapshot after a shard ended a table that also has rows of the shard's ancestors.

    It is unknown which of these rows belong to other children of the ancestors.
    """
    reason = f"{one.origin} ran a {one.statement.kind} of rows from before its reshard"
    return SnapshotDue(one.moment_us, reason)


def _is_open(action: Action) -> bool:
    """Return whether an action gives stored rows values that only the source knows."""
    return isinstance(action, Unknown) or (isinstance(action, Added) and not action.constant)


def _due(one: _StatementRecord) -> SnapshotDue:
    action = next(action for action in one.statement.actions if _is_open(action))
    if isinstance(action, Added):
        return SnapshotDue(
            one.moment_us, f"column {action.name} was added, and its values in existing rows are unknown"
        )
    assert isinstance(action, Unknown)
    return SnapshotDue(one.moment_us, f"{one.origin} ran: {action.text}")


def _step(
    earlier: TableShape, later: TableShape, statements: Sequence[_StatementRecord]
) -> tuple[tuple[Origin, ...], list[str]]:
    """Derive a version from the previous one and the statements between: origins, and open questions."""
    if any(one.statement.kind in ("create", "drop") for one in statements):
        return (FromDefault(None),) * len(later.columns), []  # no row of the old table exists
    names: dict[str, str | Added] = {column.name: column.name for column in earlier.columns}
    for one in statements:
        names = _replay(one.statement, names)
    origins: list[Origin] = []
    questions = []
    for column in later.columns:
        found = names.get(column.name)
        if isinstance(found, str):
            number = earlier.index[found]
            origins.append(FromColumn(number))
            if not _widens(earlier.columns[number], column):
                old = earlier.columns[number].column_type
                questions.append(f"column {column.name} changed from {old} to {column.column_type}")
        elif found is not None and column.name not in earlier.index and _is_known(found, column):
            origins.append(FromDefault(found.default))
        else:
            origins.append(FromDefault(None))
            questions.append(f"column {column.name} was added, and its values in existing rows are unknown")
    key = [(column.name, column.scale) for column in (earlier.columns[n] for n in earlier.key)]
    if key != [(names.get(column.name), column.scale) for column in (later.columns[n] for n in later.key)]:
        questions.append("the key changed")
    return tuple(origins), questions


def _is_known(added: Added, column: Column) -> bool:
    """Return whether the values of an added column in existing rows are known."""
    if not added.constant or added.default is None:
        return added.constant and column.nullable
    return is_known(added.default, column, quoted=added.quoted, expression=added.expression)


def _replay(statement: TableStatement, names: Mapping[str, str | Added]) -> dict[str, str | Added]:
    """Apply all actions of a statement to names at once, as MySQL does: two columns may swap names."""
    known = {name.lower(): name for name in names}  # MySQL ignores the case of columns' names

    def column(name: str) -> str:
        return known.get(name.lower(), name)

    modified = {
        column(action.name): action.name for action in statement.actions if isinstance(action, Modified)
    }
    renamed = modified | {
        column(action.old): action.new for action in statement.actions if isinstance(action, Renamed)
    }
    dropped = {column(action.name) for action in statement.actions if isinstance(action, Dropped)}
    now: dict[str, str | Added] = {}
    for name, origin in names.items():
        new = renamed.get(name, name)
        if name in dropped or (new != name and new in names and new not in {*renamed, *dropped}):
            continue
        now[new] = origin
    for action in statement.actions:
        if isinstance(action, Added):
            now.setdefault(action.name, action)
        elif isinstance(action, Modified) and isinstance(added := now.get(action.name), Added):
            # The default was converted to a type that no fields show.
            now[action.name] = replace(added, constant=added.default is None)
    return now


def _widens(old: Column, new: Column) -> bool:
    """Return whether a change of a column's type preserves stored values."""
    a, b = old.type, new.type
    if (a, old.collation) == (b, new.collation):
        return True
    family = family_of(old)
    if family != family_of(new):
        return False
    match family:
        case "integer":
            wider = _INTEGERS.index(b.name) - _INTEGERS.index(a.name)
            return (wider >= 0 and old.unsigned == new.unsigned) or (wider > 0 and old.unsigned)
        case "decimal":
            whole = (new.precision - new.scale) - (old.precision - old.scale)
            return new.scale >= old.scale and whole >= 0 and (old.unsigned or not new.unsigned)
        case "float":
            return False  # a FLOAT is printed with fewer digits than it has as a DOUBLE
        case "text":
            return _preserves_text(old, new)
        case "members":
            return a.name == b.name and b.members[: len(a.members)] == a.members
        case "datetime" | "timestamp" | "time":
            return new.scale >= old.scale
        case "bytes":
            # MySQL fills BINARY up with zero bytes.
            return "binary" not in (a.name, b.name) and 0 < _room(a) <= _room(b)
        case "bit":
            return False
    return True


def _preserves_text(old: Column, new: Column) -> bool:
    """Return whether texts stay as they are, also outside strict mode, where MySQL cuts and replaces.

    CHAR and VARCHAR count characters, the types of TEXT count bytes: up to four of each character.
    """
    a, b = old.type, new.type
    if b.name == "char" and a.name != "char":
        return False  # a CHAR loses blanks at its end
    same_bytes = old.charset == new.charset or (old.charset, new.charset) == ("utf8mb3", "utf8mb4")
    if not same_bytes and new.charset not in _WHOLE_UNICODE:
        return False
    grows = b.name.endswith("text") and not (same_bytes and a.name.endswith("text"))
    return _room(a) * (4 if grows else 1) <= _room(b)


_WHOLE_UNICODE: Final = ("utf8mb4", "utf16", "utf16le", "utf32")
_SIZES: Final = {"tiny": 8, "": 16, "medium": 24, "long": 32}
_ROOM: Final = {size + kind: (1 << bits) - 1 for size, bits in _SIZES.items() for kind in ("text", "blob")}


def _room(kind: ColumnType) -> int:
    """Return how much fits into a type of texts or bytes, 0 if unknown."""
    return _ROOM.get(kind.name) or next(iter(kind.sizes), 0)


def _new(name: str, taken: set[str]) -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}#{number}"
    return found
