"""Review of a Debezium connector's properties, one by one, for the planning of a migration.

The same rules apply as for loading the properties (:mod:`.properties`), but unsupported properties are
reported with the remedy instead of raised, and the declaration is built without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_cdc_provider.exceptions import ConfigurationError, joined
from airflow_cdc_provider.migration.debezium.properties import (
    RULES,
    build_declaration,
    import_properties,
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
    """

    name: str
    outcome: Outcome
    text: str


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
    return Review(draft.type, tuple(verdicts), tuple(draft.notes[notes:]), imported)


def _verdict(
    draft: Draft, name: str, problem: ConfigurationError | None, changed: list[str], notes: list[str]
) -> Verdict:
    if problem is not None:
        text = str(problem).removeprefix(f"[CDC-{problem.code}] ")
        text = text.removeprefix(f"property {name} ").removeprefix("can't be imported: ")
        return Verdict(name, "unsupported", text + "".join(f"; {note}" for note in notes))
    if changed:
        return Verdict(name, "imported", ", ".join(changed) + "".join(f"; {note}" for note in notes))
    rule = find_rule(name, RULES[draft.type])
    if notes:
        return Verdict(name, "ignored", "; ".join(notes).removeprefix(f"property {name} is ignored: "))
    if rule.outcome == "unsupported":
        return Verdict(name, "imported", "accepted: it is the behavior here")
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
