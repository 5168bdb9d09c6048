"""Order of the members of JSON objects: VTGate's stream sorts names by their bytes, MySQL by length first.

``{"bb": 1, "c": 2}`` in the stream is ``{"c": 2, "bb": 1}`` in a SELECT and in a copy. Names of equal length
have the same order in both, so a stable sort by length gives MySQL's text.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.formats.arrow_bytes import binary_buffer, span_column
from airflow_cdc_provider.formats.byte_kernels import copy
from airflow_cdc_provider.formats.json_text import scan_texts, skip_string
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, walker


def in_mysqls_order(values: pa.Array) -> pa.Array:
    """Return JSON with the members of objects in MySQL's order; other bytes stay as they are."""
    data, starts, ends = binary_buffer(values)
    first, last, _ = scan_texts(data, starts, ends)
    longest = int((last - first).max(initial=0))
    ordered = data.copy()
    # A bracket takes an item, a member has at least four bytes.
    firsts, lasts, lengths = np.empty((3, longest // 2 + 2), np.int64)
    _order(ordered, first, last, firsts, lasts, lengths, np.empty(longest, np.uint8))
    return span_column(values.type, ordered, starts, ends)


@walker
def _order(
    data: Bytes, starts: Ints, ends: Ints, firsts: Ints, lasts: Ints, lengths: Ints, scratch: Bytes
) -> None:
    for row in range(len(starts)):
        at = starts[row]
        if at >= 0:
            _order_text(data, at, ends[row], firsts, lasts, lengths, scratch)


@walker
def _order_text(
    data: Bytes, at: Int, end: Int, firsts: Ints, lasts: Ints, lengths: Ints, scratch: Bytes
) -> None:
    """Order the members of a text's objects, inner ones first.

    The spans of the members of all open objects are in ``firsts`` and ``lasts``. A bracket takes an item
    before its members: the item of the bracket around it, and the number of its complete members, or -1 for
    an array, whose elements take no items.
    """
    used = np.int64(0)
    bracket = np.int64(-1)
    while at < end:
        byte = data[at]
        if byte == 0x22:
            after = skip_string(data, at, end)
            if bracket >= 0 and lasts[bracket] >= 0 and lasts[bracket] == used - bracket - 1:
                firsts[used] = at  # the name of a new member
                used += 1
            at = after
            continue
        if byte in (0x7B, 0x5B):
            firsts[used] = bracket
            lasts[used] = 0 if byte == 0x7B else -1
            bracket = used
            used += 1
        elif byte in (0x2C, 0x7D) and lasts[bracket] >= 0 and used > bracket + 1:
            lasts[used - 1] = at
            lasts[bracket] += 1
        if byte in (0x7D, 0x5D):
            if byte == 0x7D:
                _order_members(data, bracket + 1, used, firsts, lasts, lengths, scratch)
            used = bracket
            bracket = firsts[used]
        at += 1


@walker
def _order_members(
    data: Bytes, first: Int, after: Int, firsts: Ints, lasts: Ints, lengths: Ints, scratch: Bytes
) -> None:
    """Sort an object's members by the length of their names; those of equal length keep their order."""
    is_sorted = True
    length = np.int64(1 << 62)
    for member in range(first, after):
        lengths[member] = _name_length(data, firsts[member])
        length = min(length, lengths[member])
        is_sorted = is_sorted and (member == first or lengths[member - 1] <= lengths[member])
    if is_sorted:
        return
    at = np.int64(0)
    place = first
    while place < after:
        longer = np.int64(1 << 62)
        for member in range(first, after):
            if lengths[member] == length:
                at = copy(data, firsts[member], lasts[member] - firsts[member], scratch, at)
                if place + 1 < after:
                    at = copy(data, lasts[place], firsts[place + 1] - lasts[place], scratch, at)
                place += 1
            elif lengths[member] > length:
                longer = min(longer, lengths[member])
        length = longer
    copy(scratch, 0, at, data, firsts[first])


@walker
def _name_length(data: Bytes, at: Int) -> Int:
    """Return the number of bytes of a name, given its first quote, without escapes."""
    length = np.int64(0)
    at += 1
    while data[at] != 0x22:
        if data[at] != 0x5C:
            at += 1
        elif data[at + 1] != 0x75:
            at += 2
        else:
            # MySQL and VTGate write control characters so, and nothing else.
            at += 6
        length += 1
    return length
