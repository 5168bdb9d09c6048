"""Secrets by reference: options that hold one may name the place where it is instead.

=================  ==================================================================
``${env:NAME}``    environment variable of the process that needs it, a job's driver
``${file:PATH}``   a file with mode 0600 or a mounted secret; a newline at its end is no part of it
anything else      the secret itself: fit for a laptop, shown nowhere
=================  ==================================================================

No error raised here shows a secret.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from airflow_cdc_provider.exceptions import ConfigurationError

_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")


def is_reference(value: str) -> bool:
    """Tell whether a value names the place of a secret."""
    return _REFERENCE.fullmatch(value) is not None


def resolve_secret(value: str, option: str) -> str:
    """Return a secret, wherever it is.

    Args:
        value: The option's value.
        option: The option's name, for errors.

    Raises:
        ConfigurationError: Nothing is there, or the file can be read by others.
    """
    match = _REFERENCE.fullmatch(value)
    if match is None:
        return value
    place = match.group(2)
    if match.group(1) == "env":
        found = os.environ.get(place, "")
        if not found:
            raise ConfigurationError(
                f"the secret of option {option} is missing",
                expected=f"environment variable {place}",
                remedy="set it where the job's driver runs, or use ${file:PATH}",
            )
        return found
    return read_private(place, f"the secret of option {option}").rstrip("\r\n")


def read_private(path: str, what: str) -> str:
    """Read a file that only its owner may read.

    Args:
        path: The file.
        what: What it holds, for errors: "the job's connection".

    Raises:
        ConfigurationError: There is no such file, or others may read it too.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigurationError(
            f"{what} is missing", expected=f"file {file}", remedy="the driver must see that path"
        )
    mode = file.stat().st_mode & 0o777
    if mode & 0o077:
        raise ConfigurationError(
            f"file {file} with {what} can be read by others",
            expected="mode 0600",
            found=oct(mode),
            remedy=f"chmod 600 {file}",
        )
    return file.read_text()
