"""Reads recordings of a VStream, and skips invalid messages.

If one event of a message can't be parsed, the whole message is skipped. The remaining stream may lack
messages, so its readers must accept rows without fields and transactions without a VGTID.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.kernels import Bytes, Ints
from airflow_cdc_provider.sources.vitess import wire
from airflow_cdc_provider.sources.vitess.protocol import FieldEvent, Journal, parse
from airflow_cdc_provider.sources.vitess.vgtid_text import unread_vgtids


@dataclass(frozen=True)
class Recorded:
    """Contents of a recording.

    Args:
        events: Events of all valid messages.
        broken: First byte of each skipped message, and the reason, in order.
    """

    events: wire.Events
    broken: tuple[tuple[int, str], ...]


def read_recording(data: bytes | Bytes) -> Recorded:
    """Read a recording, in which each message is preceded by its length as a varint."""
    view, starts, ends, end = wire.split_valid_prefix(data)
    broken: dict[int, str] = {}
    sound: Ints = np.arange(len(starts))
    first = 0
    while True:
        try:
            events = wire.scan(view, starts[sound[first:]], ends[sound[first:]])
        except wire.BrokenMessage as error:
            numbers = first + error.numbers
            broken |= dict.fromkeys(sound[numbers].tolist(), f"{error.message}: {error.found}")
            sound = np.delete(sound, numbers)
            first = int(numbers[0])
        else:
            if first == 0:
                break
            first = 0  # names of messages before the last broken one weren't checked
    if found := unread_messages(events):
        broken |= {int(sound[number]): reason for number, reason in found.items()}
        sound = np.delete(sound, list(found))
        events = wire.scan(view, starts[sound], ends[sound])
    reasons = [(int(starts[number]), reason) for number, reason in broken.items()]
    return Recorded(events, tuple(sorted(reasons if end is None else [*reasons, end])))


def unread_messages(events: wire.Events) -> dict[int, str]:
    """Return the messages with fields, positions, statements or journals that can't be parsed.

    Rows aren't checked; their readers report them individually.

    Args:
        events: Result of :func:`.wire.scan`.

    Returns:
        The reasons, by message number.
    """
    vgtids = np.flatnonzero(events.types == wire.VGTID)
    unread = vgtids[unread_vgtids(events.data, events.body_starts[vgtids], events.body_ends[vgtids])]
    found = {int(events.messages[number]): "a VGTID can't be parsed" for number in unread}
    others: Ints = np.flatnonzero(np.isin(events.types, (wire.FIELD, wire.JOURNAL, wire.DDL)))
    for number in others.tolist():
        kind, body = int(events.types[number]), events.body(number)
        try:
            if kind == wire.DDL:
                body.decode()
            else:
                parse(FieldEvent if kind == wire.FIELD else Journal, body)
        except (CorruptInput, UnicodeDecodeError):
            found.setdefault(int(events.messages[number]), _TEXTS[kind])
    return found


_TEXTS = {
    wire.FIELD: "the fields of a table can't be parsed",
    wire.JOURNAL: "a journal can't be parsed",
    wire.DDL: "a statement isn't UTF-8",
}
