"""Where files lie: a flat folder of them, in which a name stands for a whole file or for none.

:class:`FolderStore` is a folder of this machine, or one that is mounted. The others are beside this module:
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
"""How much is read at once."""

PARTIAL: Final = ".part"
"""How the temporary name ends under which a file is written; it begins with a dot."""


class Item(NamedTuple):
    """A file: its name, its length in bytes, and when it was last written, in epoch seconds."""

    name: str
    size_bytes: int
    modified: float


class Store(Protocol):
    """A folder of files. Used by several threads at once."""

    def exclusive(self) -> AbstractContextManager[None]:
        """Keep other transfers out, where that can be done.

        Raises:
            TransientError: Another one is there.
        """

    def items(self) -> list[Item]:
        """List whole files. A folder that isn't there is empty.

        Raises:
            TransientError: It can't be reached.
        """

    def read(self, name: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield a file's bytes between two offsets, fewer at its end.

        Raises:
            FileNotFoundError: It is gone, at the latest when its first bytes are asked for.
        """

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        """Put a file there: at any moment, also when killed, the name is the old file, or the whole new one.

        Raises:
            CorruptInput: What was written reads back differently; the name is as it was.
        """

    def remove(self, name: str) -> None:
        """Remove a file; one that isn't there is fine."""

    def sweep(self) -> None:
        """Remove what writers left that were killed. Only for who is the only writer."""


def partial_name(name: str) -> str:
    """Return the temporary name under which a file is written.

    It names the process too, so that a writer which lost its lock can't spoil the file of another.
    """
    return f".{name}.{os.getpid()}-{threading.get_ident()}{PARTIAL}"


def is_partial(name: str) -> bool:
    """Tell whether a name is a temporary one."""
    return name.startswith(".") and name.endswith(PARTIAL)


class FolderStore:
    """A folder of this machine. Temporary file, checksum, fsync, rename, fsync of the folder.

    Args:
        path: The folder; made when it is first written to.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep other transfers out; the kernel lets them in again when this process ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".transfer.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TransientError(f"another transfer to {self.path} is running") from None
            yield

    def items(self) -> list[Item]:
        """List files; those that vanish meanwhile are left out."""
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
        """Put a file there."""
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
        """Remove what killed writers left."""
        for leftover in self.path.glob(f".*{PARTIAL}"):
            leftover.unlink(missing_ok=True)

    def _sync(self) -> None:
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class RememberingStore:
    """A store whose small files are read once. For who is the only writer of them.

    Args:
        store: The store.
    """

    _LONGEST_BYTES: Final = 64 * 1024

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, bytes] = {}

    def exclusive(self) -> AbstractContextManager[None]:
        """Keep other transfers out, where that can be done."""
        return self._store.exclusive()

    def items(self) -> list[Item]:
        """List whole files, and forget those that are gone or have another length."""
        items = self._store.items()
        sizes = {item.name: item.size_bytes for item in items}
        for name in [name for name, data in self._known.items() if sizes.get(name) != len(data)]:
            self._known.pop(name, None)
        return items

    def read(self, name: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield a file's bytes; those of a small one that is read as a whole are remembered."""
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
        """Put a file there; a large one is never held as a whole."""
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
        """Remove what killed writers left."""
        self._store.sweep()

    def _remember(self, name: str, data: bytes) -> None:
        if len(data) <= self._LONGEST_BYTES:
            self._known[name] = data


def require_equal(what: str, sent: bytes, back: Iterable[bytes]) -> None:
    """Compare what was written with what it reads back as.

    Args:
        what: The file, for the message.
        sent: SHA-256 of what was written.
        back: What is read back.

    Raises:
        CorruptInput: They differ.
    """
    digest = hashlib.sha256()
    for piece in back:
        digest.update(piece)
    if digest.digest() != sent:
        raise CorruptInput(f"the copy at {what} differs from what was sent", expected="equal SHA-256")
