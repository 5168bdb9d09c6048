"""Writes the remaining members of documents, which no column of a mirror holds, for the column ``_rest``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from airflow_cdc_provider.formats.bson import DOCUMENT, NULL, UNDEFINED, name_end, value_end
from airflow_cdc_provider.formats.byte_kernels import copy, store_little32
from airflow_cdc_provider.formats.extended_json import MIRROR, Texts, write_values
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Ints, walker

_EMPTY: Final = 5
"""Bytes of a document without members."""


def write_rest(data: Bytes, starts: Ints, ends: Ints, projected: Sequence[Ints]) -> Texts:
    """Write the members of documents that no column holds, as canonical Extended JSON.

    Members keep their order. Null and undefined are left out: they are null in any column.

    Args:
        data: The buffer.
        starts: First byte of each document, -1 for none.
        ends: Byte after each.
        projected: Per column, offset of the value that it holds of each document; -1 for none.

    Returns:
        A text per document; null if no members remain.
    """
    marks = np.zeros(len(data) + 1, np.bool_)
    for offsets in projected:
        marks[offsets[offsets >= 0]] = True
    out = np.empty(int(np.where(starts >= 0, ends - starts, 0).sum()), np.uint8)
    offsets = np.zeros(len(starts) + 1, np.int64)
    _copy_others(data, starts, ends, marks, out, offsets)
    kinds = np.where(np.diff(offsets) > 0, DOCUMENT, 0)
    return write_values(out, kinds, offsets[:-1], offsets[1:], MIRROR)


def projected_offsets(starts: npt.NDArray[Any], valid: npt.NDArray[np.bool_]) -> Ints:
    """Return the offsets of values that a column holds, -1 for those that it doesn't."""
    return np.where(valid, starts.astype(np.int64), -1)


@walker
def _copy_others(data: Bytes, starts: Ints, ends: Ints, marks: Flags, out: Bytes, offsets: Ints) -> None:
    at = np.int64(0)
    for row in range(len(starts)):
        begin = at
        if starts[row] >= 0 and value_end(data, DOCUMENT, starts[row], ends[row]) == ends[row]:
            at += 4
            pos = starts[row] + 4
            limit = ends[row] - 1
            while pos < limit:
                stop = name_end(data, pos + 1, limit)
                after = value_end(data, np.int64(data[pos]), stop + 1, limit) if stop >= 0 else stop
                if after < 0:
                    break
                if data[pos] not in (NULL, UNDEFINED) and not marks[stop + 1]:
                    at = copy(data, pos, after - pos, out, at)
                pos = after
            out[at] = 0
            at += 1
            if at - begin == _EMPTY:
                at = begin
            else:
                store_little32(out, begin, at - begin)
        offsets[row + 1] = at
