"""Recordings of a VStream, read as far as they can be.

A message counts as a whole: where one event of it can't be read, all are left out. So what is left is a
stream that lacks some messages, and whoever reads it must bear rows without fields and transactions without
a VGTID.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from google.protobuf.message import DecodeError

from airflow_cdc_provider.changes.spans import Bytes, Ints
from airflow_cdc_provider.sources.vitess import wire
from airflow_cdc_provider.sources.vitess.protocol import FieldEvent, Journal
from airflow_cdc_provider.sources.vitess.vgtid_text import unread_vgtids


@dataclass(frozen=True)
class Recorded:
    """What a recording holds.

    Args:
        events: Events of all messages that can be read.
        broken: What is left out: the byte where it begins, and why, in their order.
    """

    events: wire.Events
    broken: tuple[tuple[int, str], ...]


def read_recording(data: bytes | Bytes) -> Recorded:
    """Read a recording, in which the length of each message stands before it as a varint."""
    view, starts, ends, end = wire.cut_recording(data)
    broken = [] if end is None else [end]
    while True:
        try:
            events = wire.scan(view, starts, ends)
        except wire.BrokenMessage as error:
            found = {error.number: f"{error.message}: {error.found}"}
        else:
            found = unread_messages(events)
        if not found:
            return Recorded(events, tuple(sorted(broken)))
        broken += [(int(starts[number]), reason) for number, reason in found.items()]
        kept = np.setdiff1d(np.arange(len(starts)), np.fromiter(found, np.int64))
        starts, ends = starts[kept], ends[kept]


def unread_messages(events: wire.Events) -> dict[int, str]:
    """Tell of the messages whose events say what can't be read: fields, positions, statements, journals.

    Rows are told of one by one by whoever reads them.

    Args:
        events: What :func:`.wire.scan` found.

    Returns:
        Why, by the number of the message.
    """
    vgtids = np.flatnonzero(events.types == wire.VGTID)
    unread = vgtids[unread_vgtids(events.data, events.body_starts[vgtids], events.body_ends[vgtids])]
    found = {int(events.messages[number]): "a VGTID can't be read" for number in unread}
    others: Ints = np.flatnonzero(np.isin(events.types, (wire.FIELD, wire.JOURNAL, wire.DDL)))
    for number in others.tolist():
        kind, body = int(events.types[number]), events.body(number)
        try:
            if kind == wire.DDL:
                body.decode()
            else:
                (FieldEvent if kind == wire.FIELD else Journal).FromString(body)
        except (DecodeError, UnicodeDecodeError):
            found.setdefault(int(events.messages[number]), _TEXTS[kind])
    return found


_TEXTS = {
    wire.FIELD: "the fields of a table can't be read",
    wire.JOURNAL: "a journal can't be read",
    wire.DDL: "a statement is no UTF-8",
}
