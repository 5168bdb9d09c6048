"""What becomes of a connector's properties, one by one: for a person who plans to move.

The same rules as for loading them (:mod:`.debezium`), but nothing is an error: what is refused is told with
the remedy, and a declaration can be made without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_cdc_provider.connector.debezium import RULES, applied, drafted, finished
from airflow_cdc_provider.connector.imported import Draft, Fate, Imported, find_rule, split_list
from airflow_cdc_provider.exceptions import ConfigurationError


@dataclass(frozen=True)
class Verdict:
    """What becomes of a property; its value is shown nowhere.

    Args:
        name: The property.
        fate: In a word.
        text: The options that it sets; why it is left out; or what is wrong and what to do.
    """

    name: str
    fate: Fate
    text: str


@dataclass(frozen=True)
class Review:
    """What becomes of all.

    Args:
        type: The source's type.
        verdicts: In the order of the properties.
        notes: What several properties say together, in sentences.
        imported: The declaration, of what isn't refused.
    """

    type: str
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...]
    imported: Imported

    def of(self, fate: Fate) -> list[Verdict]:
        """Return the verdicts of a kind."""
        return [one for one in self.verdicts if one.fate == fate]


def review(properties: Mapping[str, str]) -> Review:
    """Look at each property of a connector.

    Raises:
        ConfigurationError: No source is known by the connector's class; or what isn't refused makes no
            declaration, as without a topic prefix.
    """
    draft = drafted(properties)
    verdicts: list[Verdict] = []
    before, notes = _options(draft), 0
    for name, problem in applied(draft):
        after, told = _options(draft), draft.notes[notes:]
        verdicts.append(_verdict(draft, name, problem, sorted(_changed(before, after)), told))
        before, notes = after, len(draft.notes)
    verdicts = [_of_its_transform(draft, one) for one in verdicts]
    imported = finished(draft)
    return Review(draft.type, tuple(verdicts), tuple(draft.notes[notes:]), imported)


def _verdict(
    draft: Draft, name: str, problem: ConfigurationError | None, changed: list[str], told: list[str]
) -> Verdict:
    if problem is not None:
        text = str(problem).removeprefix(f"[CDC-{problem.code}] ")
        text = text.removeprefix(f"property {name} ")
        return Verdict(name, "refused", text + "".join(f"; {note}" for note in told))
    if changed:
        return Verdict(name, "taken over", ", ".join(changed) + "".join(f"; {note}" for note in told))
    rule = find_rule(name, RULES[draft.type])
    if told:
        return Verdict(name, "left out", "; ".join(told).removeprefix(f"property {name} is left out: "))
    if rule.fate == "refused":
        return Verdict(name, "taken over", "it says what is done here anyhow")
    return Verdict(name, rule.fate, rule.text.replace("`", ""))


def _of_its_transform(draft: Draft, verdict: Verdict) -> Verdict:
    """Tell of a transform's setting what becomes of the transform."""
    lead = ".".join(verdict.name.split(".")[:2]) + "."
    if verdict.fate == "refused" or not verdict.name.startswith("transforms."):
        return verdict
    if lead in draft.refused_transforms:
        return Verdict(verdict.name, "left out", "its transform can't be followed")
    if lead.split(".")[1] not in split_list(draft.properties.get("transforms", "")):
        return Verdict(verdict.name, "left out", "transforms doesn't list it, so it does nothing")
    return verdict


def _options(draft: Draft) -> dict[str, Any]:
    """Return what a draft has so far, by dotted place."""
    lists = {
        "tables": (draft.include, draft.databases),
        "exclude_tables": (draft.exclude, draft.excluded_databases),
    }
    found = {name: [list(part) for part in parts] for name, parts in lists.items() if any(parts)}
    return {**found, **dict(_flat("", draft.values))}


def _flat(place: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        own = f"{place}{name}"
        if isinstance(value, Mapping) and value and "." not in "".join(map(str, value)):
            yield from _flat(f"{own}.", value)
        else:
            yield own, repr(value)


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    return {name for name, value in after.items() if name not in before or before[name] != value}
