from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration.offsets.connect import to_rest
from airflow_cdc_provider.migration.offsets.vitess import (
    VitessOffsets,
    layout_of,
    moved,
    position_of,
    read_offsets,
    to_debezium,
)
from airflow_cdc_provider.sources.vitess.gtid import CURRENT
from airflow_cdc_provider.sources.vitess.options import VitessOptions, VitessTaskOffsets
from airflow_cdc_provider.sources.vitess.position import Position, ShardPosition

A = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
B = "bbbbbbbb-bbbb-bbbb-bbbb-bbbbbbbbbbbb"
VGTID: list[dict[str, Any]] = [
    {"keyspace": "shop", "shard": "-80", "gtid": f"MySQL56/{A}:1-41", "table_p_ks": []},
    {"keyspace": "shop", "shard": "80-", "gtid": f"MySQL56/{B}:1-38"},
]
STORED = {"vgtid": json.dumps(VGTID), "transaction_epoch": '{"-80":2,"80-":1}'}
SHARDS = ("shop/-80", "shop/80-")
POSITION = Position(
    {
        "shop/-80": ShardPosition(f"MySQL56/{A}:1-41", 2),
        "shop/80-": ShardPosition(f"MySQL56/{B}:1-38", 1),
    }
)
PLAIN = VitessOptions(keyspace="shop")


def of_tasks(generation: int, tasks: int, previous: int, **more: Any) -> VitessOptions:
    offsets = VitessTaskOffsets(per_task=True, generation=generation, previous_tasks=previous)
    return VitessOptions(keyspace="shop", streams=tasks, task_offsets=offsets, **more)


def read(content: str, options: VitessOptions = PLAIN) -> tuple[Position, tuple[str, ...]]:
    return position_of(read_offsets(content.encode()), "pre", options, lambda: SHARDS)


def stored(*entries: tuple[str, Any]) -> str:
    """A file with offsets by the keys of their tasks, empty for the connector's own."""
    return to_rest(
        ({"server": "pre", **({"task_key": key} if key else {})}, {"vgtid": json.dumps(vgtid)})
        for key, vgtid in entries
    )


def test_offsets_of_several_connectors_are_distinguished() -> None:
    both = to_rest([({"server": name}, STORED) for name in ("pre", "other")])
    assert read(both)[0] == POSITION
    with pytest.raises(ConfigurationError, match=r"no offset of this connector.*found one, other"):
        read(to_rest([({"server": name}, STORED) for name in ("one", "other")]))


@pytest.mark.covers("VIT-OFS-13")
@pytest.mark.parametrize(
    "content",
    [
        json.dumps({"offsets": [{"partition": {"server": "pre"}, "offset": STORED}]}),
        json.dumps(["name", {"server": "pre"}]) + "\t" + json.dumps(STORED),
        json.dumps(STORED),
    ],
)
def test_debeziums_offset_is_imported_with_its_epochs(content: str) -> None:
    assert VitessOffsets.recognizes(content.encode())

    position, remarks = read(content)

    assert position == POSITION
    assert remarks == ()


@pytest.mark.covers("VIT-OFS-13")
def test_an_offset_is_written_as_debezium_reads_it() -> None:
    written = to_rest(to_debezium(POSITION.of_generation(3), "pre", None))

    (entry,) = json.loads(written)["offsets"]
    assert entry["partition"] == {"server": "pre"}
    assert json.loads(entry["offset"]["vgtid"]) == [{**one, "table_p_ks": []} for one in VGTID]
    assert json.loads(entry["offset"]["transaction_epoch"]) == {"-80": 3, "80-": 2}
    assert entry["offset"]["connector_generation"] == 3
    assert read(written)[0] == POSITION.of_generation(3)


@pytest.mark.covers("VIT-OFS-02", "VIT-OFS-06")
def test_each_task_has_the_vgtid_of_its_own_shards_under_its_own_key() -> None:
    options = of_tasks(1, 2, 1)

    written = to_debezium(POSITION, "pre", layout_of(options))

    (before, _), *tasks = written
    assert before == {"server": "pre"}
    assert [partition["task_key"] for partition, _ in tasks] == ["task0_2_1", "task1_2_1"]
    assert [[e["shard"] for e in json.loads(offset["vgtid"])] for _, offset in tasks] == [["-80"], ["80-"]]
    assert [json.loads(offset["transaction_epoch"]) for _, offset in tasks] == [{"-80": 2}, {"80-": 1}]
    assert read(to_rest(written), options)[0] == POSITION
    assert PLAIN.task_offsets.per_task is False
    assert layout_of(PLAIN) is None
    assert [partition for partition, _ in to_debezium(POSITION, "pre", layout_of(PLAIN))] == [before]


def test_offsets_of_tasks_are_written_so_that_debezium_starts() -> None:
    options = of_tasks(3, 1, 2)

    written = to_debezium(POSITION, "pre", layout_of(options))

    assert [partition["task_key"] for partition, _ in written] == ["task0_2_2", "task1_2_2", "task0_1_3"]
    assert read(to_rest(written), options)[0] == POSITION
    with pytest.raises(ConfigurationError, match="as many tasks and the same shards"):
        to_debezium(POSITION, "pre", layout_of(of_tasks(3, 2, 2)))
    first = to_debezium(POSITION, "pre", layout_of(of_tasks(0, 2, 1)))
    assert [partition["task_key"] for partition, _ in first] == ["task0_2_0", "task1_2_0"]


def test_offsets_of_tasks_are_merged_without_a_configured_layout() -> None:
    tasks = [(f"task{n}_2_1", [entry]) for n, entry in enumerate(VGTID)]
    older = [{**VGTID[0], "gtid": f"MySQL56/{A}:1"}, VGTID[1]]

    assert set(read(stored(("", older), *tasks))[0].shards) == set(SHARDS)
    assert read(stored(("", older), *tasks))[0].shards["shop/-80"].gtid == VGTID[0]["gtid"]
    with pytest.raises(ConfigurationError, match="generation 1 was used with several numbers of tasks"):
        read(stored(("task0_1_1", VGTID), *tasks))


@pytest.mark.covers("VIT-OFS-10")
def test_shards_without_a_stored_offset_start_at_the_configured_position() -> None:
    first = stored(("", VGTID[:1]))
    given = json.dumps([{**one, "gtid": f"MySQL56/{B}:1-7"} for one in VGTID])

    position, _ = read(first, of_tasks(1, 2, 1, start_at=given, epochs={"-80": 4, "80-": 5}))

    assert position.shards["shop/-80"].gtid == VGTID[0]["gtid"]
    assert position.shards["shop/80-"] == ShardPosition(f"MySQL56/{B}:1-7", 5)
    with pytest.raises(ConfigurationError, match="no start position of shop/80-"):
        read(first, of_tasks(1, 2, 1))


@pytest.mark.covers("VIT-TXN-11")
def test_the_connectors_generation_is_imported() -> None:
    reported = json.dumps({**STORED, "connector_generation": 2})

    position, _ = read(reported)

    assert {place.generation for place in position.shards.values()} == {2}
    assert {s: p.epoch for s, p in position.of_generation(3).shards.items()} == {"shop/-80": 3, "shop/80-": 2}
    unreported, _ = read(json.dumps(STORED), VitessOptions(keyspace="shop", generation=4))
    assert unreported.of_generation(4) == unreported


@pytest.mark.covers("VIT-OFS-12")
def test_an_unfinished_copy_is_reported_and_keeps_its_last_key_in_the_next_generation() -> None:
    key = {"fields": [{"name": "id", "type": "INT64"}], "rows": [{"lengths": ["1"], "values": "7"}]}
    copying = [{**VGTID[0], "table_p_ks": [{"table_name": "orders", "lastpk": key}]}, VGTID[1]]
    content = stored(("", copying))

    _, remarks = read(content)
    assert remarks == ("Debezium's copy of shard shop/-80 was not finished (orders): take a snapshot",)

    written = moved(read_offsets(content.encode()), "pre", of_tasks(1, 2, 1), SHARDS)
    assert [partition["task_key"] for partition, _ in written] == ["task0_2_1", "task1_2_1"]
    assert json.loads(written[0][1]["vgtid"]) == [copying[0]]
    with pytest.raises(ConfigurationError, match="don't store offsets"):
        moved(read_offsets(content.encode()), "pre", PLAIN, SHARDS)


@pytest.mark.parametrize("gtid", ["", CURRENT, "rubbish"])
def test_an_offset_without_a_place_is_refused(gtid: str) -> None:
    with pytest.raises(ConfigurationError, match="shop/-80"):
        read(json.dumps({"vgtid": json.dumps([{**VGTID[0], "gtid": gtid}])}))


@pytest.mark.parametrize("vgtid", ["[1]", "{}", '[{"shard": "-80"}]', "x"])
def test_an_invalid_vgtid_of_an_offset_is_rejected(vgtid: str) -> None:
    with pytest.raises(ConfigurationError, match="invalid vgtid in this offset"):
        read(json.dumps({"vgtid": vgtid}))


def test_our_own_offset_is_not_taken_for_debeziums() -> None:
    assert not VitessOffsets.recognizes(json.dumps(POSITION.to_offset()).encode())


@pytest.mark.covers("VIT-OFS-03", "VIT-OFS-04")
def test_offsets_per_task_need_a_generation_and_the_previous_number_of_tasks() -> None:
    with pytest.raises(ConfigurationError, match=r"task\.key\.gen\) of 0 or more, found -1"):
        VitessTaskOffsets(per_task=True)
    with pytest.raises(ConfigurationError, match=r"prev\.num\.tasks\) above 0, found -1"):
        VitessTaskOffsets(per_task=True, generation=0)
    assert of_tasks(0, 2, 1).task_offsets.per_task
