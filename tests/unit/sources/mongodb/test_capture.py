from __future__ import annotations

from typing import Any

import bson
import pytest
from bson import Timestamp

from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.sources.base import ReadLimit
from airflow_cdc_provider.sources.mongodb.bson import as_bytes, split_documents
from airflow_cdc_provider.sources.mongodb.capture import (
    BEGIN,
    ChangeStream,
    join_fragments,
    oldest_time,
    stream_pipeline,
    target,
)
from airflow_cdc_provider.sources.mongodb.connection import ConnectionValues, RawBatch
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.mongodb.position import StreamPlace, token_time


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
def test_a_missing_fragment_ends_the_plan_and_moves_no_place() -> None:
    start = StreamPlace(4, 0, token=bson.encode({"_data": "0"}))
    stream = ChangeStream(ConnectionValues("mongodb://nowhere"), MongodbOptions(), None)
    batches = iter([split_batch((1, 3), (3, 3))])
    stream._place, stream._cursor = start, object()  # type: ignore[assignment]  # never asked
    stream._next = lambda _: next(batches)  # type: ignore[method-assign,assignment]
    with pytest.raises(TransientError, match="fragment 2, found fragment 3"):
        stream.plan(start, StreamPlace(9, 0), ReadLimit())
    assert stream._place == start


@pytest.mark.covers("MDB-STR-05")
def test_a_lost_stream_is_opened_again_after_pauses_that_double(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("airflow_cdc_provider.sources.mongodb.capture.time.sleep", pauses.append)
    place = StreamPlace(4, 0, token=bson.encode({"_data": "0"}))
    stream = ChangeStream(ConnectionValues("mongodb://nowhere"), MongodbOptions(), None)
    stream._place = place
    opened: list[StreamPlace] = []

    def refuse(at: StreamPlace) -> None:
        opened.append(at)
        raise TransientError("no answer")

    stream._open = refuse  # type: ignore[method-assign,assignment]  # a server that stays away
    with pytest.raises(TransientError):
        stream._next(1)
    assert pauses == [0.2, 0.4, 0.8, 1.6]
    assert opened == [place] * 5


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
def test_the_stream_asks_for_what_the_options_say(options: dict[str, Any], stage: dict[str, Any]) -> None:
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
    """A client whose user may not ask for the server's status."""

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
