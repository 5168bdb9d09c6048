"""The user's cache of downloads: each file once, atomically, also with several processes.

Layout: ``<cache>/airflow-cdc-provider/<name>/<version>/``. A folder is built under a temporary name and
renamed when it is complete. A lock file per folder makes parallel users wait for the one that downloads.

What is in it is executed. So a folder is used only if no other user can change or replace it or its content,
and if it has the hashes that are recorded for it, whoever filled it and when. Each process looks once.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.trusted_paths import changeable_inside, replaceable_by_others

_verified: set[Path] = set()
"""The folders that this process may use."""


def cache_folder() -> Path:
    """Return the folder of this project inside the user's cache (``XDG_CACHE_HOME`` is honoured)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return root / "airflow-cdc-provider"


def cached(
    name: str,
    version: str,
    build: Callable[[Path], None],
    what: str,
    doing: str = "downloading",
    verify: Callable[[Path], None] | None = None,
) -> Path:
    """Return a folder of the cache, and build it first if it isn't there.

    Args:
        name: What the folder holds, for example ``cassandra``.
        version: Names its content; another content needs another version.
        build: Fills the empty folder that it is given.
        what: Said to the user when it is built, with a size.
        doing: What building it is.
        verify: Compares what is in the folder with recorded hashes, and raises if it differs.

    Raises:
        ConfigurationError: The folder can't be written or the disk is full, or other users can change it.
        Exception: What ``build`` raises, after which nothing is left behind, or what ``verify`` raises.
    """
    folder = cache_folder() / name / version
    if not folder.is_dir():
        _create(folder, build, what, doing)
        _verified.discard(folder)
    if folder not in _verified:
        _require_trusted(folder)
        if verify is not None:
            verify(folder)
        _verified.add(folder)
    return folder


def _create(folder: Path, build: Callable[[Path], None], what: str, doing: str) -> None:
    with _disk_errors(folder):
        for place in reversed(folder.parents):
            if not place.exists():
                place.mkdir(0o700, exist_ok=True)
        _require_trusted(folder.parent.resolve(), inside=False)
        with locked(folder.with_name(f".{folder.name}.lock"), f"{folder.parent} is filled"):
            if folder.is_dir():
                return
            say(f"{doing} {what} in {folder}")
            started = time.monotonic()
            part = folder.with_name(f".{folder.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            try:
                part.mkdir(0o700)
                build(part)
                part.rename(folder)
            finally:
                shutil.rmtree(part, ignore_errors=True)
            say(f"{what}: ready after {time.monotonic() - started:.0f} s")


def _require_trusted(folder: Path, *, inside: bool = True) -> None:
    reason = replaceable_by_others(folder) or (changeable_inside(folder) if inside else "")
    if reason:
        raise ConfigurationError(
            f"the cache folder {folder} is not trusted, and programs in it would be executed",
            expected=f"folders and files that nobody but user id {os.geteuid()} and root can change",
            found=reason,
            remedy=f"remove {folder}, and chmod go-w the folders above it, or set XDG_CACHE_HOME to a folder "
            "of this user",
        )


def require_space(folder: Path, needed_bytes: int, what: str) -> None:
    """Refuse to start what would soon fail for want of disk space.

    Raises:
        ConfigurationError: Less than ``needed_bytes`` is free where ``folder`` lies.
    """
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise ConfigurationError(
            f"the disk of {folder} is too full for {what}",
            expected=f"{needed_bytes >> 20} MiB free",
            found=f"{free >> 20} MiB",
            remedy="free some space, or set TMPDIR and XDG_CACHE_HOME to another disk",
        )


def require_hash(what: str, found: str, expected: str | None) -> None:
    """Refuse a download that isn't what was recorded.

    Raises:
        ConfigurationError: The hash is another one, or none was recorded.
    """
    if found != expected:
        raise ConfigurationError(
            f"the download of {what} is not the one that is expected",
            expected=expected or "a hash that is recorded in server_kit",
            found=found,
            remedy="remove it to download it again; compare with another source before you record its hash",
        )


def sha256(path: Path) -> str:
    """Return the hash of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def say(text: str) -> None:
    """Print what takes time."""
    print(f"[server_kit] {text}", file=sys.stderr, flush=True)


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold a lock file; a waiting process prints that another process is busy with ``what``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{what} by another process; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise
        raise ConfigurationError(
            f"the cache folder {folder} can't be written",
            found=os.strerror(error.errno),
            remedy="free some space there, or set XDG_CACHE_HOME to a folder on another disk",
        ) from error
