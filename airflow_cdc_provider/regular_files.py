"""Files in folders to which others write, and files that connections name: only regular ones are opened.

A named pipe would block its reader for ever, and a device never ends. In a folder of others no link is
followed: it leads to a file that the writer of the folder may not be allowed to read, or to change.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

LARGEST_SEGMENT_BYTES: Final = (1 << 31) - 1
"""Cassandra's positions in a segment are of 31 bits."""

APPEND: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT

_KINDS: Final = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MOST_BYTES: Final = 1 << 20
"""Of a file that a connection names: a certificate, a key, or settings."""


def open_regular(
    path: str | Path,
    flags: int = os.O_RDONLY,
    mode: int = 0o666,
    *,
    folder: int | None = None,
    links: bool = False,
) -> int:
    """Open a regular file, and return its descriptor.

    Args:
        path: The file.
        flags: Flags of ``os.open``.
        mode: Mode of a file that is created.
        folder: Descriptor of the folder of a relative path.
        links: Whether a link to a regular file is one.

    Raises:
        OSError: It is a link or another kind of file (``EINVAL``), is missing, or can't be opened.
    """
    flags |= _FLAGS & ~os.O_NOFOLLOW if links else _FLAGS
    try:
        file = os.open(path, flags, mode, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise _irregular(os.lstat(path, dir_fd=folder), path) from None
        raise
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        os.close(file)
        raise _irregular(status, path)
    return file


def is_regular(path: Path) -> bool:
    """Return whether a path is that of a regular file, not of a link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def read_start(path: str | Path, most_bytes: int) -> tuple[bytes, os.stat_result]:
    """Return the first bytes of a regular file, and its status.

    Raises:
        OSError: As :func:`open_regular`.
    """
    with open(open_regular(path), "rb") as file:
        return file.read(most_bytes), os.fstat(file.fileno())


def write_private(path: Path, text: str) -> None:
    """Write a file atomically, readable by its owner only; a link in its place is replaced, not followed.

    Raises:
        OSError: It can't be written.
    """
    temporary = path.with_name(path.name + ".part")
    try:
        temporary.unlink(missing_ok=True)
        with open(open_regular(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def read_small(path: str | Path) -> bytes:
    """Return the content of a regular file of at most 1 MiB, or of one that a link leads to.

    Mounted secrets are links. A file's size says little: some of the kernel's files have none, and never end.

    Raises:
        OSError: It is another kind of file, is too large (``EFBIG``), waits for data (``EAGAIN``), is
            missing, or can't be read.
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise _irregular(status, path)  # some devices do something when they are opened
    with open(open_regular(path, links=True), "rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if data is None:
        raise OSError(errno.EAGAIN, "it has no end", str(path))
    if len(data) > _MOST_BYTES:
        raise OSError(errno.EFBIG, "it has more than 1 MiB", str(path))
    return data


def open_subfolder(name: str, folder: int) -> int:
    """Open a subfolder of an open folder, and return its descriptor.

    Raises:
        OSError: It is a link or a file (``EINVAL``), is missing, or can't be opened.
    """
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | _FLAGS, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise _irregular(os.lstat(name, dir_fd=folder), name, "folder") from None
        raise


def _irregular(status: os.stat_result, path: str | Path, wanted: str = "file") -> OSError:
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "a file")
    return OSError(errno.EINVAL, f"it is {kind}, not a {wanted}", str(path))
