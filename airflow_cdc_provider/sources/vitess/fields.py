"""Schema of a table, parsed from the fields of a FIELD event.

A field has a column's name, the wire type of its values (``query.Type``), its collation, MySQL's flags and,
since Vitess 9, its ``column_type``: the SQL type (``decimal(6,4) unsigned``, ``enum('a','b,c','d''e')``).
The SQL type takes precedence: text with a binary collation, for instance, has the wire type VARBINARY.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from airflow_cdc_provider.sources.vitess.charsets import BINARY, charset_name
from airflow_cdc_provider.sources.vitess.protocol import TYPES, FieldEvent, parse

NOT_NULL: Final = 1
PRIMARY_KEY: Final = 2
UNIQUE_KEY: Final = 4
UNSIGNED: Final = 32
ZEROFILL: Final = 64

_TYPE_NAMES: Final[dict[str, str]] = {
    "INT8": "tinyint",
    "UINT8": "tinyint",
    "INT16": "smallint",
    "UINT16": "smallint",
    "INT24": "mediumint",
    "UINT24": "mediumint",
    "INT32": "int",
    "UINT32": "int",
    "INT64": "bigint",
    "UINT64": "bigint",
    "FLOAT32": "float",
    "FLOAT64": "double",
    "DECIMAL": "decimal",
    "TIMESTAMP": "timestamp",
    "DATE": "date",
    "TIME": "time",
    "DATETIME": "datetime",
    "YEAR": "year",
    "TEXT": "text",
    "BLOB": "blob",
    "VARCHAR": "varchar",
    "VARBINARY": "varbinary",
    "CHAR": "char",
    "BINARY": "binary",
    "BIT": "bit",
    "ENUM": "enum",
    "SET": "set",
    "GEOMETRY": "geometry",
    "JSON": "json",
    "VECTOR": "vector",
}
"""SQL type name of each wire type; the collation decides between text and bytes."""

_AS_BYTES: Final = {"char": "binary", "varchar": "varbinary", "text": "blob"}
_AS_TEXT: Final = {as_bytes: as_text for as_text, as_bytes in _AS_BYTES.items()}
_SYNONYMS: Final = {
    "integer": "int",
    "numeric": "decimal",
    "dec": "decimal",
    "fixed": "decimal",
    "real": "double",
    "bool": "tinyint",
    "boolean": "tinyint",
    "geomcollection": "geometrycollection",
}
_MAX_DIGITS: Final = 65
_SYNTAX: Final = re.compile(r"\s*([a-z]\w*)\s*(?:\((.*)\))?([^()']*)", re.IGNORECASE | re.DOTALL)
_SIZE: Final = re.compile(r"\s*[0-9]{1,9}\s*")
_MEMBER: Final = re.compile(r"\s*'((?:[^']|'')*+)'\s*(?:,|$)", re.DOTALL)


@dataclass(frozen=True)
class ColumnType:
    """A parsed SQL type.

    Args:
        name: ``int``, ``varchar``, ``enum``, ... in lower case; synonyms as MySQL prints them.
        sizes: Numbers in parentheses: length, or precision and scale.
        members: Members of ``enum`` and ``set``.
        unsigned: Whether it is UNSIGNED.
        zerofill: Whether it is ZEROFILL, which implies UNSIGNED.
    """

    name: str
    sizes: tuple[int, ...] = ()
    members: tuple[str, ...] = ()
    unsigned: bool = False
    zerofill: bool = False

    @classmethod
    def parse(cls, text: str) -> ColumnType:
        """Parse a type; ignore unknown attributes."""
        found = _SYNTAX.match(text)
        if found is None:
            return cls("")
        name, arguments = found.group(1).lower(), found.group(2) or ""
        attributes = found.group(3).lower().split()
        if name in ("enum", "set"):
            return cls(name, members=tuple(_members(arguments)))
        sizes = tuple(int(size) for size in arguments.split(",") if _SIZE.fullmatch(size))
        zerofill = "zerofill" in attributes
        return cls(_SYNONYMS.get(name, name), sizes, (), "unsigned" in attributes or zerofill, zerofill)


def _members(arguments: str) -> Iterator[str]:
    """Yield the members of an ENUM or SET, up to what isn't one."""
    at = 0
    while found := _MEMBER.match(arguments, at):
        yield found.group(1).replace("''", "'")
        at = found.end()


@dataclass(frozen=True)
class Column:
    """A column as described by a field.

    Args:
        name: Its name.
        wire_type: Name of its ``query.Type``.
        column_type: SQL type, empty before Vitess 9.
        collation: Id of its collation.
        length: ``column_length``: maximum number of bytes; for numbers, of digits.
        decimals: Fractional digits; 31 if not specified.
        flags: MySQL's flags.
        as_text: Whether values of ENUM and SET are text; otherwise member indexes, or bitmaps.
    """

    name: str
    wire_type: str
    column_type: str = ""
    collation: int = BINARY
    length: int = 0
    decimals: int = 0
    flags: int = 0
    as_text: bool = True

    @cached_property
    def type(self) -> ColumnType:
        """The SQL type; without ``column_type``, derived from the other attributes of the field."""
        if self.column_type:
            return ColumnType.parse(self.column_type)
        name = _TYPE_NAMES.get(self.wire_type, "")
        other = _AS_BYTES if self.collation == BINARY else _AS_TEXT
        name = other.get(name, name)
        unsigned = self.wire_type.startswith("UINT") or bool(self.flags & UNSIGNED)
        sizes: tuple[int, ...] = ()
        if name == "decimal":
            # ``column_length`` includes a sign, unless unsigned, and a decimal point.
            point = 1 if self.decimals else 0
            digits = self.length - point - (0 if unsigned else 1)
            sizes = (digits if digits >= max(1, self.decimals) else _MAX_DIGITS, self.decimals)
        elif name in ("bit", "binary"):
            sizes = (self.length,)
        elif name in ("time", "datetime", "timestamp"):
            sizes = (self.decimals,) if self.decimals else ()
        return ColumnType(name, sizes, (), unsigned, bool(self.flags & ZEROFILL))

    @property
    def unsigned(self) -> bool:
        """Whether it is an unsigned number."""
        return self.type.unsigned or self.wire_type.startswith("UINT")

    @property
    def nullable(self) -> bool:
        """Whether it may be NULL."""
        return not self.flags & NOT_NULL

    @property
    def scale(self) -> int:
        """Fractional digits of a decimal, or of the seconds of a time."""
        sizes = self.type.sizes
        if self.type.name == "decimal":
            return sizes[1] if len(sizes) > 1 else 0
        return sizes[0] if sizes else 0

    @property
    def precision(self) -> int:
        """Number of digits of a decimal."""
        return self.type.sizes[0] if self.type.sizes else 10

    @property
    def charset(self) -> str:
        """MySQL's name of its character set, empty if unknown."""
        return charset_name(self.collation)


@dataclass(frozen=True)
class TableShape:
    """A version of a table's schema.

    Args:
        table: ``keyspace.table``.
        columns: Columns in the order of the values in rows.
    """

    table: str
    columns: tuple[Column, ...]

    @classmethod
    def parse(cls, message: bytes) -> TableShape:
        """Parse a FieldEvent message.

        Raises:
            CorruptInput: The message is invalid.
        """
        return cls.of(parse(FieldEvent, message))

    @classmethod
    def of(cls, event: Any) -> TableShape:
        """Create a shape from a FieldEvent."""
        columns = tuple(
            Column(
                field.name,
                TYPES.get(field.type, str(field.type)),
                field.column_type,
                field.charset,
                field.column_length,
                field.decimals,
                field.flags,
                event.enum_set_string_values,
            )
            for field in event.fields
        )
        return cls(table_name(event), columns)

    @cached_property
    def key(self) -> tuple[int, ...]:
        """Indexes of the key columns, in the order of columns; empty for a table without a key.

        The primary key, or else the first NOT NULL column with a unique key of its own.
        """
        primary = [n for n, column in enumerate(self.columns) if column.flags & PRIMARY_KEY]
        unique = [
            n
            for n, column in enumerate(self.columns)
            if column.flags & UNIQUE_KEY and column.flags & NOT_NULL
        ]
        return tuple(primary or unique[:1])

    @cached_property
    def index(self) -> dict[str, int]:
        """Index of each column by name."""
        return {column.name: number for number, column in enumerate(self.columns)}


def table_name(event: Any) -> str:
    """Return ``keyspace.table`` of a FieldEvent or RowEvent, whose table name may include the keyspace."""
    prefix = f"{event.keyspace}."
    return event.table_name if event.table_name.startswith(prefix) else prefix + event.table_name


def invalid_names(columns: Sequence[Column]) -> list[str]:
    """Return invalid column names: a tablet that doesn't know the names sends ``@1``."""
    return [column.name for column in columns if column.name.startswith("@")]
