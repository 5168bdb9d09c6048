r"""What a signal is, and how its text is read.

A signal has an ``id``, a ``type`` and ``data``, as Debezium's have::

    {"id": "again-1", "type": "execute-snapshot",
     "data": {"type": "incremental", "data-collections": ["shop\\.orders"]}}

========================  ===================================================================================
``execute-snapshot``      copy tables: ``data-collections``, ``type``, ``additional-conditions``
``stop-snapshot``         end the incremental snapshot, or its ``data-collections``: ``type: incremental``
``pause-snapshot``        stop after what is being read
``resume-snapshot``       go on from there
``log``                   write ``message`` to the log, with the offset in place of ``{}``
========================  ===================================================================================

Whoever can write to a channel may send anything, so nothing here raises for what it reads: what is no signal
becomes a :class:`NoSignal`, which is logged and kept for the record, and capture goes on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

EXECUTE: Final = "execute-snapshot"
STOP: Final = "stop-snapshot"
PAUSE: Final = "pause-snapshot"
RESUME: Final = "resume-snapshot"
LOG: Final = "log"
TYPES: Final = (EXECUTE, STOP, PAUSE, RESUME, LOG)
"""All that can be asked for."""

WINDOW_MARKS: Final = ("snapshot-window-open", "snapshot-window-close")
"""Types of documents that snapshots themselves write to a signal collection; they ask for nothing."""

_SHOWN_CHARACTERS: Final = 120


@dataclass(frozen=True)
class Signal:
    """What somebody asks for.

    Args:
        id: Names it; the same id again is the same signal.
        type: One of :data:`TYPES`.
        data: What it says besides.
        channel: How it came.
    """

    id: str
    type: str
    data: Mapping[str, Any]
    channel: str


@dataclass(frozen=True)
class NoSignal:
    """What a channel brought and nobody understands.

    Args:
        id: As far as it has one.
        channel: How it came.
        reason: What is wrong with it.
    """

    id: str
    channel: str
    reason: str


Arrived = Signal | NoSignal
"""What a channel brings."""


def signal_of(given: object, channel: str, *, otherwise: str) -> Arrived:
    """Read a signal from a mapping with ``id``, ``type`` and ``data``.

    Args:
        given: What a channel has.
        channel: Its name.
        otherwise: Its id, if it has none.
    """
    if not isinstance(given, Mapping):
        return NoSignal(otherwise, channel, f"it is no JSON object: {_shown(given)}")
    identity = given.get("id")
    # Half a surrogate pair, which JSON can spell out, would break whatever stores or tells the id.
    name = otherwise if identity in (None, "") else str(identity).encode(errors="replace").decode()
    return signal_from(name, given.get("type"), given.get("data"), channel)


def signal_from(identity: str, kind: object, data: object, channel: str) -> Arrived:
    """Read a signal from its three parts; ``data`` may be a mapping or its JSON text, or nothing."""
    if not isinstance(kind, str) or kind not in TYPES:
        return NoSignal(identity, channel, f"its type is {_shown(kind)}, none of {', '.join(TYPES)}")
    if isinstance(data, str):
        try:
            data = json.loads(data) if data.strip() else None
        except (ValueError, RecursionError) as error:
            return NoSignal(identity, channel, f"its data are no JSON: {error}")
    if data is not None and not isinstance(data, Mapping):
        return NoSignal(identity, channel, f"its data are no JSON object: {_shown(data)}")
    return Signal(identity, kind, data or {}, channel)


def signal_of_text(text: str, channel: str, *, otherwise: str) -> Arrived:
    """Read a signal from one JSON object's text."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        return NoSignal(otherwise, channel, f"it is no JSON: {error}")
    return signal_of(given, channel, otherwise=otherwise)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
