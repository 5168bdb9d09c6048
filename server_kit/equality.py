"""A mirror compared with its source, row by row, without the package: drivers here, files there.

Values are compared as Python values of the drivers and of Arrow. Nothing is rounded or folded: ``1.0`` is not
``1.00``, ``-0.0`` is not ``0.0``, and the order of sets, maps and members counts.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from server_kit.cassandra import table_definition

if TYPE_CHECKING:
    from cassandra.cluster import Session
    from pymongo import MongoClient

Rows = Sequence[Mapping[str, Any]]
"""A mirror's rows as plain data: structs as mappings, maps as mappings or lists of pairs."""


@dataclass(frozen=True)
class Comparison:
    """What a comparison found.

    Args:
        table: The source's table.
        source_rows: Rows there.
        mirror_rows: Rows in the mirror.
        differences: One text per row that differs.
    """

    table: str
    source_rows: int
    mirror_rows: int
    differences: Sequence[str]


def compare_cassandra(session: Session, table: str, mirror: Rows) -> Comparison:
    """Compare ``SELECT *`` of a table with its mirror."""
    metadata = table_definition(session, table)
    key = [column.name for column in metadata.primary_key]
    types = {column: str(description.cql_type) for column, description in metadata.columns.items()}
    source = [
        {
            column: inet_text(value) if value and types[column] == "inet" else value
            for column, value in row.items()
        }
        for row in (row._asdict() for row in session.execute(f"SELECT * FROM {table}", timeout=120))
    ]
    expected = {repr([plain(row[name]) for name in key]): row for row in source}
    found = {repr([plain(row[name]) for name in key]): row for row in mirror}
    differences = [f"{table}: the mirror holds {len(mirror) - len(found)} rows twice"] * (
        len(found) != len(mirror)
    )
    for where in sorted(expected.keys() - found.keys()):
        differences.append(f"{table} {where}: missing in the mirror")
    for where in sorted(found.keys() - expected.keys()):
        differences.append(f"{table} {where}: only in the mirror")
    for where in sorted(expected.keys() & found.keys()):
        for column, value in expected[where].items():
            other = found[where].get(column)
            if not same(value, other):
                differences.append(f"{table} {where}: {column} is {value!r}, in the mirror {other!r}")
    return Comparison(table, len(source), len(mirror), differences)


def compare_mongodb(client: MongoClient, table: str, documents: Iterable[str]) -> Comparison:
    """Compare a collection with its mirror's documents, byte by byte.

    Args:
        client: The source.
        table: ``database.collection``.
        documents: The mirror's documents as canonical Extended JSON.
    """
    import bson
    from bson import json_util
    from bson.raw_bson import RawBSONDocument

    database, _, name = table.partition(".")
    raw = bson.CodecOptions(document_class=RawBSONDocument)
    expected = [document.raw for document in client[database].get_collection(name, codec_options=raw).find()]
    options = json_util.JSONOptions(
        json_mode=json_util.JSONMode.CANONICAL, document_class=bson.SON, tz_aware=True
    )
    found = [bson.encode(json_util.loads(text, json_options=options)) for text in documents]
    differences = [f"{table}: the mirror holds a document twice"] * (len(set(found)) != len(found))
    for word, some in (
        ("at the source", sorted(set(expected) - set(found))),
        ("in the mirror", sorted(set(found) - set(expected))),
    ):
        differences += [f"{table}: only {word}: {bson.decode(document)!r}" for document in some]
    return Comparison(table, len(expected), len(found), differences)


def inet_text(address: str) -> str:
    """Write an address as Cassandra's own JSON does: all eight groups of version 6, no zeros folded."""
    parsed = ipaddress.ip_address(address)
    if parsed.version == 4:
        return str(parsed)
    return ":".join(f"{int(group, 16):x}" for group in parsed.exploded.split(":"))


def same(source: Any, mirror: Any) -> bool:
    """Return whether a driver's value and a mirror's value are equal."""
    left, right = plain(source), plain(mirror)
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or (
            left == right and math.copysign(1, left) == math.copysign(1, right)
        )
    if isinstance(left, Decimal) and isinstance(right, str | Decimal):
        return left.as_tuple() == Decimal(right).as_tuple()
    if isinstance(left, int) and isinstance(right, str | Decimal):
        return left == int(right)
    if isinstance(left, Mapping) and isinstance(right, list):
        right = dict(right)
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return same(list(left.keys()), list(right.keys())) and same(list(left.values()), list(right.values()))
    if isinstance(left, list) and isinstance(right, Mapping):  # a user-defined type or tuple in a struct
        right = list(right.values())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and bool(left == right)


def plain(value: Any) -> Any:
    """Bring the drivers' own classes to Python's: UUIDs to text, times to UTC, all sequences to lists."""
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, str | dt.date | Decimal | int | float | Mapping) or value is None:
        return value
    if hasattr(value, "nanosecond_time"):
        return value.nanosecond_time
    if hasattr(value, "date"):  # the Cassandra driver's Date
        return value.date()
    if isinstance(value, Iterable):
        return list(value)
    return value
