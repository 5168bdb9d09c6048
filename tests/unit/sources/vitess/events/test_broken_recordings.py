"""Broken recordings of Vitess: invalid messages are located, counted and skipped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import text_of
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.recordings import Recording
from tests.recorded_lines import event_lines, row_lines
from tests.unit.vitess_stream import NOT_NULL, PRIMARY, Stream, column

ITEM = (
    column("id", "INT64", "bigint", PRIMARY | NOT_NULL),
    column("name", "VARCHAR", "varchar(20)", charset=255),
)
CONNECTOR = Connector.from_dict(
    {"name": "shop", "source": {"type": "vitess", "keyspace": "shop"}, "publish": {"headers": False}}
)
Damaging = Callable[[list[bytes]], bytes]


def recorded() -> list[bytes]:
    """Six transactions, each event a message of its own behind its length: 1 + 4 * 6."""
    stream = Stream().fields("item", *ITEM)
    for number in range(6):
        stream.change("item", None, [str(number).encode(), b"x"])
    messages = [message.SerializeToString() for message in stream.messages]
    return [_length(message) + message for message in messages]


def _length(message: bytes) -> bytes:
    length, found = len(message), b""
    while length >= 0x80:
        found += bytes([length & 0x7F | 0x80])
        length >>= 7
    return found + bytes([length])


def ids(work: Any, path: Path, skipped: SkippedRecords) -> list[int]:
    lines = work(CONNECTOR, Recording(path, "", 10**18), skipped)
    found = [json.loads(line) for part in lines for line in text_of(part).splitlines()]
    if work is row_lines:
        return [int(one["row"]["id"]) for one in found]
    return [json.loads(one["value"])["after"]["id"] for one in found]


def message_of(number: int, part: int) -> int:
    """Number of a message: BEGIN, ROW, VGTID, COMMIT of a transaction."""
    return 1 + 4 * number + part


def without_end(messages: list[bytes]) -> bytes:
    return b"".join(messages)[:-3]


def torn_row(messages: list[bytes]) -> bytes:
    whole = messages[message_of(2, 1)]
    assert whole[0] < 0x80, "the length is one byte"
    messages[message_of(2, 1)] = whole[:1] + b"\x0b" + whole[2:]  # a group, which has no place here
    return b"".join(messages)


def torn_vgtid(messages: list[bytes]) -> bytes:
    whole = messages[message_of(2, 2)]
    messages[message_of(2, 2)] = whole.replace(b"MySQL56", b"\xff\xffSQL56")
    return b"".join(messages)


def torn_fields(messages: list[bytes]) -> bytes:
    messages[0] = messages[0].replace(b"varchar", b"\xff\xffrchar")
    return b"".join(messages)


CASES: list[tuple[Damaging, list[int], str]] = [
    (without_end, [0, 1, 2, 3, 4], "at byte"),
    (torn_row, [0, 1, 3, 4, 5], "at byte"),
    (torn_vgtid, [0, 1, 3, 4, 5], "a VGTID can't be parsed"),
    (torn_fields, [], "the fields of a table can't be parsed"),
]


@pytest.mark.covers("VIT-FLT-11")
@pytest.mark.parametrize(("breaks", "left", "reported"), CASES)
def test_events_of_valid_messages_are_printed(
    tmp_path: Path, breaks: Damaging, left: list[int], reported: str
) -> None:
    path = tmp_path / "item.vstream"
    path.write_bytes(breaks(recorded()))
    skipped = SkippedRecords(strict=False)

    assert ids(event_lines, path, skipped) == left

    assert any(reported in line for line in skipped.report())
    assert skipped.report()[-1].startswith("summary: ")
    with pytest.raises(CorruptInput, match=r"item\.vstream.*strict: false to skip such records"):
        ids(event_lines, path, SkippedRecords(strict=True))


@pytest.mark.covers("VIT-FLT-11")
@pytest.mark.parametrize(("breaks", "left", "reported"), CASES[:3])
def test_rows_of_valid_messages_are_printed(
    tmp_path: Path, breaks: Damaging, left: list[int], reported: str
) -> None:
    path = tmp_path / "item.vstream"
    path.write_bytes(breaks(recorded()))
    skipped = SkippedRecords(strict=False)

    assert sorted(ids(row_lines, path, skipped)) == left

    assert any(reported in line for line in skipped.report())
    with pytest.raises(CorruptInput, match=r"item\.vstream"):
        ids(row_lines, path, SkippedRecords(strict=True))


def test_skipped_messages_are_reported_by_their_byte(tmp_path: Path) -> None:
    messages = recorded()
    place = sum(len(one) for one in messages[: message_of(2, 1)])
    path = tmp_path / "item.vstream"
    path.write_bytes(torn_row(messages))
    skipped = SkippedRecords(strict=False)

    ids(event_lines, path, skipped)

    assert len(skipped.undecodable) == 1
    assert skipped.undecodable[0].startswith(f"{path} at byte {place + 1}: ")
