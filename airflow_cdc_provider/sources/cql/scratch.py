"""Arrays that kernels work in, made by whoever calls them: a walker can't make its own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from airflow_cdc_provider.sources.cql.programs import MAX_DEPTH

STACK_COLUMNS = 6


class Scratch(NamedTuple):
    """What is in them means nothing between calls.

    ``stack``    a line per open container of a nested value
    ``digits``   decimal digits of a varint or decimal
    ``limbs``    the same number, 32 bits each
    """

    stack: npt.NDArray[np.int64]
    digits: npt.NDArray[np.uint8]
    limbs: npt.NDArray[np.uint64]


def new_scratch(longest: int) -> Scratch:
    """Make arrays to work in.

    Args:
        longest: Length in bytes of the longest value that a kernel will see.
    """
    return Scratch(
        stack=np.empty((MAX_DEPTH, STACK_COLUMNS), np.int64),
        digits=np.empty(longest * 241 // 100 + 19, np.uint8),  # log10(256) is less than 2.41
        limbs=np.empty(longest // 4 + 1, np.uint64),
    )
