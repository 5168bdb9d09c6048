"""Custom converters: functions that replace the default representation of selected event columns.

A function receives a column as the default mapping represents it, as an Arrow array, and its settings. It
returns an array of the same length. The type may differ from the input's, but must be the same for every
batch, including an empty one::

    def cents(column: pa.Array, settings: Mapping[str, Any]) -> pa.Array:
        return pc.multiply(column, settings["factor"]).cast(pa.int64())
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_cdc_provider.custom_classes import load_custom
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.patterns import matches
from airflow_cdc_provider.sources.connect_metadata import CONNECT_NAME


@dataclass(frozen=True)
class Converter:
    """One converter.

    Args:
        name: Its name in the declaration.
        function: The function to call.
        settings: The declaration's entries other than ``type`` and ``columns``. ``schema_name`` is the name
            of the Connect schema of the result.
    """

    name: str
    function: Callable[[pa.Array, Mapping[str, Any]], pa.Array]
    settings: Mapping[str, Any]

    def field(self, field: pa.Field) -> pa.Field:
        """Return the converted field."""
        converted = self.array(pa.array([], field.type))
        schema_name = str(self.settings.get("schema_name", ""))
        return pa.field(
            field.name, converted.type, metadata={CONNECT_NAME: schema_name.encode()} if schema_name else None
        )

    def array(self, column: pa.Array) -> pa.Array:
        """Return the converted values.

        Raises:
            ConfigurationError: The function returned something other than an array of the same length.
        """
        converted = self.function(column, self.settings)
        if not isinstance(converted, pa.Array) or len(converted) != len(column):
            raise ConfigurationError(
                f"converter {self.name} doesn't return a column",
                expected=f"an Arrow array of {len(column)} values",
                found=f"{type(converted).__name__}, "
                f"{len(converted) if isinstance(converted, pa.Array) else 'no'} values",
            )
        return converted


def load_converters(declared: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Converter]]:
    """Load the functions that a declaration names.

    Args:
        declared: By name: ``type`` (``package.module:function``), ``columns`` (regular expression on
            ``keyspace.table.column``), and settings for the function.

    Returns:
        Pairs of column pattern and converter, in the order of the declaration.

    Raises:
        ConfigurationError: A function can't be loaded.
    """
    return [(str(values["columns"]), _load(name, values)) for name, values in declared.items()]


def require_columns(converters: Sequence[tuple[str, Converter]], columns: Iterable[str]) -> None:
    """Reject converters that match no column: one that masks values would mask none.

    Args:
        converters: What :func:`load_converters` returned.
        columns: All captured columns, as ``keyspace.table.column``.

    Raises:
        ConfigurationError: A pattern matches none of them.
    """
    known = list(columns)
    for pattern, converter in converters:
        if known and not any(matches(pattern, column) for column in known):
            raise ConfigurationError(
                f"converter {converter.name} matches no captured column",
                expected="an expression that matches the whole of keyspace.table.column",
                found=repr(pattern),
            )


def _load(name: str, values: Mapping[str, Any]) -> Converter:
    found = load_custom(f"converter {name}", str(values.get("type", "")))
    settings = {key: value for key, value in values.items() if key not in ("type", "columns")}
    return Converter(name, found, settings)
