"""Parses arguments of operators and sensors, which may be the text of a rendered template."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_cdc_provider.exceptions import ConfigurationError


def to_tables(tables: Sequence[str] | str) -> tuple[str, ...]:
    """Return table names from a list or from a rendered template's text.

    Raises:
        ConfigurationError: The text is neither a list nor comma-separated names.
    """
    if not isinstance(tables, str):
        return tuple(tables)
    text = tables.strip()
    if not text.startswith("["):
        return tuple(name.strip() for name in text.split(",") if name.strip())
    try:
        names = ast.literal_eval(text)
    except (ValueError, SyntaxError) as error:
        raise ConfigurationError(
            "invalid value for tables", expected="a list of names", found=text[:80]
        ) from error
    return tuple(map(str, names))


def to_mapping(name: str, value: Mapping[str, Any] | str | None) -> dict[str, Any] | None:
    """Return a mapping, which may be given as a rendered template's JSON or Python text; None if empty.

    Raises:
        ConfigurationError: The value is neither.
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
                    f"invalid value for {name}", expected="a JSON object", found=str(value)[:80]
                ) from error
    if not isinstance(value, Mapping):
        raise ConfigurationError(
            f"invalid value for {name}", expected="a JSON object", found=type(value).__name__
        )
    return dict(value)


def to_flag(name: str, value: bool | str) -> bool:
    """Return a flag, which may be given as a rendered template's text.

    Raises:
        ConfigurationError: The value is neither true nor false.
    """
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise ConfigurationError(f"invalid value for {name}", expected="true or false", found=repr(value))
    return text == "true"


def to_number(name: str, value: float | str | None) -> float | None:
    """Return a number, which may be given as a rendered template's text; None if empty.

    Raises:
        ConfigurationError: The value is not a number, or negative.
    """
    if value is None or str(value).strip() in ("", "None"):
        return None
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise ConfigurationError(
            f"invalid value for {name}", expected="a number, 0 or more", found=repr(value)
        )
    return number


def one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    """Return a value if it is one of those allowed.

    Raises:
        ConfigurationError: It is not.
    """
    if value not in allowed:
        raise ConfigurationError(
            f"invalid value for option {name}", expected=f"one of {', '.join(allowed)}", found=repr(value)
        )
    return value
