"""Parses arguments of operators and sensors, which may be the text or the value of a rendered template."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_cdc_provider.connector.declaration import ConnectorLike, to_connector
from airflow_cdc_provider.exceptions import CdcError, ConfigurationError
from airflow_cdc_provider.masking import masked
from airflow_cdc_provider.options import NATIVE, Rendered, rendered, unwrapped, value_of
from airflow_cdc_provider.tasks.failures import for_airflow
from airflow_cdc_provider.tasks.rendered_arguments import Shown, mask_arguments

_MARKS = ("{{", "{%", "{#")


class TemplatedTask:
    """Renders a template to its text, with ``render_template_as_native_obj`` too: a text ``2024`` stays one.

    With that flag Airflow takes each text for a Python literal. Here only an expression that isn't a text
    gives a value that isn't one; where text is declared, its text. A base of operators and sensors.
    """

    def render_template(
        self, content: Any, context: Any, jinja_env: Any = None, seen_oids: set[int] | None = None
    ) -> Any:
        """Render a template, or the templates in a collection; look up what a task or a parameter gives."""
        airflow: Any = super()
        value = airflow.render_template(content, context, jinja_env, seen_oids)
        if isinstance(value, Rendered) and value == content:
            return content
        mapped = value is content and id(content) in (seen_oids or ())
        return rendered(value) if mapped or hasattr(content, "resolve") else value

    def _render(self, template: Any, context: Any, dag: Any = None) -> Any:
        airflow: Any = super()
        if not self._should_render_native(dag or self.get_dag()):  # type: ignore[attr-defined]  # of Airflow's
            return Rendered(airflow._render(template, context, dag))
        nodes = list(template.generate(context))
        value = nodes[0] if len(nodes) == 1 else "".join(map(str, nodes))
        scalar = isinstance(value, (str, bool, int, float))
        return Rendered(str(value), value) if scalar else rendered(value)

    def _do_render_template_fields(
        self, parent: Any, template_fields: Iterable[str], *more: Any, **named: Any
    ) -> None:
        airflow: Any = super()
        shown = ("connector", "conf", "env_vars")
        if parent is self:
            for name in _given_by_a_task(self).intersection(template_fields):
                setattr(self, name, rendered(getattr(self, name)))
            # If a template fails, or gives an invalid value, nothing is registered after it.
            mask_arguments(*(getattr(self, name, None) for name in shown))
        airflow._do_render_template_fields(parent, template_fields, *more, **named)
        if parent is self:
            mask_arguments(*(getattr(self, name, None) for name in shown))
            for name in shown:
                value = getattr(self, name, None)
                if isinstance(value, str) and masked(value) != value:
                    value = value_of(value)
                if isinstance(value, dict):
                    setattr(self, name, Shown(value))
        try:
            for name in _texts(type(self)).intersection(template_fields) if parent is self else ():
                setattr(self, name, _to_text(name, getattr(self, name)))
        except CdcError as error:
            raise for_airflow(error) from None


def _given_by_a_task(task: Any) -> frozenset[str]:
    """Return the arguments that ``expand_kwargs`` took from a task's result."""
    mapped: Any = task.dag.task_dict.get(task.task_id) if task.has_dag() else None
    given = getattr(getattr(mapped, "expand_input", None), "value", None)
    members = given if isinstance(given, (list, tuple)) else (given,)
    if isinstance(given, Mapping) or not any(hasattr(member, "resolve") for member in members):
        return frozenset()
    return frozenset(task.template_fields) - mapped.partial_kwargs.keys()


def _texts(task: type) -> frozenset[str]:
    """Return the arguments that a class of operators or sensors, or a base of it, declares as text."""
    declared: dict[str, Any] = {}
    for base in reversed(task.__mro__[:-1]):
        declared |= {name: given.annotation for name, given in inspect.signature(base).parameters.items()}
    return frozenset(name for name, hint in declared.items() if hint in ("str", "str | None"))


def _to_text(name: str, value: Any) -> Any:
    """Return the text of a value, as without ``render_template_as_native_obj``; None if there is none."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        raise ConfigurationError(
            f"invalid value for {name}", expected="text", found=repr(value)[:80], remedy=NATIVE
        )
    return None if value is None else str(value)


def has_template(value: Any) -> bool:
    """Return whether an argument, or a part of it, is known only when the task runs."""
    if isinstance(value, str):
        return any(mark in value for mark in _MARKS)
    if isinstance(value, Mapping):
        return any(map(has_template, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(has_template, value))
    return callable(value) or hasattr(value, "resolve")


def known_name(connector: ConnectorLike) -> str | None:
    """Return the name of a connector if it is known when the DAG is parsed.

    Raises:
        ConfigurationError: The declaration has no template, and is invalid.
    """
    if not has_template(connector):
        return to_connector(connector).name
    name = connector.get("name") if isinstance(connector, Mapping) else None
    return name if isinstance(name, str) and not has_template(name) else None


def to_tables(tables: Sequence[str] | str | None) -> tuple[str, ...]:
    """Return table names from a list or from a rendered template's text.

    Raises:
        ConfigurationError: The text is neither a list nor comma-separated names.
    """
    names: Any = tables
    if names is None or isinstance(names, str):
        text = (names or "").strip()
        names = value_of(text) if text.startswith("[") else text.split(",")
        names = () if text == "None" else names
    if isinstance(names, (str, Mapping)) or not isinstance(names, Iterable):
        found: Any = names
    else:
        names = tuple(names)
        if all(type(name) in (str, int, Rendered) for name in names):
            return tuple(filter(None, (str(name).strip() for name in names)))
        found = next(name for name in names if type(name) not in (str, int, Rendered))
    raise ConfigurationError(
        "invalid value for tables", expected="a list of names", found=repr(found)[:80], remedy=NATIVE
    )


def to_mapping(name: str, value: Mapping[str, Any] | str | None) -> dict[str, Any] | None:
    """Return a mapping, which may be given as a rendered template's JSON or Python text; None if empty.

    Raises:
        ConfigurationError: The value is neither.
    """
    if value is None or (isinstance(value, str) and value.strip() in ("", "None", "null")):
        return None
    found = value_of(value) if isinstance(value, str) else value
    if not isinstance(found, Mapping):
        raise ConfigurationError(
            f"invalid value for {name}", expected="a JSON object", found=type(found).__name__, remedy=NATIVE
        )
    return dict(unwrapped(found))


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
    text = str(value).strip()
    if text in ("", "None"):
        return None
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise ConfigurationError(
            f"invalid value for {name}", expected="a number, 0 or more", found=repr(value)
        )
    return number


def to_integer(name: str, value: float | str | None) -> int | None:
    """Return an integer, which may be given as a rendered template's text; None if empty.

    Raises:
        ConfigurationError: The value is not an integer, or negative.
    """
    number = to_number(name, value)
    if number is not None and not number.is_integer():
        raise ConfigurationError(
            f"invalid value for {name}", expected="an integer, 0 or more", found=repr(value)
        )
    return None if number is None else int(number)


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
