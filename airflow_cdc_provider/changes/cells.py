"""The cell row: native values of one row with write time, TTL and deletion of each cell, as one byte string.

It is the ``state`` of cell-level contributions and of a mirror's ``_cdc`` column. Values are the database's
native bytes, so ties by value, collections by element and every type are exact, and a merge never reads the
mirror's typed columns. Little-endian, no padding:

====== ===== ==========================================================================================
offset type  meaning
====== ===== ==========================================================================================
0      u8    format, :data:`FORMAT`
1      u8    row flags, ``ROW_*``
2      u16   zero
4      i32   TTL of the row's liveness in seconds, 0 for none
8      i64   write time of the liveness in us; unused without ``ROW_LIVENESS``
16     i64   expiry of the liveness in epoch seconds, :data:`NEVER` for none
24     i64   row (partition, range) deletion: write time in us; unused without ``ROW_DELETION``
32     i64   the same: local deletion time in epoch seconds
40     u32   length C of the clustering
44     u32   number N of cells
48     C     native clustering: per column i32 length (-1: null) and the value's bytes
48+C         N cells, ascending by (column, complex deletion first, path by unsigned bytes)
====== ===== ==========================================================================================

A cell:

====== ===== ==========================================================================================
0      u16   column id, as the table's schema numbers it
2      u8    flags, ``CELL_*``
3      u8    zero
4      i32   TTL in seconds, 0 for none
8      i64   write time in us
16     i64   deletion time (tombstone, complex deletion) or expiry (expiring), epoch seconds, else NEVER
24     u32   path length P (0 unless the column is multi-cell)
28     u32   value length V
32     P, V  path, then value
====== ===== ==========================================================================================

A row with ``ROW_UNCERTAIN`` and without ``ROW_LIVENESS`` was read by a SELECT. It has at offset 8 the time of
that reading in us, at 16 the write time of the greatest known liveness before it (NEVER for none) and at 4,
as u32, the expiry of that liveness in epoch seconds: 0 for one without TTL, :data:`NEVER_LIVED` for a dead
one.

A row with ``ROW_STRICT`` is live only by its liveness, whatever cells it has. Cassandra reads rows so in a
view whose key has a column that isn't in its base's key. The reading of such a row returns its liveness: with
``ROW_UNCERTAIN`` the known liveness is the greatest one.

Write times are signed 64-bit numbers, and all values are valid. Each (column, path) occurs at most once, and
so does a column's complex deletion.
"""

from __future__ import annotations

from typing import Final

FORMAT: Final = 1
NEVER: Final = (1 << 63) - 1
NEVER_LIVED: Final = (1 << 32) - 1
"""Expiry of a liveness that marks its row as deleted."""
LATEST_EXPIRY: Final = NEVER_LIVED - 1

ROW_HEADER_BYTES: Final = 48
CELL_HEADER_BYTES: Final = 32

ROW_STATIC: Final = 1
ROW_LIVENESS: Final = 2
ROW_DELETION: Final = 4
ROW_UNCERTAIN: Final = 8
"""Read by a SELECT, which returns neither the row's liveness nor its tombstones."""
ROW_STRICT: Final = 16
"""Live only by its liveness."""

CELL_TOMBSTONE: Final = 1
CELL_EXPIRING: Final = 2
CELL_PATH: Final = 4
"""An element of a multi-cell column (its path may be of length zero)."""
CELL_COMPLEX_DELETION: Final = 8
"""Not a cell but the deletion of the whole multi-cell column: ``path`` and value are empty."""
CELL_UNCERTAIN: Final = 16
"""The write time is only a lower bound (an element read by a snapshot that doesn't return write times)."""

SYNTHETIC_PATH_MARK: Final = b"\x80\x00LST"
"""Follows the time in the synthetic path of a list element that was read by a SELECT, which doesn't return
the real path. Cassandra's paths never contain it: they set a bit of the third byte that is not set here."""
