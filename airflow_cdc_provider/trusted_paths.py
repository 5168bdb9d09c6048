"""Files and folders that decide what is executed: machine code, and specs that name classes.

They are trusted if no other user but root can change or replace them.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from airflow_cdc_provider.exceptions import ConfigurationError


def changeable_by_others(status: os.stat_result) -> str:
    """Return why other users can change a file or a folder; empty if they can't."""
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in (0, os.geteuid()):
        return f"it belongs to user id {status.st_uid}"
    if mode & (stat.S_IWGRP | stat.S_IWOTH) and not stat.S_ISLNK(status.st_mode):
        return f"others may write to it (mode 0{mode:o})"
    return ""


def replaceable_by_others(folder: Path) -> str:
    """Return why other users can change or replace a folder; empty if they can't.

    Each folder above it counts, too, and what links among them lead to. In a folder with the sticky bit, such
    as ``/tmp``, only owners can replace what is theirs.

    Raises:
        OSError: It is missing, or can't be reached.
    """
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return f"{folder} is a link or a file, not a folder"
    if reason := changeable_by_others(status):
        return f"{folder}: {reason}"
    return _replaceable(folder.absolute().parent)


def _replaceable(folder: Path, links: int = 0) -> str:
    for place in [*reversed(folder.parents), folder]:
        status = place.lstat()
        reason = changeable_by_others(status)
        if reason and not (status.st_uid in (0, os.geteuid()) and status.st_mode & stat.S_ISVTX):
            return f"{place}: {reason}"
        if stat.S_ISLNK(status.st_mode):
            if links > 40:  # as many as the kernel follows
                return f"{place}: too many links"
            return _replaceable(place.parent / place.readlink() / folder.relative_to(place), links + 1)
    return ""


def changeable_inside(folder: Path) -> str:
    """Return why other users can change what is in a folder; empty if they can't.

    Modes of what is this user's count only where others can enter the folder.

    Raises:
        OSError: A part of it can't be reached.
    """
    reachable = folder.lstat().st_mode & (stat.S_IXGRP | stat.S_IXOTH)
    for path in folder.rglob("*"):
        status = path.lstat()
        reason = changeable_by_others(status)
        if reason and (reachable or status.st_uid != os.geteuid()):
            return f"{path}: {reason}"
    return ""


def read_trusted(path: str, what: str) -> str:
    """Read a file that nobody but this user or root can change, or that is mounted read-only.

    Args:
        path: The file.
        what: Its content, for errors.

    Raises:
        ConfigurationError: The file is missing, can't be read, or can be changed by others.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8") as file:
            status, mount = os.fstat(file.fileno()), os.fstatvfs(file.fileno())
            reason = changeable_by_others(status)
            if not stat.S_ISREG(status.st_mode):
                reason = "it is not a regular file"
            elif mount.f_flag & os.ST_RDONLY:
                reason = ""
            text = "" if reason else file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"file {path} with {what} can't be read",
            expected=f"a file that user id {os.geteuid()} may read",
            found=getattr(error, "strerror", None) or str(error),
        ) from error
    if reason:
        raise ConfigurationError(
            f"file {path} with {what} is not trusted",
            expected=f"a file of user id {os.geteuid()} or of root that nobody else may write to, or one "
            "that is mounted read-only",
            found=reason,
            remedy="run Spark's driver as the user of Airflow's workers, and chmod go-w the file",
        )
    return text
