"""Converts columns of rows to the Arrow arrays of events; :mod:`.types` selects the conversions.

Each function takes the cells of a column and returns an array of the same length, null where there is no
value. A value that can't be parsed is null and its row is marked; the caller decides what to do with the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.formats.arrow_bytes import binary_buffer, gather, gather_text, span_column
from airflow_cdc_provider.formats.base64_text import base64_texts
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Ints
from airflow_cdc_provider.formats.number_texts import decimal_texts, read_floats, read_integers
from airflow_cdc_provider.formats.products import fits
from airflow_cdc_provider.sources.vitess import values
from airflow_cdc_provider.sources.vitess.charsets import decode_column
from airflow_cdc_provider.sources.vitess.events import values as event_values
from airflow_cdc_provider.sources.vitess.events.values import BROKEN, DAY_US, NO_DATE, VALUE
from airflow_cdc_provider.sources.vitess.fields import Column

GEOMETRY: Final = pa.struct([pa.field("wkb", pa.binary(), nullable=False), pa.field("srid", pa.int32())])
POINT: Final = pa.struct(
    [
        pa.field("x", pa.float64(), nullable=False),
        pa.field("y", pa.float64(), nullable=False),
        pa.field("wkb", pa.binary()),
        pa.field("srid", pa.int32()),
    ]
)

MICROSECONDS: Final = 1_000_000
_MAX_LONG: Final = 2**63 - 1
_SRID_BYTES: Final = 4
_POINT_BYTES: Final = 21
"""Size of a point in WKB: byte order, type, and two doubles."""


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of a column.

    Args:
        data: A buffer.
        starts: First byte of each value in it, negative for none.
        ends: Byte after each.
        unread: Set to True for each row with a value that can't be parsed.
    """

    data: Bytes
    starts: Ints
    ends: Ints
    unread: Flags

    def __len__(self) -> int:
        """Return the number of cells."""
        return len(self.starts)


def nulls(cells: Cells) -> pa.Array:
    """Return nulls, as Debezium does for unknown column types."""
    return pa.nulls(len(cells), pa.binary())


def integers(kind: pa.DataType, cells: Cells) -> pa.Array:
    """Convert numbers to integers of a type."""
    numbers, misfits = read_integers(cells.data, cells.starts, cells.ends, max(kind.bit_width, 32))
    cells.unread[misfits] = True
    return numbers.cast(kind)


def low_integers(cells: Cells) -> pa.Array:
    """Convert BIGINT UNSIGNED to int64, null above 2^63 - 1."""
    numbers = decimals(0, cells).cast(pa.uint64())
    low = pc.less_equal(numbers, pa.scalar(_MAX_LONG, pa.uint64()))
    return pc.if_else(low, numbers, pa.scalar(None, pa.uint64())).cast(pa.int64())


def floats(single: bool, cells: Cells) -> pa.Array:
    """Convert numbers to float64, FLOAT with the precision of 32 bits."""
    kind = pa.float32() if single else pa.float64()
    numbers, misfits = read_floats(cells.data, cells.starts, cells.ends, kind)
    cells.unread[misfits] = True
    return numbers.cast(pa.float64())


def decimals(scale: int, cells: Cells) -> pa.Array:
    """Convert numbers to text with a fixed number of fractional digits."""
    converted, misfits = decimal_texts(cells.data, cells.starts, cells.ends, scale)
    cells.unread[misfits] = True
    return converted


def unscaled(scale: int, cells: Cells) -> pa.Array:
    """Convert numbers to the bytes of Connect's ``Decimal``."""
    numbers, states = event_values.unscaled_numbers(*binary_buffer(decimals(scale, cells)), scale)
    cells.unread[states == BROKEN] = True
    return numbers


def texts(charset: str, cells: Cells) -> pa.Array:
    """Convert text; bytes that are invalid in the character set become U+FFFD.

    Args:
        charset: MySQL's name of the character set; empty: UTF-8.
        cells: The cells.
    """
    valid = cells.starts >= 0
    if charset:
        converted = decode_column(span_column(pa.binary(), cells.data, cells.starts, cells.ends), charset)
        if converted.null_count == len(cells) - np.count_nonzero(valid):
            return converted
        return pc.coalesce(
            converted, gather_text(cells.data, cells.starts, cells.ends, valid).cast(pa.utf8())
        )
    return gather_text(cells.data, cells.starts, cells.ends, valid)


def raw_bytes(cells: Cells) -> pa.Array:
    """Return bytes unchanged."""
    return span_column(pa.binary(), cells.data, cells.starts, cells.ends)


def bytes_as_text(mode: str, cells: Cells) -> pa.Array:
    """Encode bytes as text: ``base64``, ``base64-url-safe`` or ``hex``."""
    if mode == "hex":
        return event_values.hexadecimal(cells.data, cells.starts, cells.ends)
    return base64_texts(cells.data, cells.starts, cells.ends, url_safe=mode == "base64-url-safe")


def dates(nullable: bool, cells: Cells) -> pa.Array:
    """Convert DATE to days since 1970; an invalid date is null, or 0 if the column isn't nullable."""
    micros, valid = _moments(nullable, cells)
    return pa.array((micros // DAY_US).astype(np.int32), mask=~valid)


def moments(per_second: int, wraps: bool, nullable: bool, cells: Cells) -> pa.Array:
    """Convert DATETIME to a number since 1970; an invalid one is null, or 0 if the column isn't nullable.

    Args:
        per_second: Units per second.
        wraps: Whether nanoseconds outside of 1677 to 2262 are their low 64 bits, as in Debezium, or null.
        nullable: Whether null is allowed.
        cells: The cells.
    """
    micros, valid = _moments(nullable, cells)
    if not wraps and per_second > MICROSECONDS:
        valid &= fits(pa.array(micros), per_second // MICROSECONDS).to_numpy(zero_copy_only=False)
    return pa.array(_in_unit(micros, per_second), mask=~valid)


def zoned(nullable: bool, cells: Cells) -> pa.Array:
    """Convert TIMESTAMP to ISO 8601 in UTC; zero is null, or the epoch if the column isn't nullable."""
    _, states = event_values.read_moments(cells.data, cells.starts, cells.ends)
    cells.unread[states == BROKEN] = True
    converted = pc.binary_join_element_wise(pc.replace_substring(_plain(cells), " ", "T"), "Z", "")
    converted = pc.if_else(pa.array(states == VALUE), converted, None)
    if nullable:
        return converted
    return pc.if_else(pa.array(states == NO_DATE), "1970-01-01T00:00:00Z", converted)


def times(kind: pa.DataType, per_second: int, cells: Cells) -> pa.Array:
    """Convert TIME to a number in a unit; for int32, Connect's type, null outside of one day."""
    micros, states = event_values.read_times(cells.data, cells.starts, cells.ends)
    cells.unread[states == BROKEN] = True
    valid = states == VALUE
    if pa.types.is_int32(kind):
        valid &= (micros >= 0) & (micros < DAY_US)
        micros[~valid] = 0
    return pa.array(_in_unit(micros, per_second), mask=~valid).cast(kind)


def members(column: Column, cells: Cells) -> pa.Array:
    """Convert ENUM and SET to text, also from numbers; 0 is the empty text of an invalid value."""
    converted, misfits = values.texts(column, cells.data, cells.starts, cells.ends)
    cells.unread[misfits] = True
    return converted


def single_bits(cells: Cells) -> pa.Array:
    """Convert BIT(1) to a boolean."""
    last, valid = _last_bytes(cells)
    return pa.array(last & 1 != 0, mask=~valid)


def reversed_bytes(cells: Cells) -> pa.Array:
    """Convert BIT(n) to little-endian bytes, the format of ``io.debezium.data.Bits``."""
    data, offsets = gather(cells.data, cells.starts, cells.ends)
    backwards = np.ascontiguousarray(data[::-1])
    total = len(data)
    starts = np.where(cells.starts >= 0, total - offsets[1:].astype(np.int64), -1)
    ends = np.where(cells.starts >= 0, total - offsets[:-1].astype(np.int64), -1)
    return span_column(pa.binary(), backwards, starts, ends)


def geometries(cells: Cells) -> pa.Array:
    """Convert spatial values to WKB and SRID, null for SRID 0."""
    spatial = _spatial(cells, 0)
    return pa.StructArray.from_arrays(
        [spatial.wkb, spatial.srids], fields=list(GEOMETRY), mask=spatial.absent
    )


def points(cells: Cells) -> pa.Array:
    """Convert POINT to WKB, SRID and coordinates."""
    spatial = _spatial(cells, _POINT_BYTES)
    pairs = np.ascontiguousarray(spatial.heads[:, _SRID_BYTES + 5 :])
    big_endian = spatial.heads[:, _SRID_BYTES, None] == 0
    numbers = np.where(big_endian, pairs.view(">f8").astype("<f8"), pairs.view("<f8"))
    return pa.StructArray.from_arrays(
        [pa.array(numbers[:, 0]), pa.array(numbers[:, 1]), spatial.wkb, spatial.srids],
        fields=list(POINT),
        mask=spatial.absent,
    )


def vectors(cells: Cells) -> pa.Array:
    """Convert VECTOR to a list of float32."""
    odd = (cells.starts >= 0) & ((cells.ends - cells.starts) % 4 != 0)
    cells.unread[odd] = True
    starts = np.where(odd, -1, cells.starts)
    data, offsets = gather(cells.data, starts, cells.ends)
    numbers = pa.array(data.view("<f4"), pa.float32())
    return pa.ListArray.from_arrays(
        pa.array(offsets // 4),
        numbers,
        type=pa.list_(pa.field("item", pa.float32(), nullable=False)),
        mask=pa.array(starts < 0),
    )


def _plain(cells: Cells) -> pa.Array:
    """Return values that MySQL prints in ASCII as text."""
    return gather_text(cells.data, cells.starts, cells.ends, cells.starts >= 0)


def _moments(nullable: bool, cells: Cells) -> tuple[Ints, Flags]:
    micros, states = event_values.read_moments(cells.data, cells.starts, cells.ends)
    cells.unread[states == BROKEN] = True
    valid = states == VALUE
    return micros, valid if nullable else valid | (states == NO_DATE)


def _in_unit(micros: Ints, per_second: int) -> Ints:
    if per_second < MICROSECONDS:
        return micros // (MICROSECONDS // per_second)
    return micros * (per_second // MICROSECONDS)


def _last_bytes(cells: Cells) -> tuple[Bytes, Flags]:
    """Return the last byte of each value, and whether it exists."""
    valid = (cells.starts >= 0) & (cells.ends > cells.starts)
    last = np.zeros(len(cells), np.uint8)
    last[valid] = cells.data[cells.ends[valid] - 1]
    return last, valid


@dataclass(frozen=True, eq=False)
class _Spatial:
    """Parsed spatial values; ``heads`` are the first bytes of each."""

    absent: pa.Array
    srids: pa.Array
    wkb: pa.Array
    heads: Bytes


def _spatial(cells: Cells, min_bytes: int) -> _Spatial:
    """Parse spatial values; one whose WKB is shorter than ``min_bytes`` is marked as unread."""
    is_present = cells.starts >= 0
    valid = is_present & (cells.ends - cells.starts >= _SRID_BYTES + min_bytes)
    cells.unread[is_present & ~valid] = True
    data, offsets = gather(cells.data, np.where(valid, cells.starts, -1), cells.ends)
    starts, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    padded = np.append(data, np.zeros(_SRID_BYTES + _POINT_BYTES, np.uint8))
    heads = padded[starts[:, None] + np.arange(_SRID_BYTES + _POINT_BYTES)]
    srids = np.ascontiguousarray(heads[:, :_SRID_BYTES]).view("<i4")[:, 0]
    return _Spatial(
        pa.array(~valid),
        pa.array(srids, mask=~valid | (srids == 0)),
        span_column(pa.binary(), data, np.where(valid, starts + _SRID_BYTES, -1), np.where(valid, ends, -1)),
        heads,
    )
