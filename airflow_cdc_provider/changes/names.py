"""Distinct names in events, found by kernels, so that each is decoded once instead of once per event."""

from __future__ import annotations

from typing import Final

import numpy as np

from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, walker

_FIRST_CAPACITY: Final = 64


def number_names(data: Bytes, bounds: Ints) -> tuple[Ints, list[int]]:
    """Number the distinct names.

    Args:
        data: Bytes that hold the names.
        bounds: A column per event, two rows per part of its name: start and end of the part in ``data``.

    Returns:
        The number of each event's name, and per number the first event with that name.
    """
    numbers = np.zeros(bounds.shape[1], np.int64)
    capacity = _FIRST_CAPACITY
    while True:
        firsts = np.zeros(capacity, np.int64)
        distinct = _number(data, bounds, numbers, firsts, np.full(4 * capacity, -1, np.int64))
        if distinct <= capacity:
            return numbers, firsts[:distinct].tolist()
        capacity *= 4


@walker
def _same(data: Bytes, bounds: Ints, a: Int, b: Int) -> bool:
    for part in range(0, bounds.shape[0], 2):
        start = bounds[part, a]
        other = bounds[part, b]
        size = bounds[part + 1, a] - start
        if size != bounds[part + 1, b] - other:
            return False
        for i in range(size):  # a generator is no kernel code
            if data[start + i] != data[other + i]:
                return False
    return True


@walker
def _number(data: Bytes, bounds: Ints, numbers: Ints, firsts: Ints, slots: Ints) -> Int:
    """Fill numbers; return the number of distinct names, or more than ``firsts`` holds. Slots are all -1."""
    capacity = len(firsts)
    distinct = 0
    prime = np.uint64(1099511628211)
    for event in range(len(numbers)):
        if event and _same(data, bounds, event, event - 1):
            numbers[event] = numbers[event - 1]
            continue
        digest = np.uint64(14695981039346656037)
        for part in range(0, bounds.shape[0], 2):
            for i in range(bounds[part, event], bounds[part + 1, event]):
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
            if _same(data, bounds, event, firsts[number]):
                numbers[event] = number
                break
            slot = (slot + 1) % len(slots)
    return distinct
