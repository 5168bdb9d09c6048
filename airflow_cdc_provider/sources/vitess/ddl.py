"""Parses DDL statements of the stream: their effect on the values that a table's rows already have.

A VStream contains DDL as text: as VTGate rewrote it, or as MySQL logged it, with comments, version comments
(``/*!80023 INVISIBLE */``, which MySQL executes) and several actions in one ALTER. sqlglot parses it. An
action that can't be parsed, or that may change stored values by itself, is :class:`Unknown`: then the table
requires a new snapshot.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

import sqlglot
from sqlglot import exp

from airflow_cdc_provider.changes.record import SCHEMA
from airflow_cdc_provider.sources.vitess.schema_ids import DDL

Kind = Literal["alter", "create", "drop", "truncate"]

_QUOTED_OR_COMMENT: Final = re.compile(
    r"""('(?:[^'\\]|\\.|'')*+(?:'|\\?\Z)|"(?:[^"\\]|\\.|"")*+(?:"|\\?\Z)|`(?:[^`]|``)*+(?:`|\Z))"""
    r"""|/\*M?!\d*(.*?)(?:\*/|\Z)""",
    re.DOTALL,
)
"""What isn't closed extends to the end, so that a text is read once."""
_NAME: Final = r"((?:`(?:[^`]|``)*+(?:`|\Z)|[\w$]+)(?:\s*+\.\s*+(?:`(?:[^`]|``)*+(?:`|\Z)|[\w$]+))?)"
_ALTER: Final = re.compile(
    rf"\s*ALTER\s+(?:ONLINE\s+|OFFLINE\s+|IGNORE\s+)*TABLE\s+(?:IF\s+EXISTS\s+)?{_NAME}\s*(.*)",
    re.IGNORECASE | re.DOTALL,
)
_OTHER: Final = re.compile(
    rf"\b(?:WITH\s+TABLE\s+|RENAME\s*(?:=\s*|\s(?:TO|AS)\s+|\s)){_NAME}", re.IGNORECASE
)
"""Another table of an ALTER: whose rows a partition is exchanged with, or its new name."""
_RENAME: Final = re.compile(r"\s*RENAME\s+TABLES?\s", re.IGNORECASE)
_PART: Final = re.compile(r"`((?:[^`]|``)*+)(?:`|\Z)|([\w$]+)")
_HARMLESS: Final = re.compile(
    r"(DISABLE|ENABLE)\s+KEYS|PARTITION\s+BY\b|REMOVE\s+PARTITIONING|ADD\s+PARTITION\b"
    r"|(REORGANIZE|REBUILD|OPTIMIZE|ANALYZE|CHECK|REPAIR)\s+PARTITION\b|COALESCE\s+PARTITION\b"
    r"|ADD\s+(CONSTRAINT\s+\S+\s+)?CHECK\b|(ADD|DROP)\s+FOREIGN\s+KEY\b|SECONDARY_(UN)?LOAD",
    re.IGNORECASE,
)
_ESCAPE: Final = re.compile(r"""\\[^'"]""")
_LONGEST: Final = 65_536
"""Characters of a statement that is parsed; of a longer one only the tables are found."""
_LONGEST_RECORDED: Final = 1 << 20
MOST_RECORDED_BYTES: Final = 2 << 20
"""Recorded statements of a table in a shard."""
_RECORD_BYTES: Final = 1_000
"""What a record takes beyond its text."""
_LONGEST_NAME: Final = 64
_MOST_NAMES: Final = 1_000
_LOG: Final = logging.getLogger("sqlglot")


@dataclass(frozen=True)
class Added:
    """An added column.

    Args:
        name: Its name.
        default: Its default as written, without quotes; None for NULL.
        constant: Whether the default is a literal; otherwise the values of existing rows are unknown.
        nullable: Whether it may be NULL.
        quoted: Whether the default is a text.
        expression: Whether the default is in parentheses: MySQL converts it only when it adds the column.
    """

    name: str
    default: str | None = None
    constant: bool = True
    nullable: bool = True
    quoted: bool = False
    expression: bool = False


@dataclass(frozen=True)
class Dropped:
    """A dropped column."""

    name: str


@dataclass(frozen=True)
class Renamed:
    """A renamed column."""

    old: str
    new: str


@dataclass(frozen=True)
class Modified:
    """A column whose type or attributes may have changed."""

    name: str


@dataclass(frozen=True)
class Unknown:
    """Any other action that may change stored values, as text."""

    text: str


Action = Added | Dropped | Renamed | Modified | Unknown


@dataclass(frozen=True)
class TableStatement:
    """The effect of a statement on one table.

    Args:
        table: Its name, without database or keyspace.
        kind: Kind of the statement.
        actions: Actions of an ``alter`` that affect stored values; none for indexes, comments and the like.
    """

    table: str
    kind: Kind
    actions: tuple[Action, ...] = ()


def read_statement(text: str) -> tuple[TableStatement, ...]:
    """Parse a statement; return one item per table, none if it affects no table's rows."""
    return tuple(_by_pattern(text)) if len(text) > _LONGEST else _parsed(text)


@lru_cache(maxsize=256)
def _parsed(text: str) -> tuple[TableStatement, ...]:
    plain = _QUOTED_OR_COMMENT.sub(lambda found: found.group(1) or f" {found.group(2)} ", text)
    level = _LOG.level
    _LOG.setLevel(logging.ERROR)  # sqlglot warns about each statement that it can't parse
    try:
        parsed = sqlglot.parse(plain, dialect="mysql")
        if len(parsed) == 1 and parsed[0] is not None:
            return tuple(_statements(parsed[0], plain))
    except Exception as error:  # noqa: BLE001 - a source's text; deep nesting is a RecursionError
        _LOG.debug("a statement can't be parsed: %s", type(error).__name__)
    finally:
        _LOG.setLevel(level)
    return tuple(_by_pattern(plain))


def recorded_text(statement: bytes) -> bytes:
    """Return a statement as it is recorded, because each run's driver reads all of them.

    One above 1 MiB is replaced by one that alters the same tables in an unknown way, as it does itself.
    """
    return statement if len(statement) <= _LONGEST_RECORDED else _unknown_text(statement)


def recorded_bytes(records: Iterable[Mapping[str, Any]]) -> Counter[tuple[str, str]]:
    """Count the bytes of recorded statements by shard and table, for :func:`bounded`."""
    sizes: Counter[tuple[str, str]] = Counter()
    for one in filter(_is_statement, records):
        sizes[_subject(one)] += len(one["payload"]) + _RECORD_BYTES
    return sizes


def bounded(records: Iterable[Mapping[str, Any]], sizes: Counter[tuple[str, str]]) -> list[Mapping[str, Any]]:
    """Replace the statements of tables that have too many by one that alters them in an unknown way.

    Args:
        records: Records of kind ``schema`` of a batch.
        sizes: What is recorded; what these records add is added.
    """
    kept: list[Mapping[str, Any]] = []
    beyond: dict[tuple[str, bytes], Mapping[str, Any]] = {}
    for one in records:
        if not _is_statement(one) or sizes[_subject(one)] < MOST_RECORDED_BYTES:
            kept.append(one)
            sizes += recorded_bytes([one])
        else:
            text = _unknown_text(one["payload"])
            beyond[one["origin"], text] = {**one, "payload": text}
    return [*kept, *beyond.values()]


def _is_statement(one: Mapping[str, Any]) -> bool:
    return (one["kind"], one["schema_id"]) == (SCHEMA, DDL)


def _subject(one: Mapping[str, Any]) -> tuple[str, str]:
    """Return shard and first table of a statement; no table if it affects none, or creates one in 64 KiB."""
    found = read_statement(one["payload"].decode(errors="replace"))
    return one["origin"], found[0].table if found else ""


def _unknown_text(statement: bytes) -> bytes:
    found = {one.table for one in read_statement(statement.decode(errors="replace"))}
    names = [name.replace("`", "``") for name in sorted(found) if len(name) <= _LONGEST_NAME]
    renames = ", ".join(f"`{name}` TO `{name}`" for name in names[:_MOST_NAMES])
    return (f"RENAME TABLE {renames}" if renames else f"/* {len(statement)} bytes */").encode()


def _statements(tree: Any, text: str) -> Iterator[TableStatement]:
    if isinstance(tree, exp.Alter) and tree.args.get("kind") == "TABLE":
        actions = tuple(one for action in tree.args.get("actions") or () for one in _actions(action, text))
        yield TableStatement(tree.this.name, "alter", actions)
        for action in tree.args.get("actions") or ():
            if isinstance(action, exp.AlterRename):
                yield TableStatement(action.this.name, "alter", (Unknown(_short(text)),))
    elif isinstance(tree, exp.TruncateTable):
        for table in tree.expressions:
            yield TableStatement(table.name, "truncate")
    elif isinstance(tree, exp.Drop) and tree.args.get("kind") == "TABLE":
        for table in tree.args.get("tables") or [tree.this]:
            yield TableStatement(table.name, "drop")
    elif isinstance(tree, exp.Create) and tree.args.get("kind") == "TABLE":
        table = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
        yield TableStatement(table.name, "create")
    elif isinstance(tree, exp.Command):
        yield from _by_pattern(text)


def _by_pattern(text: str) -> Iterator[TableStatement]:
    """Match a statement that sqlglot can't parse: only its tables, and whether it is known to be harmless."""
    unknown = (Unknown(_short(text)),)
    found = _ALTER.match(text)
    if found:
        harmless = _HARMLESS.match(found.group(2)) and not _has_several(found.group(2))
        actions = () if harmless else unknown
        for name in (found.group(1), *_OTHER.findall(found.group(2))):
            yield TableStatement(_bare(name), "alter", actions)
    elif renames := _RENAME.match(text):
        for name in re.findall(_NAME, text[renames.end() :]):
            if name.upper() != "TO":
                yield TableStatement(_bare(name), "alter", unknown)


def _has_several(text: str) -> bool:
    """Return whether there are several actions; commas in parentheses and quotes don't separate actions."""
    depth = 0
    for part in re.findall(r"'(?:[^'\\]|\\.|'')*+(?:'|\Z)|`[^`]*(?:`|\Z)|\(|\)|,", text, re.DOTALL):
        depth += {"(": 1, ")": -1}.get(part, 0)
        if part == "," and depth == 0:
            return True
    return False


def _actions(action: Any, text: str) -> Iterator[Action]:
    match action:
        case exp.ColumnDef():
            yield _added(action, text)
        case exp.Drop() if action.args.get("kind") == "COLUMN":
            for column in action.args.get("tables") or [action.this]:
                yield Dropped(column.name)
        case exp.Drop() | exp.AlterColumn() | exp.AlterIndex() | exp.RenameIndex() | exp.ForceProperty():
            return
        case exp.RenameColumn():
            yield Renamed(action.this.name, action.args["to"].name)
        case exp.ModifyColumn():
            new = action.this
            old = action.args.get("rename_from")
            if _is_generated(new):
                yield Unknown(_short(text))
            if old is not None and old.name != new.name:
                yield Renamed(old.name, new.name)
            yield Modified(new.name)
        case exp.AddConstraint() if not any(
            isinstance(one, (exp.PrimaryKey, exp.PrimaryKeyColumnConstraint)) for one in action.walk()
        ):
            return
        case _:
            yield Unknown(_short(text))


def _added(column: Any, text: str) -> Added:
    kinds = [constraint.kind for constraint in column.args.get("constraints") or ()]
    nullable = not any(
        isinstance(kind, (exp.NotNullColumnConstraint, exp.PrimaryKeyColumnConstraint))
        and not kind.args.get("allow_null")
        for kind in kinds
    )
    is_serial = column.kind is not None and column.kind.is_type(exp.DataType.Type.SERIAL)
    if (
        is_serial
        or _is_generated(column)
        or any(isinstance(kind, exp.AutoIncrementColumnConstraint) for kind in kinds)
    ):
        return Added(column.name, None, constant=False, nullable=nullable)
    defaults = [kind.this for kind in kinds if isinstance(kind, exp.DefaultColumnConstraint)]
    if not defaults:
        # A NOT NULL column starts with the implicit default of its type.
        return Added(column.name, None, constant=nullable, nullable=nullable)
    value, constant, quoted = _constant(defaults[0])
    if quoted and _ESCAPE.search(text):
        constant = False  # the SQL mode decides what a backslash is; VTGate writes one before quotes
    expression = constant and isinstance(defaults[0], exp.Paren)
    return Added(
        column.name, value, constant=constant, nullable=nullable, quoted=quoted, expression=expression
    )


def _is_generated(column: Any) -> bool:
    return any(
        isinstance(constraint.kind, (exp.GeneratedAsIdentityColumnConstraint, exp.ComputedColumnConstraint))
        for constraint in column.args.get("constraints") or ()
    )


def _constant(value: Any) -> tuple[str | None, bool, bool]:
    """Return the text of a default, None for NULL; whether it is a literal, and whether it is quoted."""
    if isinstance(value, exp.Null):
        return None, True, False
    if isinstance(value, exp.Literal):
        return value.name, True, value.is_string
    if isinstance(value, exp.Neg) and isinstance(value.this, exp.Literal):
        return f"-{value.this.name}", True, False
    if isinstance(value, exp.Boolean):
        return ("1" if value.this else "0"), True, False
    if isinstance(value, exp.Paren):
        return _constant(value.this)
    if isinstance(value, exp.Introducer) and isinstance(value.expression, exp.Literal):
        known = str(value.this).lower() in ("_utf8mb4", "_utf8", "_utf8mb3", "_ascii")
        return value.expression.name, known, True
    return None, False, False


def _bare(name: str) -> str:
    """Return the last part of a name, without quotes."""
    quoted, plain = _PART.findall(name)[-1]
    return plain or quoted.replace("``", "`")


@lru_cache(maxsize=4)
def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 200 else words[:197] + "..."
