"""A batch of stream responses: its events, and the parsed bodies of all events except ROW events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.kernels import Ints
from airflow_cdc_provider.sources.vitess import wire
from airflow_cdc_provider.sources.vitess.position import vgtid_shards
from airflow_cdc_provider.sources.vitess.protocol import FieldEvent, Journal, parse
from airflow_cdc_provider.sources.vitess.vgtid_text import unread_vgtids
from airflow_cdc_provider.sources.vitess.wire import BrokenMessage, Events

FEW: Final = 40
"""Batches of up to this many events are processed event by event, which is cheaper for them."""
NONE: Final = -1
"""Number of an absent event."""


@dataclass(frozen=True)
class ResponseBatch:
    """Some responses, and their offsets in the current slice.

    Args:
        events: Events of the responses.
        bodies: Bodies of FIELD and JOURNAL events by event number; in a small batch, also of VGTID events.
        first_event: Number of the first event in the slice.
        first_byte: Offset of the first byte in the slice.
        first_row: Number of the first row change in the slice.
        captured_us: When the responses were read, in µs since 1970.
    """

    events: Events
    bodies: Mapping[int, Any]
    first_event: int
    first_byte: int
    first_row: int
    captured_us: int


def of_types(events: Events, types: Sequence[int]) -> Ints:
    """Return the numbers of the events of some types. NumPy's ``isin`` would dominate the run time."""
    found = events.types == types[0]
    for kind in types[1:]:
        found |= events.types == kind
    return np.flatnonzero(found)


def last_before(events: Ints, bounds: Ints) -> Ints:
    """Return the last of some events before each bound; :data:`NONE` where there is none."""
    found: Ints = np.append(events, NONE)[np.searchsorted(events, bounds) - 1]
    return found


def read_bodies(events: Events) -> dict[int, Any]:
    """Parse the bodies of FIELD and JOURNAL events, and of VGTID events in a small batch, by event number.

    Raises:
        BrokenMessage: A body or a VGTID can't be parsed.
    """
    types_to_parse = list(_READERS)
    if len(events) > FEW:
        types_to_parse.remove(wire.VGTID)
        vgtids = np.flatnonzero(events.types == wire.VGTID)
        if len(unread_vgtids(events.data, events.body_starts[vgtids], events.body_ends[vgtids])):
            raise _broken_body("a VGTID that can't be parsed")
    try:
        return {
            number: _READERS[int(events.types[number])](events.body(number))
            for number in of_types(events, types_to_parse).tolist()
        }
    except CorruptInput as error:
        raise _broken_body(error.found) from error


def _broken_body(found: str) -> BrokenMessage:
    return BrokenMessage(
        "invalid VStream message",
        expected="bodies of FIELD, VGTID and JOURNAL events in protobuf format",
        found=found,
    )


_READERS: Final[dict[int, Callable[[bytes], Any]]] = {
    wire.FIELD: partial(parse, FieldEvent),
    wire.VGTID: vgtid_shards,
    wire.JOURNAL: partial(parse, Journal),
}
