"""Converters of one's own: functions that show chosen columns of events in another way than the default.

A function gets a column as the default mapping shows it, as an Arrow array, and its settings, and returns an
array of the same length; it may be of another type, but the same for every batch, an empty one too::

    def cents(column: pa.Array, settings: Mapping[str, Any]) -> pa.Array:
        return pc.multiply(column, settings["factor"]).cast(pa.int64())
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.plugins import load_plugin
from airflow_cdc_provider.sources.connect_metadata import CONNECT_NAME


@dataclass(frozen=True)
class Converter:
    """One converter.

    Args:
        name: Its name in the declaration.
        function: Does it.
        settings: What the declaration says beside ``type`` and ``columns``. ``schema_name`` names the Connect
            schema of what it returns.
    """

    name: str
    function: Callable[[pa.Array, Mapping[str, Any]], pa.Array]
    settings: Mapping[str, Any]

    def field(self, field: pa.Field) -> pa.Field:
        """Return what becomes of a field."""
        made = self.array(pa.array([], field.type))
        schema_name = str(self.settings.get("schema_name", ""))
        return pa.field(
            field.name, made.type, metadata={CONNECT_NAME: schema_name.encode()} if schema_name else None
        )

    def array(self, column: pa.Array) -> pa.Array:
        """Return what becomes of values.

        Raises:
            ConfigurationError: The function returned something else than a column of the same length.
        """
        made = self.function(column, self.settings)
        if not isinstance(made, pa.Array) or len(made) != len(column):
            raise ConfigurationError(
                f"converter {self.name} doesn't return a column",
                expected=f"an Arrow array of {len(column)} values",
                found=f"{type(made).__name__}, {len(made) if isinstance(made, pa.Array) else 'no'} values",
            )
        return made


def load_converters(declared: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Converter]]:
    """Load the functions that a declaration names.

    Args:
        declared: By name: ``type`` (``package.module:function``), ``columns`` (regular expression on
            ``keyspace.table.column``), and settings for the function.

    Returns:
        Pattern of columns and converter, in the order of the declaration.

    Raises:
        ConfigurationError: A function can't be loaded, or a pattern is none.
    """
    return [(_pattern(name, values), _load(name, values)) for name, values in declared.items()]


def require_columns(converters: Sequence[tuple[str, Converter]], columns: Iterable[str]) -> None:
    """Refuse converters that show no column: one that hides values would hide none.

    Args:
        converters: What :func:`load_converters` returned.
        columns: All captured columns, as ``keyspace.table.column``.

    Raises:
        ConfigurationError: A pattern fits none of them.
    """
    known = list(columns)
    for pattern, converter in converters:
        if known and not any(re.fullmatch(pattern, column) for column in known):
            raise ConfigurationError(
                f"converter {converter.name} fits no captured column",
                expected="an expression that fits keyspace.table.column as a whole",
                found=repr(pattern),
            )


def _pattern(name: str, values: Mapping[str, Any]) -> str:
    pattern = str(values.get("columns", ""))
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigurationError(f"the columns of converter {name} are no expression: {error}") from error
    if not pattern:
        raise ConfigurationError(f"converter {name} has no columns", expected="an expression of their names")
    return pattern


def _load(name: str, values: Mapping[str, Any]) -> Converter:
    found = load_plugin(f"converter {name}", str(values.get("type", "")))
    settings = {key: value for key, value in values.items() if key not in ("type", "columns")}
    return Converter(name, found, settings)
