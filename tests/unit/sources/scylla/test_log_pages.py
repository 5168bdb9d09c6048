"""Pages of logs to changes, however pages cut them; and what a page may not be."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.sources.scylla.log_pages import MalformedPage, page_changes
from airflow_cdc_provider.sources.scylla.quarantine import payload_rows
from airflow_cdc_provider.sources.scylla.stream_ids import first_time, sortable_time

COLUMNS = 8


def row(
    moment_us: int, number: int, *, last: bool = False, code: int = 1, value: bytes | None = b"x"
) -> bytes:
    values = [
        bytes(16),
        first_time(moment_us),
        struct.pack(">i", number),
        struct.pack(">b", code),
        None,
        b"\1" if last else None,
        None,
        value,
    ]
    return b"".join(struct.pack(">i", -1) if v is None else struct.pack(">i", len(v)) + v for v in values)


def change(moment_us: int, rows: int) -> list[bytes]:
    return [row(moment_us, n, last=n == rows - 1) for n in range(rows)]


@given(st.lists(st.integers(1, 4), max_size=8), st.data())
def test_changes_are_the_same_however_pages_cut_them(sizes: list[int], data: st.DataObject) -> None:
    changes = [change(moment, size) for moment, size in enumerate(sizes)]
    rows = [r for rows in changes for r in rows]
    found: list[list[bytes]] = []
    times: list[bytes] = []
    rest, rest_rows, at = b"", 0, 0
    while at < len(rows) or rest_rows:
        count = data.draw(st.integers(0, len(rows) - at))
        more = at + count < len(rows)
        content = rest + b"".join(rows[at : at + count])
        page, left, rest_rows = page_changes(content, rest_rows + count, COLUMNS, more=more)
        rest, at = content[left:], at + count
        assert page.complete.all()
        begin = 0
        for end, time in zip(page.ends.tolist(), page.times, strict=True):
            found.append(list(payload_rows(page.payloads[begin:end].tobytes())))
            times.append(time.tobytes())
            begin = end
    assert found == changes
    assert times == [sortable_time(first_time(moment)) for moment in range(len(sizes))]


@pytest.mark.covers("SCY-LOG-16")
def test_a_change_without_its_end_is_not_whole() -> None:
    rows = [row(1, 0), row(2, 0, last=True), row(3, 0)]
    page, left, left_rows = page_changes(b"".join(rows), 3, COLUMNS, more=False)
    assert page.complete.tolist() == [False, True, False]
    assert (left, left_rows) == (len(b"".join(rows)), 0)
    page, left, left_rows = page_changes(b"".join(rows), 3, COLUMNS, more=True)
    assert page.complete.tolist() == [False, True]
    assert (left, left_rows) == (len(rows[0] + rows[1]), 1)


@pytest.mark.parametrize("code", [-128, -5, -2, -1, 10, 127])
def test_unknown_codes_are_reported(code: int) -> None:
    rows = [row(1, 0, code=2), row(1, 1, code=code, last=True), row(2, 0, code=-3, last=True)]
    page, _, _ = page_changes(b"".join(rows), 3, COLUMNS, more=False)
    assert page.unknown_code.tolist() == [code, 0]


@given(st.integers(0, 200), st.integers(-1, 1), st.data())
def test_a_malformed_page_is_refused_and_never_read_past_its_end(
    cut: int, more: int, data: st.DataObject
) -> None:
    whole = b"".join(change(1, 3))
    damaged = bytearray(whole[: len(whole) - cut]) if cut else bytearray(whole + b"\0")
    place = data.draw(st.integers(0, max(0, len(damaged) - 1)))
    if damaged and more:
        damaged[place] ^= data.draw(st.integers(1, 255))
    try:
        page, left, rows = page_changes(bytes(damaged), 3, COLUMNS, more=more > 0)
    except MalformedPage:
        return
    assert left <= len(damaged)
    assert int(page.rows.sum()) + rows == 3
