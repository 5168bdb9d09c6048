"""Options: declared once as dataclass fields, parsed from YAML with errors that name the option.

An options class is a frozen dataclass whose fields are built by :func:`option`; a field may be another
options class, a list or a mapping. :func:`parse` fills it from plain data and rejects unknown options with
the nearest known name. The module imports little on purpose: Airflow imports it when it parses DAG files.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import json
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar

from airflow_cdc_provider.exceptions import ConfigurationError, joined
from airflow_cdc_provider.masking import masked, remember
from airflow_cdc_provider.secret_values import secrets_of
from airflow_cdc_provider.secrets import environment_variable, has_reference, is_reference
from airflow_cdc_provider.yaml_file import parse_yaml

T = TypeVar("T")

_PUBLIC: Final = frozenset(
    {
        *("type", "warehouse", "catalog-impl", "io-impl", "uri", "cache-enabled", "clients", "columns"),
        *("client.region", "s3.endpoint", "s3.path-style-access"),
    }
)
"""Names of settings that are no secrets, in options that may have some."""
_LONGEST_SECONDS: Final = 100 * 366 * 86_400
"""100 years: in microseconds, and around now, it has less than 64 bits."""


NATIVE: Final = (
    "with render_template_as_native_obj=True a template of one expression gives its value, such as a list, "
    "not a text"
)
"""Explains where a value may come from that is no text."""


class Rendered(str):
    """What a template became: its text; where no text is declared, the value of that text.

    Args:
        text: The text.
        value: The value of the template's only expression, if it isn't a text itself.
    """

    value: Any

    def __new__(cls, text: str, value: Any = None) -> Rendered:
        """Keep both."""
        rendered = super().__new__(cls, text)
        rendered.value = text if value is None else value
        return rendered


def value_of(text: str) -> Any:
    """Return the value that a text is the JSON or Python notation of; the text itself if it is none.

    Of what a template became, all texts are such ones, too.
    """
    for read in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return rendered(read(text)) if isinstance(text, Rendered) else read(text)
    return text


def rendered(value: Any) -> Any:
    """Return plain data whose texts are :class:`Rendered`."""
    if isinstance(value, str):
        return value if isinstance(value, Rendered) else Rendered(value)
    if isinstance(value, Mapping):  # Airflow's params aren't a dict, and their items are no values
        return {rendered(k) if isinstance(k, str) else k: rendered(value[k]) for k in value}
    return [rendered(member) for member in value] if isinstance(value, (list, tuple)) else value


def require_no_reference(value: object, path: str) -> None:
    """Refuse a reference in what a template became: who triggers a DAG would read the machine's secrets.

    Raises:
        ConfigurationError: There is one.
    """
    if isinstance(value, Rendered) and ("${env:" in value or "${file:" in value):
        raise ConfigurationError(
            f"invalid value for {f'option {path}' if path else 'an option'}",
            expected="no ${env:NAME} or ${file:PATH} in what a template, a parameter or a task gives",
            remedy="write the reference into the DAG, or into the file of the declaration",
        )


def unwrapped(value: Any, path: str = "") -> Any:
    """Return plain data with what each template in it gave: a text stays one.

    Args:
        value: The data.
        path: Path of its option, for messages.

    Raises:
        ConfigurationError: A template gave a reference.
    """
    require_no_reference(value, path)
    if isinstance(value, Rendered):
        return value.value
    if isinstance(value, Mapping):
        members = ((k.value if isinstance(k, Rendered) else k, v) for k, v in value.items())
        return {k: unwrapped(v, _join(path, str(k))) for k, v in members}
    return [unwrapped(member, path) for member in value] if isinstance(value, (list, tuple)) else value


def option(
    doc: str,
    default: Any = dataclasses.MISSING,
    *,
    choices: Sequence[object] = (),
    minimum: float | None = None,
    check: Callable[[Any], str] | None = None,
    read: Callable[[Any], Any] | None = None,
    secret: bool | Callable[[Any], Iterable[str]] = False,
) -> Any:
    """Declare one option.

    Args:
        doc: Description for the options table in the docs.
        default: Value when the option is absent; an option without a default is required. A list, mapping or
            options class is copied for each use.
        choices: All allowed values.
        minimum: Smallest allowed number.
        check: Returns what is expected if the value is invalid, else an empty string.
        read: Converts an alternative notation to the field's type; returns any other value unchanged.
        secret: Never show the value, which is a string, or a mapping of which some values are secret.
            References to secrets stay; they are resolved where they are used. A function returns the secrets
            in a member of a mapping, whose references are those of other options.

    Returns:
        A dataclass field.
    """
    metadata = {
        "doc": doc,
        "choices": tuple(choices),
        "minimum": minimum,
        "check": check,
        "read": read,
        "secret": secret,
    }
    in_repr = not secret
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata, repr=in_repr)
    if isinstance(default, (list, dict)):
        return dataclasses.field(
            default_factory=lambda: type(default)(default), metadata=metadata, repr=in_repr
        )
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=metadata, repr=in_repr)
    return dataclasses.field(default=default, metadata=metadata, repr=in_repr)


@lru_cache(maxsize=256)
def _hints(cls: type) -> Mapping[str, Any]:
    return typing.get_type_hints(cls)


def parse(cls: type[T], values: object, path: str = "") -> T:
    """Build an options class from plain data.

    Args:
        cls: The options class.
        values: The parsed YAML.
        path: Dotted path of the options within the declaration, for messages.

    Raises:
        ConfigurationError: Unknown options, missing or invalid values; the message names each option.
    """
    where = path or "the declaration"
    if not isinstance(values, Mapping):
        raise ConfigurationError(
            f"invalid value for {where}", expected="a mapping of options", found=_show(values)
        )
    hints = _hints(cls)  # type: ignore[arg-type]
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]  # cls is a dataclass
    problems = [
        ConfigurationError(
            f"unknown option {_join(path, str(name))}",
            expected=f"one of {', '.join(sorted(fields))}",
            remedy=_suggest(str(name), fields),
        )
        for name in values
        if name not in fields
    ]
    built: dict[str, Any] = {}
    for name, spec in fields.items():
        option_path = _join(path, name)
        if name in values:
            try:
                built[name] = _read(spec, hints[name], values[name], option_path)
            except ConfigurationError as error:
                problems.append(error)
        elif spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            problems.append(
                ConfigurationError(
                    f"option {option_path} is missing", expected=str(spec.metadata.get("doc", "a value"))
                )
            )
    if problems:
        raise joined(problems)
    return cls(**built)


def check_option(cls: Any, path: str, value: object, section: str = "") -> None:
    """Check a value for one option, whatever the others are.

    Args:
        cls: An options class.
        path: Dotted path of the option within it.
        value: The value in plain data.
        section: Dotted path of the options class within the declaration, for messages.

    Raises:
        ConfigurationError: The value is invalid; the message names the option.
    """
    *groups, name = path.split(".")
    for group in groups:
        cls = _hints(cls)[group]
    (spec,) = (field for field in dataclasses.fields(cls) if field.name == name)
    _read(spec, _hints(cls)[name], value, _join(section, path))


def _read(spec: dataclasses.Field[Any], hint: Any, given: object, path: str) -> Any:
    """Return an option's value, converted to the type of its field."""
    if spec.metadata.get("secret"):
        value = _secret(hint, given, path, spec.metadata["secret"])
        _check(spec, value, path)
        return value
    with _unshown(given, path):
        given = from_environment(hint, given, path)
        if read := spec.metadata.get("read"):
            given = read(given)
        value = _value(hint, given, path)
        _check(spec, value, path)
        return value


@contextlib.contextmanager
def _unshown(given: object, path: str) -> Iterator[None]:
    """Keep the value of an environment variable out of the errors of the option that refers to it."""
    try:
        yield
    except ConfigurationError as error:
        if variable := environment_variable(given) if isinstance(given, str) else "":
            shown = without_environment(error, given)
            found = f"environment variable {variable}"
            raise ConfigurationError(
                shown.message, expected=shown.expected, found=found, remedy=shown.remedy
            ) from None
        raise


def without_environment(error: ConfigurationError, given: object) -> ConfigurationError:
    """Return an error of a declaration without the values of the environment variables that it refers to.

    Args:
        error: The error.
        given: The declaration, or a part of it, in plain data.
    """
    parts = [error.message, error.expected, error.found, error.remedy]
    for one in _leaves(given, text=False):
        if text := os.environ.get(environment_variable(one)):
            for leaf in filter(None, _leaves(text)):
                pattern = re.compile(rf"(?<!\w){re.escape(leaf)}(?!\w)")
                shown = one.replace("\\", r"\\")
                parts = [pattern.sub(shown, part) for part in parts]
    message, expected, found, remedy = parts
    return ConfigurationError(message, expected=expected, found=found, remedy=remedy)


def _leaves(value: object, *, text: bool = True) -> list[str]:
    """Return all texts and numbers in plain data, names included; of a text also those of its YAML."""
    if isinstance(value, str) and text:
        import yaml

        with contextlib.suppress(yaml.YAMLError):
            return [value, *_leaves(parse_yaml(value), text=False)]
    if isinstance(value, Mapping):
        return [leaf for pair in value.items() for one in pair for leaf in _leaves(one, text=False)]
    if isinstance(value, (list, tuple)):
        return [leaf for one in value for leaf in _leaves(one, text=False)]
    return [str(value)]


def _secret(hint: Any, given: object, path: str, secret: Any) -> Any:
    """Return a secret, or a mapping that has some, with references to secrets; no error has a value."""
    require_no_reference(given, path)
    if isinstance(given, str) and hint is not str:
        given = from_environment(hint, given, path)
    if isinstance(given, Mapping) and hint is not str:
        member = typing.get_args(hint)[1]
        if callable(secret):
            found = {
                str(name): _member(member, value, _join(path, str(name))) for name, value in given.items()
            }
            remember([list(secret(value)) for value in found.values()], secret=True)
            return found
        return {str(name): _member_of_secrets(member, name, value, path) for name, value in given.items()}
    if not isinstance(given, str) or hint is not str:
        expected = "a string; quote it in YAML if necessary" if hint is str else "a mapping"
        raise ConfigurationError(f"invalid value for option {path}", expected=expected)
    text = os.environ.get(environment_variable(given), "") if is_reference(given) else given
    remember(text, secret=True)
    return str(given)


def _member_of_secrets(hint: Any, name: object, given: object, path: str) -> Any:
    path = _join(path, str(name))
    require_no_reference(given, path)
    if isinstance(given, str) and (text := os.environ.get(environment_variable(given))) is not None:
        if is_public(name, text):
            return text
        remember(text, secret=True)
    elif isinstance(given, str) and has_reference(given) and not is_reference(given):
        raise ConfigurationError(
            f"invalid value for option {path}", expected="a reference to a secret as the whole value"
        )
    elif not isinstance(given, str) and hint is str:
        raise ConfigurationError(
            f"invalid value for option {path}", expected="a string; quote it in YAML if necessary"
        )
    elif not (isinstance(given, str) and is_reference(given)) and not is_public(name, given):
        remember(given, secret=True)
    return unwrapped(given, path) if hint is Any else given


def from_environment(hint: Any, value: object, path: str) -> object:
    """Return an option's value; for ``${env:NAME}`` the value of that variable, for a template its value.

    Args:
        hint: The option's type. The variable of a string option is used verbatim, any other is parsed as
            YAML.
        value: The value in the declaration.
        path: The option's dotted path, for messages.

    Raises:
        ConfigurationError: The variable is not set, or is not valid YAML; or a template gave the reference.
    """
    require_no_reference(value, path)
    is_text = _is_text(hint)
    variable = environment_variable(value) if isinstance(value, str) else ""
    if not variable:
        if not isinstance(value, Rendered) or hint in (Any, object):
            return value
        return str(value) if is_text else value_of(value)
    text = os.environ.get(variable)
    if text is None:
        raise ConfigurationError(
            f"option {path} refers to an environment variable that is not set",
            expected=variable,
            remedy="set it wherever the declaration is loaded: Airflow workers, DAG processor, CLI",
        )
    if is_text:
        return text
    import yaml

    try:
        return parse_yaml(text)
    except yaml.YAMLError:  # its text quotes the content
        raise ConfigurationError(
            f"invalid value for option {path}",
            expected="valid YAML",
            found=f"environment variable {variable}",
        ) from None


def _is_text(hint: Any) -> bool:
    members = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return all(isinstance(choice, str) for choice in members)
    return hint is str or (str in members and type(None) in members)


def to_plain(options: object) -> Any:
    """Convert an options object back to plain data without the options that have their default."""
    if dataclasses.is_dataclass(options) and not isinstance(options, type):
        plain: dict[str, Any] = {}
        for spec in dataclasses.fields(options):
            value = getattr(options, spec.name)
            default = spec.default if spec.default_factory is dataclasses.MISSING else spec.default_factory()
            if value != default:
                plain[spec.name] = to_plain(value)
        return plain
    if isinstance(options, Mapping):
        return {k: to_plain(v) for k, v in options.items()}
    if isinstance(options, (list, tuple)):
        return [to_plain(v) for v in options]
    return options


def secret_settings(settings: Mapping[str, Any]) -> list[Any]:
    """Return the values of settings that may be secrets."""
    return [value for name, value in settings.items() if not is_public(name, value)]


def is_public(name: object, value: object) -> bool:
    """Return whether a setting of a catalog or of a custom class is no secret; of other names it is one."""
    if value is None or isinstance(value, bool) or value in ("true", "false", ""):
        return True
    return name in _PUBLIC and not secrets_of({name: value})


def literal_secrets(options: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Return secrets that are given literally, not by reference, each after its path in the plain data."""
    if dataclasses.is_dataclass(options) and not isinstance(options, type):
        for spec in dataclasses.fields(options):
            value, place = getattr(options, spec.name), (*path, spec.name)
            if not spec.metadata.get("secret"):
                yield from literal_secrets(value, place)
            elif isinstance(value, str):
                if value and not is_reference(value):
                    yield place, value
            else:
                for name, member in value.items():
                    reference = isinstance(member, str) and is_reference(member)
                    secret = spec.metadata["secret"]
                    if not reference and (
                        secret(member) if callable(secret) else not is_public(name, member)
                    ):
                        yield (*place, name), member
    elif isinstance(options, tuple):
        for number, member in enumerate(options):
            yield from literal_secrets(member, (*path, number))


def _value(hint: Any, value: object, path: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        members = typing.get_args(hint)
        if value is None and type(None) in members:
            return None
        return _value(next(m for m in members if m is not type(None)), value, path)
    if origin is typing.Literal:
        allowed = typing.get_args(hint)
        if value not in allowed:
            text = ", ".join(map(str, allowed))
            raise ConfigurationError(
                f"invalid value for option {path}",
                expected=f"one of {text}",
                found=_show(value),
                remedy=_suggest(str(value), {str(a): None for a in allowed}),
            )
        return value
    if dataclasses.is_dataclass(hint):
        return parse(typing.cast("type[Any]", hint), {} if value is None else value, path)
    if origin in (list, tuple, Sequence) or hint in (list, tuple):
        if not isinstance(value, (list, tuple)):
            raise ConfigurationError(
                f"invalid value for option {path}", expected="a list", found=_show(value)
            )
        member = (typing.get_args(hint) or (object,))[0]
        return tuple(_member(member, v, f"{path}[{i}]") for i, v in enumerate(value))
    if origin in (dict, Mapping) or hint is dict:
        if not isinstance(value, Mapping):
            raise ConfigurationError(
                f"invalid value for option {path}", expected="a mapping", found=_show(value)
            )
        member = (typing.get_args(hint) or (str, object))[1]
        return {str(k): _member(member, v, _join(path, str(k))) for k, v in value.items()}
    if hint is Any:
        return unwrapped(value, path)
    return value if hint is object else _scalar(hint, value, path)


def _member(hint: Any, value: object, path: str) -> Any:
    if hint in (Any, object):  # untyped: its reader validates it
        return _value(hint, value, path)
    with _unshown(value, path):
        return _value(hint, from_environment(hint, value, path), path)


_NAMES = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}


def _scalar(hint: Any, value: object, path: str) -> object:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, bool):
        pass
    elif isinstance(value, hint):
        return value
    raise ConfigurationError(
        f"invalid value for option {path}",
        expected=_NAMES.get(hint, hint.__name__),
        found=_show(value),
        remedy=f"Quote it in YAML; {NATIVE}" if hint is str else "",
    )


def _check(spec: dataclasses.Field[Any], value: object, path: str) -> None:
    choices, minimum, check = (spec.metadata.get(k) for k in ("choices", "minimum", "check"))
    if choices and value not in choices:
        raise ConfigurationError(
            f"invalid value for option {path}",
            expected=f"one of {', '.join(map(str, choices))}",
            found=_show(value),
            remedy=_suggest(str(value), {str(c): None for c in choices}),
        )
    if isinstance(value, (int, float)):
        most = _LONGEST_SECONDS if path.endswith("_seconds") else None
        limits = [f"at least {minimum}"] if minimum is not None and not value >= minimum else []
        limits += [f"at most {most}"] if most is not None and not value <= most else []
        if limits:
            raise ConfigurationError(
                f"invalid value for option {path}", expected=" and ".join(limits), found=_show(value)
            )
    if check is not None and (expected := check(value)):
        shown = "" if spec.metadata.get("secret") else _show(value)
        raise ConfigurationError(f"invalid value for option {path}", expected=expected, found=shown)


def _suggest(name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"Did you mean {near[0]}?" if near else ""


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _show(value: object) -> str:
    text = masked(repr(value))
    return f"{text[:80]} ({type(value).__name__})"
