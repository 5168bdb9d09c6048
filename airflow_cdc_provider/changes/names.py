"""Names that events bear, told apart by kernels: each distinct one becomes text once, not once per event."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from airflow_cdc_provider.changes.kernels import walker
from airflow_cdc_provider.changes.spans import Bytes, Ints

_FIRST_ROOM: Final = 64


def number_names(data: Bytes, places: Ints) -> tuple[Ints, list[int]]:
    """Number the distinct names.

    Args:
        data: Bytes that hold the names.
        places: A column per event, two rows per part of its name: where the part begins and ends. The places
            lie in ``data``.

    Returns:
        The number of each event's name, and per number the first event that bears it.
    """
    numbers = np.zeros(places.shape[1], np.int64)
    room = _FIRST_ROOM
    while True:
        firsts = np.zeros(room, np.int64)
        distinct = _number(data, places, numbers, firsts, np.full(4 * room, -1, np.int64))
        if distinct <= room:
            return numbers, firsts[:distinct].tolist()
        room *= 4


@walker
def _same(data: Any, places: Any, a: Any, b: Any) -> Any:
    for part in range(0, places.shape[0], 2):
        start = places[part, a]
        other = places[part, b]
        size = places[part + 1, a] - start
        if size != places[part + 1, b] - other:
            return False
        for i in range(size):  # a generator is no kernel code
            if data[start + i] != data[other + i]:
                return False
    return True


@walker
def _number(data: Any, places: Any, numbers: Any, firsts: Any, slots: Any) -> Any:
    """Fill numbers; return how many names are distinct, or more than ``firsts`` holds. Slots are all -1."""
    capacity = len(firsts)
    distinct = 0
    prime = np.uint64(1099511628211)
    for event in range(len(numbers)):
        if event and _same(data, places, event, event - 1):
            numbers[event] = numbers[event - 1]
            continue
        digest = np.uint64(14695981039346656037)
        for part in range(0, places.shape[0], 2):
            for i in range(places[part, event], places[part + 1, event]):
                digest = (digest ^ np.uint64(data[i])) * prime
            digest = (digest ^ np.uint64(0xFF)) * prime
        slot = np.int64(digest % np.uint64(len(slots)))
        while True:
            number = slots[slot]
            if number < 0:
                if distinct == capacity:
                    return capacity + 1
                slots[slot] = distinct
                firsts[distinct] = event
                numbers[event] = distinct
                distinct += 1
                break
            if _same(data, places, event, firsts[number]):
                numbers[event] = number
                break
            slot = (slot + 1) % len(slots)
    return distinct
