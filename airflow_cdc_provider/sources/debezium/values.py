"""Values of JSON, shown in the lake type that their Connect schema gives them.

What a type can't hold exactly is told as a *misfit*, as is what is no value of the type. A misfit is null,
but for moments with more digits than microseconds have: of those the column shows what fits.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.spans import Bytes, Ints, binary_buffer, fixed_column, span_column
from airflow_cdc_provider.sources.debezium.connect_schema import (
    CLOCKS,
    DECIMAL,
    INSTANTS,
    LOCAL,
    MOMENTS,
    UTC,
    ConnectField,
)
from airflow_cdc_provider.sources.debezium.json_members import (
    ABSENT,
    ARRAY,
    FALSE,
    INTEGER,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    TRUE,
    Places,
    elements_of,
    members_of,
)
from airflow_cdc_provider.sources.debezium.json_texts import compact, from_base64, strings
from airflow_cdc_provider.sources.debezium.numbers import (
    DAY_US,
    FIRST_DAY,
    LAST_DAY,
    decimal_texts,
    read_instants,
    whole_parts,
)
from airflow_cdc_provider.sources.vitess.numbers import read_decimals, read_floats, read_integers

_MICROSECOND: Final = 1000
Mask = npt.NDArray[np.bool_]
Shown = tuple[pa.Array, Mask]


def show(data: Bytes, values: Places, field: ConnectField) -> Shown:
    """Show values of one type.

    Args:
        data: The buffer that they stand in.
        values: Where.
        field: Their type.

    Returns:
        Values of ``field.lake_type``, null where there is none or it is a misfit; and where it is.
    """
    kind = field.lake_type
    if kind == pa.date32() or kind == LOCAL or field.logical in CLOCKS:
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


def show_plain(data: Bytes, values: Places, kind: str) -> Shown:
    """Show values by a plain type.

    Args:
        data: The buffer that they stand in.
        values: Where.
        kind: ``bool``, ``int32``, ``int64``, ``float``, ``double``, ``string``, ``binary`` (base64), ``json``
            (text of any value, written in one way) or ``decimal(p,s)``.
    """
    if kind == "json":
        return compact(data, values.only_present()).cast(pa.string()), _none(values)
    if kind == "bool":
        own = (values.kinds == TRUE) | (values.kinds == FALSE)
        return pa.array(values.kinds == TRUE, mask=~own), values.present & ~own
    if kind in ("int32", "int64"):
        own = values.only(INTEGER)
        shown, misfits = read_integers(data, own.starts, own.ends, 32 if kind == "int32" else 64)
        return shown, misfits | (values.present & (own.kinds == ABSENT))
    if kind in ("float", "double"):
        return _floats(data, values, pa.float32() if kind == "float" else pa.float64())
    if kind.startswith("decimal"):
        precision, scale = (int(part) for part in kind.partition("(")[2].rstrip(")").split(","))
        own = values.only_of(INTEGER, NUMBER)
        shown, misfits = read_decimals(data, own.starts, own.ends, precision, scale)
        return shown, misfits | (values.present & (own.kinds == ABSENT))
    shown = strings(data, values)
    misfits = values.present & (values.kinds != STRING)
    if kind == "binary":
        shown, broken = from_base64(shown)
        misfits |= broken
    return shown, misfits


def _floats(data: Bytes, values: Places, kind: pa.DataType) -> Shown:
    own = values.only_of(INTEGER, NUMBER)
    shown, misfits = read_floats(data, own.starts, own.ends, kind)
    words = values.kinds == STRING
    misfits |= values.present & (own.kinds == ABSENT)
    if words.any():
        texts = strings(data, values)
        for word in ("NaN", "Infinity", "-Infinity"):
            is_word = pc.equal(texts, word).fill_null(False)
            shown = pc.if_else(is_word, pa.scalar(float(word.lower()), kind), shown)
            misfits &= ~is_word.to_numpy(zero_copy_only=False)
    return shown, misfits


def _moments(data: Bytes, values: Places, field: ConnectField, kind: pa.DataType) -> Shown:
    """Show dates, local moments and times of day, which are numbers."""
    unit = {**MOMENTS, **CLOCKS}.get(field.logical, 0)
    own, below, cut = values, np.zeros(len(values.kinds), np.int64), _none(values)
    if unit == _MICROSECOND:
        own, below, cut = _whole_parts(data, values)
    raw, misfits = show_plain(data, own, "int64")
    number = raw.fill_null(0).to_numpy(zero_copy_only=False) + below
    valid = raw.is_valid().to_numpy(zero_copy_only=False)
    if kind == pa.date32():
        out = valid & ((number < FIRST_DAY) | (number > LAST_DAY))
        days = np.where(out, 0, number).astype(np.int32)
        return fixed_column(kind, days, valid & ~out), misfits | out
    micros = number // 1000
    out = np.zeros(len(number), np.bool_)
    if unit == 1:
        cut = valid & (number % 1000 != 0)
    else:
        factor = unit // 1000
        most = np.iinfo(np.int64).max // factor
        out = (number > most) | (number < -most)
        micros = np.where(out, 0, number) * factor
    if kind == LOCAL:
        out |= (micros < FIRST_DAY * DAY_US) | (micros >= (LAST_DAY + 1) * DAY_US)
    out &= valid
    return fixed_column(kind, np.where(out, 0, micros), valid & ~out), misfits | out | cut


def _whole_parts(data: Bytes, values: Places) -> tuple[Places, Ints, Mask]:
    """Take numbers with digits behind their point for the whole number below them.

    Returns:
        The values; what is to be added to what they say; and which ones were cut off.
    """
    fractions = values.only(NUMBER)
    ends, below, cut = whole_parts(data, fractions.starts, fractions.ends)
    whole = ends >= 0
    kinds = np.where(whole, INTEGER, values.kinds)
    return Places(values.starts, np.where(whole, ends, values.ends), kinds), below, cut


def _instants(data: Bytes, values: Places) -> Shown:
    texts = strings(data, values)
    buffer, starts, ends = binary_buffer(texts)
    micros, broken, cut = read_instants(buffer, starts, ends)
    out = (micros < FIRST_DAY * DAY_US) | (micros >= (LAST_DAY + 1) * DAY_US)
    valid = (starts >= 0) & ~broken & ~out
    misfits = values.present & (~valid | cut)
    return fixed_column(UTC, np.where(valid, micros, 0), valid), misfits


def _decimals(data: Bytes, values: Places, field: ConnectField, kind: pa.DataType) -> Shown:
    """Show decimals of one scale: bytes in base64, or numbers."""
    unscaled, broken = from_base64(strings(data, values))
    texts, large = decimal_texts(unscaled, np.full(len(unscaled), field.scale, np.int64))
    own = values.only_of(INTEGER, NUMBER)
    if own.present.any():
        texts = pc.coalesce(span_column(pa.string(), data, own.starts, own.ends), texts)
    misfits = broken | large | (values.present & texts.is_null().to_numpy(zero_copy_only=False))
    if kind == pa.string():
        return texts, misfits
    shown, more = read_decimals(*binary_buffer(texts), kind.precision, kind.scale)
    return shown, misfits | more


def _variable_decimals(data: Bytes, values: Places) -> Shown:
    scale, value = members_of(data, values).find("scale", "value")
    scales, wrong = show_plain(data, scale, "int32")
    unscaled, broken = from_base64(strings(data, value))
    texts, _ = decimal_texts(unscaled, scales.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64))
    sound = pc.and_(texts.is_valid(), scales.is_valid()).to_numpy(zero_copy_only=False) & ~wrong & ~broken
    shown = pc.if_else(pa.array(sound), texts, pa.scalar(None, pa.string()))
    return shown, values.present & ~sound


def _structs(data: Bytes, values: Places, field: ConnectField, kind: pa.DataType) -> Shown:
    own = values.only(OBJECT)
    misfits = values.present & (own.kinds == ABSENT)
    children = []
    found = members_of(data, own).find(*(one.name for one in field.fields))
    for one, places in zip(field.fields, found, strict=True):
        child, wrong = show(data, places, one)
        children.append(child)
        misfits |= wrong
    gone = pa.array((own.kinds == ABSENT) | misfits)
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=gone), misfits


def _lists(data: Bytes, values: Places, field: ConnectField) -> Shown:
    own = values.only(ARRAY)
    offsets, places = elements_of(data, own)
    elements, wrong = show(data, places, field.fields[0])
    misfits = (values.present & (own.kinds == ABSENT)) | _inside(offsets, wrong)
    gone = (own.kinds == ABSENT) | misfits
    shown = pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32)), elements, type=field.lake_type, mask=pa.array(gone)
    )
    return shown, misfits


def _maps(data: Bytes, values: Places, field: ConnectField) -> Shown:
    """Show maps: objects, or arrays of entries where keys are no strings; such keys are their JSON."""
    objects, arrays = values.only(OBJECT), values.only(ARRAY)
    found = members_of(data, objects)
    counts = np.bincount(found.owners, minlength=len(values.kinds)) if len(found.owners) else 0
    of_objects = np.zeros(len(values.kinds) + 1, np.int64)
    of_objects[1:] = np.cumsum(np.broadcast_to(counts, len(values.kinds)))
    offsets, pairs = elements_of(data, arrays)
    is_pair, firsts, seconds = _pairs(data, pairs)
    names = Places(found.names[0] - 1, found.names[1] + 1, np.full(len(found.owners), STRING))
    keys = pa.concat_arrays([strings(data, names), _as_names(data, firsts)])
    items = Places(
        *(
            np.concatenate([a, b])
            for a, b in (
                (found.values.starts, seconds.starts),
                (found.values.ends, seconds.ends),
                (found.values.kinds, seconds.kinds),
            )
        )
    )
    shown, wrong = show(data, items, field.fields[1])
    kept = np.zeros(len(is_pair) + 1, np.int64)
    np.cumsum(is_pair, out=kept[1:])
    of_arrays = kept[offsets]
    # Each row has entries of one of the two at the most: put them into the rows' order.
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
    keys, shown, wrong = keys.take(pa.array(order)), shown.take(pa.array(order)), wrong[order]
    no_key = keys.is_null().to_numpy(zero_copy_only=False)
    misfits = values.present & (objects.kinds == ABSENT) & (arrays.kinds == ABSENT)
    misfits |= _inside(all_offsets, wrong | no_key) | _inside(offsets, ~is_pair)
    gone = ~values.present | misfits
    # Arrow has no mask for maps: a row's own offset is null.
    places = pa.array(all_offsets.astype(np.int32), mask=np.append(gone, False))
    filled = pc.if_else(pa.array(no_key), pa.scalar(""), keys) if no_key.any() else keys
    return pa.MapArray.from_arrays(places, filled, shown, type=field.lake_type), misfits


def _pairs(data: Bytes, entries: Places) -> tuple[Mask, Places, Places]:
    """Take entries apart: lists of two, or objects with key and value (JsonSchemaConverter).

    Returns:
        Which ones are entries, and of those the keys and the values.
    """
    sizes, sides = elements_of(data, entries)
    listed = np.diff(sizes) == 2
    key, value = members_of(data, entries).find("key", "value")
    is_pair = listed | ((key.kinds != ABSENT) & (value.kinds != ABSENT))
    at = sizes[:-1][is_pair]
    own = listed[is_pair]

    def chosen(place: Ints, of_object: Places) -> Places:
        inside = of_object.take(np.flatnonzero(is_pair))
        if not len(sides.starts):
            return inside
        of_list = sides.take(np.where(own, place, 0))
        return Places(
            np.where(own, of_list.starts, inside.starts),
            np.where(own, of_list.ends, inside.ends),
            np.where(own, of_list.kinds, inside.kinds),
        )

    return is_pair, chosen(at, key), chosen(at + 1, value)


def _as_names(data: Bytes, values: Places) -> pa.Array:
    """Return strings as they are and everything else as its JSON; null where nothing stands."""
    others = Places(
        np.where(values.kinds == STRING, -1, values.starts),
        values.ends,
        np.where(values.kinds == NULL, 0, values.kinds),
    )
    return pc.coalesce(strings(data, values), compact(data, others).cast(pa.string()))


def _inside(offsets: Ints, wrong: Mask) -> Mask:
    """Tell which rows have something wrong among their elements."""
    sums = np.zeros(len(wrong) + 1, np.int64)
    np.cumsum(wrong, out=sums[1:])
    inside: Mask = sums[offsets[1:]] > sums[offsets[:-1]]
    return inside


def _none(values: Places) -> Mask:
    return np.zeros(len(values.kinds), np.bool_)
