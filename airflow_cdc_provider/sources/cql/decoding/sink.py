"""Output arrays of decoded updates, which kernels fill and the caller enlarges.

A kernel returns ``-NO_SPACE`` if an array is full; the caller resets the cursor to its value before the
change, enlarges the arrays (:func:`grow`) and calls again. So sizes are never computed in advance.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, Ints, inlined

ROWS_AT: Final = 0
"""Cursor: contributions so far."""
STATES_AT: Final = 1
"""Cursor: bytes used of ``states``."""
BOUNDS_AT: Final = 2
"""Cursor: bytes used of ``bounds``."""
FAILED_AT: Final = 3
"""Cursor: offset in the input of the last failure."""
RANGE_START: Final = 4
"""Cursor: start in ``bounds`` of the range deletion that is open in the current update, -1 for none; then its
write time and deletion time."""
RANGE_TIMESTAMP: Final = 5
RANGE_DELETION_TIME: Final = 6
LIST_START: Final = 7
"""Cursor: offset in the input of the list of regular columns that line 1 of ``listed`` was parsed from, its
length, and the number of columns and of the table. Most updates list the same columns as the one before."""
LIST_LENGTH: Final = 8
LIST_COUNT: Final = 9
LIST_TABLE: Final = 10
CURSORS: Final = 11

CHANGE: Final = 0
"""Column of ``rows``: number of the change that the contribution comes from."""
SCOPE: Final = 1
STATE_END: Final = 2
"""Column of ``rows``: end of its cell row in ``states``; it starts at the end of the one before."""
LOWER: Final = 3
"""Columns of ``rows``: for a range deletion, its bounds in ``bounds``; the upper is -1 if it is open."""
UPPER: Final = 4
ROW_COLUMNS: Final = 5

BOUND_HEADER_BYTES: Final = 4
NOWHERE: Final = np.int64(-1)
"""No bound of a range. (A NumPy number, because Numba recompiles a function for each literal argument.)"""


class Sink(NamedTuple):
    """Output arrays.

    ``cursor``   numbers above
    ``rows``     a row of the columns above per contribution
    ``states``   cell rows (changes/cells.py), concatenated
    ``bounds``   bounds of range deletions: u16 number of values, u8 1 if it is after all clusterings with
                 these values, u8 zero, then the values as in a cell row
    ``cells``    scratch: offsets of a row's cells in ``states``, in two lines for sorting
    ``spare``    scratch: a row's cells while they are sorted
    ``listed``   scratch: the columns that an update lists, static ones in line 0, regular ones in line 1
    ``present``  scratch: which listed columns a row has
    """

    cursor: Ints
    rows: Ints
    states: Bytes
    bounds: Bytes
    cells: Ints
    spare: Bytes
    listed: NDArray[np.int32]
    present: Flags


def new_sink(bytes_expected: int, rows_expected: int, columns: int) -> Sink:
    """Allocate output arrays.

    Args:
        bytes_expected: Bytes of input.
        rows_expected: Approximate number of contributions.
        columns: Number of static and regular columns of the widest table, including dropped ones.

    Returns:
        An empty sink.
    """
    return Sink(
        cursor=np.zeros(CURSORS, np.int64),
        rows=np.empty((rows_expected + 16, ROW_COLUMNS), np.int64),
        states=np.empty(4 * bytes_expected + 4096, np.uint8),
        bounds=np.empty(4096, np.uint8),
        cells=np.empty((1024, 2), np.int64),
        spare=np.empty(65536, np.uint8),
        listed=np.empty((2, columns + 1), np.int32),
        present=np.empty(columns + 1, np.bool_),
    )


def grow(sink: Sink) -> Sink:
    """Return the sink with the smallest of its arrays four times as long, content kept.

    Which one is full isn't known. The smallest costs least, and no other becomes much larger than it must.
    """
    name = min(_GROWING, key=lambda one: getattr(sink, one).nbytes)
    array = getattr(sink, name)
    longer = np.empty((4 * len(array), *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return sink._replace(**{name: longer})


_GROWING: Final = ("rows", "states", "bounds", "cells", "spare")


@inlined
def put_row(sink: Sink, change: Int, scope: Int, state_end: Int, lower: Int, upper: Int) -> bool:
    """Append a contribution whose cell row is already written; False if there is no space."""
    cursor, rows = sink.cursor, sink.rows
    row = cursor[ROWS_AT]
    if row >= len(rows):
        return False
    rows[row, CHANGE] = change
    rows[row, SCOPE] = scope
    rows[row, STATE_END] = state_end
    rows[row, LOWER] = lower
    rows[row, UPPER] = upper
    cursor[ROWS_AT] = row + 1
    cursor[STATES_AT] = state_end
    return True


@inlined
def failed(cursor: Ints, at: Int, reason: Int) -> Int:
    """Store the offset of the failure and return the negative reason."""
    cursor[FAILED_AT] = at
    return -reason
