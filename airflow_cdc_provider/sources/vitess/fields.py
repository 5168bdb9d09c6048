"""Fields of a FIELD event as a frozen shape of a table.

A field tells a column's name, the type of its values on the wire (``query.Type``), its collation, MySQL's
flags and, since Vitess 9, its ``column_type``: the words of SQL (``decimal(6,4) unsigned``,
``enum('a','b,c','d''e')``). The words rule where there are some: text with a binary collation, for instance,
comes with the type VARBINARY.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from google.protobuf.message import DecodeError

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.vitess.charsets import BINARY, charset_name
from airflow_cdc_provider.sources.vitess.protocol import TYPES, FieldEvent

NOT_NULL: Final = 1
PRIMARY_KEY: Final = 2
UNIQUE_KEY: Final = 4
UNSIGNED: Final = 32
ZEROFILL: Final = 64

_WORDS: Final[dict[str, str]] = {
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
"""The word of SQL for each type on the wire; text and bytes as their collation says."""

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
_MOST_DIGITS: Final = 65
_SYNTAX: Final = re.compile(r"\s*([a-z]\w*)\s*(?:\((.*)\))?([^()']*)", re.IGNORECASE | re.DOTALL)
_MEMBER: Final = re.compile(r"\s*'((?:[^']|'')*)'\s*(?:,|$)", re.DOTALL)


@dataclass(frozen=True)
class ColumnType:
    """A type in SQL's words, taken apart.

    Args:
        word: ``int``, ``varchar``, ``enum``, ... in lower case; synonyms as MySQL prints them.
        sizes: Numbers in parentheses: length, or precision and scale.
        members: Of ``enum`` and ``set``.
        unsigned: Whether it is.
        zerofill: Whether it is, which makes it unsigned too.
    """

    word: str
    sizes: tuple[int, ...] = ()
    members: tuple[str, ...] = ()
    unsigned: bool = False
    zerofill: bool = False

    @classmethod
    def parse(cls, text: str) -> ColumnType:
        """Take the words apart; what isn't understood is left out."""
        found = _SYNTAX.match(text)
        if found is None:
            return cls("")
        word, inside, behind = found.group(1).lower(), found.group(2) or "", found.group(3).lower().split()
        if word in ("enum", "set"):
            members = tuple(one.group(1).replace("''", "'") for one in _MEMBER.finditer(inside))
            return cls(word, members=members)
        sizes = tuple(int(size) for size in inside.split(",") if size.strip().isdigit())
        zerofill = "zerofill" in behind
        return cls(_SYNONYMS.get(word, word), sizes, (), "unsigned" in behind or zerofill, zerofill)


@dataclass(frozen=True)
class Column:
    """A column as a field tells of it.

    Args:
        name: Its name.
        wire_type: Name of ``query.Type``.
        column_type: SQL's words, empty before Vitess 9.
        collation: Id of its collation.
        length: ``column_length``: bytes at most, of numbers digits.
        decimals: Digits behind the point; 31 for none in particular.
        flags: MySQL's.
        as_text: Whether values of ENUM and SET are texts; else the number of the member, or a bit for each.
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
        """The type in SQL's words; without ``column_type`` as far as the field tells."""
        if self.column_type:
            return ColumnType.parse(self.column_type)
        word = _WORDS.get(self.wire_type, "")
        other = _AS_BYTES if self.collation == BINARY else _AS_TEXT
        word = other.get(word, word)
        unsigned = self.wire_type.startswith("UINT") or bool(self.flags & UNSIGNED)
        sizes: tuple[int, ...] = ()
        if word == "decimal":
            # ``column_length`` counts a sign, unless unsigned, and a point.
            point = 1 if self.decimals else 0
            digits = self.length - point - (0 if unsigned else 1)
            sizes = (digits if digits >= max(1, self.decimals) else _MOST_DIGITS, self.decimals)
        elif word in ("bit", "binary"):
            sizes = (self.length,)
        elif word in ("time", "datetime", "timestamp"):
            sizes = (self.decimals,) if self.decimals else ()
        return ColumnType(word, sizes, (), unsigned, bool(self.flags & ZEROFILL))

    @property
    def unsigned(self) -> bool:
        """Whether it holds no negative numbers."""
        return self.type.unsigned or self.wire_type.startswith("UINT")

    @property
    def nullable(self) -> bool:
        """Whether it may hold NULL."""
        return not self.flags & NOT_NULL

    @property
    def scale(self) -> int:
        """Digits behind the point of a decimal; digits of a second's fraction of a time."""
        sizes = self.type.sizes
        if self.type.word == "decimal":
            return sizes[1] if len(sizes) > 1 else 0
        return sizes[0] if sizes else 0

    @property
    def precision(self) -> int:
        """Digits of a decimal."""
        return self.type.sizes[0] if self.type.sizes else 10

    @property
    def charset(self) -> str:
        """MySQL's name of its character set, empty for one that isn't known."""
        return charset_name(self.collation)


@dataclass(frozen=True)
class TableShape:
    """A table's columns at a time, as its rows have them.

    Args:
        table: ``keyspace.table``.
        columns: In the order of values.
    """

    table: str
    columns: tuple[Column, ...]

    @classmethod
    def parse(cls, message: bytes) -> TableShape:
        """Take a FieldEvent message apart.

        Raises:
            CorruptInput: It is none.
        """
        try:
            event = FieldEvent.FromString(message)
        except DecodeError as error:
            raise CorruptInput("a record of fields is no FieldEvent message", found=str(error)) from error
        return cls.of(event)

    @classmethod
    def of(cls, event: Any) -> TableShape:
        """Take over a FieldEvent."""
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
        """Numbers of the columns that tell rows apart, in the order of columns; empty for none.

        The primary key, or else the first column that is a unique key by itself and never NULL.
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
        """Number of each column by name."""
        return {column.name: number for number, column in enumerate(self.columns)}


def table_name(event: Any) -> str:
    """Return ``keyspace.table`` of a FieldEvent or RowEvent, whether VTGate writes the keyspace or not."""
    prefix = f"{event.keyspace}."
    return event.table_name if event.table_name.startswith(prefix) else prefix + event.table_name


def invalid_names(columns: Sequence[Column]) -> list[str]:
    """Return names that no column has: ``@1`` is what a tablet says that doesn't know the names."""
    return [column.name for column in columns if column.name.startswith("@")]
