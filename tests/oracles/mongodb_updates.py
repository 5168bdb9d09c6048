"""MongoDB's document diff in plain Python, as in the update descriptions of change events.

Written after ``document_diff_calculator.cpp`` (how a difference is found) and
``change_stream_document_diff_parser.cpp`` (the order in an event) of server 6.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import bson


def update_description(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Describe how a document became another one, as an update by a pipeline does."""
    description: dict[str, Any] = {"updatedFields": {}, "removedFields": [], "truncatedArrays": []}
    _documents(before, after, "", description)
    return description


def _equal(left: Any, right: Any) -> bool:
    return bson.encode({"v": left}) == bson.encode({"v": right})


def hides_a_move(before: Any, after: Any) -> bool:
    """Return whether a member moved to the end of its document with its value unchanged.

    A description has it as an updated member, without its position.
    """
    return any(_equal(old, new) for old, new, _ in _moved(before, after))


def hides_an_order(before: Any, after: Any) -> bool:
    """Return whether a member moved to the end of its document, its value changed, no new member before it.

    Its description is that of a member that was updated where it was.
    """
    return any(not follows and not _equal(old, new) for old, new, follows in _moved(before, after))


def _moved(before: Any, after: Any) -> Iterator[tuple[Any, Any, bool]]:
    """Yield each moved member's value before and after, and whether it follows a new member."""
    if not isinstance(before, Mapping):
        for old, new in zip(before, after, strict=False):
            if _goes_in(old, new):
                yield from _moved(old, new)
        return
    parts = _parts(before, after)
    follows = False
    for name in parts.inserted:
        if name in before:
            yield before[name], after[name], follows
        else:
            follows = True
    for name in parts.inner:
        yield from _moved(before[name], after[name])


class _Parts(NamedTuple):
    """Names of members by kind of change."""

    updated: list[str]
    removed: list[str]
    inserted: list[str]
    inner: list[str]


def _parts(before: Mapping[str, Any], after: Mapping[str, Any]) -> _Parts:
    updated: list[str] = []
    removed: list[str] = []
    inner: list[str] = []
    old, new = list(before), list(after)
    at = there = 0
    while at < len(old) and there < len(new):
        name = old[at]
        if name == new[there]:
            if not _equal(before[name], after[name]):
                (inner if _goes_in(before[name], after[name]) else updated).append(name)
            there += 1
        else:
            removed.append(name)
        at += 1
    return _Parts(updated, removed + old[at:], new[there:], inner)


def _documents(
    before: Mapping[str, Any], after: Mapping[str, Any], path: str, description: dict[str, Any]
) -> None:
    """Compare two documents: what is removed, then what is updated, then what is new, then what is inside."""
    parts = _parts(before, after)
    description["removedFields"] += [path + name for name in parts.removed if name not in parts.inserted]
    for name in (*parts.updated, *parts.inserted):
        description["updatedFields"][path + name] = after[name]
    for name in parts.inner:
        _inside(before[name], after[name], path + name, description)


def _goes_in(before: Any, after: Any) -> bool:
    both = isinstance(before, Mapping) and isinstance(after, Mapping)
    return (both or (isinstance(before, list) and isinstance(after, list))) and bool(before) and bool(after)


def _inside(before: Any, after: Any, path: str, description: dict[str, Any]) -> None:
    if isinstance(before, Mapping):
        _documents(before, after, f"{path}.", description)
    else:
        _arrays(before, after, path, description)


def _arrays(before: Sequence[Any], after: Sequence[Any], path: str, description: dict[str, Any]) -> None:
    if len(after) < len(before):
        description["truncatedArrays"].append({"field": path, "newSize": len(after)})
    for number, value in enumerate(after):
        where = f"{path}.{number}"
        if number >= len(before):
            description["updatedFields"][where] = value
        elif not _equal(before[number], value):
            if _goes_in(before[number], value):
                _inside(before[number], value, where, description)
            else:
                description["updatedFields"][where] = value
