"""A table's shapes over time, and how rows of each are shown by the newest.

Made of the records of kind ``schema``: the fields that rows came with, each where they were first seen,
and the statements of all shards. Between two shapes that follow each other the statements are replayed on
the names of the first; what doesn't apply (the same statement again, from another shard) is passed over. What
they leave open is told: from then on the table is due for a snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
    Renamed,
    TableStatement,
    Unknown,
    read_statement,
)
from airflow_cdc_provider.sources.vitess.fields import Column, TableShape
from airflow_cdc_provider.sources.vitess.lake_types import family_of
from airflow_cdc_provider.sources.vitess.schema_ids import DDL, LINEAGE

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INTEGERS: Final = ("tinyint", "smallint", "mediumint", "int", "bigint")
_FLOATS: Final = ("float", "double")


@dataclass(frozen=True)
class FromColumn:
    """A column's values are those of another shape's column.

    Args:
        number: Of that column.
    """

    number: int


@dataclass(frozen=True)
class FromDefault:
    """A column has one value in all rows that were there before it.

    Args:
        text: MySQL's text of it; None for NULL.
    """

    text: str | None


Origin = FromColumn | FromDefault

_ENDS: Final = ("truncate", "drop")


@dataclass(frozen=True)
class SnapshotDue:
    """Why only a snapshot shows a table's rows.

    Args:
        moment_us: Since when, µs since 1970.
        reason: In words.
    """

    moment_us: int
    reason: str


@dataclass(frozen=True)
class _Told:
    """What a record tells, and where it stands in its shard."""

    moment_us: int
    origin: str
    position: bytes


@dataclass(frozen=True)
class _Fields(_Told):
    """A shape where it was first seen."""

    digest: bytes
    shape: TableShape


@dataclass(frozen=True)
class _Ran(_Told):
    """A statement that concerns the table."""

    statement: TableStatement


@dataclass(frozen=True)
class TableHistory:
    """The shapes of a table.

    Args:
        table: ``keyspace.table``.
        digests: Names of the shapes, oldest first. The last one may stand there before: it came back.
        shapes: Likewise.
        steps: One less: per column of the later shape, where its values come from in rows of the earlier.
        due: The last event after which only a snapshot shows the rows; None for none.
    """

    table: str
    digests: tuple[bytes, ...] = ()
    shapes: tuple[TableShape, ...] = ()
    steps: tuple[tuple[Origin, ...], ...] = ()
    due: SnapshotDue | None = field(default=None, compare=False)

    @classmethod
    def of(cls, table: str, records: Iterable[Mapping[str, Any]]) -> TableHistory:
        """Read records of kind ``schema``; others, and those of other tables, are passed over.

        Args:
            table: ``keyspace.table``.
            records: In any order; of a shape that is there twice the first place counts.
        """
        records = list(records)
        resharded = lineage_of(records)
        seen = sorted(
            (one for record in records if record["kind"] == SCHEMA and (one := _read(table, record))),
            key=lambda one: (one.moment_us, one.position, one.origin),
        )
        statements = [one for one in seen if isinstance(one, _Ran)]
        shapes: dict[bytes, _Fields] = {}
        for fields in _in_order([one for one in seen if isinstance(one, _Fields)], statements):
            shapes.setdefault(fields.digest, fields)
        steps = []
        dues = [_due(one) for one in statements if _changes_values(one)]
        dues += [_ended(one) for one in statements if one.statement.kind in _ENDS and one.origin in resharded]
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
            # A snapshot that began after the statement has what it did, whenever its fields were seen.
            moment_us = between[-1].moment_us if between else later.moment_us
            dues += [SnapshotDue(moment_us, question) for question in open_questions]
        chain = list(shapes.values())
        after = _behind(chain, statements)
        if after and (again := _returned(chain, after)):
            step, open_questions = _step(chain[-1].shape, again.shape, after)
            chain.append(again)
            steps.append(step)
            # Rows from before the column went bear the same fields as those with the new one.
            columns = zip(again.shape.columns, step, strict=True)
            came = [column.name for column, origin in columns if isinstance(origin, FromDefault)]
            open_questions += [f"column {name} went and came again" for name in came]
            dues += [SnapshotDue(after[-1].moment_us, question) for question in open_questions]
        return cls(
            table,
            tuple(one.digest for one in chain),
            tuple(one.shape for one in chain),
            tuple(steps),
            max(reversed(dues), key=lambda due: due.moment_us, default=None),
        )

    @property
    def newest(self) -> TableShape:
        """The shape that mirrors show; one without columns if none is known."""
        return self.shapes[-1] if self.shapes else TableShape(self.table, ())

    @cached_property
    def by_digest(self) -> dict[bytes, int]:
        """Number of each shape, where it stands last."""
        return {digest: number for number, digest in enumerate(self.digests)}

    def origins(self, number: int) -> tuple[Origin, ...]:
        """Tell, per column of the newest shape, where its values come from in rows of another."""
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
        """Names of the newest columns that stay when they are renamed, and no two columns ever share."""
        taken: set[str] = set()
        ids: tuple[str, ...] = ()
        for number, shape in enumerate(self.shapes):
            now = []
            for place, column in enumerate(shape.columns):
                origin = self.steps[number - 1][place] if number else None
                now.append(ids[origin.number] if isinstance(origin, FromColumn) else _new(column.name, taken))
                taken.add(now[-1])
            ids = tuple(now)
        return ids


def lineage_of(records: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Return, per shard that a reshard made, all shards whose rows went into it, also through others."""
    parents: dict[str, set[str]] = {}
    for record in records:
        if record["kind"] == SCHEMA and record["schema_id"] == LINEAGE:
            for child, ancestors in json.loads(record["payload"]).items():
                parents.setdefault(child, set()).update(ancestors)
    return {child: tuple(sorted(_ancestors(child, parents))) for child in sorted(parents)}


def families_of(lineage: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return, per shard that a reshard made or ended, one name for all that it shares rows with.

    Args:
        lineage: Per shard that a reshard made, all its ancestors.
    """
    families: dict[str, frozenset[str]] = {}
    for child, ancestors in lineage.items():
        joined = frozenset({child, *ancestors}).union(*(families.get(s, ()) for s in (child, *ancestors)))
        families |= dict.fromkeys(joined, joined)
    return {shard: min(family) for shard, family in sorted(families.items())}


def records_of(table: pa.Table) -> list[dict[str, Any]]:
    """Take out of a table of records what histories are made of."""
    columns = ["kind", "source_table", "origin", "position", "committed_at", "captured_at", "schema_id"]
    found: list[dict[str, Any]] = table.select([*columns, "payload"]).to_pylist()
    return found


def _ancestors(child: str, parents: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [child]
    while waiting:
        new = parents.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found - {child}


def _read(table: str, record: Mapping[str, Any]) -> _Fields | _Ran | None:
    """Read a record; None if it doesn't concern the table."""
    keyspace, _, name = table.partition(".")
    moment = record["committed_at"] or record["captured_at"]
    moment_us = (moment - _EPOCH) // timedelta(microseconds=1)
    place = (moment_us, record["origin"], bytes(record["position"]))
    if record["schema_id"] == DDL:
        if record["origin"].partition("/")[0] != keyspace:
            return None
        text = bytes(record["payload"]).decode(errors="replace")
        found = [one for one in read_statement(text) if one.table == name]
        return _Ran(*place, found[0]) if found else None
    if record["source_table"] != table or record["schema_id"] == LINEAGE:
        return None
    return _Fields(*place, bytes.fromhex(record["schema_id"]), TableShape.parse(bytes(record["payload"])))


@dataclass
class _Run:
    """A statement that shards ran, each by itself."""

    statement: TableStatement
    moment_us: int
    places: dict[str, bytes]


def _in_order(seen: Sequence[_Fields], statements: Sequence[_Ran]) -> list[_Fields]:
    """Order shapes by the statements that their shards had run; times of shards are seconds of their own.

    Args:
        seen: In the order of time.
        statements: Likewise.
    """
    runs: list[_Run] = []
    for one in statements:
        behind = max((n for n, run in enumerate(runs) if one.origin in run.places), default=-1) + 1
        same = (run for run in runs[behind:] if run.statement == one.statement)
        run = next(same, None)
        if run is None:
            runs.append(run := _Run(one.statement, one.moment_us, {}))
        run.places[one.origin] = one.position

    def before(fields: _Fields) -> int:
        """Count the statements before: those of its own shard tell; without one, the time does."""
        own = [(n, run.places[fields.origin]) for n, run in enumerate(runs) if fields.origin in run.places]
        if own:
            return max((n for n, place in own if place < fields.position), default=-1)
        return max((n for n, run in enumerate(runs) if run.moment_us < fields.moment_us), default=-1)

    return sorted(seen, key=before)


def _behind(chain: Sequence[_Fields], statements: Sequence[_Ran]) -> list[_Ran]:
    """Return the statements behind the newest shape, in the shard that showed it first."""
    if not chain:
        return []
    newest = chain[-1]
    return [one for one in statements if one.origin == newest.origin and one.position > newest.position]


def _returned(chain: Sequence[_Fields], after: Sequence[_Ran]) -> _Fields | None:
    """Find the shape to which statements behind the newest one led back.

    Fields that were seen before are not recorded again: only statements tell that a column went again.
    """
    newest = chain[-1].shape
    names: dict[str, str | Added] = {column.name: column.name for column in newest.columns}
    for one in after:
        names = _replay(one.statement, names)
    if names.keys() == newest.index.keys():
        return None
    return next((one for one in reversed(chain[:-1]) if one.shape.index.keys() == names.keys()), None)


def _changes_values(one: _Ran) -> bool:
    return any(_is_open(action) for action in one.statement.actions)


def _ended(one: _Ran) -> SnapshotDue:
    """Tell of a shard's end of a table, whose rows stand under the shards that it was made of, too.

    Which of these were in the other shards that came of them, nothing tells.
    """
    reason = f"{one.origin} ran a {one.statement.kind} of rows from before it was resharded"
    return SnapshotDue(one.moment_us, reason)


def _is_open(action: Action) -> bool:
    """Tell whether a part of a statement gives stored rows values that only the source knows."""
    return isinstance(action, Unknown) or (isinstance(action, Added) and not action.constant)


def _due(one: _Ran) -> SnapshotDue:
    action = next(action for action in one.statement.actions if _is_open(action))
    if isinstance(action, Added):
        return SnapshotDue(one.moment_us, f"column {action.name} came, and what rows have there isn't known")
    assert isinstance(action, Unknown)
    return SnapshotDue(one.moment_us, f"{one.origin} ran: {action.text}")


def _step(
    earlier: TableShape, later: TableShape, statements: Sequence[_Ran]
) -> tuple[tuple[Origin, ...], list[str]]:
    """Explain a shape by the one before it and the statements between: origins, and what is left open."""
    if any(one.statement.kind in ("create", "drop") for one in statements):
        return (FromDefault(None),) * len(later.columns), []  # no row of the table before is left
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
                questions.append(f"column {column.name} turned from {old} to {column.column_type}")
        elif found is not None and found.constant:
            origins.append(FromDefault(found.default))
        else:
            origins.append(FromDefault(None))
            questions.append(f"column {column.name} came, and what rows have there isn't known")
    key = [(column.name, column.scale) for column in (earlier.columns[n] for n in earlier.key)]
    if key != [(names.get(column.name), column.scale) for column in (later.columns[n] for n in later.key)]:
        questions.append("the key is another one")
    return tuple(origins), questions


def _replay(statement: TableStatement, names: Mapping[str, str | Added]) -> dict[str, str | Added]:
    """Apply a statement to names, all its actions at once, as MySQL does: two columns may swap names."""
    renamed = {action.old: action.new for action in statement.actions if isinstance(action, Renamed)}
    dropped = {action.name for action in statement.actions if isinstance(action, Dropped)}
    now: dict[str, str | Added] = {}
    for name, origin in names.items():
        new = renamed.get(name, name)
        if name in dropped or (new != name and new in names and new not in {*renamed, *dropped}):
            continue
        now[new] = origin
    for action in statement.actions:
        if isinstance(action, Added):
            now.setdefault(action.name, action)
    return now


def _widens(old: Column, new: Column) -> bool:
    """Tell whether stored values stay what they are when a column's type changes so."""
    a, b = old.type, new.type
    if (a, old.collation) == (b, new.collation):
        return True
    family = family_of(old)
    if family != family_of(new):
        return False
    match family:
        case "integer":
            wider = _INTEGERS.index(b.word) - _INTEGERS.index(a.word)
            return (wider >= 0 and old.unsigned == new.unsigned) or (wider > 0 and old.unsigned)
        case "decimal":
            whole = (new.precision - new.scale) - (old.precision - old.scale)
            return new.scale >= old.scale and whole >= 0 and (old.unsigned or not new.unsigned)
        case "float":
            return _FLOATS.index(b.word) >= _FLOATS.index(a.word) and a.sizes == b.sizes
        case "text":
            return True  # narrower is refused in strict mode; the text stays itself in another character set
        case "members":
            return a.word == b.word and b.members[: len(a.members)] == a.members
        case "datetime" | "timestamp" | "time":
            return new.scale >= old.scale
        case "bytes" | "bit":
            return a.word == b.word or {a.word, b.word} <= _BLOBS
    return True


_BLOBS: Final = {"varbinary", "tinyblob", "blob", "mediumblob", "longblob"}


def _new(name: str, taken: set[str]) -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}#{number}"
    return found
