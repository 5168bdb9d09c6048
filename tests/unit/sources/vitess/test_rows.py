from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.formats.kernels import Bytes, Ints
from airflow_cdc_provider.sources.vitess.protocol import Row, RowChange
from airflow_cdc_provider.sources.vitess.rows import (
    FAULTS,
    NULL,
    UNKNOWN,
    Changes,
    RowSpans,
    bit_of_each,
    mark_unknown,
    read_changes,
    read_rows,
)

VALUES = st.lists(st.none() | st.binary(max_size=200), max_size=12)
MUTATIONS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=5)


def row(values: list[bytes | None]) -> Any:
    return Row(
        lengths=[-1 if value is None else len(value) for value in values],
        values=b"".join(value or b"" for value in values),
    )


def values_of(message: Any) -> list[bytes | None]:
    """Parse a row as Vitess does."""
    found, at = [], 0
    for length in message.lengths:
        found.append(None if length < 0 else message.values[at : at + length])
        at += max(length, 0)
    return found


def laid_out(messages: list[bytes]) -> tuple[Bytes, Ints, Ints]:
    """Put messages into one buffer, behind bytes that belong to none."""
    ends = np.cumsum([3, *map(len, messages)])
    return np.frombuffer(b"\xff\xff\xff" + b"".join(messages), np.uint8), ends[:-1], ends[1:]


def slices_of(data: Bytes, starts: Ints, ends: Ints) -> list[bytes | None]:
    return [
        None if first < 0 else data[first:last].tobytes() for first, last in zip(starts, ends, strict=True)
    ]


def read_one(message: bytes, columns: int) -> tuple[list[bytes | None], int, str]:
    data, starts, ends = laid_out([message])
    found = read_rows(data, starts, ends, columns)
    return (
        slices_of(data, found.starts[:, 0], found.ends[:, 0]),
        int(found.counts[0]),
        FAULTS[found.faults[0]],
    )


def changes_of(messages: list[bytes]) -> tuple[Bytes, Changes]:
    data, starts, ends = laid_out(messages)
    return data, read_changes(data, starts, ends)


@given(VALUES)
def test_values_of_a_row_are_found_and_null_differs_from_empty(values: list[bytes | None]) -> None:
    assert read_one(row(values).SerializeToString(), len(values)) == (values, len(values), "")


@given(VALUES, st.integers(0, 12))
def test_a_row_with_another_number_of_values_returns_none_and_their_number(
    values: list[bytes | None], columns: int
) -> None:
    expected = values if columns == len(values) else [None] * columns
    assert read_one(row(values).SerializeToString(), columns) == (expected, len(values), "")


@given(st.lists(st.tuples(st.none() | VALUES, st.none() | VALUES), max_size=5))
def test_rows_of_changes_are_where_protobuf_finds_them(pairs: list[tuple[Any, Any]]) -> None:
    messages = [
        RowChange(before=None if before is None else row(before), after=None if after is None else row(after))
        for before, after in pairs
    ]
    data, found = changes_of([message.SerializeToString() for message in messages])

    def shown(spans: RowSpans) -> list[list[bytes | None] | None]:
        texts = slices_of(data, spans.starts, spans.ends)
        return [None if text is None else values_of(Row.FromString(text)) for text in texts]

    assert not found.faults.any()
    assert list(zip(shown(found.before), shown(found.after), strict=True)) == pairs


@given(VALUES, MUTATIONS)
def test_a_corrupt_row_is_rejected_or_parsed_as_protobuf_does(
    values: list[bytes | None], changes: list[tuple[int, int]]
) -> None:
    message = bytearray(row(values).SerializeToString() or b"\x0a\x00")
    for place, byte in changes:
        message[place % len(message)] = byte
    data, starts, ends = laid_out([bytes(message)])
    found = read_rows(data, starts, ends, len(values))
    if found.faults[0]:
        assert (found.starts == NULL).all()
        return
    expected = values_of(Row.FromString(bytes(message)))
    assert found.counts[0] == len(expected)
    if len(expected) == len(values):
        assert slices_of(data, found.starts[:, 0], found.ends[:, 0]) == expected


@given(st.binary(max_size=60))
def test_no_bytes_lead_outside_of_a_message(message: bytes) -> None:
    data, found = changes_of([message])
    spans = [found.before, found.after]
    for part in spans:
        if part.starts[0] >= 0:
            assert 3 <= part.starts[0] <= part.ends[0] <= len(data)
    if not found.faults[0]:
        whole = RowChange.FromString(message)
        assert whole.HasField("before") == (found.before.starts[0] >= 0)
        assert whole.HasField("after") == (found.after.starts[0] >= 0)
        assert whole.HasField("data_columns") == bool(found.data_columns.present[0])
    for columns in (0, 1, 3):
        values = read_rows(data, spans[0].starts, spans[0].ends, columns)
        assert (values.ends <= len(data)).all()


def test_lengths_may_be_unpacked_in_several_runs_and_behind_the_values() -> None:
    message = b"\x12\x03abc" + b"\x0a\x01\x02" + b"\x08\x01" + b"\x0a\x01\x04"
    assert values_of(Row.FromString(message)) == [b"a", None, b"bc"]
    assert read_one(message, 3) == ([b"a", None, b"bc"], 3, "")


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (b"\x0a\x01\x04\x12\x01a", "a length exceeds the row's values"),
        (b"\x0a\x01\x02\x12\x02ab", "the row's values are longer than the sum of their lengths"),
        (b"\x12\x01a\x12\x01a\x0a\x01\x02", "a part of a change occurs twice"),
        (b"\x12\x05a", "a field leaves its message"),
        (b"\x0a\x01\x80", "a field leaves its message"),
        (b"\x0b\x0c", "a field leaves its message"),
        (b"\x0a\x0a\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "a length exceeds the row's values"),
    ],
)
def test_an_invalid_row_has_no_values_and_a_fault(message: bytes, fault: str) -> None:
    assert read_one(message, 1) == ([None], NULL, fault)


def test_a_message_that_should_end_behind_its_buffer_is_broken() -> None:
    data = np.zeros(2, np.uint8)
    found = read_rows(data, np.array([0]), np.array([3]), 1)
    assert FAULTS[found.faults[0]] == "a field leaves its message"
    assert FAULTS[read_changes(data, np.array([0]), np.array([3])).faults[0]] == "a field leaves its message"


def test_a_change_with_two_rows_after_is_broken() -> None:
    one = RowChange(after=row([b"1"])).SerializeToString()
    _, found = changes_of([one + one, one])
    assert [FAULTS[number] for number in found.faults] == ["a part of a change occurs twice", ""]
    assert list(found.after.starts >= 0) == [False, True]


@given(st.lists(st.booleans(), min_size=1, max_size=20))
def test_columns_that_the_binlog_omits_differ_from_null(known: list[bool]) -> None:
    bits = np.packbits(known, bitorder="little").tobytes()
    partial = RowChange(after=row([None if n % 3 else b"x" for n in range(len(known))]))
    partial.data_columns.count = len(known)
    partial.data_columns.cols = bits
    whole = RowChange(after=row([b"x"] * len(known)))
    data, found = changes_of([partial.SerializeToString(), whole.SerializeToString()])
    values = read_rows(data, found.after.starts, found.after.ends, len(known))
    unknown = mark_unknown(data, values, found.data_columns)
    assert list(unknown) == [known.count(False), 0]
    assert [first == UNKNOWN for first in values.starts[:, 0]] == [not one for one in known]
    assert [first == NULL for first in values.starts[:, 0]] == [
        one and n % 3 > 0 for n, one in enumerate(known)
    ]
    assert (values.starts[:, 1] >= 0).all()


def test_a_bitmap_of_another_number_of_columns_leaves_none_known() -> None:
    change = RowChange(after=row([b"x", b"y"]))
    change.data_columns.count = 3
    change.data_columns.cols = b"\x07"
    data, found = changes_of([change.SerializeToString()])
    values = read_rows(data, found.after.starts, found.after.ends, 2)
    assert list(mark_unknown(data, values, found.data_columns)) == [2]


def test_a_bitmap_that_is_shorter_than_its_count_is_broken() -> None:
    change = RowChange(after=row([b"x"]))
    change.json_partial_values.count = 9
    change.json_partial_values.cols = b"\x01"
    _, found = changes_of([change.SerializeToString()])
    assert FAULTS[found.faults[0]] == "a bitmap is shorter than its count"
    assert found.after.starts[0] == NULL


def test_json_columns_with_a_partial_update_are_reported() -> None:
    change = RowChange(after=row([b"{}", b"JSON_REPLACE(%s, '$.a', 1)"]))
    change.json_partial_values.count = 2
    change.json_partial_values.cols = b"\x02"
    data, found = changes_of([change.SerializeToString(), RowChange(after=row([])).SerializeToString()])
    assert [list(bit_of_each(data, found.json_partial, number)) for number in range(3)] == [
        [False, False],
        [True, False],
        [False, False],
    ]
