"""Parses arguments of operators and sensors, which may be the text or the value of a rendered template."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.options import NATIVE, RenderedNumber

_TEXTS: Final = frozenset(
    {
        "action",
        "application",
        "archive",
        "cassandra_yaml",
        "group_id",
        "host_id",
        "jars",
        "kafka_conn_id",
        "landing",
        "mode",
        "mongo_conn_id",
        "name",
        "origin",
        "request",
        "scylla_conn_id",
        "signal",
        "signal_id",
        "since",
        "source_conn_id",
        "topic_prefix",
        "until",
        "vitess_conn_id",
        "work_folder",
    }
)
"""Template fields that are declared as text."""


class NativeRendering:
    """Keeps texts in DAGs with ``render_template_as_native_obj``, where a text ``2024`` becomes a number.

    A text without a template stays as it is. An integer that a template's text became is that text again
    where text is declared; for other values the error names the flag. A base of operators and sensors.
    """

    def render_template(self, content: Any, *arguments: Any, **named: Any) -> Any:
        """Render a template, or the templates in a collection."""
        is_text = isinstance(content, str)
        if is_text and not any(mark in content for mark in ("{{", "{%", "{#")):
            return content
        airflow: Any = super()
        value = airflow.render_template(content, *arguments, **named)
        return RenderedNumber(value) if is_text and type(value) is int else value

    def _do_render_template_fields(self, parent: Any, template_fields: Iterable[str], *more: Any) -> None:
        airflow: Any = super()
        airflow._do_render_template_fields(parent, template_fields, *more)
        for name in _TEXTS.intersection(template_fields) if parent is self else ():
            setattr(self, name, _to_text(name, getattr(self, name)))


def _to_text(name: str, value: Any) -> Any:
    """Return a text or a time unchanged, and an integer as its text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, (bool, float, list, tuple, dict)):
        from airflow_cdc_provider.tasks.failures import for_airflow

        raise for_airflow(
            ConfigurationError(
                f"invalid value for {name}", expected="text", found=repr(value)[:80], remedy=NATIVE
            )
        )
    return value


def to_tables(tables: Sequence[str] | str | None) -> tuple[str, ...]:
    """Return table names from a list or from a rendered template's text.

    Raises:
        ConfigurationError: The text is neither a list nor comma-separated names.
    """
    if isinstance(tables, Iterable) and not isinstance(tables, (str, Mapping)):
        return tuple(map(str, tables))
    if not isinstance(tables, (str, RenderedNumber, type(None))):
        raise ConfigurationError(
            "invalid value for tables", expected="a list of names", found=repr(tables)[:80], remedy=NATIVE
        )
    text = "" if tables is None else str(tables).strip()
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
            f"invalid value for {name}", expected="a JSON object", found=type(value).__name__, remedy=NATIVE
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
