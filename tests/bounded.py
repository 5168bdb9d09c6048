"""A bound for what a hostile input may take: seconds of CPU, and memory."""

from __future__ import annotations

import gc
import re
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_BACKSTOP = 4 << 30
"""Bytes of address space beyond what the process has: what takes more gets a MemoryError."""


@contextmanager
def bounded(seconds: float = 1, mebibytes: int = 64) -> Iterator[None]:
    """Fail if the block takes more CPU time, or more memory at its peak, than a hostile input may.

    Args:
        seconds: CPU time of this process, all threads.
        mebibytes: Resident memory at the block's peak, beyond that at its start.
    """
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again: proc_pid_clear_refs(5)
    before, started = _status("VmRSS"), time.process_time()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") + _BACKSTOP, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    taken, grown = time.process_time() - started, (_status("VmHWM") - before) >> 20
    assert taken <= seconds, f"took {taken:.1f} s of CPU time, may take {seconds}"
    assert grown <= mebibytes, f"took {grown} MiB, may take {mebibytes}"


def _status(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found, name
    return int(found[1]) << 10
