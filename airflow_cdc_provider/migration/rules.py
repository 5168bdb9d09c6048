"""Rules that translate other products' settings to a connector declaration.

The tables in the docs are generated from these rules. No setting is dropped silently: it is imported, ignored
with a note, or rejected as unsupported with the reason. A setting at the product's own default is always
accepted; an unknown setting is rejected with the nearest known name.
"""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from airflow_cdc_provider.connector.declaration import Connector, check_declared
from airflow_cdc_provider.connector.publish.vitess import split_expressions
from airflow_cdc_provider.exceptions import ConfigurationError, reworded

Outcome = Literal["imported", "ignored", "unsupported"]


@dataclass(frozen=True)
class Imported:
    """A connector declaration translated from properties.

    Args:
        connector: The connector declaration.
        notes: Ignored properties and other remarks, one sentence each.
    """

    connector: Connector
    notes: tuple[str, ...]


@dataclass
class Draft:
    """A connector declaration under construction.

    Args:
        type: The source's type.
        properties: All properties.
        values: The declaration so far, as plain data.
        notes: Remarks for the user.
        include: Patterns of tables to capture.
        exclude: Patterns of tables to exclude.
        databases: Patterns of databases (keyspaces) to capture.
        excluded_databases: Patterns of databases (keyspaces) to exclude.
        unsupported_transforms: Property prefixes of unsupported transforms.
        property: The property that is being imported.
    """

    type: str
    properties: Mapping[str, str]
    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    include: list[str] = field(default_factory=list)
    exclude: list[str] = field(default_factory=list)
    databases: list[str] = field(default_factory=list)
    excluded_databases: list[str] = field(default_factory=list)
    unsupported_transforms: set[str] = field(default_factory=set)
    property: str = ""

    def apply(self, rule: Rule, name: str, value: str) -> None:
        """Import a property.

        Raises:
            ConfigurationError: It can't be imported; the message names it.
        """
        before, self.property = self.property, without_salt(name)
        try:
            rule.apply(self, name, value.strip())
        finally:
            self.property = before

    def set(self, path: str, value: object) -> None:
        """Set an option by its dotted path.

        Raises:
            ConfigurationError: The declaration refuses the value; the message names the property.
        """
        try:
            check_declared(self.type, path, value)
        except ConfigurationError as error:
            raise reworded(error, f"property {self.property} can't be imported: {error.message}") from error
        *parts, last = path.split(".")
        target = self.values
        for part in parts:
            target = target.setdefault(part, {})
        target[last] = value

    def get(self, path: str) -> object:
        """Return an option by its dotted path; None if it isn't set."""
        target: Any = self.values
        for part in path.split("."):
            target = target.get(part) if isinstance(target, dict) else None
        return target

    def patterns(self, name: str, value: str) -> list[str]:
        """Split a property's list of names: case-insensitive regular expressions, or literals."""
        if self.properties.get("filters.match.mode", "regex").strip().lower() == "literal":
            return [re.escape(entry) for entry in split_list(value)]
        return java_patterns(name, value)


@dataclass(frozen=True)
class Rule:
    """Translation of one property.

    Args:
        outcome: Kind of translation.
        text: Explanation, or name of the option, for the docs.
        apply: Applies the property to a draft; called with the draft, the property's name and its value.
    """

    outcome: Outcome
    text: str
    apply: Callable[[Draft, str, str], None]


Rules = Mapping[str, Rule]


def find_rule(name: str, rules: Rules) -> Rule:
    """Return the rule of a property: by its full name, else by the longest matching ``prefix*``.

    Raises:
        ConfigurationError: The property is unknown.
    """
    if name in rules:
        return rules[name]
    families = sorted((rule for rule in rules if rule.endswith("*")), key=len, reverse=True)
    family = next((family for family in families if name.startswith(family[:-1])), None)
    if family is not None:
        return rules[family]
    near = difflib.get_close_matches(name, list(rules), n=1, cutoff=0.0)
    raise ConfigurationError(
        f"unknown property {name}",
        expected="a known property",
        remedy=f"Did you mean {near[0]}?" if near else "",
    )


def table(rules: Rules) -> str:
    """Format rules as a Markdown table for the docs."""
    lines = ["| property | translation | |", "|---|---|---|"]
    lines += [f"| `{name}` | {rule.outcome} | {rule.text} |" for name, rule in sorted(rules.items())]
    return "\n".join(lines) + "\n"


def without_salt(name: str) -> str:
    """Return a property's name for messages: a mask's without the salt, which is part of it."""
    return name.partition(".with.salt.")[0]


def split_list(value: str) -> list[str]:
    """Split a list at commas that are not escaped by a backslash."""
    entries = [part.replace("\\,", ",").strip() for part in re.split(r"(?<!\\),", value)]
    return [entry for entry in entries if entry]


def java_patterns(name: str, value: str) -> list[str]:
    """Split a property's list of Java's regular expressions; see :func:`java_pattern`."""
    return [java_pattern(name, entry.replace("\\,", ",")) for entry in split_expressions(value)]


def java_pattern(name: str, pattern: str) -> str:
    """Return Java's regular expression as a case-insensitive one of Python.

    Raises:
        ConfigurationError: Python can't read it, or would read it differently.
    """
    python = re.sub(r"^\(\?[iu]+\)", "", pattern)
    python = re.sub(r"\\Q(.*?)(?:\\E|$)", lambda found: re.escape(found[1]), python)
    python = re.sub(r"\(\?<(?![=!])", "(?P<", python)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)
            re.compile(python)
    except (re.error, FutureWarning) as error:
        raise invalid(name, f"regular expressions that Python supports too ({error})", pattern) from error
    return f"(?i:{python})"


def invalid(name: str, expected: str, found: str) -> ConfigurationError:
    """Return the error for an invalid value."""
    return ConfigurationError(f"invalid value for property {name}", expected=expected, found=repr(found))


def unsupported_error(name: str, value: str, reason: str) -> ConfigurationError:
    """Return the error for an unsupported property; an empty value is not shown."""
    found = repr(value) if value else ""
    return ConfigurationError(f"property {name} is not supported", found=found, remedy=reason)


def integer(name: str, value: str, *, minimum: int = 0) -> int:
    """Parse an integer of at most 64 bits.

    Raises:
        ConfigurationError: It is none, or less than the minimum.
    """
    number = int(value) if re.fullmatch(r"-?[0-9]{1,19}", value) else minimum - 1
    if not minimum <= number < 1 << 63:
        raise invalid(name, f"an integer of 64 bits, at least {minimum}", value[:80])
    return number


def boolean(name: str, value: str) -> bool:
    """Parse ``true`` or ``false``."""
    if value.lower() not in ("true", "false"):
        raise invalid(name, "true or false", value)
    return value.lower() == "true"


def option(path: str) -> Rule:
    """Import text unchanged."""
    return Rule("imported", f"`{path}`", lambda draft, name, value: draft.set(path, value))


def name_option(path: str) -> Rule:
    """Import a name that is used in topic and file names."""

    def apply(draft: Draft, name: str, value: str) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", value):
            raise invalid(name, "letters, digits, _ . and -, at most 100", value)
        draft.set(path, value)

    return Rule("imported", f"`{path}`", apply)


def flag(path: str) -> Rule:
    """Import ``true`` or ``false``."""
    return Rule("imported", f"`{path}`", lambda draft, name, value: draft.set(path, boolean(name, value)))


def number(path: str, *, per: float = 1, default: str = "", minimum: int = 0) -> Rule:
    """Import an integer, divided by ``per`` (1000 converts ms to seconds).

    Args:
        path: The option.
        per: The divisor.
        default: Value that represents the default; the option isn't set then.
        minimum: Smallest allowed integer.
    """

    def apply(draft: Draft, name: str, value: str) -> None:
        if value == default:
            return
        found = integer(name, value, minimum=minimum)
        draft.set(path, found if per == 1 else found / per)

    return Rule("imported", f"`{path}`" + (f"; {default} leaves the default" if default else ""), apply)


def seconds(path: str) -> Rule:
    """Import milliseconds as seconds; 0 represents the default of the product or the server."""
    apply = number(path, per=1000, default="0").apply
    return Rule("imported", f"`{path}`; 0 leaves the default", apply)


def choice(path: str, choices: Mapping[str, object], reason: str = "") -> Rule:
    """Import an enumerated value; None marks unsupported values."""

    def apply(draft: Draft, name: str, value: str) -> None:
        word = value.lower()
        if word not in choices:
            raise invalid(name, f"one of {', '.join(choices)}", value)
        mapped = choices[word]
        if mapped is None:
            raise unsupported_error(name, value, reason)
        draft.set(path, mapped)

    text = f"`{path}`"
    unsupported_words = [word for word, mapped in choices.items() if mapped is None]
    if unsupported_words:
        text += f"; {', '.join(unsupported_words)} are not supported: {reason}"
    return Rule("imported", text, apply)


def ignored(reason: str) -> Rule:
    """Ignore a property that concerns only the product's own process, or the connection."""
    return Rule(
        "ignored",
        reason,
        lambda draft, name, value: draft.notes.append(f"property {name} is ignored: {reason}"),
    )


def unsupported(reason: str, *defaults: str) -> Rule:
    """Reject all values except the product's default (or an empty one).

    Without a default the value isn't shown, because some are secrets (a JAAS configuration, the password of a
    keystore).
    """

    def apply(draft: Draft, name: str, value: str) -> None:
        if value and value.lower() not in {default.lower() for default in defaults}:
            raise unsupported_error(name, value if defaults else "", reason)

    accepted = " or ".join(f"`{default}`" for default in defaults)
    return Rule("unsupported", f"{reason}. Accepted: {accepted}" if defaults else reason, apply)


def custom_rule(text: str, apply: Callable[[Draft, str, str], None]) -> Rule:
    """Import with a custom function."""
    return Rule("imported", text, apply)


def handled_elsewhere(text: str) -> Rule:
    """Imported by the rule of another property."""
    return Rule("imported", text, lambda draft, name, value: None)


def _excluded(draft: Draft, name: str, value: str) -> None:
    columns = split_list(value)
    for column in columns:
        if len(column.split(".")) < 3 or re.search(r"[*+?()\[\]{}|^$\\]", column):
            raise invalid(name, "keyspace.table.column each, without regular expressions", column)
    before = draft.get("publish.exclude_columns")
    draft.set("publish.exclude_columns", [*(before if isinstance(before, list) else ()), *columns])


EXCLUDED_COLUMNS: Final = custom_rule("`publish.exclude_columns`", _excluded)
"""Rule of Cassandra's lists of columns to exclude from values."""
