"""Which defaults of added columns are known to be the values of existing rows.

MySQL converts a default to the column's type: ``9.99`` is 10.0 in a ``DECIMAL(4,1)``, ``'B'`` is the member
``b`` of an ENUM, ``99`` is the YEAR 1999. Only a default that is written as MySQL prints the converted value
is known; with any other one, the table requires a snapshot. MySQL refuses a literal that doesn't fit into the
type, but outside strict mode it cuts an expression, ``(300)`` or ``('abc')``, and leaves out the literal of a
TEXT or BLOB.
"""

from __future__ import annotations

import re
from typing import Final

from airflow_cdc_provider.sources.vitess.fields import Column
from airflow_cdc_provider.sources.vitess.lake_types import family_of

_DATE: Final = r"\d{4}-\d\d-\d\d"
_NUMBER: Final = r"-?\d+(\.\d+)?"
_UNQUOTED: Final = {
    "integer": r"0|-?[1-9]\d*",
    "decimal": _NUMBER,
    "float": _NUMBER,
    "year": r"19(0[1-9]|[1-9]\d)|20\d\d|21([0-4]\d|5[0-5])",
    "date": _DATE,
    "datetime": _DATE + r" \d\d:\d\d:\d\d",
    "time": r"-?(\d\d|[1-9]\d\d):\d\d:\d\d",
}
_SHORTEST: Final = 255
"""Length of the shortest type without a size, TINYTEXT."""
_DIGITS: Final = {"float": 6, "double": 15}
"""Number of significant digits that each conversion preserves."""
_ASCII_CHARSETS: Final = ("utf8mb4", "utf8mb3", "latin1", "ascii")


def is_known(default: str, column: Column, *, quoted: bool, expression: bool) -> bool:
    """Return whether a literal, without its quotes, is written as MySQL prints its value in a column.

    Args:
        default: The literal.
        column: The column.
        quoted: Whether it is a text.
        expression: Whether it is in parentheses.
    """
    family, kind = family_of(column), column.type
    if pattern := _UNQUOTED.get(family):
        if expression:
            return False
        fraction = rf"\.\d{{{column.scale}}}" if family in ("datetime", "time") and column.scale else ""
        if not re.fullmatch(f"({pattern}){fraction}", default, re.ASCII) or default.strip("0.:") == "-":
            return False
        if family == "decimal":
            return len(default.partition(".")[2]) <= column.scale
        return family != "float" or (
            not kind.sizes and len(default.replace(".", "").strip("-0")) <= _DIGITS[kind.name]
        )
    needs_expression = family == "json" or kind.name.endswith(("text", "blob"))
    if not quoted or not default.isascii() or (needs_expression and not expression):
        return False
    fits = len(default) <= (kind.sizes[0] if kind.sizes else _SHORTEST)
    match family:
        case "text":
            return fits and column.charset in _ASCII_CHARSETS and not default.endswith(" ")
        case "members":
            chosen = default.split(",") if kind.name == "set" else [default]
            return column.as_text and ",".join(name for name in kind.members if name in chosen) == default
        case "bytes":
            return fits and kind.name.endswith(("varbinary", "blob"))
    return family == "json" and default in ("{}", "[]")
