"""Converts JSON values to the lake types of their Connect schemas.

A value that its type can't represent exactly, or that isn't a value of the type, is a *misfit*. Misfits are
null, except timestamps more precise than microseconds, which are truncated in the column.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.formats.arrow_bytes import binary_buffer, fixed_column, span_column
from airflow_cdc_provider.formats.json_text import (
    ABSENT,
    ARRAY,
    FALSE,
    INTEGER,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    TRUE,
)
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Ints
from airflow_cdc_provider.formats.number_texts import read_decimals, read_floats, read_integers
from airflow_cdc_provider.sources.debezium.connect_schema import (
    CLOCKS,
    DECIMAL,
    INSTANTS,
    LOCAL,
    MOMENTS,
    UTC,
    ConnectField,
)
from airflow_cdc_provider.sources.debezium.json_members import ValueSpans, elements_of, members_of
from airflow_cdc_provider.sources.debezium.json_texts import compact, from_base64, strings
from airflow_cdc_provider.sources.debezium.numbers import (
    DAY_US,
    FIRST_DAY,
    LAST_DAY,
    decimal_texts,
    read_instants,
    whole_parts,
)

_MICROSECOND: Final = 1000
Converted = tuple[pa.Array, Flags]


def show(data: Bytes, values: ValueSpans, field: ConnectField) -> Converted:
    """Convert values of one type.

    Args:
        data: The buffer with the values.
        values: Their positions.
        field: Their type.

    Returns:
        Values of ``field.lake_type``, null for none or a misfit; and which values are misfits.
    """
    kind = field.lake_type
    if kind in (pa.date32(), LOCAL) or (field.logical in CLOCKS and kind == pa.int64()):
        return _moments(data, values, field, kind)
    if kind == UTC and field.logical in INSTANTS:
        return _instants(data, values)
    if field.logical == DECIMAL and field.type == "bytes":
        return _decimals(data, values, field, kind)
    if field.is_variable_decimal:
        return _variable_decimals(data, values)
    if pa.types.is_struct(kind):
        return _structs(data, values, field, kind)
    if pa.types.is_list(kind):
        return _lists(data, values, field)
    if pa.types.is_map(kind):
        return _maps(data, values, field)
    return show_plain(data, values, "json" if field.type == "struct" else str(kind))


def show_plain(data: Bytes, values: ValueSpans, kind: str) -> Converted:
    """Convert values to a plain type.

    Args:
        data: The buffer with the values.
        values: Their positions.
        kind: ``bool``, ``int32``, ``int64``, ``float``, ``double``, ``string``, ``binary`` (base64), ``json``
            (canonical text of any value) or ``decimal(p,s)``.
    """
    if kind == "json":
        return compact(data, values.only_present()).cast(pa.string()), _none(values)
    if kind == "bool":
        own = (values.kinds == TRUE) | (values.kinds == FALSE)
        return pa.array(values.kinds == TRUE, mask=~own), values.present & ~own
    if kind in ("int32", "int64"):
        own = values.only(INTEGER)
        converted, misfits = read_integers(data, own.starts, own.ends, 32 if kind == "int32" else 64)
        return converted, misfits | (values.present & (own.kinds == ABSENT))
    if kind in ("float", "double"):
        return _floats(data, values, pa.float32() if kind == "float" else pa.float64())
    if kind.startswith("decimal"):
        precision, scale = (int(part) for part in kind.partition("(")[2].rstrip(")").split(","))
        own = values.only(INTEGER, NUMBER)
        converted, misfits = read_decimals(data, own.starts, own.ends, precision, scale)
        return converted, misfits | (values.present & (own.kinds == ABSENT))
    converted = strings(data, values, exact=True)
    misfits = values.present & converted.is_null().to_numpy(zero_copy_only=False)
    if kind == "binary":
        converted, broken = from_base64(converted)
        misfits |= broken
    return converted, misfits


def _floats(data: Bytes, values: ValueSpans, kind: pa.DataType) -> Converted:
    own = values.only(INTEGER, NUMBER)
    converted, misfits = read_floats(data, own.starts, own.ends, kind)
    words = values.kinds == STRING
    misfits |= values.present & (own.kinds == ABSENT)
    if words.any():
        texts = strings(data, values)
        for word in ("NaN", "Infinity", "-Infinity"):
            is_word = pc.equal(texts, word).fill_null(False)
            converted = pc.if_else(is_word, pa.scalar(float(word.lower()), kind), converted)
            misfits &= ~is_word.to_numpy(zero_copy_only=False)
    return converted, misfits


def _moments(data: Bytes, values: ValueSpans, field: ConnectField, kind: pa.DataType) -> Converted:
    """Convert dates, local timestamps and times of day, which are numbers."""
    unit = {**MOMENTS, **CLOCKS}.get(field.logical, 0)
    own, below, truncated = values, np.zeros(len(values.kinds), np.int64), _none(values)
    if unit == _MICROSECOND:
        own, below, truncated = _whole_parts(data, values)
    raw, misfits = show_plain(data, own, "int64")
    number = raw.fill_null(0).to_numpy(zero_copy_only=False) + below
    valid = raw.is_valid().to_numpy(zero_copy_only=False)
    if kind == pa.date32():
        out_of_range = valid & ((number < FIRST_DAY) | (number > LAST_DAY))
        days = np.where(out_of_range, 0, number).astype(np.int32)
        return fixed_column(kind, days, valid & ~out_of_range), misfits | out_of_range
    micros = number // 1000
    out_of_range = np.zeros(len(number), np.bool_)
    if unit == 1:
        truncated = valid & (number % 1000 != 0)
    else:
        factor = unit // 1000
        most = np.iinfo(np.int64).max // factor
        out_of_range = (number > most) | (number < -most)
        micros = np.where(out_of_range, 0, number) * factor
    if kind == LOCAL:
        out_of_range |= (micros < FIRST_DAY * DAY_US) | (micros >= (LAST_DAY + 1) * DAY_US)
    out_of_range &= valid
    return fixed_column(
        kind, np.where(out_of_range, 0, micros), valid & ~out_of_range
    ), misfits | out_of_range | truncated


def _whole_parts(data: Bytes, values: ValueSpans) -> tuple[ValueSpans, Ints, Flags]:
    """Convert numbers with decimals to their floor.

    Returns:
        The values; the addend to each of them; and which values were truncated.
    """
    fractions = values.only(NUMBER)
    ends, below, truncated = whole_parts(data, fractions.starts, fractions.ends)
    has_point = ends >= 0
    kinds = np.where(has_point, INTEGER, values.kinds)
    return ValueSpans(values.starts, np.where(has_point, ends, values.ends), kinds), below, truncated


def _instants(data: Bytes, values: ValueSpans) -> Converted:
    texts = strings(data, values)
    buffer, starts, ends = binary_buffer(texts)
    micros, broken, truncated = read_instants(buffer, starts, ends)
    out_of_range = (micros < FIRST_DAY * DAY_US) | (micros >= (LAST_DAY + 1) * DAY_US)
    valid = (starts >= 0) & ~broken & ~out_of_range
    misfits = values.present & (~valid | truncated)
    return fixed_column(UTC, np.where(valid, micros, 0), valid), misfits


def _decimals(data: Bytes, values: ValueSpans, field: ConnectField, kind: pa.DataType) -> Converted:
    """Convert decimals of one scale: bytes in base64, or numbers."""
    unscaled, broken = from_base64(strings(data, values))
    texts, large = decimal_texts(unscaled, np.full(len(unscaled), field.scale, np.int64))
    own = values.only(INTEGER, NUMBER)
    if own.present.any():
        texts = pc.coalesce(span_column(pa.string(), data, own.starts, own.ends), texts)
    misfits = broken | large | (values.present & texts.is_null().to_numpy(zero_copy_only=False))
    if kind == pa.string():
        return texts, misfits
    converted, more = read_decimals(*binary_buffer(texts), kind.precision, kind.scale)
    return converted, misfits | more


def _variable_decimals(data: Bytes, values: ValueSpans) -> Converted:
    scale, value = members_of(data, values).find("scale", "value")
    scales, wrong = show_plain(data, scale, "int32")
    unscaled, broken = from_base64(strings(data, value))
    texts, _ = decimal_texts(unscaled, scales.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64))
    sound = pc.and_(texts.is_valid(), scales.is_valid()).to_numpy(zero_copy_only=False) & ~wrong & ~broken
    converted = pc.if_else(pa.array(sound), texts, pa.scalar(None, pa.string()))
    return converted, values.present & ~sound


def _structs(data: Bytes, values: ValueSpans, field: ConnectField, kind: pa.DataType) -> Converted:
    own = values.only(OBJECT)
    misfits = values.present & (own.kinds == ABSENT)
    children = []
    members = members_of(data, own)
    found = members.find(*(one.name for one in field.fields))
    held = np.zeros(len(values.kinds), np.int64)
    for one, spans in zip(field.fields, found, strict=True):
        child, wrong = show(data, spans, one)
        children.append(child)
        misfits |= wrong
        held += spans.present
    inside = np.bincount(members.owners[members.values.present], minlength=len(held))
    misfits |= inside > held  # a member that no field holds
    is_null = pa.array((own.kinds == ABSENT) | misfits)
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=is_null), misfits


def _lists(data: Bytes, values: ValueSpans, field: ConnectField) -> Converted:
    own = values.only(ARRAY)
    offsets, spans = elements_of(data, own)
    elements, wrong = show(data, spans, field.fields[0])
    misfits = (values.present & (own.kinds == ABSENT)) | _inside(offsets, wrong)
    is_null = (own.kinds == ABSENT) | misfits
    converted = pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32)), elements, type=field.lake_type, mask=pa.array(is_null)
    )
    return converted, misfits


def _maps(data: Bytes, values: ValueSpans, field: ConnectField) -> Converted:
    """Convert maps: objects, or arrays of entries for non-string keys, which become JSON text."""
    objects, arrays = values.only(OBJECT), values.only(ARRAY)
    found = members_of(data, objects)
    counts = np.bincount(found.owners, minlength=len(values.kinds)) if len(found.owners) else 0
    of_objects = np.zeros(len(values.kinds) + 1, np.int64)
    of_objects[1:] = np.cumsum(np.broadcast_to(counts, len(values.kinds)))
    offsets, pairs = elements_of(data, arrays)
    is_pair, firsts, seconds = _pairs(data, pairs)
    names = ValueSpans(found.names[0] - 1, found.names[1] + 1, np.full(len(found.owners), STRING))
    keys = pa.concat_arrays([strings(data, names, exact=True), _as_names(data, firsts)])
    items = ValueSpans(
        *(
            np.concatenate([a, b])
            for a, b in (
                (found.values.starts, seconds.starts),
                (found.values.ends, seconds.ends),
                (found.values.kinds, seconds.kinds),
            )
        )
    )
    converted, wrong = show(data, items, field.fields[1])
    entries_before = np.zeros(len(is_pair) + 1, np.int64)
    np.cumsum(is_pair, out=entries_before[1:])
    of_arrays = entries_before[offsets]
    # Each row has entries of at most one of the two: put them into row order.
    counts_each = np.diff(of_objects) + np.diff(of_arrays)
    order = np.argsort(
        np.concatenate(
            [
                np.repeat(np.arange(len(values.kinds)), np.diff(of_objects)),
                np.repeat(np.arange(len(values.kinds)), np.diff(of_arrays)),
            ]
        ),
        kind="stable",
    )
    all_offsets = np.concatenate([[0], np.cumsum(counts_each)]).astype(np.int64)
    keys, wrong = keys.take(pa.array(order)), wrong[order]
    owners = np.repeat(np.arange(len(values.kinds)), counts_each)
    wrong |= keys.is_null().to_numpy(zero_copy_only=False) | _repeated(keys, owners)
    misfits = values.present & (objects.kinds == ABSENT) & (arrays.kinds == ABSENT)
    misfits |= _inside(all_offsets, wrong) | _inside(offsets, ~is_pair)
    is_null = ~values.present | misfits
    # Arrow has no mask for maps: the offset of a null row is null, and its entries would be the last row's.
    held = pa.array(np.flatnonzero(~is_null[owners]))
    own_offsets = np.concatenate([[0], np.cumsum(np.where(is_null, 0, counts_each))]).astype(np.int32)
    masked_offsets = pa.array(own_offsets, mask=np.append(is_null, False))
    converted = converted.take(pa.array(order)).take(held)
    return pa.MapArray.from_arrays(masked_offsets, keys.take(held), converted, type=field.lake_type), misfits


def _repeated(keys: pa.Array, owners: Ints) -> Flags:
    """Return which keys are in the same map before: engines refuse to read such a map."""
    numbers = pc.dictionary_encode(keys, null_encoding="encode").indices.to_numpy(zero_copy_only=False)
    found = np.ones(len(numbers), np.bool_)
    found[np.unique(owners * (len(numbers) + 1) + numbers, return_index=True)[1]] = False
    return found


def _pairs(data: Bytes, entries: ValueSpans) -> tuple[Flags, ValueSpans, ValueSpans]:
    """Split entries into keys and values: lists of two, or objects with key and value (JsonSchemaConverter).

    Returns:
        Which values are entries, and the keys and values of those.
    """
    sizes, sides = elements_of(data, entries)
    listed = np.diff(sizes) == 2
    key, value = members_of(data, entries).find("key", "value")
    is_pair = listed | ((key.kinds != ABSENT) & (value.kinds != ABSENT))
    at = sizes[:-1][is_pair]
    own = listed[is_pair]

    def chosen(index: Ints, of_object: ValueSpans) -> ValueSpans:
        inside = of_object.take(np.flatnonzero(is_pair))
        if not len(sides.starts):
            return inside
        of_list = sides.take(np.where(own, index, 0))
        return ValueSpans(
            np.where(own, of_list.starts, inside.starts),
            np.where(own, of_list.ends, inside.ends),
            np.where(own, of_list.kinds, inside.kinds),
        )

    return is_pair, chosen(at, key), chosen(at + 1, value)


def _as_names(data: Bytes, values: ValueSpans) -> pa.Array:
    """Return strings unchanged and all other values as JSON; null for missing values."""
    others = ValueSpans(
        np.where(values.kinds == STRING, -1, values.starts),
        values.ends,
        np.where(values.kinds == NULL, 0, values.kinds),
    )
    return pc.coalesce(strings(data, values, exact=True), compact(data, others).cast(pa.string()))


def _inside(offsets: Ints, wrong: Flags) -> Flags:
    """Return which rows have a faulty element."""
    sums = np.zeros(len(wrong) + 1, np.int64)
    np.cumsum(wrong, out=sums[1:])
    inside: Flags = sums[offsets[1:]] > sums[offsets[:-1]]
    return inside


def _none(values: ValueSpans) -> Flags:
    return np.zeros(len(values.kinds), np.bool_)
