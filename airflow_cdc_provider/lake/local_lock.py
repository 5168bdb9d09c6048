"""Mutual exclusion of processes on one machine, for catalogs on a local file system.

An Iceberg Hadoop catalog commits by renaming a file to the next version's name. HDFS refuses to rename onto
an existing file, so one of two writers fails. A local file system replaces the file, so both renames succeed
and one commit is lost. For this case only, this package's writers lock a file in the folder, which readers of
the folder can't hold. Writers of other programs don't: such a catalog is for tests and demonstrations.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from airflow_cdc_provider.regular_files import open_regular

_NAME: Final = ".cdc.lock"
"""Hidden, so that Iceberg doesn't remove it as an orphan."""


@contextlib.contextmanager
def locked(folder: str | None) -> Iterator[None]:
    """Hold a folder's lock; the operating system releases it if the process dies.

    Args:
        folder: An existing folder, or None to lock nothing.
    """
    if folder is None:
        yield
        return
    descriptor = open_regular(Path(folder, _NAME), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
