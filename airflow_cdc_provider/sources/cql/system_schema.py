"""Build schemas from the rows of ``system_schema``: over CQL, from a file of JSON rows, or from the log.

Rows are mappings of column name to value as returned by ``SELECT JSON``. Some columns may have other forms:
``dropped_time`` as text or as microseconds since 1970, ``id`` as text or UUID, lists as any sequence.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from airflow_cdc_provider.exceptions import SchemaUnknown
from airflow_cdc_provider.sources.cql.schema import (
    KEY_KINDS,
    NEVER_DROPPED,
    Column,
    CqlType,
    DroppedColumn,
    Keyspace,
    Schemas,
    TableSchema,
    ViewDefinition,
    define_view,
    number_columns,
    order_columns,
)
from airflow_cdc_provider.sources.cql.types import freeze, parse_type

Row = Mapping[str, Any]

TABLES: Final = ("keyspaces", "tables", "columns", "types", "dropped_columns", "views")
"""The tables of ``system_schema`` that are read."""

SYSTEM_KEYSPACES: Final = frozenset(
    {
        "system",
        "system_auth",
        "system_distributed",
        "system_distributed_everywhere",
        "system_metadata",
        "system_replicated_keys",
        "system_schema",
        "system_traces",
        "system_views",
        "system_virtual_schema",
    }
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def schemas_from_rows(rows: Mapping[str, Iterable[Row]]) -> Schemas:
    """Build schemas from the rows of each table of ``system_schema``.

    Args:
        rows: Table name (of :data:`TABLES`) -> rows; a missing table counts as empty.

    Returns:
        The schemas.

    Raises:
        SchemaUnknown: A table's type can't be parsed.
    """
    keyspaces = {r["keyspace_name"]: _keyspace(r) for r in rows.get("keyspaces", ())}
    types = _types(rows.get("types", ()))
    columns = _by_table(rows.get("columns", ()), "table_name")
    dropped = _by_table(rows.get("dropped_columns", ()), "table_name")
    tables = {}
    for name_column, kind in (("table_name", "tables"), ("view_name", "views")):
        for row in rows.get(kind, ()):
            name = (row["keyspace_name"], row[name_column])
            table = _table(row, name, columns[name], dropped[name], types, view=kind == "views")
            if table.view:
                table = replace(table, definition=_definition(row, table, columns))
            tables[table.full_name] = number_columns(table)
    return Schemas(keyspaces, types, dict(sorted(tables.items())))


def read_rows(session: Any, keyspaces: Sequence[str] | None = None) -> dict[str, list[Row]]:
    """Read the rows of ``system_schema`` over CQL.

    They are read as JSON: the driver can't decode some values (``dropped_time`` beyond year 9999).

    Args:
        session: A session of the Python driver.
        keyspaces: Only these; default: all except system keyspaces.

    Returns:
        Table name (of :data:`TABLES`) -> rows.
    """
    names = None if keyspaces is None else set(keyspaces)

    def selected(row: Row) -> bool:
        name = row["keyspace_name"]
        return name not in SYSTEM_KEYSPACES if names is None else name in names

    rows = {}
    for table in TABLES:
        result = session.execute(f"SELECT JSON * FROM system_schema.{table}")
        rows[table] = [row for row in (json.loads(r[0]) for r in result) if selected(row)]
    return rows


def load(session: Any, keyspaces: Sequence[str] | None = None) -> Schemas:
    """Read a cluster's schema over CQL; arguments as for :func:`read_rows`."""
    return schemas_from_rows(read_rows(session, keyspaces))


def _by_table(rows: Iterable[Row], name_column: str) -> dict[tuple[str, str], list[Row]]:
    grouped: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        grouped[row["keyspace_name"], row[name_column]].append(row)
    return grouped


def _keyspace(row: Row) -> Keyspace:
    durable = row.get("durable_writes")
    return Keyspace(
        row["keyspace_name"], durable is None or bool(durable), dict(row.get("replication") or {})
    )


def _types(rows: Iterable[Row]) -> dict[str, CqlType]:
    """Resolve types that use each other, in any order; omit those that can't be resolved."""
    by_name = {f"{r['keyspace_name']}.{r['type_name']}": r for r in rows}
    types: dict[str, CqlType] = {}

    def resolve(full: str, path: tuple[str, ...] = ()) -> CqlType:
        if full not in types:
            row = by_name.get(full)
            if row is None or full in path:
                raise SchemaUnknown(f"type {full} doesn't exist", expected="a row of system_schema.types")
            lookup = _lookup(row["keyspace_name"], lambda name: resolve(name, (*path, full)))
            texts = row.get("field_types") or ()
            if not all(texts):
                raise SchemaUnknown(f"the type {full} has a field without a type")
            inside = tuple(freeze(parse_type(text, lookup)) for text in texts)
            types[full] = CqlType("udt", inside, fields=tuple(row.get("field_names") or ()), udt=full)
        return types[full]

    for name in by_name:
        with suppress(SchemaUnknown):  # raised again for a table that uses it
            resolve(name)
    return types


def _lookup(keyspace: str, find: Callable[[str], CqlType]) -> Callable[[str], CqlType]:
    return lambda name: find(name if "." in name else f"{keyspace}.{name}")


def _table(
    row: Row,
    name: tuple[str, str],
    columns: Iterable[Row],
    dropped: Iterable[Row],
    types: Mapping[str, CqlType],
    *,
    view: bool,
) -> TableSchema:
    def find(full: str) -> CqlType:
        if full not in types:
            raise SchemaUnknown(f"type {full} doesn't exist", expected="a row of system_schema.types")
        return types[full]

    lookup = _lookup(name[0], find)
    stored = [_column(c, lookup) for c in columns]
    dropped_columns = {d["column_name"]: _dropped(d, lookup) for d in dropped}
    if not view and row.get("flags") is not None:
        stored, hidden = _without_hidden(stored, row["flags"])
        dropped_columns |= hidden
    built = order_columns(stored)
    return TableSchema(
        keyspace=name[0],
        name=name[1],
        id=str(row.get("id") or "").replace("-", "").lower(),
        columns=built,
        dropped=dropped_columns,
        cdc=bool(row.get("cdc")),
        view=view,
        counter="counter" in (row.get("flags") or ()) or any(c.type.name == "counter" for c in built),
    )


def _without_hidden(
    columns: list[Column], flags: Collection[str]
) -> tuple[list[Column], dict[str, DroppedColumn]]:
    """Return the columns that CQL has of a table, which may be one WITH COMPACT STORAGE.

    Such a table is stored as if it had further columns. Without a clustering column, its values are stored as
    static columns, next to a clustering column and a value that stay empty. With clustering columns and no
    other, it has a column of type ``empty``.

    Args:
        columns: The table's rows of ``system_schema.columns``.
        flags: Column ``flags`` of its row in ``system_schema.tables``.

    Returns:
        The columns, and a hidden one whose cell says that a row exists (:data:`~.decoding.programs.MARKER`).
    """
    if "dense" in flags:
        hidden = [c for c in columns if c.type.name == "empty"]
        kept = [c for c in columns if c not in hidden]
        return kept, {c.name: DroppedColumn(c.name, c.kind, c.type, NEVER_DROPPED) for c in hidden}
    if not {"compound", "super"} & set(flags):
        columns = [
            replace(c, kind="regular") if c.kind == "static" else c
            for c in columns
            if c.kind in ("partition_key", "static")
        ]
    return columns, {}


def _definition(
    row: Row, view: TableSchema, columns: Mapping[tuple[str, str], Iterable[Row]]
) -> ViewDefinition | None:
    base = (view.keyspace, str(row.get("base_table_name") or ""))
    keys = sorted(
        (c["kind"], int(c.get("position") or 0), c["column_name"])
        for c in columns.get(base, ())
        if c.get("kind") in KEY_KINDS
    )
    partition_key, clustering = ([name for own, _, name in keys if own == kind] for kind in KEY_KINDS)
    conditions = _conditions(str(row.get("where_clause") or ""))
    return define_view(".".join(base), partition_key, clustering, view.columns, conditions)


def _conditions(where: str) -> list[str]:
    """Split a view's WHERE at each AND outside of texts and quoted names; omit ``IS NOT NULL``."""
    ends = [0]
    for found in re.finditer(r"""'[^']*'|"[^"]*"|(?<=\s)AND(?=\s)""", where, re.IGNORECASE):
        if found[0][0] not in "'\"":
            ends += found.span()
    parts = [
        where[start:end].strip() for start, end in zip(ends[::2], [*ends[1::2], len(where)], strict=True)
    ]
    return [part for part in parts if part and part.upper().split()[-3:] != ["IS", "NOT", "NULL"]]


def _column(row: Row, lookup: Callable[[str], CqlType]) -> Column:
    kind = _required(row, "kind")
    position = row.get("position")
    return Column(
        name=row["column_name"],
        kind=kind if kind in ("partition_key", "clustering", "static") else "regular",
        position=int(position) if kind in ("partition_key", "clustering") and position is not None else -1,
        type=parse_type(_required(row, "type"), lookup),
        descending=str(row.get("clustering_order", "")).lower() == "desc",
    )


def _dropped(row: Row, lookup: Callable[[str], CqlType]) -> DroppedColumn:
    # 3.11 has no column "kind".
    return DroppedColumn(
        name=row["column_name"],
        kind="static" if row.get("kind") == "static" else "regular",
        type=parse_type(_required(row, "type"), lookup),
        dropped_at_us=_microseconds(_required(row, "dropped_time")),
    )


def _required(row: Row, name: str) -> Any:
    """Return a required value of a column, whose row may be incomplete in a log."""
    if row.get(name) is None:
        raise SchemaUnknown(f"the {name} of column {row['column_name']} is unknown")
    return row[name]


def _microseconds(value: int | str) -> int:
    """Parse a drop time; text is a CQL timestamp with milliseconds, of any year."""
    if isinstance(value, int):
        return value
    date, _, time = value.rstrip("Z").partition(" ")
    year, month, day = (int(part) for part in date.rsplit("-", 2))
    # The Gregorian calendar repeats every 400 years, which are 146,097 days.
    cycles, year = divmod(year, 400)
    moment = datetime.fromisoformat(f"{year + 400:04}-{month:02}-{day:02}T{time}+00:00")
    return ((moment - _EPOCH) // timedelta(microseconds=1)) + (cycles - 1) * 146_097 * 86_400_000_000
