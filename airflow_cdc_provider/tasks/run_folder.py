"""The folder through which an operator and its Spark application exchange files.

It is in the work folder (``[cdc] work_folder``), which Airflow's workers and Spark's driver share, is
readable by its owner only, and has the same path at every try of a task, so that a retry that reconnects to a
running application finds its result.

=======================  =================================================================
``spec.json``            the :class:`~airflow_cdc_provider.jobs.spec.JobSpec`, no secrets
``connection.json``      the source's connection, mode 0600, removed when the job has ended; if its task was
                         killed, by any later task (:func:`sweep`)
``result.json``          the :class:`~airflow_cdc_provider.jobs.spec.JobResult`
``snapshot_rows.jsonl``  rows read of each table while a snapshot runs
``notifications.jsonl``  notifications for Airflow, one per line
=======================  =================================================================
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import fnmatch
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, TransientError
from airflow_cdc_provider.jobs.spec import NOTIFICATIONS, SNAPSHOT_ROWS, ConnectionRef, JobResult, JobSpec
from airflow_cdc_provider.regular_files import open_regular, open_subfolder, write_private
from airflow_cdc_provider.tasks.work_folder import configured_work_folder, own_folder

_QUEUED_SECONDS: Final = 86_400
"""The longest time that an application waits on a cluster for its start, after its task was lost."""
_WRITING_SECONDS: Final = 3600
_held: dict[Path, int] = {}
"""The locked files with connections' values that this process has written."""


@dataclass(frozen=True)
class RunFolder:
    """One run's folder; see the module."""

    path: Path

    @classmethod
    def open(cls, work_folder: str | None, *parts: str) -> RunFolder:
        """Create the folder.

        Args:
            work_folder: The work folder; None for the configured one.
            parts: Names of subfolders; characters that are invalid in a path are replaced.

        Raises:
            ConfigurationError: The folder isn't writable, or others may write to it.
            TransientError: The disk is full.
        """
        work = configured_work_folder(work_folder)
        try:
            sweep(work)
            return cls(own_folder(work, *parts, create=True))
        except OSError as error:
            raise unwritable(Path(error.filename or work), error) from error

    @property
    def spec_path(self) -> Path:
        """Path of the spec."""
        return self.path / "spec.json"

    @property
    def result_path(self) -> Path:
        """Path of the job's result."""
        return self.path / "result.json"

    @property
    def rows_path(self) -> Path:
        """Path of the file with the number of rows that a snapshot has read."""
        return self.path / SNAPSHOT_ROWS

    @property
    def notifications_path(self) -> Path:
        """Path of the file with the job's notifications for Airflow."""
        return self.path / NOTIFICATIONS

    @property
    def connection_path(self) -> Path:
        """Path of the connection's values while the job runs."""
        return self.path / "connection.json"

    def write_spec(self, spec: JobSpec) -> None:
        """Write the spec."""
        write_to_folder(self.spec_path, spec.to_json())

    def write_connection(self, values: Mapping[str, Any], *, outlives_task: bool = False) -> ConnectionRef:
        """Write a connection's values for the job, and hold them until they are removed.

        Args:
            values: The values.
            outlives_task: The application may start after its task ended: no sweep removes them for a day.
        """
        path = self.connection_path
        self.remove_connection()
        while path not in _held:
            write_to_folder(path, json.dumps(values))
            with contextlib.suppress(FileNotFoundError):  # a sweep was faster than the lock
                held = open_regular(path, os.O_RDWR)  # a lock on NFS needs it
                fcntl.flock(held, fcntl.LOCK_SH)
                needed = time.time() + (_QUEUED_SECONDS if outlives_task else 0)
                os.utime(path, (needed, needed))
                _held[path] = held
        return ConnectionRef(file=str(self.connection_path))

    def remove_connection(self) -> None:
        """Remove the connection's values."""
        with contextlib.suppress(OSError):
            self.connection_path.unlink()
        if (held := _held.pop(self.connection_path, None)) is not None:
            os.close(held)

    def discard_result(self) -> None:
        """Remove the files of an earlier try, so that they aren't read as this one's."""
        self.result_path.unlink(missing_ok=True)
        self.rows_path.unlink(missing_ok=True)
        self.notifications_path.unlink(missing_ok=True)

    def read_result(self) -> JobResult | None:
        """Return the job's result; None if it wrote none.

        Raises:
            ConfigurationError: The file isn't a result of this version.
        """
        try:
            return JobResult.read(str(self.result_path))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise ConfigurationError(
                f"{self.result_path} is not a job result of this version",
                found=str(error),
                remedy="use the same package version in Airflow and on Spark's driver",
            ) from error

    def remove(self) -> None:
        """Remove the folder and its content."""
        shutil.rmtree(self.path, ignore_errors=True)


def sweep(work_folder: Path, patterns: Sequence[str] = ("*/*/*/*", "*/stream")) -> None:
    """Remove connections' values that no one holds: their task was killed.

    The lock of their file says so, which the task holds, and its time, before which they are needed.

    No link below the work folder is followed.

    Args:
        work_folder: The folder with folders of runs.
        patterns: Where these are in it.
    """
    with contextlib.suppress(OSError):
        folder = os.open(work_folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for pattern in patterns:
                _sweep(folder, pattern.split("/"))
        finally:
            os.close(folder)


def _sweep(folder: int, patterns: Sequence[str]) -> None:
    if not patterns:
        for name, seconds in (("connection.json", 0), ("connection.json.part", _WRITING_SECONDS)):
            with contextlib.suppress(OSError):
                _remove_unheld(folder, name, seconds)
        return
    for name in fnmatch.filter(os.listdir(folder), patterns[0]):
        with contextlib.suppress(OSError):
            below = open_subfolder(name, folder)
            try:
                _sweep(below, patterns[1:])
            finally:
                os.close(below)


def _remove_unheld(folder: int, name: str, seconds: float) -> None:
    opened = open_regular(name, os.O_RDWR, folder=folder)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(opened)
        if found.st_uid == os.geteuid() and found.st_mtime + seconds <= time.time():
            os.unlink(name, dir_fd=folder)
    finally:
        os.close(opened)


def write_to_folder(path: Path, text: str) -> None:
    """Write a file as :func:`~airflow_cdc_provider.regular_files.write_private`.

    Raises:
        ConfigurationError: The file can't be written.
        TransientError: The disk is full.
    """
    try:
        write_private(path, text)
    except OSError as error:
        raise unwritable(path.parent, error) from error


def unwritable(folder: Path, error: OSError) -> CdcError:
    """Return the error for a folder that isn't writable."""
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return TransientError(
            f"the disk of folder {folder} is full",
            found=reason,
            remedy="free space there, or set [cdc] work_folder to a folder with free space",
        )
    return ConfigurationError(
        f"folder {folder} can't be written to",
        expected="a folder that Airflow's workers may write to and Spark's driver may read",
        found=reason,
        remedy="change its owner or mode, or set [cdc] work_folder to another one",
    )
