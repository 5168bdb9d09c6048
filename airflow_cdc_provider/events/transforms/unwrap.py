"""Unwrapping of events to rows, like Debezium's ExtractNewRecordState and ExtractNewDocumentState.

The value is the row (or document) after the change, without an envelope. Deletes are configurable:

====================== =================================== =========================================
``deletes``            record of the delete                tombstone after it
====================== =================================== =========================================
drop                   none                                none
tombstone              no value                            none
delete-to-tombstone    no value                            none
rewrite                row before, ``__deleted: true``     none
rewrite-with-tombstone the same                            yes
====================== =================================== =========================================

With the last two every other row has ``__deleted: false``. Fields of the envelope can be added to rows and
headers by name: ``op``, ``source.ts_ms``, ``transaction.id``, with a new name after a colon.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.events.connect import ConnectSchema
from airflow_cdc_provider.events.encoder import Destination, Envelope
from airflow_cdc_provider.events.json_converter import to_json
from airflow_cdc_provider.events.transforms.pieces import AFTER, Piece, Rows, group_of, named_schema, taken
from airflow_cdc_provider.events.transforms.row_options import UnwrapOptions
from airflow_cdc_provider.exceptions import ConfigurationError

_ENVELOPE: Final = ".Envelope"
_DELETED: Final = "__deleted"
_TOP: Final = ("op", "ts_ms", "ts_us", "ts_ns")
_TRANSACTION: Final = ("id", "total_order", "data_collection_order")


def unwrap(
    envelope: Envelope, keys: Sequence[Rows], documents: Sequence[Rows], options: UnwrapOptions
) -> list[Piece]:
    """Convert events to rows.

    Args:
        envelope: The events, with fields ``op`` and ``source`` in their values.
        keys: Keys of all rows, by schema.
        documents: Rows after the change, by schema; for a delete optionally the previous row.
        options: The options.

    Raises:
        ConfigurationError: A field to add doesn't exist in the envelope, or a row has one of its name.
    """
    count = len(envelope.key)
    deleted = pc.equal(_field(envelope, "op")[1], "d").to_numpy(zero_copy_only=False)
    rewrites = options.deletes.startswith("rewrite")
    key_of, document_of = group_of(keys, count), group_of(documents, count)
    if not rewrites:
        document_of[deleted] = -1
    kept = np.ones(count, np.bool_)
    if options.deletes == "drop":
        kept &= ~deleted
    kinds = np.stack([envelope.destination, key_of, document_of, deleted.astype(np.int64)])
    pieces = []
    for rows in _alike(kinds, np.flatnonzero(kept)):
        destination = envelope.destinations[int(envelope.destination[rows[0]])]
        key = _key(keys[int(key_of[rows[0]])], rows)
        number = int(document_of[rows[0]])
        document = _Columns([], [])
        if number >= 0:
            document = _Columns.of(taken(documents[number], rows))
        value: tuple[ConnectSchema, pa.StructArray] | None = None
        is_delete = bool(deleted[rows[0]])
        if rewrites or not is_delete:
            value = _value(envelope, rows, document, key[1], is_delete, destination, options)
        pieces.append(_piece(envelope, destination, rows, key, value, _headers(envelope, rows, options)))
        if is_delete and options.deletes == "rewrite-with-tombstone":
            op = tuple(name for name in options.add_headers if _parse(name)[1] == "op")
            only_op = replace(options, add_headers=op)
            headers = _headers(envelope, rows, only_op)
            pieces.append(replace(_piece(envelope, destination, rows, key, None, headers), turn=AFTER))
    return [replace(piece, field_names=options.field_names) for piece in pieces]


def clash(row: Iterable[pa.Field], options: UnwrapOptions) -> str:
    """Return why a row or document can't be unwrapped: two fields would share a name; empty if none do."""
    names = list(_names(row, options.delimiter if options.flatten else None))
    names += [f"{options.add_fields_prefix}{_parse(text)[2]}" for text in options.add_fields]
    names += [_DELETED] if options.deletes.startswith("rewrite") else []
    twice = next((name for name, count in Counter(names).items() if count > 1), "")
    return f"two fields of the row would be named {twice!r}, when flattened or added" if twice else ""


def _names(fields: Iterable[pa.Field], delimiter: str | None) -> Iterator[str]:
    for field in fields:
        if delimiter is not None and pa.types.is_struct(field.type):
            yield from (f"{field.name}{delimiter}{name}" for name in _names(field.type, delimiter))
        else:
            yield field.name


@dataclass
class _Columns:
    """Fields of a struct and their values."""

    fields: list[pa.Field]
    arrays: list[pa.Array]

    @classmethod
    def of(cls, values: pa.StructArray) -> _Columns:
        """Split a non-null struct into its fields."""
        return cls(list(values.type), [values.field(n) for n in range(values.type.num_fields)])

    def add(self, field: pa.Field, array: pa.Array) -> None:
        """Add a field."""
        self.fields.append(field)
        self.arrays.append(array)

    def flat(self, delimiter: str) -> _Columns:
        """Flatten structs recursively, except in arrays."""
        found = _Columns([], [])
        for field, array in zip(self.fields, self.arrays, strict=True):
            if not pa.types.is_struct(field.type):
                found.add(field, array)
                continue
            inner = _Columns(list(field.type), array.flatten()).flat(delimiter)
            for inner_field, inner_array in zip(inner.fields, inner.arrays, strict=True):
                name = f"{field.name}{delimiter}{inner_field.name}"
                found.add(inner_field.with_name(name), inner_array)
        return found

    def struct(self, count: int) -> pa.StructArray:
        """Combine them to a struct."""
        if not self.fields:
            return pa.Array.from_buffers(pa.struct([]), count, [None])
        return pa.StructArray.from_arrays(self.arrays, fields=self.fields)


def _alike(kinds: np.ndarray, rows: np.ndarray) -> Iterator[np.ndarray]:
    """Yield groups of rows with equal kinds."""
    if not len(rows):
        return
    _, which = np.unique(kinds[:, rows], axis=1, return_inverse=True)
    which = which.reshape(-1)
    for number in range(int(which.max()) + 1):
        yield rows[which == number]


def _key(group: Rows, rows: np.ndarray) -> tuple[ConnectSchema, pa.StructArray]:
    values = taken(group, rows)
    return named_schema(list(values.type), ""), values


def _value(
    envelope: Envelope,
    rows: np.ndarray,
    document: _Columns,
    key: pa.StructArray,
    is_delete: bool,
    destination: Destination,
    options: UnwrapOptions,
) -> tuple[ConnectSchema, pa.StructArray]:
    if reason := clash(document.fields, options):
        raise ConfigurationError(
            f"{reason}, in topic {destination.topic}", remedy="set another delimiter or add_fields_prefix"
        )
    columns = _Columns(list(document.fields), list(document.arrays))
    if options.deletes.startswith("rewrite"):
        columns.add(pa.field(_DELETED, pa.bool_()), pa.repeat(is_delete, len(rows)))
        if options.rewrite_id and "_id" not in (f.name for f in columns.fields):
            columns.add(key.type.field(0).with_name("_id"), key.field(0))
    own = len(columns.fields)
    added = [_reference(envelope, text, options.add_fields_prefix) for text in options.add_fields]
    for name, _, array in added:
        columns.add(pa.field(name, array.type), array.take(pa.array(rows)))
    base = destination.value.name.removesuffix(_ENVELOPE)
    if options.flatten:
        columns = columns.flat(options.delimiter)
        schema = named_schema(columns.fields, base)
        schemas = {name: schema for name, schema, _ in added if schema.type != "struct"}
    else:
        schema = named_schema(columns.fields, base)
        schemas = {name: schema for name, schema, _ in added}
    if own < len(columns.fields) or schemas:
        members = tuple((name, schemas.get(name, member)) for name, member in schema.fields)
        schema = replace(schema, fields=members)
    return schema, columns.struct(len(rows))


def _piece(
    envelope: Envelope,
    destination: Destination,
    rows: np.ndarray,
    key: tuple[ConnectSchema, pa.StructArray],
    value: tuple[ConnectSchema, pa.StructArray] | None,
    headers: dict[str, pa.Array],
) -> Piece:
    schema, values = value or (destination.value, pa.nulls(len(rows), envelope.value.type))
    own = Destination(destination.topic, key[0], schema, table=destination.table)
    return Piece(Envelope.of_topic(own, key[1], values, headers=headers), rows)


def _headers(envelope: Envelope, rows: np.ndarray, options: UnwrapOptions) -> dict[str, pa.Array]:
    index = pa.array(rows)
    headers = {name: texts.take(index) for name, texts in envelope.headers.items()}
    for text in options.add_headers:
        name, schema, array = _reference(envelope, text, options.add_headers_prefix)
        headers[name] = to_json(schema, array.take(index))
    return headers


def _parse(text: str) -> tuple[str, str, str]:
    """Return the struct that holds a field, the field, and its new name without prefix."""
    place, _, new_name = text.strip().partition(":")
    parent, _, field = place.rpartition(".")
    if not parent:
        if field in _TOP:
            parent = ""
        elif field in _TRANSACTION:
            parent = "transaction"
        elif field == "updateDescription":
            parent = field
        else:
            parent = "source"
        return parent, field, new_name or field
    return parent, field, new_name or f"{parent}_{field}"


def _reference(envelope: Envelope, text: str, prefix: str) -> tuple[str, ConnectSchema, pa.Array]:
    """Find a field of the envelope; return its name in the row, its schema and its values."""
    parent, field, new_name = _parse(text)
    found = None
    if parent:
        try:
            schema, array = _field(envelope, parent)
            names = [name for name, _ in schema.fields]
            if field in names:
                place = names.index(field)
                # flatten also sets values of null structs to null.
                values = array if pa.types.is_null(array.type) else array.flatten()[place]
                found = schema.fields[place][1], values
        except KeyError:
            found = None
    if found is None:
        try:
            found = _field(envelope, field)
        except KeyError:
            raise ConfigurationError(
                f"the envelope has no field {text.partition(':')[0]}",
                remedy="correct publish.unwrap.add_fields or add_headers",
            ) from None
    schema, array = found
    plain = replace(schema, optional=True, default=None)
    return f"{prefix}{new_name}", plain, array


def _field(envelope: Envelope, name: str) -> tuple[ConnectSchema, pa.Array]:
    """Return schema and values of a field of the envelope."""
    fields = envelope.destinations[0].value.fields
    for place, (field, schema) in enumerate(fields):
        if field == name:
            return schema, envelope.value.field(place)
    raise KeyError(name)
