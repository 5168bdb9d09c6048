"""The bounds of one input: CPU time, and memory at its peak."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

MOST_SECONDS: Final = 10
"""CPU time that any input may take; uncompiled kernels are a hundred times as slow as compiled ones."""
MOST_BYTES: Final = 128 << 20
"""Resident memory at an input's peak, beyond that before it."""


def judge(run: Callable[[bytes], None], data: bytes) -> None:
    """Give an input to a target, twice if it exceeds a bound: the first time may import and cache.

    Raises:
        AssertionError: A promise is broken, or a bound is exceeded; any other error is a broken promise, too.
    """
    if _exceeded(run, data):
        found = _exceeded(run, data)
        assert not found, found


def _exceeded(run: Callable[[bytes], None], data: bytes) -> str:
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again: proc_pid_clear_refs(5)
    before, began = _peak(), time.process_time()
    run(data)
    taken, grown = time.process_time() - began, _peak() - before
    if taken > MOST_SECONDS:
        return f"it takes {taken:.1f} s"
    return f"it takes {grown >> 20} MiB" if grown > MOST_BYTES else ""


def _peak() -> int:
    found = re.search(rb"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_bytes(), re.MULTILINE)
    assert found
    return int(found[1]) << 10
