"""Stores: flat folders of files, each of which is complete or doesn't exist.

:class:`FolderStore` is a local or mounted folder. The others are in further modules:
:mod:`~airflow_cdc_provider.transfer.openssh` and :mod:`~airflow_cdc_provider.transfer.sftp` (folders behind
SSH, by the system's program or by paramiko), :mod:`~airflow_cdc_provider.transfer.s3`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from airflow_cdc_provider.exceptions import CorruptInput, TransientError

PIECE_BYTES: Final = 1024 * 1024
"""Bytes read at once."""

PARTIAL: Final = ".part"
"""Suffix of a file's temporary name, which starts with a dot."""


class Item(NamedTuple):
    """A file: its name, its size in bytes, and its modification time in epoch seconds."""

    name: str
    size_bytes: int
    modified: float


class Store(Protocol):
    """A folder of files. Used by several threads at once."""

    def exclusive(self) -> AbstractContextManager[None]:
        """Lock out other transfers, if the store supports it.

        Raises:
            TransientError: Another transfer has the lock.
        """

    def items(self) -> list[Item]:
        """List complete files. A missing folder is empty.

        Raises:
            TransientError: The store can't be reached.
        """

    def read(self, name: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield a file's bytes between two offsets, fewer at its end.

        Raises:
            FileNotFoundError: The file doesn't exist; raised at the latest when the first bytes are read.
        """

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write a file atomically: at any moment, also if killed, the name is the old or the new file.

        Raises:
            CorruptInput: The written file reads back differently; the old one is kept.
        """

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""

    def sweep(self) -> None:
        """Remove temporary files of killed writers. Only for the sole writer."""


def partial_name(name: str) -> str:
    """Return the temporary name of a file that is being written.

    It includes the process, so that a writer that lost its lock can't overwrite another writer's file.
    """
    return f".{name}.{os.getpid()}-{threading.get_ident()}{PARTIAL}"


def is_partial(name: str) -> bool:
    """Return whether a name is a temporary one."""
    return name.startswith(".") and name.endswith(PARTIAL)


class FolderStore:
    """A local folder. Writes: temporary file, checksum, fsync, rename, fsync of the folder.

    Args:
        path: The folder; created by the first write.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Lock out other transfers; the kernel releases the lock when this process ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".transfer.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TransientError(f"another transfer to {self.path} is running") from None
            yield

    def items(self) -> list[Item]:
        """List files; those that are deleted meanwhile are omitted."""
        found: list[Item] = []
        try:
            entries = list(os.scandir(self.path))
        except FileNotFoundError:
            return found
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if entry.is_file() and not entry.name.startswith("."):
                    status = entry.stat()
                    found.append(Item(entry.name, status.st_size, status.st_mtime))
        return found

    def read(self, name: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield a file's bytes."""
        with (self.path / name).open("rb") as file:
            file.seek(begin)
            left = None if end is None else end - begin
            while left is None or left > 0:
                piece = file.read(PIECE_BYTES if left is None else min(PIECE_BYTES, left))
                if not piece:
                    return
                left = None if left is None else left - len(piece)
                yield piece

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write a file."""
        self.path.mkdir(parents=True, exist_ok=True)
        temporary = self.path / partial_name(name)
        try:
            sent = hashlib.sha256()
            with temporary.open("wb") as file:
                for piece in pieces:
                    sent.update(piece)
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            require_equal(f"{self.path / name}", sent.digest(), self.read(temporary.name))
            temporary.replace(self.path / name)
        finally:
            temporary.unlink(missing_ok=True)
        self._sync()

    def remove(self, name: str) -> None:
        """Remove a file."""
        (self.path / name).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove temporary files of killed writers."""
        for leftover in self.path.glob(f".*{PARTIAL}"):
            leftover.unlink(missing_ok=True)

    def _sync(self) -> None:
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class RememberingStore:
    """A store that caches small files. Only for the sole writer.

    Args:
        store: The store.
    """

    _LONGEST_BYTES: Final = 64 * 1024

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, bytes] = {}

    def exclusive(self) -> AbstractContextManager[None]:
        """Lock out other transfers, if the store supports it."""
        return self._store.exclusive()

    def items(self) -> list[Item]:
        """List complete files, and evict deleted and changed ones from the cache."""
        items = self._store.items()
        sizes = {item.name: item.size_bytes for item in items}
        for name in [name for name, data in self._known.items() if sizes.get(name) != len(data)]:
            self._known.pop(name, None)
        return items

    def read(self, name: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield a file's bytes; a small file that is read completely is cached."""
        known = self._known.get(name)
        if known is not None:
            yield known[begin:end]
        elif begin or end is not None:
            yield from self._store.read(name, begin, end)
        else:
            data = b"".join(self._store.read(name))
            self._remember(name, data)
            yield data

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write a file; a large one is never kept in memory."""
        self._known.pop(name, None)
        begin = bytearray()

        def noted() -> Iterator[bytes]:
            for piece in pieces:
                if len(begin) <= self._LONGEST_BYTES:
                    begin.extend(piece)
                yield piece

        self._store.write(name, noted())
        self._remember(name, bytes(begin))

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._known.pop(name, None)
        self._store.remove(name)

    def sweep(self) -> None:
        """Remove temporary files of killed writers."""
        self._store.sweep()

    def _remember(self, name: str, data: bytes) -> None:
        if len(data) <= self._LONGEST_BYTES:
            self._known[name] = data


def require_equal(what: str, sent: bytes, back: Iterable[bytes]) -> None:
    """Compare written with re-read bytes.

    Args:
        what: The file, for the message.
        sent: SHA-256 of the written bytes.
        back: The re-read bytes.

    Raises:
        CorruptInput: They differ.
    """
    digest = hashlib.sha256()
    for piece in back:
        digest.update(piece)
    if digest.digest() != sent:
        raise CorruptInput(f"the copy at {what} differs from what was sent", expected="equal SHA-256")
