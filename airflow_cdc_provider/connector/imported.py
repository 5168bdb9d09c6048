"""Importing other products' settings: rules that say what each becomes here, and do it.

The tables in the docs are made of them. Nothing is dropped silently: a setting is
taken over, or left out with a note, or refused with the reason; a setting at the product's own default is
always accepted, an unknown one refused with the nearest known name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from airflow_cdc_provider.connector.declaration import Connector
from airflow_cdc_provider.exceptions import ConfigurationError

Fate = Literal["taken over", "left out", "refused"]


@dataclass(frozen=True)
class Imported:
    """A declaration made of properties.

    Args:
        connector: The declaration.
        notes: What was left out, a sentence each.
    """

    connector: Connector
    notes: tuple[str, ...]


@dataclass
class Draft:
    """The declaration while it is made.

    Args:
        type: The source's type.
        properties: All settings.
        values: The declaration so far, as plain data.
        notes: Sentences for people.
        include: Patterns of tables.
        exclude: Likewise, what to leave out.
        databases: Patterns of databases (keyspaces).
        excluded_databases: Likewise, what to leave out.
        refused_transforms: Names of transforms that can't be followed, by which their settings begin.
    """

    type: str
    properties: Mapping[str, str]
    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    include: list[str] = field(default_factory=list)
    exclude: list[str] = field(default_factory=list)
    databases: list[str] = field(default_factory=list)
    excluded_databases: list[str] = field(default_factory=list)
    refused_transforms: set[str] = field(default_factory=set)

    def set(self, path: str, value: object) -> None:
        """Set an option given by its dotted place."""
        *parts, last = path.split(".")
        target = self.values
        for part in parts:
            target = target.setdefault(part, {})
        target[last] = value

    def get(self, path: str) -> object:
        """Return an option given by its dotted place, None if it isn't set."""
        target: Any = self.values
        for part in path.split("."):
            target = target.get(part) if isinstance(target, dict) else None
        return target

    def patterns(self, value: str) -> list[str]:
        """Split a list of names: expressions without regard to case, or literals."""
        entries = split_list(value)
        if self.properties.get("filters.match.mode", "regex").strip() == "literal":
            return [re.escape(entry) for entry in entries]
        return [f"(?i:{entry})" for entry in entries]


@dataclass(frozen=True)
class Rule:
    """What happens to a setting.

    Args:
        fate: In a word.
        text: In a sentence or the option's name.
        apply: Does it: takes the draft, the setting's name and its text.
    """

    fate: Fate
    text: str
    apply: Callable[[Draft, str, str], None]


Rules = Mapping[str, Rule]


def find_rule(name: str, rules: Rules) -> Rule:
    """Return a setting's rule: its own, or that of names that share its beginning, the longest first.

    Raises:
        ConfigurationError: The setting is unknown.
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
        expected="a property that is known",
        remedy=f"Did you mean {near[0]}?" if near else "",
    )


def table(rules: Rules) -> str:
    """Write rules as a table for the docs."""
    lines = ["| property | what becomes of it | |", "|---|---|---|"]
    lines += [f"| `{name}` | {rule.fate} | {rule.text} |" for name, rule in sorted(rules.items())]
    return "\n".join(lines) + "\n"


def split_list(value: str) -> list[str]:
    """Split at commas that no backslash precedes."""
    entries = [part.replace("\\,", ",").strip() for part in re.split(r"(?<!\\),", value)]
    return [entry for entry in entries if entry]


def wrong(name: str, expected: str, found: str) -> ConfigurationError:
    """Say that a setting has a wrong value."""
    return ConfigurationError(f"property {name} is wrong", expected=expected, found=repr(found))


def refusal(name: str, value: str, reason: str) -> ConfigurationError:
    """Say that a setting can't be followed; an empty value is not shown."""
    found = repr(value) if value else ""
    return ConfigurationError(f"property {name} can't be followed", found=found, remedy=reason)


def boolean(name: str, value: str) -> bool:
    """Read true or false."""
    if value.lower() not in ("true", "false"):
        raise wrong(name, "true or false", value)
    return value.lower() == "true"


def option(path: str) -> Rule:
    """Take over text as it is."""
    return Rule("taken over", f"`{path}`", lambda draft, name, value: draft.set(path, value))


def name_option(path: str) -> Rule:
    """Take over what leads topics and names files."""

    def apply(draft: Draft, name: str, value: str) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", value):
            raise wrong(name, "letters, digits, _ . and -, at most 100", value)
        draft.set(path, value)

    return Rule("taken over", f"`{path}`", apply)


def flag(path: str) -> Rule:
    """Take over true or false."""
    return Rule("taken over", f"`{path}`", lambda draft, name, value: draft.set(path, boolean(name, value)))


def number(path: str, *, per: float = 1, default: str = "") -> Rule:
    """Take over a whole number, divided by ``per`` (1000 makes ms seconds).

    Args:
        path: The option.
        per: The divisor.
        default: What stands for the default; the option isn't set then.
    """

    def apply(draft: Draft, name: str, value: str) -> None:
        if value == default:
            return
        if not re.fullmatch(r"\d+", value):
            raise wrong(name, "a whole number", value)
        draft.set(path, int(value) if per == 1 else int(value) / per)

    return Rule("taken over", f"`{path}`" + (f"; {default} leaves the default" if default else ""), apply)


def seconds(path: str) -> Rule:
    """Take over milliseconds as seconds; 0 stands for the product's, or the server's, own default."""
    apply = number(path, per=1000, default="0").apply
    return Rule("taken over", f"`{path}`; 0 leaves the default", apply)


def choice(path: str, choices: Mapping[str, object], reason: str = "") -> Rule:
    """Take over a word by a table; None marks words that can't be followed."""

    def apply(draft: Draft, name: str, value: str) -> None:
        word = value.lower()
        if word not in choices:
            raise wrong(name, f"one of {', '.join(choices)}", value)
        mapped = choices[word]
        if mapped is None:
            raise refusal(name, value, reason)
        draft.set(path, mapped)

    text = f"`{path}`"
    refused_words = [word for word, mapped in choices.items() if mapped is None]
    if refused_words:
        text += f"; {', '.join(refused_words)} are refused: {reason}"
    return Rule("taken over", text, apply)


def left_out(reason: str) -> Rule:
    """Leave out what only the product's own process or the connection needs."""
    return Rule(
        "left out",
        reason,
        lambda draft, name, value: draft.notes.append(f"property {name} is left out: {reason}"),
    )


def refused(reason: str, *defaults: str) -> Rule:
    """Refuse every value but the product's default (or an empty one).

    Where there is no default the value isn't shown: any is refused, and some are secrets (a JAAS
    configuration, the password of a keystore).
    """

    def apply(draft: Draft, name: str, value: str) -> None:
        if value and value.lower() not in {default.lower() for default in defaults}:
            raise refusal(name, value if defaults else "", reason)

    shown = " or ".join(f"`{default}`" for default in defaults)
    return Rule("refused", f"{reason}. Accepted: {shown}" if defaults else reason, apply)


def taken(text: str, apply: Callable[[Draft, str, str], None]) -> Rule:
    """Take over what needs code of its own."""
    return Rule("taken over", text, apply)


def read_elsewhere(text: str) -> Rule:
    """Take over together with other settings."""
    return Rule("taken over", text, lambda draft, name, value: None)
