"""Rules for Kafka Connect's ``topic.creation.*`` properties; imported to ``publish.topics``.

As in Kafka Connect, groups are matched in the order of ``topic.creation.groups``, group ``default`` last. A
group inherits partitions and replication factor from ``default``, but no other settings.
"""

from __future__ import annotations

import re
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration.rules import Draft, Rule, custom_rule, flag, integer, invalid, split_list

_PREFIX: Final = "topic.creation."
_DEFAULT: Final = "default"
_COUNTS: Final = {"partitions": "partitions", "replication.factor": "replication"}


def _groups(draft: Draft, name: str, value: str) -> None:
    names = split_list(value)
    if len(set(names)) < len(names) or _DEFAULT in names:
        raise invalid(name, "unique names of groups other than default", value)
    draft.set("publish.topics.groups", [_group(draft, group) for group in names])


def _group(draft: Draft, group: str) -> dict[str, Any]:
    prefix = f"{_PREFIX}{group}."
    if not draft.properties.get(f"{prefix}include", "").strip():
        raise ConfigurationError(
            f"property {_PREFIX}groups names {group}, and {prefix}include is missing",
            expected="regular expressions of the group's topics",
        )
    options: dict[str, Any] = {"name": group}
    for name, text in draft.properties.items():
        if name.startswith(prefix) and _group_of(draft, name) == group:
            _import(options, name, name.removeprefix(prefix), text.strip())
    return options


def _import(target: dict[str, Any], name: str, short: str, value: str) -> None:
    """Import one property of a group."""
    if short in ("include", "exclude"):
        target[short] = [_pattern(name, entry) for entry in split_list(value)]
    elif short in _COUNTS:
        target[_COUNTS[short]] = -1 if value == "-1" else integer(name, value, minimum=1)
    else:
        target.setdefault("settings", {})[short] = value


def _pattern(name: str, value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise invalid(name, f"regular expressions that are valid in Python ({error})", value) from None
    return value


def _group_of(draft: Draft, name: str) -> str:
    """Return the group of a property, empty for none; names may contain dots."""
    named = [*split_list(draft.properties.get(f"{_PREFIX}groups", "")), _DEFAULT]
    return max((group for group in named if name.startswith(f"{_PREFIX}{group}.")), key=len, default="")


def _of_group(draft: Draft, name: str, value: str) -> None:
    """Import a property of group ``default``; other groups are imported with ``topic.creation.groups``."""
    group = _group_of(draft, name)
    if not group:
        raise ConfigurationError(
            f"property {name} belongs to no group", expected=f"a group in {_PREFIX}groups, or {_DEFAULT}"
        )
    if group != _DEFAULT:
        return
    short = name.removeprefix(f"{_PREFIX}{_DEFAULT}.")
    if short in ("include", "exclude"):
        if value != (".*" if short == "include" else ""):
            raise invalid(name, "no value: group default has all remaining topics", value)
        return
    _import(draft.values.setdefault("publish", {}).setdefault("topics", {}), name, short, value)


TOPIC_CREATION: Final[dict[str, Rule]] = {
    f"{_PREFIX}enable": flag("publish.topics.create"),
    f"{_PREFIX}groups": custom_rule("`publish.topics.groups`, with each group's properties", _groups),
    f"{_PREFIX}*": custom_rule(
        "per group: `include`, `exclude`, `partitions`, `replication.factor` as `replication`, all others in "
        "`settings`; those of group default in `publish.topics` itself",
        _of_group,
    ),
}
