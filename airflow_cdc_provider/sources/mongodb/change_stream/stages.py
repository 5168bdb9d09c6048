"""Validates custom stages of the change stream's pipeline: stages that would break the capture are refused.

Imports no driver: read by DAG files. :mod:`.guard` validates the events for problems that depend on data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError

Stage = Mapping[str, Any]

ALLOWED: Final = (
    "$match",
    "$addFields",
    "$set",
    "$project",
    "$unset",
    "$replaceRoot",
    "$replaceWith",
    "$redact",
)
"""Stages that MongoDB permits in a change stream's pipeline."""

ALLOWED_IN_COPIES: Final = (*ALLOWED, "$lookup", "$graphLookup", "$sort", "$limit", "$skip", "$sample")
"""Stages that keep documents identifiable by their ``_id``, and write nothing."""

NEEDED: Final = ("_id", "operationType", "clusterTime", "ns", "documentKey")
"""Members that identify an event's position in the stream and its document."""

_PROTECTED: Final = frozenset({*NEEDED, "ns.db", "ns.coll", "documentKey._id", "fullDocument._id"})


def read_stages(value: object) -> object:
    """Parse stages that are written as JSON text; return other values unchanged.

    Raises:
        ConfigurationError: The text is not valid JSON.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value.strip() else []
    except ValueError as error:
        raise ConfigurationError(
            "option pipeline is not valid JSON", expected="a list of aggregation stages", found=str(error)
        ) from None


def check_stages(stages: Sequence[Stage]) -> str:
    """Return what is expected if stages are invalid, else an empty text."""
    try:
        json.dumps(stages)
    except (TypeError, ValueError):
        return 'values that JSON has; others as Extended JSON, such as {"$date": "2026-05-01T12:00:00Z"}'
    for number, stage in enumerate(stages):
        names = list(stage)
        if names == ["$changeStreamSplitLargeEvent"]:
            return "source.stream.oversize: split, which adds $changeStreamSplitLargeEvent as last stage"
        if len(names) != 1 or names[0] not in ALLOWED:
            found = ", ".join(names) or "none"
            return f"stages of one operator each, one of {', '.join(ALLOWED)} (stage {number}: {found})"
        if removed := sorted(set(_removed_members(names[0], stage[names[0]]))):
            return (
                f"stages that keep {', '.join(NEEDED)} of each event unchanged "
                f"(stage {number}, {names[0]}, removes or changes {', '.join(removed)})"
            )
    return ""


def check_copy_stages(stages: Sequence[Stage]) -> str:
    """Return what is expected if stages of full reads are invalid: they must keep each ``_id``."""
    try:
        json.dumps(stages)
    except (TypeError, ValueError):
        return 'values that JSON has; others as Extended JSON, such as {"$date": "2026-05-01T12:00:00Z"}'
    for number, stage in enumerate(stages):
        names = list(stage)
        if len(names) != 1 or names[0] not in ALLOWED_IN_COPIES:
            found = ", ".join(names) or "none"
            allowed = ", ".join(ALLOWED_IN_COPIES)
            return f"stages of one operator each, one of {allowed} (stage {number}: {found})"
        if "_id" in set(_removed_members(names[0], stage[names[0]])):
            return f"stages that keep _id unchanged (stage {number}, {names[0]}, removes or changes it)"
    return ""


def _removed_members(operator: str, value: object) -> Iterator[str]:
    """Yield the required members that a stage certainly removes or changes."""
    if operator == "$unset":
        paths = [value] if isinstance(value, str) else value if isinstance(value, list) else []
        yield from (path for path in paths if _is_needed(path))
    elif operator in ("$addFields", "$set"):
        yield from (path for path, _ in _leaves(value) if _is_needed(path))
    elif operator == "$project":
        yield from _projected_away(value)
    elif operator in ("$replaceRoot", "$replaceWith"):
        root = value.get("newRoot") if operator == "$replaceRoot" and isinstance(value, Mapping) else value
        if isinstance(root, str) and root not in ("$$ROOT", "$$CURRENT"):
            yield from NEEDED
        elif isinstance(root, Mapping) and not any(name.startswith("$") for name in root):
            yield from (name for name in NEEDED if name not in root)


def _projected_away(value: object) -> Iterator[str]:
    kept = {path: leaf for path, leaf in _leaves(value) if not _is_zero(leaf)}
    yield from (path for path, leaf in _leaves(value) if _is_zero(leaf) and _is_needed(path))
    if any(path != "_id" for path in kept):  # an inclusion removes all other members
        roots = {path.partition(".")[0] for path in kept}
        yield from (name for name in NEEDED if name != "_id" and name not in roots)


def _is_needed(path: object) -> bool:
    text = str(path)
    return text in _PROTECTED or text.partition(".")[0] in ("_id", "operationType", "clusterTime")


def _is_zero(leaf: object) -> bool:
    return leaf is False or (isinstance(leaf, (int, float)) and leaf == 0)


def _leaves(value: object, lead: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted paths of a projection with their values; an expression is a leaf."""
    if not isinstance(value, Mapping):
        return
    for name, child in value.items():
        path = f"{lead}{name}"
        if isinstance(child, Mapping) and child and not any(inner.startswith("$") for inner in child):
            yield from _leaves(child, f"{path}.")
        else:
            yield path, child
