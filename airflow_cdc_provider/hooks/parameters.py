"""Values of operators' and sensors' arguments, as given or as the text that a rendered template leaves."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_cdc_provider.exceptions import ConfigurationError


def to_tables(tables: Sequence[str] | str) -> tuple[str, ...]:
    """Return table names from a list or from a rendered template's text.

    Raises:
        ConfigurationError: The text is neither a list nor names with commas.
    """
    if not isinstance(tables, str):
        return tuple(tables)
    text = tables.strip()
    if not text.startswith("["):
        return tuple(name.strip() for name in text.split(",") if name.strip())
    try:
        names = ast.literal_eval(text)
    except (ValueError, SyntaxError) as error:
        raise ConfigurationError("tables is wrong", expected="a list of names", found=text[:80]) from error
    return tuple(map(str, names))


def to_mapping(name: str, value: Mapping[str, Any] | str | None) -> dict[str, Any] | None:
    """Return a mapping from itself or from a rendered template's JSON or Python text, None for nothing.

    Raises:
        ConfigurationError: It is something else.
    """
    if value is None or (isinstance(value, str) and value.strip() in ("", "None", "null")):
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            try:
                value = ast.literal_eval(str(value))
            except (ValueError, SyntaxError) as error:
                raise ConfigurationError(
                    f"{name} is wrong", expected="a JSON object", found=str(value)[:80]
                ) from error
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{name} is wrong", expected="a JSON object", found=type(value).__name__)
    return dict(value)


def to_flag(name: str, value: bool | str) -> bool:
    """Return a flag from itself or from a rendered template's text.

    Raises:
        ConfigurationError: It is neither true nor false.
    """
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise ConfigurationError(f"{name} is wrong", expected="true or false", found=repr(value))
    return text == "true"


def to_number(name: str, value: float | str | None) -> float | None:
    """Return a number from itself or from a rendered template's text, None for nothing.

    Raises:
        ConfigurationError: It is no number, or a negative one.
    """
    if value is None or str(value).strip() in ("", "None"):
        return None
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise ConfigurationError(f"{name} is wrong", expected="a number, 0 or more", found=repr(value))
    return number


def one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    """Return a value that is among those allowed.

    Raises:
        ConfigurationError: It is not.
    """
    if value not in allowed:
        raise ConfigurationError(
            f"option {name} is wrong", expected=f"one of {', '.join(allowed)}", found=repr(value)
        )
    return value
