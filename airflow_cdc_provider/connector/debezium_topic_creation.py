"""Kafka Connect's ``topic.creation.*`` among Debezium's properties: to ``publish.topics``.

Connect asks the groups in the order of ``topic.creation.groups``, the group ``default`` last; a group without
partitions or copies of its own has those of ``default``, settings are each group's own. So it is here.
"""

from __future__ import annotations

import re
from typing import Any, Final

from airflow_cdc_provider.connector.imported import Draft, Rule, flag, split_list, taken, wrong
from airflow_cdc_provider.exceptions import ConfigurationError

_LEAD: Final = "topic.creation."
_DEFAULT: Final = "default"
_COUNTS: Final = {"partitions": "partitions", "replication.factor": "replication"}


def _groups(draft: Draft, name: str, value: str) -> None:
    names = split_list(value)
    if len(set(names)) < len(names) or _DEFAULT in names:
        raise wrong(name, "names of groups, each once; default is always there", value)
    draft.set("publish.topics.groups", [_group(draft, group) for group in names])


def _group(draft: Draft, group: str) -> dict[str, Any]:
    lead = f"{_LEAD}{group}."
    if not draft.properties.get(f"{lead}include", "").strip():
        raise ConfigurationError(
            f"property {_LEAD}groups names {group}, and {lead}include is missing",
            expected="regular expressions of the group's topics",
        )
    made: dict[str, Any] = {"name": group}
    for name, text in draft.properties.items():
        if name.startswith(lead) and _group_of(draft, name) == group:
            _take(made, name, name.removeprefix(lead), text.strip())
    return made


def _take(target: dict[str, Any], name: str, short: str, value: str) -> None:
    """Take over one property of a group."""
    if short in ("include", "exclude"):
        target[short] = [_pattern(name, entry) for entry in split_list(value)]
    elif short in _COUNTS:
        if not re.fullmatch(r"-1|[1-9]\d*", value):
            raise wrong(name, "a number from 1, or -1 for what the brokers have", value)
        target[_COUNTS[short]] = int(value)
    else:
        target.setdefault("settings", {})[short] = value


def _pattern(name: str, value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise wrong(name, f"regular expressions that Python reads as well ({error})", value) from None
    return value


def _group_of(draft: Draft, name: str) -> str:
    """Return the group that a property is of, an empty text for none; names may have dots."""
    named = [*split_list(draft.properties.get(f"{_LEAD}groups", "")), _DEFAULT]
    return max((group for group in named if name.startswith(f"{_LEAD}{group}.")), key=len, default="")


def _of_group(draft: Draft, name: str, value: str) -> None:
    """Take over a property of the group ``default``; those of others come with ``topic.creation.groups``."""
    group = _group_of(draft, name)
    if not group:
        raise ConfigurationError(
            f"property {name} is of no group", expected=f"a group that {_LEAD}groups names, or {_DEFAULT}"
        )
    if group != _DEFAULT:
        return
    short = name.removeprefix(f"{_LEAD}{_DEFAULT}.")
    if short in ("include", "exclude"):
        if value != (".*" if short == "include" else ""):
            raise wrong(name, "nothing: the group default has all topics that are of no other", value)
        return
    _take(draft.values.setdefault("publish", {}).setdefault("topics", {}), name, short, value)


TOPIC_CREATION: Final[dict[str, Rule]] = {
    f"{_LEAD}enable": flag("publish.topics.create"),
    f"{_LEAD}groups": taken("`publish.topics.groups`, with each group's properties", _groups),
    f"{_LEAD}*": taken(
        "of a group: `include`, `exclude`, `partitions`, `replication.factor` as `replication`, all else in "
        "`settings`; those of the group default stand in `publish.topics` itself",
        _of_group,
    ),
}
