"""The work folder, which Airflow's workers, its triggerer and Spark's driver share.

Its owner decides who may write to it. What is below it belongs to the user that runs the tasks: specs, which
name classes that a job imports, connections' values, and signals.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from airflow.providers.common.compat.sdk import conf

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.tasks.stream_application import StreamFolder
from airflow_cdc_provider.trusted_paths import changeable_by_others


def stream_folder(given: str | None, connector: str) -> StreamFolder:
    """Return the folder of a connector's continuous application; it need not exist.

    Args:
        given: The work folder; None for the configured one.
        connector: The connector's name.
    """
    return StreamFolder(own_folder(configured_work_folder(given), connector, "stream"))


def signals_folder(given: str | None, connector: str, *, create: bool = False) -> Path:
    """Return the folder from which a connector's jobs read signals; it need not exist.

    Args:
        given: The work folder; None for the configured one.
        connector: The connector's name.
        create: Whether to create it.
    """
    return own_folder(configured_work_folder(given), connector, "signals", create=create)


def own_folder(work_folder: Path, *parts: str, create: bool = False) -> Path:
    """Return a folder below the work folder in which only this user and root can change anything.

    What is this user's and writable for its group gets mode 0700: a mount with ``fsGroup`` in Kubernetes
    makes everything on it writable for a group.

    Args:
        work_folder: The work folder.
        parts: Names of subfolders; characters that are invalid in a path are replaced.
        create: Whether to create what is missing, for this user only. Else the folder need not exist.

    Raises:
        ConfigurationError: A folder is a link, is another user's, or others may write to it.
        OSError: A folder can't be read or created.
    """
    folder = work_folder
    if create:
        _make(folder)
    for name in ["", *map(safe_name, parts)]:
        folder /= name
        if create:
            _make(folder)
        try:
            reason = _untrusted(folder) if name else _replaceable(folder.stat())
        except FileNotFoundError:
            continue
        if reason:
            raise ConfigurationError(
                f"folder {folder} is not trusted",
                expected=f"a folder of user id {os.geteuid()} or of root that nobody else may write to",
                found=reason,
                remedy=f"remove what others may have put there, and chmod go-w {folder}; or set [cdc] "
                "work_folder to another one",
            )
    return folder


def _untrusted(folder: Path) -> str:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return "it is a link or a file"
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) & 0o022 == stat.S_IWGRP:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(opened).st_uid == os.geteuid():
                os.fchmod(opened, 0o700)
            status = os.fstat(opened)
        finally:
            os.close(opened)
    return changeable_by_others(status)


def _replaceable(status: os.stat_result) -> str:
    """Return why anyone may replace what is in the work folder; empty if only its owner and group may."""
    mode = stat.S_IMODE(status.st_mode)
    if not mode & stat.S_IWOTH:
        return ""
    if not mode & stat.S_ISVTX:
        return f"anyone may replace what is in it (mode 0{mode:o})"
    own = status.st_uid in (0, os.geteuid())
    return "" if own else f"it belongs to user id {status.st_uid}, who may replace what is in it"


def _make(folder: Path) -> None:
    """Create a folder, and those above it, for this user only."""
    with suppress(FileExistsError):
        try:
            folder.mkdir(0o700)
        except FileNotFoundError:
            _make(folder.parent)
            folder.mkdir(0o700)


def configured_work_folder(given: str | None = None) -> Path:
    """Return the given work folder, else ``[cdc] work_folder``, else ``$AIRFLOW_HOME/cdc``."""
    folder = given or conf.get("cdc", "work_folder", fallback="")
    if not folder:
        folder = os.path.join(os.environ.get("AIRFLOW_HOME", "~/airflow"), "cdc")
    return Path(folder).expanduser().absolute()


def safe_name(text: str) -> str:
    """Return a text as one path component; different texts give different names."""
    safe = re.sub(r"[^A-Za-z0-9_.=-]", "_", text)[:120]
    if safe == text and text not in (".", "..", ""):
        return safe
    return f"{safe.strip('.')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
