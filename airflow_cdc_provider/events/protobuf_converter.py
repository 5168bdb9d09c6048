"""Protobuf's binary encoding over Arrow columns: rows to bytes, column by column.

Each field is encoded to a column of bytes with tags, empty if omitted, and messages concatenate those of
their fields, without Python objects per row. The bytes equal those of Protobuf's Java library: fields in
order of their numbers, numeric arrays packed, fields without presence omitted if they have their type's
default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.events.connect import ConnectSchema
from airflow_cdc_provider.events.json_converter import is_constant
from airflow_cdc_provider.events.protobuf_schema import (
    SCALARS,
    ProtobufField,
    ProtobufMessage,
    ProtobufSchema,
)
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.arrow_bytes import binary_slices, join_bytes, text_array
from airflow_cdc_provider.formats.byte_kernels import copy
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, Ints, walker
from airflow_cdc_provider.formats.protobuf_wire import (
    I32,
    I64,
    LEN,
    MAX_KEY_BYTES,
    MAX_VARINT_BYTES,
    VARINT,
    write_varint,
)

_DIGITS_AT_ONCE: Final = 1_000_000_000


def to_protobuf(schema: ProtobufSchema, column: pa.Array) -> pa.LargeBinaryArray:
    """Encode each row as the schema's message.

    Args:
        schema: Schema of the rows. Fields of structs are matched by position.
        column: Rows of a matching Arrow type, without nulls.

    Returns:
        Bytes per row.

    Raises:
        ConfigurationError: An array contains a null, which Protobuf doesn't support.
    """
    if pa.types.is_struct(column.type):
        return _message(schema.message, column)
    only = pa.StructArray.from_arrays([column], names=["value"])
    return _message(schema.message, only)


def _message(message: ProtobufMessage, column: pa.Array) -> pa.Array:
    """Join the fields of each row; the result for null rows is undefined."""
    inner = [
        pc.struct_field(column, [number]) if column.null_count else column.field(number)
        for number in range(len(message.fields))
    ]
    parts: list[pa.Array | bytes] = []
    for one, values in zip(message.fields, inner, strict=True):
        if not one.repeated and is_constant(one.schema, values):
            parts.append(_field(one, values.slice(0, 1))[0].as_py())
        else:
            parts.append(_field(one, values))
    return _joined(parts, len(column))


def _joined(parts: Sequence[pa.Array | bytes], count: int) -> pa.Array:
    """Concatenate the parts of each row."""
    columns = [part for part in parts if not isinstance(part, bytes)]
    if not columns:
        whole = b"".join(part for part in parts if isinstance(part, bytes))
        return pa.repeat(pa.scalar(whole, pa.large_binary()), count)
    return join_bytes(*parts) if len(parts) > 1 else columns[0]


def _field(one: ProtobufField, values: pa.Array) -> pa.Array:
    """Encode a field of each row with its tag; empty if omitted."""
    count = len(values)
    if one.schema.default is not None and values.null_count and not one.repeated:
        whole = values.cast(_arrow_type(one.schema)) if pa.types.is_null(values.type) else values
        values = whole.fill_null(one.schema.default)
    if values.null_count == count:
        return pa.repeat(pa.scalar(b"", pa.large_binary()), count)
    if one.repeated:
        return _repeated(one, values)
    present = values.is_valid().to_numpy(zero_copy_only=False)
    if one.wrapped:
        inner = _single(_of_wrapper(one), values, present, implicit=True)
        return _with_length(one.number, inner, present)
    return _single(one, values, present, implicit=not one.optional)


def _of_wrapper(one: ProtobufField) -> ProtobufField:
    return ProtobufField(name="value", number=1, type=SCALARS[one.schema.type], schema=one.schema)


def _arrow_type(schema: ConnectSchema) -> Any:
    names = {"boolean": pa.bool_(), "int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32()}
    more = {"int64": pa.int64(), "float": pa.float32(), "double": pa.float64(), "bytes": pa.binary()}
    return {**names, **more}.get(schema.type, pa.utf8())


def _single(one: ProtobufField, values: pa.Array, present: Flags, *, implicit: bool) -> pa.Array:
    """Encode single values.

    Args:
        one: The field.
        values: A value per row.
        present: Which rows have a value.
        implicit: Whether the type's default is omitted.
    """
    if one.message is not None:
        return _with_length(one.number, _message(one.message, values), present)
    if one.type == _DECIMAL:
        scale = int(one.schema.parameters.get("scale", "0"))
        return _with_length(one.number, _decimal(values, scale), present)
    if one.type in _DATES:
        return _with_length(one.number, _DATES[one.type](values), present)
    if one.type in ("string", "bytes"):
        data, starts, ends, _ = binary_slices(values)
        kept = present & (ends > starts) if implicit else present
        return _slices(one.number, data, starts, ends, kept)
    if one.type in ("float", "double"):
        numbers = _numbers(values, np.dtype("<f4") if one.type == "float" else np.dtype("<f8"))
        bits = numbers.view(np.uint32 if one.type == "float" else np.uint64)
        return _fixed(one.number, numbers, present & (bits != 0) if implicit else present)
    numbers = _numbers(values, np.dtype(np.int64))
    return _varints(one.number, numbers, present & (numbers != 0) if implicit else present)


def _repeated(one: ProtobufField, column: pa.Array) -> pa.Array:
    """Encode an array or map of each row."""
    offsets = column.offsets.to_numpy().astype(np.int64)
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    starts, ends = offsets[:-1], np.where(valid, offsets[1:], offsets[:-1])
    if pa.types.is_map(column.type):
        assert one.message is not None
        elements = pa.StructArray.from_arrays([column.keys, column.items], names=["key", "value"])
        _reject_nulls(one, column.keys, starts, ends)
    else:
        elements = column.values
        _reject_nulls(one, elements, starts, ends)
    if not len(elements):
        return pa.repeat(pa.scalar(b"", pa.large_binary()), len(column))
    all_present = np.ones(len(elements), np.bool_)
    if one.wrapped:
        inner = _single(_of_wrapper(one), elements, all_present, implicit=True)
        return _concatenated(_with_length(one.number, inner, all_present), starts, ends)
    if one.message is not None or one.type in ("string", "bytes", _DECIMAL, *_DATES):
        return _concatenated(_single(one, elements, all_present, implicit=False), starts, ends)
    return _concatenated(_packed(one, elements), starts, ends, one.number)


def _packed(one: ProtobufField, elements: pa.Array) -> pa.Array:
    """Encode numbers without tags."""
    present = np.ones(len(elements), np.bool_)
    if one.type in ("float", "double"):
        kind = np.dtype("<f4") if one.type == "float" else np.dtype("<f8")
        return _fixed(0, _numbers(elements, kind), present)
    return _varints(0, _numbers(elements, np.dtype(np.int64)), present)


def _concatenated(elements: pa.Array, starts: Ints, ends: Ints, number: int = 0) -> pa.Array:
    """Concatenate the adjacent elements of each row; with a field number as one field."""
    data, begins, after, _ = binary_slices(elements)
    bounds = np.append(begins, after[-1])
    return _slices(number, data, bounds[starts], bounds[ends], ends > starts)


def _reject_nulls(one: ProtobufField, elements: pa.Array, starts: Ints, ends: Ints) -> None:
    if not elements.null_count:
        return
    missing = np.concatenate([[0], np.cumsum(elements.is_null().to_numpy(zero_copy_only=False))])
    rows = np.flatnonzero(missing[ends] - missing[starts])
    if len(rows):
        raise ConfigurationError(
            f"row {rows[0]} of a batch has a null in the list {one.name!r}",
            expected="a value: arrays and keys of maps can't contain nulls in Protobuf",
            remedy="exclude the column (publish.exclude_columns), or use another converter",
        )


def _numbers(values: pa.Array, kind: Any) -> Any:
    zero = False if pa.types.is_boolean(values.type) else 0
    filled = values.fill_null(zero) if values.null_count else values
    return np.ascontiguousarray(filled.to_numpy(zero_copy_only=False)).astype(kind, copy=False)


def _varints(number: int, numbers: Any, kept: Flags) -> pa.Array:
    out = np.empty(len(numbers) * (MAX_KEY_BYTES + MAX_VARINT_BYTES), np.uint8)
    offsets = np.zeros(len(numbers) + 1, np.int64)
    _write_varints(numbers, kept, _tag(number, VARINT), out, offsets)
    return _array(out, offsets)


def _fixed(number: int, numbers: Any, kept: Flags) -> pa.Array:
    size = numbers.itemsize
    out = np.empty(len(numbers) * (MAX_KEY_BYTES + size), np.uint8)
    offsets = np.zeros(len(numbers) + 1, np.int64)
    tag = _tag(number, I32 if size == 4 else I64)
    _write_fixed(numbers.view(np.uint8), size, kept, tag, out, offsets)
    return _array(out, offsets)


def _with_length(number: int, inner: pa.Array, present: Flags) -> pa.Array:
    data, starts, ends, _ = binary_slices(inner)
    return _slices(number, data, starts, ends, present)


def _slices(number: int, data: Bytes, starts: Ints, ends: Ints, kept: Flags) -> pa.Array:
    """Write byte ranges prefixed with tag and length; without a field number only the bytes."""
    capacity = int((ends - starts)[kept].sum()) + len(starts) * (MAX_KEY_BYTES + MAX_VARINT_BYTES)
    out = np.empty(capacity, np.uint8)
    offsets = np.zeros(len(starts) + 1, np.int64)
    _write_slices(data, starts, ends, kept, _tag(number, LEN), out, offsets)
    return _array(out, offsets)


def _tag(number: int, kind: int) -> np.int64:
    """Return the tag of a field; -1 for none."""
    return np.int64(number << 3 | kind if number else -1)


def _array(out: Bytes, offsets: Ints) -> pa.Array:
    valid = np.ones(len(offsets) - 1, np.bool_)
    return text_array(out, offsets, valid, binary=True, wide=True)


def _decimal(values: pa.Array, scale: int) -> pa.Array:
    """Encode big-endian unscaled numbers as ``confluent.type.Decimal``."""
    data, starts, ends, present = binary_slices(values)
    precisions = np.zeros(len(starts), np.int64)
    limbs = np.zeros(int((ends - starts).max(initial=0)) // 3 + 3, np.int64)
    _count_digits(data, starts, ends, present, limbs, precisions)
    scales = np.full(len(starts), scale, np.int64)
    parts = [
        _slices(1, data, starts, ends, present & (ends > starts)),
        _varints(2, precisions, present),
        _varints(3, scales, scales != 0),
    ]
    return _joined(parts, len(starts))


def _date(values: pa.Array) -> pa.Array:
    """Encode days since 1970 as ``google.type.Date``."""
    days = _numbers(values, np.dtype(np.int64)).astype("datetime64[D]")
    months, years = days.astype("datetime64[M]"), days.astype("datetime64[Y]")
    return _numbers_of(
        years.astype(np.int64) + 1970,
        (months - years).astype(np.int64) + 1,
        (days - months).astype(np.int64) + 1,
    )


def _time(values: pa.Array) -> pa.Array:
    """Encode milliseconds of a day as ``google.type.TimeOfDay``."""
    ms = _numbers(values, np.dtype(np.int64))
    return _numbers_of(ms // 3_600_000, ms // 60_000 % 60, ms // 1000 % 60, ms % 1000 * 1_000_000)


def _timestamp(values: pa.Array) -> pa.Array:
    """Encode milliseconds since 1970 as ``google.protobuf.Timestamp``."""
    ms = _numbers(values, np.dtype(np.int64))
    return _numbers_of(ms // 1000, ms % 1000 * 1_000_000)


def _numbers_of(*columns: Any) -> pa.Array:
    """Encode messages of numeric fields, numbered from 1."""
    parts = [_varints(i, column, column != 0) for i, column in enumerate(columns, 1)]
    return _joined(parts, len(columns[0]))


_DECIMAL: Final = "confluent.type.Decimal"
_DATES: Final = {
    "google.type.Date": _date,
    "google.type.TimeOfDay": _time,
    "google.protobuf.Timestamp": _timestamp,
}


@walker
def _count_digits(data: Bytes, starts: Ints, ends: Ints, present: Flags, limbs: Ints, digits: Ints) -> None:
    """Count the decimal digits of two's complement numbers, 1 for 0; ``limbs`` is a work buffer."""
    for row in range(len(starts)):
        if not present[row]:
            continue
        used = 0
        negative = ends[row] > starts[row] and data[starts[row]] >= 128
        for i in range(starts[row], ends[row] + 1):
            # A negative number is the complement of its bytes plus one, which is added at the end.
            factor = np.int64(256)
            carry = np.int64(1 if negative else 0)
            if i < ends[row]:
                carry = np.int64(data[i]) ^ np.int64(255 if negative else 0)
            else:
                factor = np.int64(1)
            for j in range(used):
                carry += limbs[j] * factor
                limbs[j] = carry % _DIGITS_AT_ONCE
                carry //= _DIGITS_AT_ONCE
            if carry > 0:
                limbs[used] = carry
                used += 1
        count = max(used - 1, 0) * 9
        top = limbs[used - 1] if used else np.int64(1)
        while top > 0:
            count += 1
            top //= 10
        digits[row] = count


@walker
def _write_varints(numbers: Bytes, kept: Flags, tag: Int, out: Bytes, offsets: Ints) -> None:
    at = np.int64(0)
    for row in range(len(numbers)):
        if kept[row]:
            if tag >= 0:
                at = write_varint(tag, out, at)
            at = write_varint(numbers[row], out, at)
        offsets[row + 1] = at


@walker
def _write_fixed(data: Bytes, size: Int, kept: Flags, tag: Int, out: Bytes, offsets: Ints) -> None:
    at = np.int64(0)
    for row in range(len(kept)):
        if kept[row]:
            if tag >= 0:
                at = write_varint(tag, out, at)
            at = copy(data, row * size, size, out, at)
        offsets[row + 1] = at


@walker
def _write_slices(
    data: Bytes, starts: Ints, ends: Ints, kept: Flags, tag: Int, out: Bytes, offsets: Ints
) -> None:
    at = np.int64(0)
    for row in range(len(starts)):
        if kept[row]:
            length = ends[row] - starts[row]
            if tag >= 0:
                at = write_varint(tag, out, at)
                at = write_varint(length, out, at)
            at = copy(data, starts[row], length, out, at)
        offsets[row + 1] = at
