"""Avro's binary encoding over Arrow columns: rows to bytes, column by column.

Each column is encoded to a column of bytes and records concatenate those of their fields, without Python
objects per row. The bytes equal those of Avro's Java library: blocks without byte size, unions with the
branch index first. The registry's wire format is added by the encoder (:mod:`.framing`).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.events.avro_schema import AvroSchema
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.arrow_bytes import binary_slices
from airflow_cdc_provider.formats.byte_kernels import copy
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, walker
from airflow_cdc_provider.formats.protobuf_wire import write_varint

_BINARY: Final = pa.large_binary()
"""Large binary, because a batch of wide rows may exceed 2 GiB."""
_NOTHING: Final = pa.scalar(b"", _BINARY)
_VARINT_BYTES: Final = 10


def to_avro(schema: AvroSchema, column: pa.Array) -> pa.LargeBinaryArray:
    """Encode each row.

    Args:
        schema: Schema of the rows. Fields of records are matched by position.
        column: Rows of a matching Arrow type.

    Returns:
        Bytes per row, none null.

    Raises:
        ConfigurationError: A value is null but its schema is not nullable.
    """
    empty = pa.types.is_null(column.type)
    values = pa.nulls(len(column), _BINARY) if empty else _values(schema, column)
    if not schema.optional:
        if values.null_count:
            row = values.is_null().index(True).as_py()
            raise ConfigurationError(
                f"row {row} of a batch has a null value for a required Avro field", expected=schema.type
            )
        return values
    null, other = (b"\x02", b"\x00") if schema.null_last else (b"\x00", b"\x02")
    return pc.fill_null(_join(pa.scalar(other, _BINARY), values), pa.scalar(null, _BINARY))


def _join(*parts: Any) -> pa.Array:
    """Concatenate columns and constants row by row; a null anywhere makes the row null."""
    return pc.binary_join_element_wise(*parts, _NOTHING)


def _values(schema: AvroSchema, column: pa.Array) -> pa.Array:
    """Encode rows without the branch index of a union; nulls stay null."""
    kind = schema.type
    if kind == "record":
        return _record(schema, column)
    if kind == "array" and schema.items:
        return _blocks(column, to_avro(schema.items, column.values))
    if kind == "map" and schema.items:
        keys = _with_length(column.keys)
        return _blocks(column, _join(keys, to_avro(schema.items, column.items)))
    if kind in ("string", "bytes"):
        return _with_length(column)
    if kind in ("int", "long"):
        return _variable(column)
    if kind == "boolean":
        return _fixed(column, np.uint8)
    return _fixed(column, np.dtype("<f4") if kind == "float" else np.dtype("<f8"))


def _record(schema: AvroSchema, column: pa.Array) -> pa.Array:
    valid = column.is_valid()
    parts = []
    for number, (_, field) in enumerate(schema.fields):
        part = column.field(number)
        # Values below a null row are undefined.
        parts.append(_under(field, part, valid) if column.null_count else to_avro(field, part))
    whole = _join(*parts) if parts else pa.repeat(_NOTHING, len(column))
    return pc.if_else(valid, whole, pa.scalar(None, _BINARY)) if column.null_count else whole


def _under(schema: AvroSchema, column: pa.Array, valid: pa.Array) -> pa.Array:
    """Encode the rows that are valid; the others are empty."""
    places = pa.array(np.flatnonzero(valid.to_numpy(zero_copy_only=False)))
    encoded = to_avro(schema, column.take(places))
    index = np.cumsum(valid.to_numpy(zero_copy_only=False)) - 1
    mask = ~valid.to_numpy(zero_copy_only=False)
    return pc.fill_null(encoded.take(pa.array(index, mask=mask)), _NOTHING)


def _blocks(column: pa.Array, elements: pa.Array) -> pa.Array:
    """Encode the elements of each array or map as one block: the count, the elements, and an empty block."""
    offsets = column.offsets.cast(pa.int64())
    places = offsets.to_numpy()
    counts = pa.array(places[1:] - places[:-1])
    joined = pc.binary_join(pa.LargeListArray.from_arrays(offsets, elements), _NOTHING)
    full = _join(_variable(counts), joined, pa.scalar(b"\0", _BINARY))
    blocks = pc.if_else(pc.greater(counts, 0), full, pa.scalar(b"\0", _BINARY))
    return pc.if_else(column.is_valid(), blocks, pa.scalar(None, _BINARY)) if column.null_count else blocks


def _fixed(column: pa.Array, kind: Any) -> pa.Array:
    numbers = np.ascontiguousarray(column.fill_null(False if kind is np.uint8 else 0.0), kind)
    offsets = np.arange(len(column) + 1, dtype=np.int64) * numbers.itemsize
    return _array(numbers.view(np.uint8), offsets, column)


def _variable(column: pa.Array) -> pa.Array:
    numbers = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    out = np.empty(len(numbers) * _VARINT_BYTES, np.uint8)
    offsets = np.zeros(len(numbers) + 1, np.int64)
    _write_numbers(numbers, out, offsets)
    return _array(out, offsets, column)


def _with_length(column: pa.Array) -> pa.Array:
    data, starts, ends, _ = binary_slices(column)
    offsets = np.zeros(len(starts) + 1, np.int64)
    out = np.empty(int((ends - starts).sum()) + len(starts) * _VARINT_BYTES, np.uint8)
    _write_bytes(data, starts, ends, out, offsets)
    return _array(out, offsets, column)


def _array(out: Bytes, offsets: Ints, column: pa.Array) -> pa.Array:
    """Wrap encoded values; null where the column is."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(out[: offsets[-1]])]
    values = pa.Array.from_buffers(_BINARY, len(column), buffers)
    return pc.if_else(column.is_valid(), values, pa.scalar(None, _BINARY)) if column.null_count else values


@walker
def _write_number(number: Int, out: Bytes, at: Int) -> Int:
    """Write a zig-zag varint; return the next position."""
    return write_varint(np.uint64(number << np.int64(1)) ^ np.uint64(number >> np.int64(63)), out, at)


@walker
def _write_numbers(numbers: Bytes, out: Bytes, offsets: Ints) -> None:
    at = np.int64(0)
    for row in range(len(numbers)):
        at = _write_number(numbers[row], out, at)
        offsets[row + 1] = at


@walker
def _write_bytes(data: Bytes, starts: Ints, ends: Ints, out: Bytes, offsets: Ints) -> None:
    at = np.int64(0)
    for row in range(len(starts)):
        length = ends[row] - starts[row]
        at = _write_number(length, out, at)
        at = copy(data, starts[row], length, out, at)
        offsets[row + 1] = at
