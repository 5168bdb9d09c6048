"""A user's own stages of the change stream's pipeline: read, and refused where they would break the capture.

Light: read by DAG files. Whatever a look at the stages can't tell is looked at again in the events themselves
(:mod:`.guard`).
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
"""What MongoDB takes in a change stream's pipeline."""

ALLOWED_IN_COPIES: Final = (*ALLOWED, "$lookup", "$graphLookup", "$sort", "$limit", "$skip", "$sample")
"""What leaves documents told apart by their ``_id``, and writes nothing."""

NEEDED: Final = ("_id", "operationType", "clusterTime", "ns", "documentKey")
"""Members of an event that say where it is in the stream, and which document it is of."""

_PROTECTED: Final = frozenset({*NEEDED, "ns.db", "ns.coll", "documentKey._id", "fullDocument._id"})


def read_stages(value: object) -> object:
    """Read stages that are written as a text of JSON; return anything else as it is.

    Raises:
        ConfigurationError: The text is no JSON.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value.strip() else []
    except ValueError as error:
        raise ConfigurationError(
            "option pipeline is no JSON", expected="a list of aggregation stages", found=str(error)
        ) from None


def check_stages(stages: Sequence[Stage]) -> str:
    """Return what was expected if stages can't be used, else an empty text."""
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
        if taken := sorted(set(_taken(names[0], stage[names[0]]))):
            return (
                f"stages that leave {', '.join(NEEDED)} of each event as they are "
                f"(stage {number}, {names[0]}, takes or changes {', '.join(taken)})"
            )
    return ""


def check_copy_stages(stages: Sequence[Stage]) -> str:
    """Likewise of stages by which collections are read in full: documents must stay, by their ``_id``."""
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
        if "_id" in set(_taken(names[0], stage[names[0]])):
            return f"stages that leave _id as it is (stage {number}, {names[0]}, takes or changes it)"
    return ""


def _taken(operator: str, value: object) -> Iterator[str]:
    """Name the members that capture needs and that a stage certainly takes away or changes."""
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
    kept = {path: shown for path, shown in _leaves(value) if not _is_zero(shown)}
    yield from (path for path, shown in _leaves(value) if _is_zero(shown) and _is_needed(path))
    if any(path != "_id" for path in kept):  # what isn't named goes
        roots = {path.partition(".")[0] for path in kept}
        yield from (name for name in NEEDED if name != "_id" and name not in roots)


def _is_needed(path: object) -> bool:
    text = str(path)
    return text in _PROTECTED or text.partition(".")[0] in ("_id", "operationType", "clusterTime")


def _is_zero(shown: object) -> bool:
    return shown is False or (isinstance(shown, (int, float)) and shown == 0)


def _leaves(value: object, lead: str = "") -> Iterator[tuple[str, object]]:
    """Give the dotted paths of a projection; an expression is a leaf."""
    if not isinstance(value, Mapping):
        return
    for name, shown in value.items():
        path = f"{lead}{name}"
        if isinstance(shown, Mapping) and shown and not any(inner.startswith("$") for inner in shown):
            yield from _leaves(shown, f"{path}.")
        else:
            yield path, shown
