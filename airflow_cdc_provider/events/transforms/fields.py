"""Removal and replacement of fields, like Debezium's RemoveField and ReplaceFieldValue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.events.connect import ConnectSchema
from airflow_cdc_provider.events.encoder import Envelope


def change_fields(envelope: Envelope, removed: Sequence[str], replaced: Mapping[str, str]) -> Envelope:
    """Remove fields from values, and replace text fields.

    Args:
        envelope: Records whose values are structs.
        removed: Dotted paths of fields; missing fields are ignored.
        replaced: Replacement texts by path; fields of other types and nulls are unchanged.
    """
    value = envelope.value
    schemas = [destination.value for destination in envelope.destinations]
    for path in removed:
        parts = path.split(".")
        value, schemas = _without(value, schemas[0], parts), [_schema_without(s, parts) for s in schemas]
    for path, text in replaced.items():
        value = _replaced(value, schemas[0], path.split("."), text)
    destinations = [
        replace(destination, value=schema)
        for destination, schema in zip(envelope.destinations, schemas, strict=True)
    ]
    return replace(envelope, destinations=destinations, value=value)


def _schema_without(schema: ConnectSchema, parts: Sequence[str]) -> ConnectSchema:
    name, *rest = parts
    kept = (
        (known, _schema_without(inner, rest) if known == name else inner)
        for known, inner in schema.fields
        if known != name or rest
    )
    return replace(schema, fields=tuple(kept))


def _without(column: pa.Array, schema: ConnectSchema, parts: Sequence[str]) -> pa.Array:
    if not pa.types.is_struct(column.type):
        return column
    name, *rest = parts
    fields = []
    for number, (known, inner) in enumerate(schema.fields):
        if known != name:
            fields.append((known, column.field(number)))
        elif rest:
            fields.append((known, _without(column.field(number), inner, rest)))
    return _struct(column, fields)


def _replaced(column: pa.Array, schema: ConnectSchema, parts: Sequence[str], text: str) -> pa.Array:
    name, *rest = parts
    fields = []
    for number, (known, inner) in enumerate(schema.fields):
        values = column.field(number)
        if known == name and rest and pa.types.is_struct(values.type):
            values = _replaced(values, inner, rest, text)
        elif known == name and not rest and inner.type == "string":
            values = pc.if_else(values.is_valid(), text, pa.scalar(None, pa.utf8()))
        fields.append((known, values))
    return _struct(column, fields)


def _struct(column: pa.Array, fields: Sequence[tuple[str, pa.Array]]) -> pa.Array:
    """Build a struct that is null where another is."""
    if not fields:
        return pa.nulls(len(column), pa.struct([]))
    return pa.StructArray.from_arrays(
        [values for _, values in fields], [name for name, _ in fields], mask=column.is_null()
    )
