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

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.regular_files import open_regular

_NAME: Final = ".cdc.lock"
"""Hidden, so that Iceberg doesn't remove it as an orphan."""


@contextlib.contextmanager
def locked(folder: str | None) -> Iterator[None]:
    """Hold a folder's lock; the operating system releases it if the process dies.

    Args:
        folder: An existing folder, or None to lock nothing.

    Raises:
        ConfigurationError: The lock is another user's. Who may open it may hold it, so only one user may.
    """
    if folder is None:
        yield
        return
    path = Path(folder, _NAME)
    try:
        descriptor = open_regular(path, os.O_RDWR | os.O_CREAT, 0o600)
    except PermissionError as error:
        raise ConfigurationError(
            f"the lock {path} can't be opened",
            expected="one user that writes to a warehouse on a local file system",
            found=f"a lock of user {path.stat().st_uid}" if path.exists() else error.strerror or "",
            remedy="run as its owner; remove the file if no other user writes there any more",
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
