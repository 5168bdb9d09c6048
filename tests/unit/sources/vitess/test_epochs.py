"""Epochs of shards: where they begin, when they rise, and what events show of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput
from airflow_cdc_provider.sources.contract import ReadLimit
from airflow_cdc_provider.sources.vitess.assembler import TransactionAssembler
from airflow_cdc_provider.sources.vitess.options import VitessOptions
from airflow_cdc_provider.sources.vitess.position import Position, ShardPosition
from airflow_cdc_provider.sources.vitess.protocol import VStreamResponse
from airflow_cdc_provider.sources.vitess.source import VitessSource
from airflow_cdc_provider.sources.vitess.transaction_order import TransactionOrder
from airflow_cdc_provider.sources.vitess.wire import VGTID, split_recording
from tests.unit.sources.vitess.fake_vtgate import (
    FakeVtgate,
    Waits,
    event,
    gtid,
    response,
    transaction,
    vgtid,
)

RESHARD = Path(__file__).parents[3] / "fixtures" / "vitess" / "reshard"
A = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
B = "bbbbbbbb-bbbb-bbbb-bbbb-bbbbbbbbbbbb"
ANSWERS: dict[str, list[tuple[str, ...]]] = {
    "SHOW VITESS_SHARDS": [("shop/-80",), ("shop/80-",)],
    "SHOW GLOBAL VARIABLES": [("gtid_purged", "")],
}


def at_five(request: Any) -> list[bytes | Waits]:
    shards: dict[str, int | str] = {s.shard: 5 for s in request.vgtid.shard_gtids}
    reported = [response(event("VGTID", s, vgtid=vgtid(shards)), event("OTHER", s)) for s in shards]
    return [*reported, Waits()]


def start_epochs(**options: Any) -> dict[str, int]:
    """The epochs of a new capture of two shards at their fifth transaction."""
    with FakeVtgate([at_five], ANSWERS) as server:
        source = VitessSource(VitessOptions(keyspace="shop", **options), server.connection, str.isascii)
        start = source.start()
        source.close()
    return {shard.partition("/")[2]: value["epoch"] for shard, value in start.items()}


def start_at(number: int) -> str:
    return json.dumps([{"keyspace": "shop", "shard": s, "gtid": gtid(number)} for s in ("-80", "80-")])


@pytest.mark.covers("VIT-TXN-09")
def test_epochs_that_are_given_are_those_before_the_first_position() -> None:
    given = {"-80": 3, "80-": 7}

    assert start_epochs() == {"-80": 1, "80-": 1}
    assert start_epochs(epochs=given) == {"-80": 4, "80-": 8}
    assert start_epochs(epochs=given, start_at=start_at(4)) == given


@pytest.mark.covers("VIT-TXN-09")
def test_epochs_of_other_shards_than_those_of_the_start_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected -80, 80-, found -80"):
        start_epochs(epochs={"-80": 3})
    with pytest.raises(ConfigurationError, match="expected -80, 80-, found -40, 40-80, 80-"):
        start_epochs(epochs={"-40": 1, "40-80": 1, "80-": 1}, start_at=start_at(4))
    source = {"type": "vitess", "keyspace": "shop"}
    written = Connector.from_dict({"name": "s", "source": {**source, "epochs": '{"-80": 3}'}}).source
    assert isinstance(written, VitessOptions)
    assert written.epochs == {"-80": 3}
    with pytest.raises(ConfigurationError, match=r"source\.epochs: expected a whole number per shard"):
        Connector.from_dict({"name": "s", "source": {**source, "epochs": {"-80": -1}}})


@pytest.mark.covers("VIT-TXN-11")
def test_a_raised_generation_adds_one_to_all_epochs_at_the_next_start_and_once() -> None:
    stored = Position(
        {"shop/-80": ShardPosition(gtid(5), 2), "shop/80-": ShardPosition(gtid(5), 1)}
    ).to_offset()
    with FakeVtgate([at_five], ANSWERS) as server:
        offset: Any = stored
        for generation, after in ((0, [2, 1]), (1, [3, 2]), (1, [3, 2])):
            options = VitessOptions(keyspace="shop", generation=generation)
            source = VitessSource(options, server.connection, str.isascii)
            plan = source.plan(offset, source.head(), ReadLimit())
            source.close()
            offset = plan.end
            assert plan.at_head
            assert [value["epoch"] for value in plan.end.values()] == after


@pytest.mark.covers("VIT-TXN-07")
@pytest.mark.parametrize("back", ["current", ""])
def test_a_shard_that_goes_back_to_no_position_breaks_the_stream(back: str) -> None:
    place = Position({"shop/-80": ShardPosition(gtid(5), 1)})
    assembler = TransactionAssembler(
        place,
        str.isascii,
        lambda table, name: False,
        slice_bytes=1,
        keep_empty=False,
        stops_at_journals=False,
    )

    with pytest.raises(CorruptInput, match="went back to none"):
        assembler.add(response(*transaction("-80", {"-80": back})), 1)


@pytest.mark.covers("VIT-TXN-07")
def test_epochs_of_a_stream_rise_as_debeziums_do() -> None:
    """The steps of its VitessEpochProvider: from ``current``, on, one more server, one less, others."""
    order = TransactionOrder(Position({"shop/0": ShardPosition("current")}))
    sets = [
        "current",
        f"MySQL56/{A}:1-5",
        f"MySQL56/{A}:1-6",
        f"MySQL56/{A}:1-6,{B}:1",
        f"MySQL56/{A}:1-7",
        f"MySQL56/{B}:1-2",
    ]

    steps = [(vgtid({"0": one}).SerializeToString(), "shop/0") for one in sets]

    assert order.next(steps).epochs.to_pylist() == [0, 1, 1, 1, 2, 3]


def recorded_transactions() -> Iterator[tuple[bytes, str]]:
    data, starts, ends = split_recording((RESHARD / "include_journal.vstream").read_bytes())
    for first, end in zip(starts, ends, strict=True):
        for reported in VStreamResponse.FromString(data[first:end].tobytes()).events:
            if reported.type == VGTID:
                yield reported.vgtid.SerializeToString(), f"{reported.keyspace}/{reported.shard}"


@pytest.mark.recorded
@pytest.mark.covers("VIT-TXN-10")
@pytest.mark.parametrize(("inherits", "born"), [(True, 2), (False, 0)])
def test_shards_of_a_recorded_reshard_inherit_their_parents_epoch_or_start_at_0(
    inherits: bool, born: int
) -> None:
    steps = list(recorded_transactions())
    order = TransactionOrder(inherits=inherits)

    epochs = order.next(steps).epochs.to_pylist()

    by_shard: dict[str, set[int]] = {}
    for (_, shard), epoch in zip(steps, epochs, strict=True):
        by_shard.setdefault(shard, set()).add(epoch)
    assert by_shard["shop/80-"] == by_shard["shop/-80"] == {1}
    assert by_shard["shop/40-80"] == {born}


@pytest.mark.covers("VIT-TXN-10")
def test_captured_epochs_are_relative_to_the_first_epoch_of_the_shard() -> None:
    first_epochs = {"shop/-40": {2, 6}}
    steps = [(vgtid({"-40": 1}).SerializeToString(), "shop/-40")] * 4
    kept = np.array([2, 3, 6, 7], np.int64)

    assert TransactionOrder(first_epochs=first_epochs).known(steps, kept).epochs.to_pylist() == [2, 3, 6, 7]
    shown = TransactionOrder(inherits=False, first_epochs=first_epochs).known(steps, kept)
    assert shown.epochs.to_pylist() == [0, 1, 0, 1]


def test_inherited_epochs_need_ordered_transactions() -> None:
    declared = {"name": "s", "source": {"type": "vitess", "keyspace": "shop"}}
    publish: dict[str, Any] = {"transactions": True, "vitess": {"inherit_epochs": True}}
    with pytest.raises(ConfigurationError, match="inherit_epochs has no effect without ordered"):
        Connector.from_dict({**declared, "publish": publish})
    publish["vitess"]["ordered_transactions"] = True
    assert Connector.from_dict({**declared, "publish": publish}).publish.vitess.inherit_epochs
