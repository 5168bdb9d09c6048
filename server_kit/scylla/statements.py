"""CQL statements as values: what a client may write, and its text with bound values.

A statement names a table's row or rows and what becomes of them; :mod:`.mutations` says what the coordinator
makes of it, and :func:`as_cql` gives the same statement to a real database. All values are native bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from server_kit.scylla.errors import InvalidRequest
from server_kit.scylla.tables import Column, Table
from server_kit.scylla.values import Native, pack_elements, pack_pairs, quoted

Key = tuple[bytes, ...]


@dataclass(frozen=True)
class SetWhole:
    """``column = value``; None sets null."""

    column: str
    value: Native


@dataclass(frozen=True)
class AddElements:
    """``column = column + {...}``: elements of a set, pairs of a map, elements at a list's end."""

    column: str
    elements: tuple[bytes, ...] = ()
    pairs: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(frozen=True)
class PrependElements:
    """``column = [...] + column``, lists only."""

    column: str
    elements: tuple[bytes, ...]


@dataclass(frozen=True)
class RemoveElements:
    """``column = column - {...}``: elements of a set, keys of a map, all equal elements of a list."""

    column: str
    elements: tuple[bytes, ...]


@dataclass(frozen=True)
class SetElement:
    """``column[key] = value``; None removes. The key is a map's, or a place in a list as int32."""

    column: str
    key: bytes
    value: Native


@dataclass(frozen=True)
class SetField:
    """``column.field = value`` of a user-defined type that isn't frozen; None sets null."""

    column: str
    number: int
    value: Native


Assignment = SetWhole | AddElements | PrependElements | RemoveElements | SetElement | SetField


@dataclass(frozen=True)
class Insert:
    """``INSERT``; of static columns only if ``clustering`` is None.

    Args:
        key: Values of the partition key.
        clustering: Values of the clustering key, ``()`` in a table without one.
        values: By column; None for null. What isn't named is left alone.
        timestamp: In us; None lets the server choose.
        ttl: In seconds, 0 for none.
    """

    key: Key
    clustering: Key | None
    values: Mapping[str, Native] = field(default_factory=dict)
    timestamp: int | None = None
    ttl: int = 0


@dataclass(frozen=True)
class Update:
    """``UPDATE``; of static columns only if ``clustering`` is None."""

    key: Key
    clustering: Key | None
    assignments: tuple[Assignment, ...]
    timestamp: int | None = None
    ttl: int = 0


@dataclass(frozen=True)
class DeleteColumns:
    """``DELETE column, map[key], list[place], column.field FROM``: each an assignment of nothing."""

    key: Key
    clustering: Key | None
    parts: tuple[SetWhole | SetElement | SetField, ...]
    timestamp: int | None = None


@dataclass(frozen=True)
class DeleteRow:
    """``DELETE FROM`` with a full primary key."""

    key: Key
    clustering: Key
    timestamp: int | None = None
    by_service: bool = False


@dataclass(frozen=True)
class DeletePartition:
    """``DELETE FROM`` with the partition key alone."""

    key: Key
    timestamp: int | None = None
    by_service: bool = False


@dataclass(frozen=True)
class Limit:
    """One side of a range, by value: ``column > value``, or ``>=`` if inclusive."""

    value: bytes
    inclusive: bool


@dataclass(frozen=True)
class DeleteRange:
    """``DELETE FROM`` with equal values of a prefix and limits of the column after it, by value."""

    key: Key
    prefix: Key = ()
    low: Limit | None = None
    high: Limit | None = None
    timestamp: int | None = None


Statement = Insert | Update | DeleteColumns | DeleteRow | DeletePartition | DeleteRange


@dataclass(frozen=True)
class Batch:
    """``BEGIN BATCH`` on one table; it may touch several partitions."""

    statements: tuple[Statement, ...]


def as_cql(table: Table, statement: Statement) -> tuple[str, list[Native]]:
    """Write a statement as CQL with markers, and the values to bind, as the protocol sends them."""
    match statement:
        case Insert():
            return _insert(table, statement)
        case Update():
            return _update(table, statement)
        case DeleteColumns():
            parts, named = [], []
            for part in statement.parts:
                text, values = _deleted(table, part)
                parts.append(text)
                named += values
            return _delete(table, statement.timestamp, statement.key, statement.clustering, parts, named)
        case DeleteRow():
            return _delete(table, statement.timestamp, statement.key, statement.clustering)
        case DeletePartition():
            return _delete(table, statement.timestamp, statement.key, None)
        case DeleteRange():
            where, bound = _delete(table, statement.timestamp, statement.key, statement.prefix)
            for sign, limit in ((">", statement.low), ("<", statement.high)):
                if limit:
                    name = quoted(table.clustering[len(statement.prefix)].name)
                    where += f" AND {name} {sign}{'=' * limit.inclusive} ?"
                    bound.append(limit.value)
            return where, bound


def list_place(number: int) -> bytes:
    """Write a place in a list as its key."""
    return struct.pack(">i", number)


def _insert(table: Table, statement: Insert) -> tuple[str, list[Native]]:
    names = [column.name for column in table.partition]
    names += [column.name for column in table.clustering] if statement.clustering is not None else []
    names += statement.values
    marks = ", ".join("?" * len(names))
    text = f"INSERT INTO {table.cql_name} ({', '.join(map(quoted, names))}) VALUES ({marks})"
    using, settings = _using(statement.timestamp, statement.ttl)
    bound = [*statement.key, *(statement.clustering or ()), *statement.values.values()]
    return text + using, [*bound, *settings]


def _update(table: Table, statement: Update) -> tuple[str, list[Native]]:
    sets: list[str] = []
    bound: list[Native] = []
    for assignment in statement.assignments:
        text, values = _assigned(table, assignment)
        sets.append(text)
        bound += values
    where, keys = _where(table, statement.key, statement.clustering)
    using, settings = _using(statement.timestamp, statement.ttl)
    return f"UPDATE {table.cql_name}{using} SET {', '.join(sets)}{where}", [*settings, *bound, *keys]


def _delete(
    table: Table,
    timestamp: int | None,
    key: Key,
    clustering: Key | None,
    parts: Sequence[str] = (),
    named: Sequence[Native] = (),
) -> tuple[str, list[Native]]:
    where, keys = _where(table, key, clustering)
    using, settings = _using(timestamp)
    what = f"{', '.join(parts)} " if parts else ""
    return f"DELETE {what}FROM {table.cql_name}{using}{where}", [*named, *settings, *keys]


def _assigned(table: Table, assignment: Assignment) -> tuple[str, list[Native]]:
    name = quoted(assignment.column)
    match assignment:
        case SetWhole(value=value):
            return f"{name} = ?", [value]
        case SetField(number=number, value=value):
            return f"{name}.{quoted(table.column(assignment.column).type.fields[number])} = ?", [value]
        case SetElement(key=key, value=value):
            return f"{name}[?] = ?", [key, value]
        case AddElements(elements=elements, pairs=pairs):
            is_map = table.column(assignment.column).type.name == "map"
            return f"{name} = {name} + ?", [pack_pairs(pairs) if is_map else pack_elements(elements)]
        case PrependElements(elements=elements):
            return f"{name} = ? + {name}", [pack_elements(elements)]
        case RemoveElements(elements=elements):
            return f"{name} = {name} - ?", [pack_elements(elements)]


def _deleted(table: Table, part: SetWhole | SetElement | SetField) -> tuple[str, list[Native]]:
    match part:
        case SetElement(column=name, key=key):
            return f"{quoted(name)}[?]", [key]
        case SetField(column=name, number=number):
            return f"{quoted(name)}.{quoted(table.column(name).type.fields[number])}", []
    return quoted(part.column), []


def _where(
    table: Table, key: Sequence[bytes], clustering: Sequence[bytes] | None
) -> tuple[str, list[Native]]:
    columns: list[Column] = [*table.partition, *table.clustering[: len(clustering or ())]]
    if len(key) != len(table.partition):
        raise InvalidRequest(f"table {table.full_name}: expected {len(table.partition)} key values")
    return " WHERE " + " AND ".join(f"{quoted(c.name)} = ?" for c in columns), [*key, *(clustering or ())]


def _using(timestamp: int | None, ttl: int = 0) -> tuple[str, list[Native]]:
    parts, bound = [], list[Native]()
    if timestamp is not None:
        parts.append("TIMESTAMP ?")
        bound.append(struct.pack(">q", timestamp))
    if ttl:
        parts.append("TTL ?")
        bound.append(struct.pack(">i", ttl))
    return (f" USING {' AND '.join(parts)}" if parts else ""), bound
