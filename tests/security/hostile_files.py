"""Files and folders that a hostile writer of a folder can make in place of what is expected there."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

OTHER_USER: Final = 65533
"""A user id that isn't this process's."""


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        # A socket's path may have 108 bytes: bind in the folder itself.
        before = os.open(".", os.O_RDONLY)
        try:
            os.chdir(path.parent)
            listener.bind(path.name)
        finally:
            os.fchdir(before)
            os.close(before)


def _link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def _link_to_file(path: Path) -> None:
    secret = path.parent.parent / "secret"
    secret.write_text("307939\nCOMPLETED")
    path.symlink_to(secret)


def _link_to_pipe(path: Path) -> None:
    os.mkfifo(path.parent / "pipe")
    path.symlink_to("pipe")


IRREGULAR: Final[dict[str, Callable[[Path], None]]] = {
    "named pipe": os.mkfifo,
    "socket": _socket,
    "folder": Path.mkdir,
    "link to a device without end": _link_to("/dev/zero"),
    "link to a device": _link_to("/dev/full"),
    "link to a file": _link_to_file,
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to nothing": _link_to("nothing"),
    "link to a folder": _link_to(".."),
    "link to a pipe": _link_to_pipe,
}


def sparse(path: Path, size: int) -> None:
    """Make a file of a size that takes no room."""
    with path.open("wb") as file:
        file.truncate(size)


def replace(path: Path, make: Callable[[Path], None]) -> None:
    """Put something in a file's place."""
    path.unlink(missing_ok=True)
    make(path)
