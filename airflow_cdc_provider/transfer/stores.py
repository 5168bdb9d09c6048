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
import re
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from airflow_cdc_provider.exceptions import CorruptInput, TransientError
from airflow_cdc_provider.regular_files import open_regular, open_subfolder

PIECE_BYTES: Final = 1024 * 1024
"""Bytes read at once."""

PARTIAL: Final = ".part"
"""Suffix of a file's temporary name, which starts with a dot."""

_NAME: Final = re.compile(r"\.?[A-Za-z0-9][A-Za-z0-9_.-]*")


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
            CorruptInput: The file is larger, and the store can't read a part of it.
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


def is_name(name: str) -> bool:
    """Return whether a name that a store lists may be one of ours: it has no path, and nothing special."""
    return _NAME.fullmatch(name) is not None


def read_small(store: Store, name: str, most_bytes: int = 1 << 20) -> bytes:
    """Read a file that has to be small.

    Raises:
        CorruptInput: It is larger.
        FileNotFoundError: It doesn't exist.
    """
    data = bytearray()
    for piece in store.read(name, 0, most_bytes + 1):
        data += piece
        if len(data) > most_bytes:
            raise CorruptInput(f"{name} is too large", expected=f"at most {most_bytes} bytes")
    return bytes(data)


def is_partial(name: str) -> bool:
    """Return whether a name is a temporary one."""
    return name.startswith(".") and name.endswith(PARTIAL)


class FolderStore:
    """A local folder, of which only regular files are used: links are neither followed nor listed.

    Writes: temporary file, checksum, fsync, rename, fsync of the folder.

    Args:
        root: A folder that is configured, which may be a link; created by the first write.
        below: Names of subfolders, which may not be links.
    """

    def __init__(self, root: Path, *below: str) -> None:
        self.path = root.joinpath(*below)
        self._root = root
        self._below = below

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Lock out other transfers; the kernel releases the lock when this process ends."""
        with self._folder(create=True) as folder:
            lock = open_regular(".transfer.lock", os.O_RDWR | os.O_CREAT, 0o600, folder=folder)
        try:
            with contextlib.suppress(PermissionError):  # another user's
                os.fchmod(lock, 0o600)  # who may read it may hold it
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TransientError(f"another transfer to {self.path} is running") from None
            yield
        finally:
            os.close(lock)

    def items(self) -> list[Item]:
        """List files; those that are deleted meanwhile are omitted."""
        return [item for item in self._all() if not item.name.startswith(".")]

    def read(self, name: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield a file's bytes."""
        with self._folder() as folder:
            descriptor = open_regular(_checked(name), folder=folder)
        with open(descriptor, "rb") as file:
            file.seek(begin)
            left = None if end is None else end - begin
            while left is None or left > 0:
                piece = file.read(PIECE_BYTES if left is None else min(PIECE_BYTES, left))
                if not piece:
                    return
                left = None if left is None else left - len(piece)
                yield piece

    def size_bytes(self, name: str) -> int:
        """Return a file's size; 0 if there is none."""
        return next((item.size_bytes for item in self._all() if item.name == name), 0)

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write a file."""
        temporary = partial_name(_checked(name))
        with self._folder(create=True) as folder:
            _unlink(temporary, folder)
            try:
                sent = hashlib.sha256()
                with open(open_regular(temporary, _NEW, folder=folder), "wb") as file:
                    for piece in pieces:
                        sent.update(piece)
                        if piece.count(0) < len(piece):
                            file.write(piece)
                        else:  # a hole stays one: else a small file would fill the disk
                            file.seek(len(piece), os.SEEK_CUR)
                    file.truncate()
                    file.flush()
                    os.fsync(file.fileno())
                require_equal(f"{self.path / name}", sent.digest(), self.read(temporary))
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            finally:
                _unlink(temporary, folder)
            os.fsync(folder)

    def remove(self, name: str) -> None:
        """Remove a file."""
        with contextlib.suppress(FileNotFoundError), self._folder() as folder:
            _unlink(_checked(name), folder)

    def sweep(self) -> None:
        """Remove temporary files of killed writers."""
        for item in self._all():
            if is_partial(item.name):
                self.remove(item.name)

    def _all(self) -> list[Item]:
        found: list[Item] = []
        with contextlib.suppress(FileNotFoundError), self._folder() as folder:
            for name in os.listdir(folder):
                with contextlib.suppress(FileNotFoundError):
                    status = os.lstat(name, dir_fd=folder)
                    if stat.S_ISREG(status.st_mode) and is_name(name):
                        found.append(Item(name, status.st_size, status.st_mtime))
        return found

    @contextlib.contextmanager
    def _folder(self, *, create: bool = False) -> Iterator[int]:
        """Open the folder: what is done by its descriptor can't leave it, whatever is replaced meanwhile."""
        if create:
            with contextlib.suppress(FileExistsError):
                self._root.mkdir(parents=True)
        folder = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in self._below:
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, dir_fd=folder)
                above, folder = folder, open_subfolder(name, folder)
                os.close(above)
            yield folder
        except OSError as error:
            if isinstance(error.filename, str):  # a name in the folder
                error.filename = str(self.path / error.filename)
            raise
        finally:
            os.close(folder)


_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def _checked(name: str) -> str:
    if not is_name(name):
        raise ValueError(f"not the name of a file: {name!r}")
    return name


def _unlink(name: str, folder: int) -> None:
    """Remove a file, or a link itself; a folder of that name stays."""
    with contextlib.suppress(FileNotFoundError, IsADirectoryError):
        os.unlink(name, dir_fd=folder)


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
        for name in [name for name, data in list(self._known.items()) if sizes.get(name) != len(data)]:
            self._known.pop(name, None)
        return items

    def read(self, name: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield a file's bytes; a small file that is read completely is cached."""
        known = self._known.get(name)
        if known is not None:
            yield known[begin:end]
        elif begin:
            yield from self._store.read(name, begin, end)
        else:
            start, size = bytearray(), 0
            for piece in self._store.read(name, 0, end):
                size += len(piece)
                start += piece[: self._LONGEST_BYTES + 1 - len(start)]
                yield piece
            if end is None or size < end:
                self._remember(name, bytes(start))

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
