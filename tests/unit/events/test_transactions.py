"""Transaction metadata against a count in plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.events.transactions import OpenTransaction, bound, track

EVENTS = st.lists(
    st.tuples(st.sampled_from([None, "t1", "t2", "t3"]), st.sampled_from(["d.a", "d.b", "d.c"])), max_size=12
)
OPEN = st.one_of(
    st.just(OpenTransaction()),
    st.dictionaries(st.sampled_from(["d.a", "d.b", "d.z"]), st.integers(1, 3), min_size=1).map(
        lambda counts: OpenTransaction("t1", counts)
    ),
)
Event = tuple[str | None, str]


def expected(events: list[Event], opened: OpenTransaction) -> tuple[list[Any], list[Any], OpenTransaction]:
    open_id, counts = opened.id, dict(opened.counts)
    blocks: list[Any] = []
    records: list[Any] = []
    for number, (transaction, collection) in enumerate(events):
        if open_id and transaction != open_id:
            ended = sorted(counts.items())
            records.append((number, "END", open_id, sum(counts.values()), ended))
            open_id, counts = "", {}
        if transaction is None:
            blocks.append(None)
            continue
        if not open_id:
            records.append((number, "BEGIN", transaction, None, None))
            open_id = transaction
        counts[collection] = counts.get(collection, 0) + 1
        blocks.append(
            {
                "id": transaction,
                "total_order": sum(counts.values()),
                "data_collection_order": counts[collection],
            }
        )
    return blocks, records, OpenTransaction(open_id, counts)


def found(events: list[Event], opened: OpenTransaction) -> tuple[list[Any], list[Any], OpenTransaction]:
    tracked = track(
        pa.array([t for t, _ in events], pa.utf8()),
        pa.array([c for _, c in events], pa.utf8()),
        pa.array([1000 + n for n in range(len(events))], pa.int64()),
        opened,
    )
    records = []
    for before, record in zip(tracked.before.tolist(), tracked.records.to_pylist(), strict=True):
        collections = record["data_collections"]
        counts = None
        if collections is not None:
            counts = sorted((c["data_collection"], c["event_count"]) for c in collections)
        assert record["ts_ms"] == 1000 + before
        records.append((before, record["status"], record["id"], record["event_count"], counts))
    return tracked.blocks.to_pylist(), records, tracked.open


@pytest.mark.covers("MDB-TX-02", "MDB-TX-03", "MDB-TX-05", "MDB-XD-26")
@given(EVENTS, OPEN)
def test_blocks_and_records_are_those_of_a_count(events: list[Event], opened: OpenTransaction) -> None:
    assert found(events, opened) == expected(events, opened)


@pytest.mark.covers("MDB-XD-26")
@given(EVENTS, st.integers(0, 12))
def test_a_cut_anywhere_changes_nothing(events: list[Event], cut: int) -> None:
    blocks, records, still_open = found(events, OpenTransaction())
    first = found(events[:cut], OpenTransaction())
    stored = OpenTransaction.from_json(first[2].to_json())
    second = found(events[cut:], stored)
    done = min(cut, len(events))
    assert first[0] + second[0] == blocks
    assert first[1] + [(before + done, *rest) for before, *rest in second[1]] == records
    assert second[2] == still_open


def test_transactions_with_known_bounds_are_counted_also_without_events() -> None:
    bounded = bound(
        pa.array(["a", "b", "c"]),
        np.array([1, 2, 3]),
        np.array([4, 5, 6]),
        np.array([0, 0, 0, 2]),
        pa.array(["-80.shop.item", "-80.shop.orders", "-80.shop.item", "-80.shop.item"]),
    )

    assert bounded.blocks.to_pylist() == [
        {"id": "a", "total_order": 1, "data_collection_order": 1},
        {"id": "a", "total_order": 2, "data_collection_order": 1},
        {"id": "a", "total_order": 3, "data_collection_order": 2},
        {"id": "c", "total_order": 1, "data_collection_order": 1},
    ]
    reported = bounded.records.to_pylist()
    assert [(r["status"], r["id"], r["event_count"], r["ts_ms"]) for r in reported] == [
        ("BEGIN", "a", None, 1),
        ("BEGIN", "b", None, 2),
        ("BEGIN", "c", None, 3),
        ("END", "a", 3, 4),
        ("END", "b", 0, 5),
        ("END", "c", 1, 6),
    ]
    assert reported[0]["data_collections"] is None
    # In the order of Java's HashMap, as Debezium was seen to write them.
    assert [c["data_collection"] for c in reported[3]["data_collections"]] == [
        "-80.shop.orders",
        "-80.shop.item",
    ]
    assert reported[4]["data_collections"] == []
