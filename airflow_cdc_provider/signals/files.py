"""Signals in files: one file to which any program appends lines, and a folder with a file per signal.

``file`` is Debezium's: one JSON object per line, and the file is emptied when it is read. The channel renames
it first, so that a line written meanwhile goes to a new file. (A writer should open, append and close; one
that keeps the file open writes to the renamed file, which is read again before it is deleted.) The renamed
file stays until its signals are committed. So a job that dies loses none, and executes none twice, because
the lines have the same ids again.

``airflow`` is written by operators and the command line: a file per signal, written atomically, with names
that sort by time.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.regular_files import is_regular, open_regular, write_private
from airflow_cdc_provider.signals.signal import (
    LARGEST_BYTES,
    MOST_AT_ONCE,
    MOST_BYTES_AT_ONCE,
    MalformedSignal,
    ReceivedSignal,
    signal_of_text,
)

_TAKEN: Final = ".taken-"
_UNREADABLE: Final = "this process may not read the file"


class FileChannel:
    """Lines of one file.

    Args:
        path: The file; it need not exist.
    """

    name = "file"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: dict[Path, int] = {}

    def receive(self) -> Sequence[ReceivedSignal]:
        """Rename the file, and read the renamed files that aren't committed, as many as fit.

        Raises:
            TransientError: The file can't be read now.
        """
        try:
            with contextlib.suppress(FileNotFoundError):
                if is_regular(self._path) and self._path.stat().st_size:
                    self._path.rename(self._path.with_name(f"{self._path.name}{_TAKEN}{_stamp()}"))
            self._read = {}
            arrived: list[ReceivedSignal] = []
            for taken in self._taken():
                stamp = taken.name.rpartition(_TAKEN)[2]
                try:
                    text = _read(taken, MOST_BYTES_AT_ONCE)
                except PermissionError:
                    self._read[taken] = taken.stat().st_size
                    arrived.append(MalformedSignal(stamp, self.name, _UNREADABLE))
                    continue
                lines = list(islice(filter(bytes.strip, io.BytesIO(text)), MOST_AT_ONCE + 1))
                size = sum(self._read.values()) + len(text)
                if self._read and (size > MOST_BYTES_AT_ONCE or len(arrived) + len(lines) > MOST_AT_ONCE):
                    break
                self._read[taken] = len(text)
                arrived += self._signals(text, lines, stamp)
        except OSError as error:
            raise TransientError(f"signals in {self._path} can't be read", found=str(error)) from error
        return arrived

    def done(self) -> None:
        """Remove the files that were read, except those that a program appended to: they are read again."""
        for taken, size in self._read.items():
            with contextlib.suppress(FileNotFoundError):
                if size > MOST_BYTES_AT_ONCE or taken.stat().st_size == size:
                    taken.unlink()
        self._read = {}

    def close(self) -> None:
        """Do nothing: no file is open."""

    def _signals(self, text: bytes, lines: Sequence[bytes], stamp: str) -> Iterator[ReceivedSignal]:
        if len(text) > MOST_BYTES_AT_ONCE:
            yield MalformedSignal(stamp, self.name, f"a file has more than {MOST_BYTES_AT_ONCE} bytes")
            return
        for number, line in enumerate(lines[:MOST_AT_ONCE], start=1):
            yield signal_of_text(line, self.name, otherwise=f"{stamp}-{number}")
        if len(lines) > MOST_AT_ONCE:
            reason = f"more than {MOST_AT_ONCE} lines at once: the others are skipped"
            yield MalformedSignal(f"{stamp}-rest", self.name, reason)

    def _taken(self) -> list[Path]:
        return _regular(self._path.parent, f"{_escaped(self._path.name)}{_TAKEN}*")


class FolderChannel:
    """A folder with one file per signal.

    Args:
        folder: The folder; it need not exist.
    """

    name = "airflow"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: list[Path] = []

    def receive(self) -> Sequence[ReceivedSignal]:
        """Read the files of the folder, as many as fit.

        Raises:
            TransientError: A file can't be read now.
        """
        self._read = []
        arrived: list[ReceivedSignal] = []
        size = 0
        try:
            for path in _regular(self._folder, "*.json"):
                if size + LARGEST_BYTES > MOST_BYTES_AT_ONCE:
                    break
                try:
                    text = _read(path, LARGEST_BYTES)
                    arrived.append(signal_of_text(text, self.name, otherwise=path.stem))
                    size += len(text)
                except PermissionError:
                    arrived.append(MalformedSignal(path.stem, self.name, _UNREADABLE))
                self._read.append(path)
            return arrived
        except OSError as error:
            raise TransientError(f"signals in {self._folder} can't be read", found=str(error)) from error

    def done(self) -> None:
        """Remove the files that were read."""
        for path in self._read:
            path.unlink(missing_ok=True)
        self._read = []

    def close(self) -> None:
        """Do nothing: no file is open."""


def send(folder: Path, kind: str, data: Mapping[str, Any], identity: str = "") -> str:
    """Write a signal to a folder that a :class:`FolderChannel` reads.

    Args:
        folder: The folder; it is created.
        kind: The signal's type.
        data: Its data.
        identity: Its id; by default a generated one.

    Returns:
        Its id.

    Raises:
        ConfigurationError: The folder isn't writable.
    """
    stamp = _stamp()
    identity = identity or stamp
    path = folder / f"{stamp}.json"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, json.dumps({"id": identity, "type": kind, "data": dict(data)}))
    except OSError as error:
        raise ConfigurationError(
            f"can't write a signal to {folder}",
            expected="a folder that this process can write to and the connector's job can read",
            found=error.strerror or str(error),
            remedy="change its owner or mode, or set [cdc] work_folder to another one",
        ) from error
    return identity


def _regular(folder: Path, names: str) -> list[Path]:
    """Return the first of a folder's regular files, in order; pipes, devices and links are left alone."""
    return sorted(filter(is_regular, folder.glob(names)))[:MOST_AT_ONCE]


def _read(path: Path, largest: int) -> bytes:
    """Read a file up to one byte more than the largest size."""
    with open(open_regular(path), "rb") as file:
        return file.read(largest + 1)


def _stamp() -> str:
    """Return a unique name that sorts by time."""
    return f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}"


def _escaped(name: str) -> str:
    return re.sub(r"([*?\[\]])", r"[\1]", name)
