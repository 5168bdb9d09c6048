"""Responses of a stream taken together: their events, and what these carry but for rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError

from airflow_cdc_provider.changes.spans import Ints
from airflow_cdc_provider.sources.vitess import wire
from airflow_cdc_provider.sources.vitess.position import vgtid_shards
from airflow_cdc_provider.sources.vitess.protocol import FieldEvent, Journal
from airflow_cdc_provider.sources.vitess.vgtid_text import unread_vgtids
from airflow_cdc_provider.sources.vitess.wire import BrokenMessage, Events

FEW: Final = 40
"""Up to so many events are taken one by one, which costs less then."""
NONE: Final = -1
"""Number of an event that isn't there."""


@dataclass(frozen=True)
class Piece:
    """Some responses and what came before them since the last cut.

    Args:
        events: Their events.
        bodies: What FIELD and JOURNAL events carry, by the number of the event; of a few events, also VGTIDs.
        first_event: Number of the first.
        first_byte: Place of their first byte.
        first_row: Number of their first row change.
        captured_us: When they were read, in us since 1970.
    """

    events: Events
    bodies: Mapping[int, Any]
    first_event: int
    first_byte: int
    first_row: int
    captured_us: int


def of_types(events: Events, types: Sequence[int]) -> Ints:
    """Return the numbers of the events of some types; NumPy's ``isin`` takes longer than all else."""
    found = events.types == types[0]
    for kind in types[1:]:
        found |= events.types == kind
    return np.flatnonzero(found)


def last_before(events: Ints, places: Ints) -> Ints:
    """Return the last of some events before each place; :data:`NONE` where there is none."""
    found: Ints = np.append(events, NONE)[np.searchsorted(events, places) - 1]
    return found


def read_bodies(events: Events) -> dict[int, Any]:
    """Read what FIELD and JOURNAL events carry, by their number, and of a few events also VGTIDs.

    Raises:
        BrokenMessage: One can't be read, or a VGTID.
    """
    read_here = list(_READERS)
    if len(events) > FEW:
        read_here.remove(wire.VGTID)
        vgtids = np.flatnonzero(events.types == wire.VGTID)
        if len(unread_vgtids(events.data, events.body_starts[vgtids], events.body_ends[vgtids])):
            raise _broken_body("a VGTID can't be read")
    try:
        return {
            number: _READERS[int(events.types[number])](events.body(number))
            for number in of_types(events, read_here).tolist()
        }
    except DecodeError as error:
        raise _broken_body(str(error)) from error


def _broken_body(found: str) -> BrokenMessage:
    return BrokenMessage(
        "A message of a VStream is broken",
        expected="fields, positions and journals of events as messages",
        found=found,
    )


_READERS: Final[dict[int, Callable[[bytes], Any]]] = {
    wire.FIELD: FieldEvent.FromString,
    wire.VGTID: vgtid_shards,
    wire.JOURNAL: Journal.FromString,
}
