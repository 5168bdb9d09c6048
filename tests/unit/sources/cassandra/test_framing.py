"""Entries of sections: checksums, and each rule for what is broken."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.sources.cassandra.commit_log.checksum import crc32
from airflow_cdc_provider.sources.cassandra.commit_log.framing import Entries, find_entries
from airflow_cdc_provider.sources.cql.reasons import code
from tests.unit.sources.cassandra.commit_logs import entry

PAYLOADS = (b"first mutation", b"second mutation!", b"third mutation, the last")


def find(*sections: bytes, positions: list[int] | None = None) -> Entries:
    data = np.frombuffer(b"".join(sections) or b"\0", np.uint8)
    lengths = np.array([len(s) for s in sections], np.int64)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    return find_entries(data, starts, ends, np.array(positions or starts, np.int64))


def damage(found: Entries) -> list[tuple[int, int, str]]:
    """Position, length and code of each stretch that can't be read."""
    return [(int(line[2]), int(line[1]), code(int(line[3]))) for line in found.damage]


def broken(entries: list[bytes], number: int, at: int) -> bytes:
    """Join entries of which one has a byte flipped."""
    flipped = bytearray(entries[number])
    flipped[at] ^= 0x40
    return b"".join([*entries[:number], bytes(flipped), *entries[number + 1 :]])


@given(st.binary(max_size=400), st.integers(0, 20), st.integers(0, (1 << 32) - 1))
def test_checksum_is_zlibs(data: bytes, start: int, carried: int) -> None:
    array = np.frombuffer(b"\0" * start + data or b"\0", np.uint8)
    assert crc32(array, start, len(data), carried) == zlib.crc32(data, carried)


def test_entries_are_found_with_their_logical_ends() -> None:
    section = b"".join(map(entry, PAYLOADS))
    found = find(section, section, positions=[100, 1000])
    ends = np.cumsum([len(p) + 12 for p in PAYLOADS])
    assert found.entries[:, 2].tolist() == [*(100 + ends), *(1000 + ends)]
    assert [(int(s), int(n)) for s, n, _ in found.entries[:2]] == [(8, 14), (34, 16)]
    assert len(found.damage) == 0


@pytest.mark.covers("CAS-C50-09")
@pytest.mark.parametrize(
    ("at", "expected", "entries"),
    [
        (1, "size-checksum", 1),  # in the size: the start of the next entry is unknown
        (5, "size-checksum", 1),
        (12, "entry-checksum", 2),  # in the mutation: the next entry is where the size says
        (-1, "entry-checksum", 2),
    ],
)
def test_broken_entry_costs_itself_or_the_rest_of_its_section(at: int, expected: str, entries: int) -> None:
    parts = [entry(payload) for payload in PAYLOADS]
    whole = b"".join(parts)

    found = find(broken(parts, 1, at), whole)

    start = len(parts[0])
    length = len(parts[1]) if expected == "entry-checksum" else len(parts[1]) + len(parts[2])
    assert damage(found) == [(start, length, expected)]
    assert len(found.entries) == entries + 3


def test_zeros_after_the_last_entry_are_not_damage() -> None:
    assert damage(find(entry(PAYLOADS[0]) + bytes(100))) == []
    assert damage(find(bytes(3))) == []
    assert damage(find(b"")) == []


def test_data_after_a_size_of_zero_are_damage() -> None:
    found = find(bytes(4) + entry(PAYLOADS[0]), entry(PAYLOADS[1]))
    assert damage(found) == [(0, 4 + 12 + 14, "zero-size")]
    assert len(found.entries) == 1


@pytest.mark.parametrize("size", [1, 9, -1, -(1 << 31)])
def test_size_that_no_mutation_has_costs_the_rest_of_the_section(size: int) -> None:
    head = struct.pack(">i", size)
    section = head + struct.pack(">I", zlib.crc32(head)) + bytes(40)
    assert [d[2] for d in damage(find(section))] == ["size-invalid"]


@pytest.mark.parametrize("keep", [5, 7, 8, 20, 25])
def test_truncated_entry_is_damage(keep: int) -> None:
    found = find(entry(PAYLOADS[0]) + entry(PAYLOADS[1])[:keep])
    assert damage(found) == [(26, keep, "entry-beyond-section")]
    assert len(found.entries) == 1


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_any_bytes_are_read_without_going_beyond_them(sections: list[bytes]) -> None:
    found = find(*sections)
    total = sum(map(len, sections))
    assert all(start >= 0 and start + length <= total for start, length, _ in found.entries)
    assert all(at + length <= total for at, length, _, _ in found.damage)
