from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.vitess import wire
from airflow_cdc_provider.sources.vitess.protocol import VEvent, VStreamResponse
from airflow_cdc_provider.sources.vitess.wire import Events, ShardTable, scan, split_recording
from tests.chance import examples

FIXTURES = Path(__file__).parents[3] / "fixtures" / "vitess"
RECORDINGS = sorted(FIXTURES.glob("*/*.vstream"))

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
NAMES = st.sampled_from(["", "shop", "-80", "80-", "shop.item", "item", "shop.é", "lookup"])
INT64 = st.one_of(st.sampled_from([0, 1, -1, 127, 128, 2**63 - 1, -(2**63)]), st.integers(0, 2**40))
BODIES = ("row_event", "field_event", "vgtid", "journal")


@st.composite
def events(draw: st.DrawFn) -> Any:
    event = VEvent(
        type=draw(st.one_of(st.integers(0, 22), st.sampled_from([12, 13, 15, 16]), st.just(99))),
        timestamp=draw(INT64),
        current_time=draw(INT64),
        statement=draw(TEXT),
        keyspace=draw(NAMES),
        shard=draw(NAMES),
        throttled=draw(st.booleans()),
        gtid=draw(TEXT),
    )
    for body in draw(st.sets(st.sampled_from(BODIES), max_size=2)):
        member = getattr(event, body)
        member.SetInParent()
        if body in ("row_event", "field_event"):
            member.table_name, member.keyspace, member.shard = draw(NAMES), draw(NAMES), draw(NAMES)
        if body == "row_event":
            member.flags = draw(st.integers(0, 2**32 - 1))
            for value in draw(st.lists(st.binary(max_size=5), max_size=4)):
                member.row_changes.add().after.values = value
        if body == "vgtid":
            member.shard_gtids.add(keyspace=draw(TEXT), gtid=draw(TEXT))
        if body == "journal":
            member.local_position = draw(TEXT)
    return event


RESPONSES = st.lists(events(), max_size=5).map(lambda found: VStreamResponse(events=found))


def expected_body(event: Any) -> bytes | None:
    """What an event of its type carries as protobuf sees it; None for nothing."""
    name = {
        wire.ROW: "row_event",
        wire.FIELD: "field_event",
        wire.VGTID: "vgtid",
        wire.JOURNAL: "journal",
    }.get(event.type)
    if name is None:
        return event.statement.encode() or None
    return getattr(event, name).SerializeToString() if event.HasField(name) else None


def expected_table(event: Any) -> ShardTable:
    inner = {wire.ROW: event.row_event, wire.FIELD: event.field_event}.get(event.type)
    if inner is None:
        return ShardTable(event.keyspace, event.shard, "")
    keyspace = event.keyspace or inner.keyspace
    return ShardTable(keyspace, event.shard or inner.shard, inner.table_name.removeprefix(f"{keyspace}."))


def assert_same(found: Events, responses: list[Any]) -> None:
    expected = [(number, event) for number, response in enumerate(responses) for event in response.events]
    assert len(found) == len(expected)
    assert found.messages.tolist() == [number for number, _ in expected]
    assert found.types.tolist() == [event.type for _, event in expected]
    assert found.timestamps.tolist() == [event.timestamp for _, event in expected]
    assert found.current_times.tolist() == [event.current_time for _, event in expected]
    assert found.throttled.tolist() == [event.throttled for _, event in expected]
    changes: list[tuple[int, bytes]] = []
    for number, (_, event) in enumerate(expected):
        assert found.table(number) == expected_table(event)
        assert VEvent.FromString(found.event(number)) == event
        body = expected_body(event)
        kind = {
            wire.ROW: "row_event",
            wire.FIELD: "field_event",
            wire.VGTID: "vgtid",
            wire.JOURNAL: "journal",
        }
        if event.type in kind and body is not None:
            member = getattr(event, kind[event.type])
            assert type(member).FromString(found.body(number)) == member
        else:
            assert found.body(number) == (body or b"")
        is_row = event.type == wire.ROW
        assert found.flags[number] == (event.row_event.flags if is_row else 0)
        if is_row:
            changes += [(number, change.SerializeToString()) for change in event.row_event.row_changes]
    assert len(found.changes) == len(changes)
    for i, (number, change) in enumerate(changes):
        message = type(VEvent().row_event.row_changes.add())
        assert found.changes.events[i] == number
        span = found.data[found.changes.starts[i] : found.changes.ends[i]].tobytes()
        assert message.FromString(span) == message.FromString(change)


@pytest.mark.parametrize("file", RECORDINGS, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_recorded_streams_are_read_as_protobuf_reads_them(file: Path) -> None:
    data, starts, ends = split_recording(file.read_bytes())
    responses = [VStreamResponse.FromString(data[a:b].tobytes()) for a, b in zip(starts, ends, strict=True)]
    assert len(responses) > 5

    assert_same(scan(data, starts, ends), responses)


@given(st.lists(RESPONSES, max_size=3))
def test_every_response_is_read_as_protobuf_reads_it(responses: list[Any]) -> None:
    messages = [response.SerializeToString() for response in responses]
    ends = np.cumsum([len(message) for message in messages], dtype=np.int64)
    starts = ends - np.array([len(message) for message in messages], np.int64)

    assert_same(scan(b"".join(messages), starts, ends), responses)


@settings(max_examples=examples(400))
@given(
    RESPONSES, st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 255)), max_size=3), st.integers(0, 6)
)
def test_corrupt_responses_are_rejected_or_parsed_as_protobuf_does(
    response: Any, changes: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(response.SerializeToString())
    for place, byte in changes:
        if data:
            data[place % len(data)] = byte
    damaged = bytes(data[: len(data) - cut])
    try:
        oracle = VStreamResponse.FromString(damaged)
    except DecodeError:
        oracle = None

    try:
        found = scan(damaged)
    except CorruptInput as error:
        reported = str(error)
        assert oracle is None or "twice" in reported or "wire type" in reported or "0 byte" in reported, (
            reported
        )
    else:
        # Texts that are no UTF-8, and what is inside rows and positions, are their readers' to refuse.
        if oracle is not None:
            assert_same(found, [oracle])


@given(st.binary(max_size=60))
def test_no_bytes_lead_out_of_a_message(data: bytes) -> None:
    padded = np.frombuffer(b"\x0a\xff" + data + b"\x0a\x02\x08\x0c", np.uint8)
    inside = np.array([2]), np.array([2 + len(data)])
    try:
        found = scan(padded, *inside)
    except CorruptInput:
        return
    for places in (found.starts, found.ends, found.body_ends[found.body_starts >= 0], found.changes.ends):
        assert ((places >= 2) & (places <= 2 + len(data))).all()


def test_fields_of_later_versions_are_skipped() -> None:
    later = VEvent(type=wire.BEGIN, keyspace="shop").SerializeToString()
    later += b"\xf8\x3f\x07" + b"\xf9\x3f" + bytes(8) + b"\xfa\x3f\x02hi" + b"\xfd\x3f" + bytes(4)

    found = scan(b"\x0a" + bytes([len(later)]) + later + b"\x12\x01x")

    assert found.types.tolist() == [wire.BEGIN]
    assert found.table(0) == ("shop", "", "")


def test_an_error_names_message_and_byte() -> None:
    sound = VStreamResponse(events=[VEvent(type=wire.BEGIN)]).SerializeToString()
    data = sound + sound[:-1] + b"\xff"

    with pytest.raises(CorruptInput, match=r"Message 1 .* byte 2.*a number is truncated"):
        scan(data, np.array([0, len(sound)]), np.array([len(sound), len(data)]))


def test_a_duplicate_singular_message_is_rejected() -> None:
    event = VEvent(type=wire.VGTID, vgtid={"shard_gtids": [{"gtid": "a"}]}).SerializeToString()
    doubled = event + VEvent(vgtid={}).SerializeToString()

    with pytest.raises(CorruptInput, match="twice"):
        scan(b"\x0a" + bytes([len(doubled)]) + doubled)


def test_a_stretch_of_events_is_a_message_again() -> None:
    data, starts, ends = split_recording((FIXTURES / "vstream" / "default.vstream").read_bytes())
    whole = scan(data, starts, ends)
    joined = np.concatenate([data[a:b] for a, b in zip(starts, ends, strict=True)])

    again = scan(joined)
    part = scan(joined[again.keys[10] : again.ends[200]])

    assert again.types.tolist() == whole.types.tolist()
    assert part.types.tolist() == whole.types[10:201].tolist()
    assert [part.body(i) for i in range(len(part))] == [whole.body(i) for i in range(10, 201)]


@pytest.mark.parametrize(
    ("data", "reported"),
    [(b"\x05ab", "a length of 5"), (b"\x80", "truncated"), (b"\x01a\xff", "after 1 messages")],
)
def test_a_broken_recording_is_rejected(data: bytes, reported: str) -> None:
    with pytest.raises(CorruptInput, match=reported):
        split_recording(data)
