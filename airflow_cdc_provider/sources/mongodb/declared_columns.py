"""Declared columns: the option ``source.columns``. Light: read by DAG files.

:mod:`.decoding.columns` reads their values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from airflow_cdc_provider.changes.column_names import column_names
from airflow_cdc_provider.exceptions import ConfigurationError

OWN_COLUMNS: Final = ("_id", "document", "_rest")
"""Columns that mirrors have of their own; ``_rest`` with inferred columns."""

_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")
_OTHERS: Final = ("boolean", "float", "double", "string", "binary", "date", "timestamp", "json")
_DECIMAL: Final = re.compile(r"decimal\(\s*([0-9]+)\s*,\s*([0-9]+)\s*\)")
_MOST_DIGITS: Final = 38


@dataclass(frozen=True)
class DeclaredColumn:
    """One declared column.

    Args:
        name: Its name in the mirror.
        path: Member names that lead to the value.
        type_name: The declared type, without spaces, in lower case.
    """

    name: str
    path: tuple[str, ...]
    type_name: str

    @classmethod
    def parse(cls, table: str, name: str, text: str) -> DeclaredColumn:
        """Read a declaration, ``'dotted.path type'``.

        Raises:
            ConfigurationError: Invalid declaration; the message names the table, the column and the problem.
        """
        path, _, type_name = text.strip().partition(" ")
        type_name = re.sub(r"\s", "", type_name).lower()
        column = cls(name, tuple(path.split(".")), type_name)
        where = f"option source.columns of {table}, column {name}"
        if not all(column.path):
            raise ConfigurationError(f"{where} is wrong", expected="'dotted.path type'", found=repr(text))
        if column.decimal is None and type_name not in (*_INTEGERS, *_OTHERS):
            known = [*_OTHERS, *_INTEGERS, "decimal(p,s)"]
            raise ConfigurationError(
                f"{where}: unknown type", expected=f"one of {', '.join(known)}", found=repr(type_name)
            )
        if column.decimal is not None and not 0 <= column.decimal[1] <= column.decimal[0] <= _MOST_DIGITS:
            raise ConfigurationError(f"{where} is wrong", expected="0 <= s <= p <= 38", found=type_name)
        return column

    @property
    def decimal(self) -> tuple[int, int] | None:
        """Precision and scale of a decimal, None for other types."""
        match = _DECIMAL.fullmatch(self.type_name)
        return (int(match[1]), int(match[2])) if match else None


def declared_columns(table: str, declared: Mapping[str, str]) -> tuple[DeclaredColumn, ...]:
    """Read the declared columns of a collection.

    Raises:
        ConfigurationError: Invalid declaration, or engines can take a column for another one.
    """
    columns = tuple(DeclaredColumn.parse(table, name, text) for name, text in declared.items())
    for name, other in column_names(declared, reserved=OWN_COLUMNS).items():
        if name != other:
            raise ConfigurationError(
                f"option source.columns of {table}, column {name}: engines take the name for another one",
                expected="names that differ by more than case and dots, also from the mirror's own columns "
                f"({', '.join(OWN_COLUMNS)}, _cdc...) and from Iceberg's metadata columns",
                found=", ".join(declared),
                remedy=f"rename the column, for example to {other}",
            )
    return columns
