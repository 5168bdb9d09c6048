"""Columns of Vitess's rows as the Arrow arrays that events show; which column is which: :mod:`.event_types`.

Each function takes the cells of a column in some rows and gives an array of so many values, null where there
is none. A value that can't be read is null and its row is marked: what becomes of the row, the caller says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.spans import Bytes, Ints, binary_buffer, gather, span_column
from airflow_cdc_provider.changes.text_kernels import gather_text
from airflow_cdc_provider.sources.vitess import event_values, values
from airflow_cdc_provider.sources.vitess.charsets import decode_column
from airflow_cdc_provider.sources.vitess.event_values import BROKEN, DAY_US, NO_DATE, VALUE
from airflow_cdc_provider.sources.vitess.fields import Column
from airflow_cdc_provider.sources.vitess.numbers import decimal_texts, read_floats, read_integers

GEOMETRY: Final = pa.struct([pa.field("wkb", pa.binary(), nullable=False), pa.field("srid", pa.int32())])
POINT: Final = pa.struct(
    [
        pa.field("x", pa.float64(), nullable=False),
        pa.field("y", pa.float64(), nullable=False),
        pa.field("wkb", pa.binary()),
        pa.field("srid", pa.int32()),
    ]
)

_LONGEST: Final = 2**63 - 1
_SRID_BYTES: Final = 4
_POINT_BYTES: Final = 21
"""Of WKB: byte order, type, and two doubles."""


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of a column.

    Args:
        data: A buffer.
        starts: First byte of each value in it, negative for none.
        ends: Byte after each.
        unread: Per row, gets True where a value can't be read.
    """

    data: Bytes
    starts: Ints
    ends: Ints
    unread: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.starts)


def nothing(cells: Cells) -> pa.Array:
    """Show no value, as Debezium shows columns that it doesn't know."""
    return pa.nulls(len(cells), pa.binary())


def integers(kind: pa.DataType, cells: Cells) -> pa.Array:
    """Show numbers as integers of a type."""
    numbers, misfits = read_integers(cells.data, cells.starts, cells.ends, max(kind.bit_width, 32))
    cells.unread[misfits] = True
    return numbers.cast(kind)


def low_integers(cells: Cells) -> pa.Array:
    """Show BIGINT UNSIGNED as int64, null above 2^63 - 1."""
    numbers = decimals(0, cells).cast(pa.uint64())
    low = pc.less_equal(numbers, pa.scalar(_LONGEST, pa.uint64()))
    return pc.if_else(low, numbers, pa.scalar(None, pa.uint64())).cast(pa.int64())


def floats(single: bool, cells: Cells) -> pa.Array:
    """Show numbers as float64, FLOAT as what 32 bits hold of it."""
    kind = pa.float32() if single else pa.float64()
    numbers, misfits = read_floats(cells.data, cells.starts, cells.ends, kind)
    cells.unread[misfits] = True
    return numbers.cast(pa.float64())


def decimals(scale: int, cells: Cells) -> pa.Array:
    """Show numbers as their digits, so many behind the point."""
    shown, misfits = decimal_texts(cells.data, cells.starts, cells.ends, scale)
    cells.unread[misfits] = True
    return shown


def unscaled(scale: int, cells: Cells) -> pa.Array:
    """Show numbers as the bytes of Connect's ``Decimal``."""
    numbers, states = event_values.unscaled_numbers(*binary_buffer(decimals(scale, cells)), scale)
    cells.unread[states == BROKEN] = True
    return numbers


def texts(charset: str, cells: Cells) -> pa.Array:
    """Show text; what is none of its character set becomes U+FFFD.

    Args:
        charset: MySQL's name of the character set; empty: UTF-8.
        cells: The cells.
    """
    valid = cells.starts >= 0
    if charset:
        shown = decode_column(span_column(pa.binary(), cells.data, cells.starts, cells.ends), charset)
        if shown.null_count == len(cells) - np.count_nonzero(valid):
            return shown
        return pc.coalesce(shown, gather_text(cells.data, cells.starts, cells.ends, valid).cast(pa.utf8()))
    return gather_text(cells.data, cells.starts, cells.ends, valid)


def bytes_as_they_are(cells: Cells) -> pa.Array:
    """Show bytes."""
    return span_column(pa.binary(), cells.data, cells.starts, cells.ends)


def bytes_as_text(mode: str, cells: Cells) -> pa.Array:
    """Show bytes as text: ``base64``, ``base64-url-safe`` or ``hex``."""
    if mode == "hex":
        return event_values.hexadecimal(cells.data, cells.starts, cells.ends)
    return event_values.base64_text(cells.data, cells.starts, cells.ends, url_safe=mode == "base64-url-safe")


def dates(nullable: bool, cells: Cells) -> pa.Array:
    """Show DATE as days since 1970; one that no calendar has is null, or 0 where null isn't allowed."""
    micros, valid = _moments(nullable, cells)
    return pa.array((micros // DAY_US).astype(np.int32), mask=~valid)


def moments(per_second: int, nullable: bool, cells: Cells) -> pa.Array:
    """Show DATETIME as a number since 1970, likewise.

    Args:
        per_second: The unit. Nanoseconds overflow outside of 1677 to 2262, silently, as Debezium's do.
        nullable: Whether null is allowed.
        cells: The cells.
    """
    micros, valid = _moments(nullable, cells)
    return pa.array(_in_unit(micros, per_second), mask=~valid)


def zoned(nullable: bool, cells: Cells) -> pa.Array:
    """Show TIMESTAMP as ISO 8601 in UTC; a zero is null, or 1970 begins where null isn't allowed."""
    _, states = event_values.read_moments(cells.data, cells.starts, cells.ends)
    cells.unread[states == BROKEN] = True
    shown = pc.binary_join_element_wise(pc.replace_substring(_plain(cells), " ", "T"), "Z", "")
    shown = pc.if_else(pa.array(states == VALUE), shown, None)
    if nullable:
        return shown
    return pc.if_else(pa.array(states == NO_DATE), "1970-01-01T00:00:00Z", shown)


def times(kind: pa.DataType, per_second: int, cells: Cells) -> pa.Array:
    """Show TIME as a number in a unit; as int32, Connect's type, null outside of one day."""
    micros, states = event_values.read_times(cells.data, cells.starts, cells.ends)
    cells.unread[states == BROKEN] = True
    valid = states == VALUE
    if pa.types.is_int32(kind):
        valid &= (micros >= 0) & (micros < DAY_US)
        micros[~valid] = 0
    return pa.array(_in_unit(micros, per_second), mask=~valid).cast(kind)


def members(column: Column, cells: Cells) -> pa.Array:
    """Show ENUM and SET as text, also where they are numbers; 0 is the empty one, for a wrong value."""
    shown, misfits = values.texts(column, cells.data, cells.starts, cells.ends)
    cells.unread[misfits] = True
    return shown


def single_bits(cells: Cells) -> pa.Array:
    """Show BIT(1) as a boolean."""
    last, valid = _last_bytes(cells)
    return pa.array(last & 1 != 0, mask=~valid)


def reversed_bytes(cells: Cells) -> pa.Array:
    """Show BIT(n) as its bytes, the lowest first, as ``io.debezium.data.Bits`` has them."""
    data, offsets = gather(cells.data, cells.starts, cells.ends)
    backwards = np.ascontiguousarray(data[::-1])
    total = len(data)
    starts = np.where(cells.starts >= 0, total - offsets[1:].astype(np.int64), -1)
    ends = np.where(cells.starts >= 0, total - offsets[:-1].astype(np.int64), -1)
    return span_column(pa.binary(), backwards, starts, ends)


def geometries(cells: Cells) -> pa.Array:
    """Show a spatial value as WKB and number of its reference system, null for 0."""
    spatial = _spatial(cells, 0)
    return pa.StructArray.from_arrays(
        [spatial.wkb, spatial.srids], fields=list(GEOMETRY), mask=spatial.absent
    )


def points(cells: Cells) -> pa.Array:
    """Show POINT likewise, with its two numbers."""
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
    """Show VECTOR as a list of float32."""
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
    """Show what MySQL writes in ASCII."""
    return gather_text(cells.data, cells.starts, cells.ends, cells.starts >= 0)


def _moments(nullable: bool, cells: Cells) -> tuple[Ints, npt.NDArray[np.bool_]]:
    micros, states = event_values.read_moments(cells.data, cells.starts, cells.ends)
    cells.unread[states == BROKEN] = True
    valid = states == VALUE
    return micros, valid if nullable else valid | (states == NO_DATE)


def _in_unit(micros: Ints, per_second: int) -> Ints:
    if per_second < 1_000_000:
        return micros // (1_000_000 // per_second)
    return micros * (per_second // 1_000_000)


def _last_bytes(cells: Cells) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Return the last byte of each value, and whether there is one."""
    valid = (cells.starts >= 0) & (cells.ends > cells.starts)
    last = np.zeros(len(cells), np.uint8)
    last[valid] = cells.data[cells.ends[valid] - 1]
    return last, valid


@dataclass(frozen=True, eq=False)
class _Spatial:
    """Spatial values taken apart; ``heads`` are the first bytes of each."""

    absent: pa.Array
    srids: pa.Array
    wkb: pa.Array
    heads: npt.NDArray[np.uint8]


def _spatial(cells: Cells, least: int) -> _Spatial:
    """Take spatial values apart; one whose WKB has not so many bytes can't be read."""
    there = cells.starts >= 0
    valid = there & (cells.ends - cells.starts >= _SRID_BYTES + least)
    cells.unread[there & ~valid] = True
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
