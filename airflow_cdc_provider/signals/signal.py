r"""Signals, and reading them from text.

A signal has an ``id``, a ``type`` and ``data``, as in Debezium::

    {"id": "again-1", "type": "execute-snapshot",
     "data": {"type": "incremental", "data-collections": ["shop\\.orders"]}}

========================  ===================================================================================
``execute-snapshot``      snapshot of tables: ``data-collections``, ``type``, ``additional-conditions``
``stop-snapshot``         stop the incremental snapshot, or its ``data-collections``: ``type: incremental``
``pause-snapshot``        pause after the current chunk
``resume-snapshot``       resume
``log``                   write ``message`` to the log, with the offset in place of ``{}``
========================  ===================================================================================

Channels may contain arbitrary content, so no function here raises for what it reads: content that isn't a
signal becomes a :class:`MalformedSignal`, which is logged and recorded, and capture continues. Ids are
printable, and have at most 300 characters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from airflow_cdc_provider.exceptions import printable

EXECUTE: Final = "execute-snapshot"
STOP: Final = "stop-snapshot"
PAUSE: Final = "pause-snapshot"
RESUME: Final = "resume-snapshot"
LOG: Final = "log"
TYPES: Final = (EXECUTE, STOP, PAUSE, RESUME, LOG)
"""All types of signals."""

WINDOW_MARKS: Final = ("snapshot-window-open", "snapshot-window-close")
"""Types of documents that snapshots themselves write to a signal collection; they request nothing."""

LARGEST_BYTES: Final = 1 << 16
"""Size of a signal, which has a few hundred bytes; parsed, it can take 40 times as much memory."""
MOST_AT_ONCE: Final = 1_000
"""Number of signals that one poll of a channel receives; a flood of others waits, or is ignored."""
MOST_BYTES_AT_ONCE: Final = 8 << 20
"""Their size."""
_SHOWN_CHARACTERS: Final = 120
_ID_CHARACTERS: Final = 300


@dataclass(frozen=True)
class Signal:
    """A signal.

    Args:
        id: Its id; another signal with the same id is the same signal.
        type: One of :data:`TYPES`.
        data: Its arguments.
        channel: Name of the channel that received it.
    """

    id: str
    type: str
    data: Mapping[str, Any]
    channel: str


@dataclass(frozen=True)
class MalformedSignal:
    """Content of a channel that isn't a valid signal.

    Args:
        id: Its id, if it has one, else a generated one.
        channel: Name of the channel that received it.
        reason: Why it is invalid.
    """

    id: str
    channel: str
    reason: str


ReceivedSignal = Signal | MalformedSignal
"""What a channel receives."""


def signal_of(given: object, channel: str, *, otherwise: str) -> ReceivedSignal:
    """Read a signal from a mapping with ``id``, ``type`` and ``data``.

    Args:
        given: The mapping.
        channel: Name of the channel.
        otherwise: The id of a signal that has none.
    """
    if not isinstance(given, Mapping):
        return MalformedSignal(otherwise, channel, f"it is not a JSON object: {_shown(given)}")
    identity = given.get("id")
    name = otherwise if identity in (None, "") else _text(identity)
    return signal_from(name, given.get("type"), given.get("data"), channel)


def signal_from(identity: str, kind: object, data: object, channel: str) -> ReceivedSignal:
    """Read a signal from its three parts; ``data`` may be a mapping, its JSON text, or empty."""
    identity = printable(identity)
    if len(identity) > _ID_CHARACTERS:
        shown = identity[:_ID_CHARACTERS]
        return MalformedSignal(shown, channel, f"its id has more than {_ID_CHARACTERS} characters")
    if not isinstance(kind, str) or kind not in TYPES:
        return MalformedSignal(
            identity, channel, f"its type is {_shown(kind)}, not one of {', '.join(TYPES)}"
        )
    if isinstance(data, str):
        try:
            data = json.loads(data) if data.strip() else None
        except (ValueError, RecursionError) as error:
            return MalformedSignal(identity, channel, f"its data is not JSON: {error}")
    if data is not None and not isinstance(data, Mapping):
        return MalformedSignal(identity, channel, f"its data is not a JSON object: {_shown(data)}")
    return Signal(identity, kind, data or {}, channel)


def signal_of_text(text: str | bytes, channel: str, *, otherwise: str) -> ReceivedSignal:
    """Read a signal from one JSON object's text."""
    if len(text) > LARGEST_BYTES:
        return MalformedSignal(otherwise, channel, f"it is larger than {LARGEST_BYTES} bytes")
    try:
        given = json.loads(text if isinstance(text, str) else text.decode(errors="replace"))
    except (ValueError, RecursionError) as error:
        return MalformedSignal(otherwise, channel, f"it is not JSON: {error}")
    return signal_of(given, channel, otherwise=otherwise)


def _text(value: object, form: Callable[[object], str] = str) -> str:
    """Return a value of JSON as text; its type if it is too long or too deep for Python."""
    try:
        return form(value)
    except (ValueError, RecursionError):
        return type(value).__name__


def _shown(value: object) -> str:
    text = printable(_text(value, repr))
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
