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

PLACE: Final = "package.module:function or package.module:Class"
_PLACE: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def wrong_place(value: str) -> str:
    """Return the expected form, if a text is neither empty nor an import path; for checks of options."""
    return "" if not value or _PLACE.fullmatch(value) else f"{PLACE}, in Python"


def load_plugin(what: str, place: str) -> Callable[..., Any]:
    """Load a function or class.

    Args:
        what: Its purpose, for the message.
        place: Its import path.

    Raises:
        ConfigurationError: It can't be imported, or isn't callable.
    """
    module, _, name = place.partition(":")
    try:
        found = getattr(importlib.import_module(module), name) if module and name else None
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"{what} can't be loaded",
            expected=f"{PLACE} that this Python can import",
            found=f"{place}: {error}",
        ) from error
    if not callable(found):
        raise ConfigurationError(f"{what} can't be loaded", expected=PLACE, found=repr(place))
    loaded: Callable[..., Any] = found
    return loaded
