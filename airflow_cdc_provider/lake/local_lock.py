"""Mutual exclusion of processes on one machine, for catalogs on a local file system.

An Iceberg Hadoop catalog commits by renaming a file to the next version's name. HDFS refuses to rename onto
an existing file, so one of two writers fails. A local file system replaces the file, so both renames succeed
and one commit is lost. For this case only, this package's writers lock a folder. Writers of other programs
don't: such a catalog is for tests and demonstrations.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator


@contextlib.contextmanager
def locked(folder: str | None) -> Iterator[None]:
    """Hold a folder's lock; the operating system releases it if the process dies.

    Args:
        folder: An existing folder, or None to lock nothing.
    """
    if folder is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
