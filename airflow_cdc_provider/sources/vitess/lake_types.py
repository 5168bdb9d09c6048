"""The lake type of each MySQL type. ``docs/types-vitess.md`` contains the table.

No value is silently rounded or set to null: a value that its column can't represent exactly is stored as
MySQL's text in the mirror's column :data:`REST`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

from airflow_cdc_provider.formats.number_texts import WIDEST_DECIMAL
from airflow_cdc_provider.sources.vitess.charsets import can_decode
from airflow_cdc_provider.sources.vitess.fields import Column

Family = Literal[
    "integer",
    "decimal",
    "float",
    "date",
    "datetime",
    "timestamp",
    "time",
    "year",
    "bit",
    "text",
    "members",
    "json",
    "bytes",
    "vector",
]

REST: Final = "_rest"
"""Column of a mirror: a JSON object with MySQL's text of each value that its own column can't represent; null
if there are none."""

VECTOR: Final = pa.list_(pa.field("element", pa.float32()))


@dataclass(frozen=True)
class TypeRow:
    """A row of the type table.

    Args:
        names: SQL type names.
        family: Format of their values on the wire.
        lake: The lake type, as text.
        note: Note for the documentation.
    """

    names: tuple[str, ...]
    family: Family
    lake: str
    note: str = ""


SPATIAL: Final = (
    "geometry",
    "point",
    "linestring",
    "polygon",
    "multipoint",
    "multilinestring",
    "multipolygon",
    "geometrycollection",
)
TYPES: Final = (
    TypeRow(
        ("tinyint", "smallint", "mediumint"),
        "integer",
        "int32",
        "unsigned too; Iceberg has no smaller integers; BOOL is TINYINT(1) and holds more than 0 and 1",
    ),
    TypeRow(("int",), "integer", "int32, unsigned int64"),
    TypeRow(("bigint",), "integer", "int64, unsigned decimal(20,0)"),
    TypeRow(("decimal",), "decimal", "decimal(p,s) up to 38 digits, else string", "all its digits"),
    TypeRow(("float",), "float", "float32", "a copy brings six digits, the stream all"),
    TypeRow(("double",), "float", "float64"),
    TypeRow(("bit",), "bit", "BIT(1) bool, else binary", "big-endian, as many bytes as the bits need"),
    TypeRow(("year",), "year", "int32", "`0000` is 0"),
    TypeRow(("date",), "date", "date32", "zero dates: see below"),
    TypeRow(("datetime",), "datetime", "timestamp without zone (µs)", "zero dates: see below"),
    TypeRow(("timestamp",), "timestamp", "timestamp (µs, UTC)", "zero dates: see below"),
    TypeRow(("time",), "time", "int64", "microseconds, -838:59:59 to 838:59:59; lake times end at 24 hours"),
    TypeRow(
        ("char", "varchar", "tinytext", "text", "mediumtext", "longtext"),
        "text",
        "string",
        "whatever the character set and collation",
    ),
    TypeRow(
        ("enum", "set"),
        "members",
        "string",
        "names, also where values come as numbers; empty for an invalid one",
    ),
    TypeRow(("json",), "json", "string", "as MySQL prints it"),
    TypeRow(
        ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"),
        "bytes",
        "binary",
        "BINARY(n) with its zero bytes",
    ),
    TypeRow(SPATIAL, "bytes", "binary", "SRID (4 bytes, little-endian) and WKB"),
    TypeRow(("vector",), "vector", "list of float32"),
)
"""All types; values of other types are binary."""

_FAMILIES: Final[dict[str, Family]] = {name: row.family for row in TYPES for name in row.names}
_NARROW: Final = ("tinyint", "smallint", "mediumint")


def family_of(column: Column) -> Family:
    """Return the wire format of a column's values."""
    return _FAMILIES.get(column.type.name, "bytes")


@dataclass(frozen=True)
class LakeTypes:
    """Options of the lake types.

    Args:
        temporal: ``typed``: DATE, DATETIME, TIMESTAMP and TIME as in the table. ``text``: MySQL's text,
            including zero dates.
    """

    temporal: Literal["typed", "text"] = "typed"

    def of(self, column: Column) -> pa.DataType:
        """Return the lake type of a column."""
        family = family_of(column)
        if family in ("date", "datetime", "timestamp", "time") and self.temporal == "text":
            return pa.string()
        match family:
            case "integer":
                return _integer(column)
            case "decimal":
                if column.precision > WIDEST_DECIMAL:
                    return pa.string()
                return pa.decimal128(column.precision, column.scale)
            case "float":
                return pa.float32() if column.type.name == "float" else pa.float64()
            case "date":
                return pa.date32()
            case "datetime":
                return pa.timestamp("us")
            case "timestamp":
                return pa.timestamp("us", tz="UTC")
            case "time":
                return pa.int64()
            case "year":
                return pa.int32()
            case "bit":
                return pa.bool_() if column.type.sizes in ((), (1,)) else pa.binary()
            case "text":
                return pa.string() if can_decode(column.charset) or not column.charset else pa.binary()
            case "vector":
                return VECTOR
            case "bytes":
                return pa.binary()
        return pa.string()


def _integer(column: Column) -> pa.DataType:
    if column.type.name in _NARROW:
        return pa.int32()
    if column.type.name == "int":
        return pa.int64() if column.unsigned else pa.int32()
    return pa.decimal128(20, 0) if column.unsigned else pa.int64()


def type_table() -> str:
    """Return the type table in Markdown."""
    lines = ["| MySQL | lake (Arrow) | notes |", "|---|---|---|"]
    lines += [
        f"| {', '.join(f'`{name.upper()}`' for name in row.names)} | {row.lake} | {row.note} |"
        for row in TYPES
    ]
    return "\n".join(lines)
