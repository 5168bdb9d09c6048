"""What all connections' settings have in common: flags, and files.

Whoever edits a connection chooses its values. A flag that is read as another one can disable TLS, and a file
that never ends, such as a device or a pipe, holds the process that opens it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.regular_files import read_small

FLAG: Final = "true or false"
_FILE: Final = "a file of at most 1 MiB, on each machine that connects: Airflow's workers, Spark's driver"


def parse_flag(value: object) -> bool:
    """Return the value of a flag: JSON's true and false, or these words in lower case.

    Raises:
        ValueError: It is anything else.
    """
    if isinstance(value, bool):
        return value
    if value not in ("true", "false"):
        raise ValueError(FLAG)
    return value == "true"


def flag(settings: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    """Return a flag of a connection; the default if it isn't set.

    Raises:
        ConfigurationError: Its value is neither true nor false.
    """
    value = settings.get(name)
    if value is None or value == "":
        return default
    try:
        return parse_flag(value)
    except ValueError:
        raise ConfigurationError(
            f"invalid value for {name} in the connection's extra",
            expected=FLAG,
            found=repr(value)[:40],
            remedy="correct the extra of the Airflow connection",
        ) from None


def read_file(path: object, setting: str) -> bytes:
    """Return the content of a file that a connection names.

    Raises:
        ConfigurationError: It can't be read, isn't a regular file, or is too large.
    """
    try:
        return read_small(str(path))
    except (OSError, ValueError) as error:
        raise _unusable(path, setting, error) from None


def check_files(settings: Mapping[str, Any], *names: str, folders: bool = False) -> None:
    """Refuse files that a library must not open: they never end, or are large. Others have its own errors.

    Args:
        settings: The settings of a connection.
        names: Those of files.
        folders: Whether they may be folders, too.

    Raises:
        ConfigurationError: One isn't a regular file, or is too large.
    """
    for name in names:
        path = settings.get(name)
        if not isinstance(path, str) or not path:
            continue
        try:
            if not (folders and "\0" not in path and os.path.isdir(path)):
                read_small(path)
        except (FileNotFoundError, PermissionError):
            continue
        except (OSError, ValueError) as error:
            raise _unusable(path, name, error) from None


def _unusable(path: object, setting: str, error: OSError | ValueError) -> ConfigurationError:
    found = str(error.strerror) if isinstance(error, OSError) else "not a path"
    return ConfigurationError(
        f"{setting} {path!s} can't be read", expected=_FILE, found=found, remedy=f"correct {setting}"
    )
