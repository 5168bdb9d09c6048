"""Scratch arrays of kernels, which their callers allocate, because a walker can't."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from airflow_cdc_provider.formats.kernels import Bytes, Ints, Words
from airflow_cdc_provider.sources.cql.programs import MAX_DEPTH

STACK_COLUMNS = 6


class Scratch(NamedTuple):
    """Scratch arrays; their contents are undefined between calls.

    ``stack``    a row per open container of a nested value
    ``digits``   decimal digits of a varint or decimal
    ``limbs``    the same number, 32 bits each
    """

    stack: Ints
    digits: Bytes
    limbs: Words


def new_scratch(longest: int) -> Scratch:
    """Allocate scratch arrays.

    Args:
        longest: Length in bytes of the longest value.

    Returns:
        The arrays.
    """
    return Scratch(
        stack=np.empty((MAX_DEPTH, STACK_COLUMNS), np.int64),
        digits=np.empty(longest * 241 // 100 + 19, np.uint8),  # log10(256) is less than 2.41
        limbs=np.empty(longest // 4 + 1, np.uint64),
    )
