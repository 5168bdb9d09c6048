"""Products of 64-bit integers, such as times in finer units, which may have more bits."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_INT64: Final = np.iinfo(np.int64)


def fits(numbers: pa.Array, factor: int) -> pa.BooleanArray:
    """Return which products with a positive factor have at most 64 bits."""
    most = _INT64.max // factor
    return pc.and_(pc.less_equal(numbers, most), pc.greater_equal(numbers, -most))


def saturated(numbers: pa.Array, factor: int) -> pa.Array:
    """Return products with a positive factor, or the greatest or least number, as Java's ``TimeUnit``."""
    bound = pc.if_else(pc.greater(numbers, 0), pa.scalar(_INT64.max), pa.scalar(_INT64.min))
    return pc.if_else(fits(numbers, factor), pc.multiply(numbers, factor), bound)
