"""Finds the members of JSON objects and the elements of arrays in place, with :mod:`.formats.json_text`.

The caller must ensure that the text is UTF-8. The last of several members with the same name wins, as in
Jackson.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.names import number_names
from airflow_cdc_provider.formats.arrow_bytes import binary_buffer
from airflow_cdc_provider.formats.byte_kernels import same
from airflow_cdc_provider.formats.json_text import (
    ABSENT,
    ARRAY,
    DEEPEST,
    FALSE,
    INTEGER,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    TRUE,
    scan_texts,
    skip_blank,
    skip_name,
    skip_string,
    skip_value,
)
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, Ints, walker

_INITIAL_CAPACITY: Final = 1024


@dataclass(frozen=True, eq=False)
class ValueSpans:
    """The positions of values in a buffer.

    Args:
        starts: Offset of each value's first byte, -1 for none.
        ends: Offset after each value, -1 for none.
        kinds: Kind of each value: a constant of :mod:`.formats.json_text`.
    """

    starts: Ints
    ends: Ints
    kinds: Ints

    def take(self, rows: Ints) -> ValueSpans:
        """Return the values at indexes."""
        return ValueSpans(self.starts[rows], self.ends[rows], self.kinds[rows])

    def only(self, *kinds: int) -> ValueSpans:
        """Return the values of some kinds; all others become absent."""
        own = np.isin(self.kinds, kinds)
        return ValueSpans(
            np.where(own, self.starts, -1), np.where(own, self.ends, -1), np.where(own, self.kinds, ABSENT)
        )

    def only_present(self) -> ValueSpans:
        """Return the values without nulls."""
        return self.only(FALSE, TRUE, INTEGER, NUMBER, STRING, OBJECT, ARRAY)

    @property
    def present(self) -> np.ndarray:
        """Whether there is a non-null value."""
        present: np.ndarray = self.kinds > NULL
        return present


@dataclass(frozen=True, eq=False)
class Members:
    """The members of objects, ordered by object.

    Args:
        data: The buffer.
        count: Number of objects.
        owners: Index of each member's object.
        names: Start and end offset of each name as written, without the quotes.
        values: The values.
    """

    data: Bytes
    count: int
    owners: Ints
    names: Ints
    values: ValueSpans

    @cached_property
    def numbered(self) -> tuple[Ints, list[str]]:
        """The number of each member's name, and the names. Each spelling of a name has its own number."""
        numbers, firsts = number_names(self.data, self.names)
        spelled = [self.data[self.names[0, at] : self.names[1, at]].tobytes() for at in firsts]
        return numbers, [_read_name(name) for name in spelled]

    def index(self, names: Sequence[str]) -> Ints:
        """Find members by name: a row per name with the index of the member per object; -1 for none."""
        numbers, known = self.numbered
        row_of_name = {name: row for row, name in enumerate(names)}
        row_of = np.array([row_of_name.get(name, -1) for name in known] or [-1], np.int64)
        found = np.full((len(names), self.count), -1, np.int64)
        _scatter(row_of[numbers], self.owners, found)
        return found

    def at(self, index: Ints) -> ValueSpans:
        """Return the values of the members at indexes; absent for -1."""
        present = index >= 0
        if not len(self.owners):
            return ValueSpans(index, index, np.zeros(len(index), np.int64))
        values = self.values
        return ValueSpans(
            np.where(present, values.starts[index], -1),
            np.where(present, values.ends[index], -1),
            np.where(present, values.kinds[index], ABSENT),
        )

    def find(self, *names: str) -> list[ValueSpans]:
        """Find members by name: for each name, the value in each object."""
        return [self.at(row) for row in self.index(names)]


def read_values(texts: pa.Array) -> tuple[Bytes, ValueSpans]:
    """Scan JSON texts.

    Args:
        texts: Binary; null for none.

    Returns:
        A buffer, and the position of each value in it, without surrounding blanks. The kind is :data:`ABSENT`
        for none, or for invalid JSON.
    """
    data, starts, ends = binary_buffer(texts)
    valid = _is_utf8(texts)
    return data, ValueSpans(*scan_texts(data, np.where(valid, starts, -1), ends))


def members_of(data: Bytes, objects: ValueSpans) -> Members:
    """Find the members of objects from :func:`read_values`; other values have none."""
    capacity = _INITIAL_CAPACITY
    starts = objects.only(OBJECT).starts
    stack = np.zeros(DEEPEST, np.uint8)
    while True:
        found = np.full((6, capacity), -1, np.int64)
        count = _members(data, starts, objects.ends, found, stack)
        if count <= capacity:
            break
        capacity = count
    found = found[:, :count]
    return Members(data, len(starts), found[0], found[1:3].copy(), ValueSpans(found[3], found[4], found[5]))


def elements_of(data: Bytes, arrays: ValueSpans) -> tuple[Ints, ValueSpans]:
    """Find the elements of arrays; other values have none.

    Returns:
        The offset of each array's first element, and one more; and the elements.
    """
    capacity = _INITIAL_CAPACITY
    starts = arrays.only(ARRAY).starts
    stack = np.zeros(DEEPEST, np.uint8)
    offsets = np.zeros(len(starts) + 1, np.int64)
    while True:
        found = np.full((3, capacity), -1, np.int64)
        count = _elements(data, starts, arrays.ends, found, offsets, stack)
        if count <= capacity:
            break
        capacity = count
    return offsets, ValueSpans(found[0, :count], found[1, :count], found[2, :count])


def spelled(data: Bytes, values: ValueSpans, spellings: Sequence[bytes]) -> np.ndarray:
    """Return which values have one of the spellings."""
    found = np.zeros(len(values.starts), np.bool_)
    for spelling in spellings:
        _is_spelled(data, values.starts, values.ends, np.frombuffer(spelling, np.uint8), found)
    return found


def _read_name(spelling: bytes) -> str:
    """Decode a name. An unpaired surrogate, which Arrow strings can't contain, becomes U+FFFD."""
    name: str = json.loads(b'"' + spelling + b'"')
    return name.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _is_utf8(texts: pa.Array) -> np.ndarray:
    """Return which texts are UTF-8."""
    try:
        texts.cast(pa.string())
    except pa.ArrowInvalid:
        if len(texts) == 1:
            return np.zeros(1, np.bool_)
        half = len(texts) // 2
        return np.concatenate([_is_utf8(texts.slice(0, half)), _is_utf8(texts.slice(half))])
    found: np.ndarray = pc.is_valid(texts).to_numpy(zero_copy_only=False)
    return found


@walker
def _members(data: Bytes, starts: Ints, ends: Ints, found: Ints, stack: Bytes) -> Int:
    """Fill in the members of valid objects up to the capacity; return the total number."""
    count = np.int64(0)
    for row in range(len(starts)):
        if starts[row] < 0:
            continue
        end = ends[row]
        at = skip_blank(data, starts[row] + 1, end)
        while at < end and data[at] != 0x7D:
            name = skip_blank(data, at, end)
            after = skip_string(data, name, end)
            at = skip_name(data, name, end)
            if after < 0 or at < 0:
                break
            at = skip_blank(data, at, end)
            kind, stop = skip_value(data, at, end, stack)
            if kind == ABSENT:
                break
            if count < found.shape[1]:
                found[0, count] = row
                found[1, count] = name + 1
                found[2, count] = after - 1
                found[3, count] = at
                found[4, count] = stop
                found[5, count] = kind
            count += 1
            at = skip_blank(data, stop, end)
            if at < end and data[at] == 0x2C:
                at = skip_blank(data, at + 1, end)
    return count


@walker
def _elements(data: Bytes, starts: Ints, ends: Ints, found: Ints, offsets: Ints, stack: Bytes) -> Int:
    """Fill in the elements of valid arrays up to the capacity; return the total number."""
    count = np.int64(0)
    for row in range(len(starts)):
        end = ends[row]
        at = end if starts[row] < 0 else skip_blank(data, starts[row] + 1, end)
        while at < end and data[at] != 0x5D:
            kind, stop = skip_value(data, at, end, stack)
            if kind == ABSENT:
                break
            if count < found.shape[1]:
                found[0, count] = at
                found[1, count] = stop
                found[2, count] = kind
            count += 1
            at = skip_blank(data, stop, end)
            if at < end and data[at] == 0x2C:
                at = skip_blank(data, at + 1, end)
        offsets[row + 1] = count
    return count


@walker
def _scatter(rows: Ints, owners: Ints, found: Ints) -> None:
    for member in range(len(rows)):
        if rows[member] >= 0:
            found[rows[member], owners[member]] = member


@walker
def _is_spelled(data: Bytes, starts: Ints, ends: Ints, spelling: Bytes, found: Flags) -> None:
    for row in range(len(starts)):
        fits = starts[row] >= 0 and ends[row] - starts[row] == len(spelling)
        if fits and same(data, starts[row], spelling, 0, len(spelling)):
            found[row] = True
