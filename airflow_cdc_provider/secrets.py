"""Secrets by reference: an option may name a secret's location instead of its value.

=================  ==================================================================
``${env:NAME}``    environment variable of the process that needs it, a job's driver
``${file:PATH}``   a mounted secret or a file with mode 0600 (:func:`read_private`); a newline at its
                   end is ignored
anything else      the secret itself: for development only; it is never logged
=================  ==================================================================

No error raised here contains a secret.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.masking import remember

_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")


def is_reference(value: str) -> bool:
    """Return whether a value is a reference to a secret."""
    return _REFERENCE.fullmatch(value) is not None


def has_reference(value: str) -> bool:
    """Return whether a value, or a part of it, is a reference to a secret."""
    return _REFERENCE.search(value) is not None


def environment_variable(value: str) -> str:
    """Return the variable that ``${env:NAME}`` names; empty for anything else."""
    match = _REFERENCE.fullmatch(value)
    return match.group(2) if match and match.group(1) == "env" else ""


def resolve_secret(value: str, option: str) -> str:
    """Return a secret from its reference or value; what a reference names is masked from then on.

    Args:
        value: The option's value.
        option: The option's name, for errors.

    Raises:
        ConfigurationError: The secret is missing, or its file isn't private.
    """
    match = _REFERENCE.fullmatch(value)
    if match is None:
        return value
    location = match.group(2)
    if match.group(1) == "env":
        found = os.environ.get(location, "")
        if not found:
            raise ConfigurationError(
                f"the secret of option {option} is missing",
                expected=f"environment variable {location}",
                remedy="set it where the job's driver runs, or use ${file:PATH}",
            )
    else:
        found = read_private(location, f"the secret of option {option}").rstrip("\r\n")
    remember(found, secret=True)
    return found


def resolve_secrets(values: Mapping[str, Any], option: str) -> dict[str, Any]:
    """Return an option's values with those that their references name; errors as :func:`resolve_secret`."""
    return {
        name: resolve_secret(value, f"{option}.{name}") if isinstance(value, str) else value
        for name, value in values.items()
    }


def read_private(path: str, what: str) -> str:
    """Read a file that is private by its mode or its mount.

    ==========================================================  =======================================
    on a file system mounted read-only                          any mode: a mounted secret, as of
                                                                Kubernetes, Docker or systemd
    0600, 0400                                                  fine, whoever the owner is
    0640, 0440, of another owner                                fine: the owner granted us access
    others may read it, or group or others may write to it      refused
    ==========================================================  =======================================

    Args:
        path: The file.
        what: Its content, for errors: "the job's connection".

    Raises:
        ConfigurationError: The file is missing, can't be read, or isn't private.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigurationError(
            f"{what} is missing",
            expected=f"file {file}",
            remedy="the driver must have access to that path, and the task that starts it must not end "
            "before: if it was killed, run it again",
        )
    try:
        with file.open() as opened:
            status, mount = os.fstat(opened.fileno()), os.fstatvfs(opened.fileno())
            text = opened.read()
    except PermissionError as error:
        raise ConfigurationError(
            f"file {file} with {what} can't be read",
            expected=f"a file that user id {os.geteuid()} may read",
            found=error.strerror or str(error),
        ) from error
    mode = stat.S_IMODE(status.st_mode)
    mounted = bool(mount.f_flag & os.ST_RDONLY)
    if not mounted and (reason := _not_private(mode, own=status.st_uid == os.geteuid())):
        raise ConfigurationError(
            f"file {file} with {what} {reason}",
            expected="mode 0600; or 0640 and another owner; or a read-only mount",
            found=f"mode 0{mode:o}, owner {status.st_uid}",
            remedy=f"chmod 600 {file}, as its owner",
        )
    return text


def _not_private(mode: int, *, own: bool) -> str:
    """Return why a file's mode doesn't keep a secret private; empty if it does."""
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "can be changed by others"
    if mode & stat.S_IROTH or (own and mode & stat.S_IRGRP):
        return "can be read by others"
    return ""
