"""Adjustment of names of schemas and fields for Avro, like Debezium's adjustment modes.

``avro`` replaces each invalid character with ``_``; ``avro_unicode`` escapes it as ``_u`` and its hexadecimal
code, also for ``_`` itself, so that distinct names stay distinct.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from airflow_cdc_provider.events.avro_schema import AvroSchema
from airflow_cdc_provider.events.connect import ConnectSchema
from airflow_cdc_provider.exceptions import ConfigurationError

Adjustment = Literal["none", "avro", "avro_unicode"]


def adjust_names(schema: ConnectSchema, schemas: Adjustment, fields: Adjustment) -> ConnectSchema:
    """Return a schema with adjusted names, including those of nested schemas.

    Args:
        schema: The schema.
        schemas: Adjustment of schema names.
        fields: Adjustment of field names.

    Raises:
        ConfigurationError: Two fields of a struct would get the same name.
    """
    if schemas == fields == "none":
        return schema
    names = [adjusted_field(name, fields) for name, _ in schema.fields]
    _reject_duplicates([name for name, _ in schema.fields], names)
    inner = [adjust_names(s, schemas, fields) for _, s in schema.fields]
    return replace(
        schema,
        name=adjusted_schema(schema.name, schemas),
        fields=tuple(zip(names, inner, strict=True)),
        items=schema.items and adjust_names(schema.items, schemas, fields),
        keys=schema.keys and adjust_names(schema.keys, schemas, fields),
    )


def adjust_avro_names(schema: AvroSchema, schemas: Adjustment, fields: Adjustment) -> AvroSchema:
    """Adjust an Avro schema; see :func:`adjust_names`."""
    if schemas == fields == "none":
        return schema
    names = [adjusted_field(name, fields) for name, _ in schema.fields]
    _reject_duplicates([name for name, _ in schema.fields], names)
    inner = [adjust_avro_names(s, schemas, fields) for _, s in schema.fields]
    return replace(
        schema,
        name=adjusted_schema(schema.name, schemas),
        namespace=adjusted_schema(schema.namespace, schemas),
        fields=tuple(zip(names, inner, strict=True)),
        items=schema.items and adjust_avro_names(schema.items, schemas, fields),
    )


def adjusted_schema(name: str, mode: Adjustment) -> str:
    """Return the adjusted full name of a schema: of each part, where Debezium adjusts it as a whole."""
    return ".".join(adjusted_field(part, mode) for part in name.split(".")) if name else name


def adjusted_field(name: str, mode: Adjustment) -> str:
    """Return the adjusted name of a field. An empty name, for which Debezium fails, becomes ``_``."""
    if mode == "none":
        return name
    if not name:
        return "_"
    unicode = mode == "avro_unicode"
    letters = "A-Za-z" if unicode else "A-Za-z_"
    change: Callable[[str], str] = _escaped if unicode else lambda text: "_" * _units(text)
    first = name[0]
    if not re.fullmatch(f"[{letters}]", first):
        kept = first if first in "0123456789" and not unicode else ""
        first = change(first) + kept
    return first + re.sub(f"[^{letters}0-9]", lambda match: change(match[0]), name[1:])


def _units(character: str) -> int:
    """Count the UTF-16 units of a character, which Java processes."""
    return len(character.encode("utf-16-be")) // 2


def _escaped(character: str) -> str:
    data = character.encode("utf-16-be")
    units = (int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2))
    return "".join(f"_u{'00' if unit < 0x100 else ''}{unit:x}" for unit in units)


def _reject_duplicates(names: Sequence[str], adjusted: Sequence[str]) -> None:
    known: dict[str, str] = {}
    for name, new in zip(names, adjusted, strict=True):
        other = known.setdefault(new, name)
        if other != name:
            raise ConfigurationError(
                f"fields {other!r} and {name!r} would both be named {new!r}",
                remedy="set publish.field_names to avro_unicode, which keeps names distinct; for documents "
                "without an envelope publish.unwrap.field_names",
            )
