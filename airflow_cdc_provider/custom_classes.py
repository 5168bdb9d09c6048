"""Loads custom functions and classes, which a declaration names as ``package.module:name``.

They must be importable on Airflow's workers and on Spark's driver and executors. Loading one executes its
module, with the permissions of that process.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError

IMPORT_PATH: Final = "package.module:function or package.module:Class"
_IMPORT_PATH: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def invalid_import_path(value: str) -> str:
    """Return the expected form, if a text is neither empty nor an import path; for checks of options."""
    return "" if not value or _IMPORT_PATH.fullmatch(value) else f"{IMPORT_PATH}, in Python"


def load_custom(what: str, path: str) -> Callable[..., Any]:
    """Load a function or class.

    Args:
        what: Its purpose, for the message.
        path: Its import path.

    Raises:
        ConfigurationError: It can't be imported, or isn't callable.
    """
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name) if module and name else None
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"{what} can't be loaded",
            expected=f"{IMPORT_PATH} that this Python can import",
            found=f"{path}: {error}",
        ) from error
    if not callable(found):
        raise ConfigurationError(f"{what} can't be loaded", expected=IMPORT_PATH, found=repr(path))
    loaded: Callable[..., Any] = found
    return loaded
