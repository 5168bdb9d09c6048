from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import bson
import pytest
from bson import Timestamp

from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.formats.bson import as_bytes, split_documents
from airflow_cdc_provider.sources.contract import ReadLimit
from airflow_cdc_provider.sources.mongodb.capture import ChangeStream
from airflow_cdc_provider.sources.mongodb.change_stream.fragments import join_fragments
from airflow_cdc_provider.sources.mongodb.change_stream.pipeline import stream_pipeline, target
from airflow_cdc_provider.sources.mongodb.connection import ConnectionValues
from airflow_cdc_provider.sources.mongodb.driver.oplog import BEGIN, oldest_time
from airflow_cdc_provider.sources.mongodb.driver.raw_cursor import RawBatch
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.mongodb.position import StreamPosition, token_time


@pytest.mark.covers("MDB-CUR-08")
def test_fragments_join_to_the_event_with_the_last_token() -> None:
    fragments = [
        {"_id": {"_data": "A"}, "splitEvent": {"fragment": 1, "of": 3}, "operationType": "update"},
        {"_id": {"_data": "B"}, "splitEvent": {"fragment": 2, "of": 3}, "fullDocument": {"x": 1}},
        {"_id": {"_data": "C"}, "splitEvent": {"fragment": 3, "of": 3}, "fullDocumentBeforeChange": {"x": 0}},
    ]
    joined = bson.decode(join_fragments([bson.encode(f) for f in fragments]))
    assert list(joined.items()) == [
        ("_id", {"_data": "C"}),
        ("operationType", "update"),
        ("fullDocument", {"x": 1}),
        ("fullDocumentBeforeChange", {"x": 0}),
    ]


def split_batch(*fragments: tuple[int, int]) -> RawBatch:
    """Build a batch of fragments (number, of how many) of one event."""
    data = as_bytes(
        b"".join(
            bson.encode(
                {
                    "_id": {"_data": f"{number}"},
                    "splitEvent": {"fragment": number, "of": of},
                    "clusterTime": Timestamp(5, 1),
                }
            )
            for number, of in fragments
        )
    )
    return RawBatch(data, split_documents(data), b"", None)


@pytest.mark.covers("MDB-CUR-08")
def test_a_missing_fragment_ends_the_plan_and_keeps_the_position() -> None:
    start = StreamPosition(4, 0, token=bson.encode({"_data": "0"}))
    stream = ChangeStream(ConnectionValues("mongodb://nowhere"), MongodbOptions(), None)
    batches = iter([split_batch((1, 3), (3, 3))])
    stream._order.position, stream._cursor = start, SimpleNamespace(close=lambda: None)  # type: ignore[assignment]  # never called
    stream._next = lambda _: next(batches)  # type: ignore[method-assign,assignment]
    with pytest.raises(TransientError, match="fragment 2, found fragment 3"):
        stream.plan(start, StreamPosition(9, 0), ReadLimit())
    assert stream.position == start
    assert stream._cursor is None, "it would go on after the lost fragment"


def token(seconds: int, increment: int) -> bytes:
    """Build a high-water token of a cluster time."""
    return bson.encode({"_data": f"82{seconds:08X}{increment:08X}2B0229296E04"})


def batch_of(*times: tuple[int, int], resume: bytes = b"") -> RawBatch:
    """Build a batch of events of these cluster times."""
    events = [bson.encode({"_id": {"_data": "x"}, "clusterTime": Timestamp(*time)}) for time in times]
    data = as_bytes(b"".join(events))
    return RawBatch(data, split_documents(data), resume, None)


def stream_of(*batches: RawBatch) -> ChangeStream:
    """Return a stream with these batches; it never calls a server."""
    stream = ChangeStream(ConnectionValues("mongodb://nowhere"), MongodbOptions(), None)
    waiting = iter(batches)
    stream._next = lambda _: next(waiting)  # type: ignore[method-assign,assignment]
    return stream


@pytest.mark.covers("MDB-XA-02")
@pytest.mark.parametrize(
    "batch",
    [
        batch_of((4, 9), resume=token(4, 9)),
        batch_of((6, 1), (5, 9), resume=token(5, 9)),
        batch_of(resume=token(4, 9)),
    ],
)
def test_a_stream_that_goes_back_is_refused_and_keeps_the_position(batch: RawBatch) -> None:
    start = StreamPosition(5, 0, token=token(5, 0))
    stream = stream_of(batch)
    with pytest.raises(TransientError, match=r"went back: expected no events before cluster time [56]:"):
        stream.plan(start, StreamPosition(9, 0), ReadLimit())
    assert stream.position == start


@pytest.mark.covers("MDB-XA-02")
def test_a_first_batch_of_101_events_is_not_taken_for_the_whole_backlog() -> None:
    first = batch_of(*((5, n) for n in range(101)), resume=token(5, 100))
    rest = batch_of(*((6, n) for n in range(7)), resume=token(6, 6))
    stream = stream_of(first, rest, batch_of(resume=token(9, 0)))
    plan = stream.plan(StreamPosition(4, 0), StreamPosition(9, 0), ReadLimit())
    assert plan.at_head
    assert stream.counts.events == 108
    assert (stream.counts.replies, stream.counts.empty_replies) == (3, 1)
    assert stream.counts.last_empty_reply_at is not None
    assert stream.counts.last_event_at is not None
    assert stream.counts.last_event_at <= stream.counts.last_empty_reply_at
    assert {name: stream.counts.position[name] for name in ("sec", "ord")} == {"sec": "9", "ord": "0"}


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_start_by_time_and_index_skips_that_many_events_however_they_are_batched(size: int) -> None:
    events = [(5, 1)] * 7 + [(6, 1)]
    batches = [
        batch_of(*events[at : at + size], resume=token(*events[min(at + size, 8) - 1]))
        for at in range(0, 8, size)
    ]
    for index in range(7):
        stream = stream_of(*batches, batch_of(resume=token(9, 0)))
        start = StreamPosition(5, 1, index)
        stream._order.opened(start, replays=stream._replays)
        plan = stream.plan(start, StreamPosition(9, 0), ReadLimit())
        times = [e["clusterTime"] for part in plan.partitions for e in bson.decode_all(part.events)]
        assert times == [Timestamp(*time) for time in events[index + 1 :]]
        assert plan.partitions[0].first_index == (index + 1 if index < 6 else 0)


@pytest.mark.covers("MDB-STR-05")
def test_a_lost_stream_is_opened_again_after_pauses_that_double(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("airflow_cdc_provider.sources.mongodb.capture.time.sleep", pauses.append)
    start_position = StreamPosition(4, 0, token=bson.encode({"_data": "0"}))
    stream = ChangeStream(ConnectionValues("mongodb://nowhere"), MongodbOptions(), None)
    stream._order.position = start_position
    opened: list[StreamPosition] = []

    def refuse(at: StreamPosition) -> None:
        opened.append(at)
        raise TransientError("no answer")

    stream._open = refuse  # type: ignore[method-assign,assignment]  # a server that stays away
    with pytest.raises(TransientError):
        stream._next(1)
    assert pauses == [1, 2, 4, 8, 16, 32, 64, *[120] * 9]
    assert opened == [start_position] * 17


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ({"_data": "826B016DE6000000012B0229296E04"}, 0x6B016DE6_00000001),
        ({"_data": "826B016D"}, 0),
        ({"_data": "82zz016DE6000000012B"}, 0),
        ({"_data": 5}, 0),
        ({"other": 1}, 0),
    ],
)
def test_the_time_of_a_token_is_read_or_unknown(token: dict[str, Any], expected: int) -> None:
    assert token_time(token) == expected


@pytest.mark.covers("MDB-CAP-06", "MDB-CAP-07", "MDB-CAP-10", "MDB-CUR-08")
@pytest.mark.parametrize(
    ("options", "stage"),
    [
        ({}, {"allChangesForCluster": True, "fullDocument": "updateLookup"}),
        (
            {"full_document": "post_image", "pre_images": True, "scope": "database", "target": "shop"},
            {"fullDocument": "whenAvailable", "fullDocumentBeforeChange": "whenAvailable"},
        ),
        ({"full_document": "none", "scope": "collection", "target": "shop.a"}, {}),
    ],
)
def test_the_stream_has_the_configured_options(options: dict[str, Any], stage: dict[str, Any]) -> None:
    pipeline = stream_pipeline(MongodbOptions(**options), None, split=True)
    assert pipeline[0] == {"$changeStream": stage}
    assert pipeline[-1] == {"$changeStreamSplitLargeEvent": {}}
    assert len(stream_pipeline(MongodbOptions(**options), None, split=False)) == 2


@pytest.mark.covers("MDB-XD-25")
def test_a_target_may_be_a_collection_with_dots() -> None:
    assert target(MongodbOptions()) == ("admin", 1)
    assert target(MongodbOptions(scope="database", target="shop")) == ("shop", 1)
    assert target(MongodbOptions(scope="collection", target="shop.a.b")) == ("shop", "a.b")


@pytest.mark.parametrize(
    ("scope", "name"), [("database", ""), ("database", "a.b"), ("collection", "a"), ("collection", "")]
)
def test_a_target_that_does_not_fit_the_scope_is_refused(scope: Any, name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"source\.target"):
        target(MongodbOptions(scope=scope, target=name))


class NoStatus:
    """A client whose user may not run serverStatus."""

    @property
    def admin(self) -> NoStatus:
        return self

    def command(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("oldest", [1, 50, 1_000, 99_999, 100_000])
def test_without_status_the_oldest_time_is_found_by_trying(oldest: int) -> None:
    tried = []

    def accepts(time: Timestamp) -> bool:
        tried.append(time.time)
        return time.time >= oldest

    found = oldest_time(NoStatus(), accepts, Timestamp(100_000, 1))  # type: ignore[arg-type]  # a recording stand-in
    assert found == (BEGIN if oldest == 1 else Timestamp(oldest, 0))
    assert len(tried) < 40


def test_a_stream_without_tokens_is_at_its_head_once_it_has_nothing_to_give() -> None:
    """As on Amazon DocumentDB: an empty reply has no token, and the position is unchanged."""
    start = StreamPosition(4, 0)
    stream = ChangeStream(ConnectionValues("mongodb://nowhere"), MongodbOptions(), None)
    nothing = RawBatch(as_bytes(b""), split_documents(as_bytes(b"")), b"", Timestamp(9, 9))
    waits: list[int] = []
    stream._order.position, stream._cursor = start, SimpleNamespace(close=lambda: None)  # type: ignore[assignment]  # never called

    def wait(milliseconds: int) -> RawBatch:
        waits.append(milliseconds)
        return nothing

    stream._next = wait  # type: ignore[method-assign,assignment]
    plan = stream.plan(start, StreamPosition(9, 0), ReadLimit())
    assert plan.at_head
    assert plan.end == start.to_offset()
    assert waits[-1] == 1000
