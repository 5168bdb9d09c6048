"""Review of a Debezium connector's properties, one by one, for the planning of a migration.

The same rules apply as for loading the properties (:mod:`.properties`), but unsupported properties are
reported with the remedy instead of raised, and the declaration is built without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError, joined
from airflow_cdc_provider.migration.debezium.properties import (
    RULES,
    build_declaration,
    draft_without,
    import_properties,
    of_converters,
    start_draft,
)
from airflow_cdc_provider.migration.rules import Draft, Imported, Outcome, find_rule, split_list


@dataclass(frozen=True)
class Verdict:
    """Translation of a property; its value is never shown.

    Args:
        name: The property.
        outcome: Kind of translation.
        text: The options that it sets; why it is ignored; or the error and its remedy.
        options: The options that it sets.
    """

    name: str
    outcome: Outcome
    text: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Review:
    """Translation of all properties.

    Args:
        type: The source's type.
        verdicts: One per property, in their order.
        notes: Remarks on combinations of properties.
        imported: The declaration without unsupported properties.
    """

    type: str
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...]
    imported: Imported

    def of(self, outcome: Outcome) -> list[Verdict]:
        """Return the verdicts with an outcome."""
        return [verdict for verdict in self.verdicts if verdict.outcome == outcome]


def review(properties: Mapping[str, str]) -> Review:
    """Review each property of a connector.

    Raises:
        ConfigurationError: The connector class is unknown; or the supported properties are not a valid
            declaration, for example without a topic prefix.
    """
    draft = start_draft(properties)
    verdicts: list[Verdict] = []
    problems: list[ConfigurationError] = []
    before, notes = _options(draft), 0
    for name, problem in import_properties(draft):
        after, new_notes = _options(draft), draft.notes[notes:]
        verdicts.append(_verdict(draft, name, problem, sorted(_changed(before, after)), new_notes))
        before, notes = after, len(draft.notes)
        problems += [problem] if problem is not None else []
    verdicts = [_with_transform(draft, verdict) for verdict in verdicts]
    try:
        imported = build_declaration(draft)
    except ConfigurationError as error:
        raise joined([*problems, error]) from error
    verdicts = [_with_effect(draft, imported, verdict) for verdict in verdicts]
    return Review(draft.type, tuple(verdicts), tuple(draft.notes[notes:]), imported)


def _verdict(
    draft: Draft, name: str, problem: ConfigurationError | None, changed: list[str], notes: list[str]
) -> Verdict:
    if problem is not None:
        text = str(problem).removeprefix(f"[CDC-{problem.code}] ")
        text = text.removeprefix(f"property {name} ").removeprefix("can't be imported: ")
        return Verdict(name, "unsupported", text + "".join(f"; {note}" for note in notes))
    if changed:
        text = ", ".join(changed) + "".join(f"; {note}" for note in notes)
        return Verdict(name, "imported", text, tuple(changed))
    if name in of_converters(draft):
        return Verdict(name, "imported", "with converters")
    rule = find_rule(name, RULES[draft.type])
    if notes:
        return Verdict(name, "ignored", "; ".join(notes).removeprefix(f"property {name} is ignored: "))
    if rule.outcome == "unsupported":
        return Verdict(name, "imported", _ACCEPTED)
    return Verdict(name, rule.outcome, rule.text.replace("`", ""))


def _with_transform(draft: Draft, verdict: Verdict) -> Verdict:
    """Apply the outcome of a transform to its settings."""
    prefix = ".".join(verdict.name.split(".")[:2]) + "."
    if verdict.outcome == "unsupported" or not verdict.name.startswith("transforms."):
        return verdict
    if prefix in draft.unsupported_transforms:
        return Verdict(verdict.name, "ignored", "its transform is not supported")
    if prefix.split(".")[1] not in split_list(draft.properties.get("transforms", "")):
        return Verdict(verdict.name, "ignored", "it is not listed in transforms")
    return verdict


def _with_effect(draft: Draft, imported: Imported, verdict: Verdict) -> Verdict:
    """Correct the verdict on a property that the finished declaration wouldn't miss."""
    name, options, reason = verdict.name, verdict.options, ""
    if verdict.outcome != "imported" or verdict.text == _ACCEPTED or name == "connector.class":
        return verdict
    without = {option for option, needed in _NEEDED.items() if not draft.get(needed)}
    if not options and not _is_missed(draft, imported, name):
        reason = "it changes nothing: it has its default, or no effect with the other properties"
    elif options and not any(_is_set(draft, option) for option in options):
        reason = "it has no effect with the other properties"
    elif options and without.issuperset(options):
        reason = f"it has no effect without {_NEEDED[options[0]]}"
    return Verdict(name, "ignored", reason) if reason else verdict


_ACCEPTED: Final = "accepted: it is the behavior here"
_NEEDED: Final = {
    "guardrail.action": "guardrail.max_tables",
    "publish.heartbeat_prefix": "publish.heartbeat_interval_seconds",
    "publish.heartbeat_topic": "publish.heartbeat_interval_seconds",
    "publish.transaction_topic": "publish.transactions",
    "publish.unwrap.add_fields_prefix": "publish.unwrap.add_fields",
    "publish.unwrap.add_headers_prefix": "publish.unwrap.add_headers",
    "publish.unwrap.delimiter": "publish.unwrap.flatten",
    "publish.vitess.schema_changes_topic": "publish.schema_changes",
    "publish.vitess.topic_prefix_excluded_tables": "publish.vitess.topic_prefix",
    "source.task_offsets.previous_tasks": "source.task_offsets.per_task",
}
"""Options that have no effect without another one."""


def _is_set(draft: Draft, option: str) -> bool:
    """Return whether an option, or one that contains it, is still set."""
    found = _options(draft).items()
    return any(f"{option}.".startswith(f"{name}.") for name, value in found if value != "{}")


def _is_missed(draft: Draft, imported: Imported, name: str) -> bool:
    """Return whether the declaration without a property is another one, or none."""
    try:
        return build_declaration(draft_without(draft, name)).connector != imported.connector
    except ConfigurationError:
        return True


def _options(draft: Draft) -> dict[str, Any]:
    """Return the options of a draft by dotted path."""
    lists = {
        "tables": (draft.include, draft.databases),
        "exclude_tables": (draft.exclude, draft.excluded_databases),
    }
    tables = {name: [list(part) for part in parts] for name, parts in lists.items() if any(parts)}
    return {**tables, **dict(_flat("", draft.values))}


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and value and "." not in "".join(map(str, value)):
            yield from _flat(f"{path}.", value)
        else:
            yield path, repr(value)


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    return {name for name, value in after.items() if name not in before or before[name] != value}
