"""Requested shards and tablets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError, PositionLost
from airflow_cdc_provider.jobs.metrics.debezium import metrics_of
from airflow_cdc_provider.jobs.spec import JobResult, OriginResult
from airflow_cdc_provider.sources.contract import ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.vitess.connection import ConnectionValues
from airflow_cdc_provider.sources.vitess.options import VitessOptions, VitessStream
from airflow_cdc_provider.sources.vitess.position import Position, ShardPosition
from airflow_cdc_provider.sources.vitess.protocol import VGtid
from airflow_cdc_provider.sources.vitess.reader import is_captured
from airflow_cdc_provider.sources.vitess.requests import home_shards, serving_shards, stream_request
from airflow_cdc_provider.sources.vitess.source import VitessSource
from airflow_cdc_provider.sources.vitess.tablets import require_binlogs_retained
from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient
from airflow_cdc_provider.sources.vitess.wire import ShardTable
from tests.unit.sources.vitess.fake_vtgate import (
    FakeVtgate,
    Waits,
    event,
    fields,
    gtid,
    response,
    rows,
    transaction,
    vgtid,
)

Answers = dict[str, list[tuple[str, ...]]]
TABLETS: list[tuple[str, ...]] = [
    ("zone1", "shop", "-80", "PRIMARY", "SERVING", "zone1-100", "", ""),
    ("zone1", "shop", "-80", "REPLICA", "SERVING", "zone1-101", "", ""),
    ("zone1", "shop", "80-", "PRIMARY", "SERVING", "zone1-200", "", ""),
    ("zone1", "shop", "80-", "REPLICA", "NOT_SERVING", "zone1-201", "", ""),
    ("zone1", "lookup", "0", "RDONLY", "SERVING", "zone1-300", "", ""),
]
ANSWERS: dict[str, list[tuple[str, ...]]] = {
    "SHOW VITESS_SHARDS": [("shop/-80",), ("shop/80-",), ("lookup/0",)],
    "SHOW VITESS_TABLETS": TABLETS,
}


def stream(**options: Any) -> Any:
    return stream_request(VGtid(), None, VitessOptions(keyspace="shop", **options))


@pytest.mark.covers("VIT-SCO-08")
@pytest.mark.parametrize(
    ("name", "kind", "number"),
    [
        (None, "PRIMARY", 1),
        ("MASTER", "PRIMARY", 1),
        ("PRIMARY", "PRIMARY", 1),
        ("master", "PRIMARY", 1),
        ("REPLICA", "REPLICA", 2),
        ("RDONLY", "RDONLY", 3),
    ],
)
def test_tablet_types_are_sent_by_their_numbers(name: str | None, kind: str, number: int) -> None:
    source: dict[str, Any] = {"type": "vitess", "keyspace": "shop"}
    options = Connector.from_dict(
        {"name": "s", "source": {**source, **({"tablet_type": name} if name else {})}}
    ).source
    assert isinstance(options, VitessOptions)
    assert options.tablet_type == kind
    assert stream_request(VGtid(), None, options).tablet_type == number


def test_unknown_tablet_type_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"tablet_type.*PRIMARY, REPLICA, RDONLY"):
        Connector.from_dict(
            {"name": "s", "source": {"type": "vitess", "keyspace": "shop", "tablet_type": "SPARE"}}
        )


@pytest.mark.covers("VIT-SCO-21")
def test_cells_and_preferences_are_sent_and_empty_by_default() -> None:
    flags = stream().flags
    assert (flags.cells, flags.cell_preference, flags.tablet_order) == ("", "", "")
    chosen = VitessStream(cells=("zone1", "zone2"), cell_preference="onlyspecified", tablet_order="inorder")
    flags = stream(stream=chosen).flags
    assert (flags.cells, flags.cell_preference, flags.tablet_order) == (
        "zone1,zone2",
        "onlyspecified",
        "inorder",
    )


@pytest.mark.covers("VIT-SCO-18")
def test_shards_without_tablets_are_excluded_from_the_first_position_if_enabled() -> None:
    def first(request: Any) -> list[bytes | Waits]:
        shards: dict[str, int | str] = {s.shard: 5 for s in request.vgtid.shard_gtids}
        return [
            response(event("VGTID", shard, vgtid=vgtid(shards)), event("OTHER", shard)) for shard in shards
        ] + [Waits()]

    for excluded, shards in ((False, ["-80", "80-"]), (True, ["-80"])):
        options = VitessOptions(keyspace="shop", tablet_type="REPLICA", exclude_empty_shards=excluded)
        with FakeVtgate([first], ANSWERS) as vtgate:
            source = VitessSource(options, vtgate.connection, str.isascii)
            assert [shard.partition("/")[2] for shard in source.start()] == shards
            source.close()
        assert [s.shard for s in vtgate.requests[0].vgtid.shard_gtids] == shards
    assert VitessOptions(keyspace="shop").exclude_empty_shards is False


def test_keyspace_without_serving_tablets_is_reported() -> None:
    options = VitessOptions(keyspace="shop", tablet_type="RDONLY", exclude_empty_shards=True)
    with (
        FakeVtgate([], ANSWERS) as vtgate,
        VtgateClient(ConnectionValues.read(vtgate.connection)) as client,
        pytest.raises(
            ConfigurationError, match="no shard of keyspace shop has a serving tablet of type RDONLY"
        ),
    ):
        serving_shards(client, options)


def test_position_counts_as_kept_if_one_tablet_of_the_type_has_its_binlogs() -> None:
    """Two replicas are listed, so three looks: VTGate chooses a tablet for each."""
    purged = [gtid(9), gtid(3)]
    answers: dict[str, list[tuple[str, ...]]] = {
        "SHOW VITESS_TABLETS": [
            ("z", "shop", "0", "REPLICA", "SERVING", "z-1"),
            ("z", "shop", "0", "REPLICA", "SERVING", "z-2"),
        ],
        "SHOW GLOBAL VARIABLES": [("gtid_purged", purged[0].partition("/")[2])],
    }
    with FakeVtgate([], answers) as vtgate, VtgateClient(ConnectionValues.read(vtgate.connection)) as client:
        with pytest.raises(PositionLost, match="were purged"):
            require_binlogs_retained(client, {"shop/0": gtid(5)}, "REPLICA", 5)
        assert sum("GLOBAL" in sql for sql in vtgate.statements) == 3
        answers["SHOW GLOBAL VARIABLES"] = [("gtid_purged", purged[1].partition("/")[2])]
        require_binlogs_retained(client, {"shop/0": gtid(5)}, "REPLICA", 5)
        require_binlogs_retained(client, {"shop/0": "current"}, "REPLICA", 5)


@pytest.mark.covers("VIT-SCO-02", "VIT-SCO-11", "VIT-SCO-15")
@pytest.mark.parametrize("shards", [["-80", "80-"], ["0"]])
def test_one_stream_has_all_shards_and_a_rule_for_each_selected_table(shards: list[str]) -> None:
    migration = "_4e5dcf80_354b_11eb_82cd_f875a4d24e90_20201203114014"
    names = ("order", "item", "other", "_vt_hld_1", f"{migration}_gho", f"{migration}_vrepl")
    tables: list[tuple[str, ...]] = [("v", "VIEW"), *((name, "BASE TABLE") for name in names)]
    all_shards: list[tuple[str, ...]] = [(f"shop/{shard}",) for shard in shards]
    answers = {"SHOW VITESS_SHARDS": all_shards, "SHOW FULL TABLES": tables}

    def standing(number: int) -> list[bytes | Waits]:
        reported: dict[str, int | str] = dict.fromkeys(shards, number)
        found = [
            event("VGTID", shards[0], vgtid=vgtid(reported)),
            *(event("OTHER", shard) for shard in shards),
        ]
        return [response(*found), Waits()]

    def moving(request: Any) -> list[bytes | Waits]:
        reported: dict[str, int | str] = {s.shard: 5 for s in request.vgtid.shard_gtids}
        found: list[Any] = []
        for shard in list(reported):
            reported[shard] = 6
            found += [
                event("BEGIN", shard),
                event("VGTID", shard, vgtid=vgtid(reported)),
                event("COMMIT", shard),
            ]
        return [response(*found), Waits()]

    by_name = {name: (name, f"select * from `{name}`") for name in ("item", "order")}
    for table_names, rules in (
        ({"order"}, [by_name["order"]]),
        ({"item", "order"}, list(by_name.values())),
        ({"item", "order", "other"}, [("/.*", "")]),
    ):
        selected = {f"shop.{name}" for name in table_names}
        with FakeVtgate([standing(5), standing(6), moving], answers) as vtgate:
            source = VitessSource(VitessOptions(keyspace="shop"), vtgate.connection, selected.__contains__)
            start = source.start()
            assert source.tables() == sorted(selected)
            assert source.plan(start, source.head(), ReadLimit()).at_head
            source.close()
        *_, requested = vtgate.requests
        assert [(s.keyspace, s.shard) for s in requested.vgtid.shard_gtids] == [("shop", s) for s in shards]
        assert [(rule.match, rule.filter) for rule in requested.filter.rules] == rules


@pytest.mark.covers("VIT-SCO-19")
def test_names_of_tables_without_their_keyspace_change_nothing() -> None:
    """VTGate only does so with the flag; the event also contains the keyspace."""
    tables: list[tuple[str, ...]] = [("item", "BASE TABLE")]
    answers: Answers = {"SHOW VITESS_SHARDS": [("shop/-80",)], "SHOW FULL TABLES": tables}

    def script(request: Any) -> list[bytes | Waits]:
        last = request.vgtid.shard_gtids[0].gtid
        if last == "current":
            return [response(event("VGTID", "-80", vgtid=vgtid({"-80": 6})), event("OTHER", "-80")), Waits()]
        changes = rows("item", "-80", (None, ["1", "a"]), (["1", "a"], ["1", "b"]))
        events = transaction("-80", {"-80": 6}, fields("item", "-80"), changes)
        if request.flags.exclude_keyspace_from_table_name:
            for one in events[1:3]:
                inside = one.row_event if one.HasField("row_event") else one.field_event
                inside.table_name = inside.table_name.removeprefix("shop.")
        return [response(*events), Waits()]

    found = []
    start = Position({"shop/-80": ShardPosition(gtid(5), 1)}).to_offset()
    for excluded in (False, True):
        flags = VitessStream(exclude_keyspace_from_table_name=excluded)
        with FakeVtgate([script], answers) as vtgate:
            options = VitessOptions(keyspace="shop", stream=flags)
            source = VitessSource(options, vtgate.connection, "shop.item".__eq__)
            plan = source.plan(start, source.head(), ReadLimit())
            batches = list(source.reader().read(plan.partitions, ReadMetrics()))
            source.close()
        assert [r.flags.exclude_keyspace_from_table_name for r in vtgate.requests] == [excluded] * 2
        captured = [row for batch in batches for row in batch.to_pylist()] + list(plan.records)
        assert {row["source_table"] for row in captured} == {"shop.item", None}
        found.append(
            [{k: v for k, v in row.items() if k not in ("captured_at", "payload")} for row in captured]
        )
    assert found[0] == found[1]
    assert VitessStream().exclude_keyspace_from_table_name is False


@pytest.mark.covers("VIT-MET-04")
def test_changes_that_the_patterns_leave_out_are_counted() -> None:
    """A table created after a stream of all tables was opened is sent too, selected or not."""
    everything: list[tuple[str, ...]] = [("item", "BASE TABLE")]
    answers: Answers = {"SHOW VITESS_SHARDS": [("shop/-80",)], "SHOW FULL TABLES": everything}

    def script(request: Any) -> list[bytes | Waits]:
        if request.vgtid.shard_gtids[0].gtid == "current":
            return [response(event("VGTID", "-80", vgtid=vgtid({"-80": 6})), event("OTHER", "-80")), Waits()]
        item = rows("item", "-80", (None, ["1", "a"]))
        secret = rows("secret", "-80", (None, ["1", "a"]), (["1", "a"], None))
        both = (fields("item", "-80"), item, fields("secret", "-80"), secret)
        return [response(*transaction("-80", {"-80": 6}, *both)), Waits()]

    connector = Connector.from_dict(
        {
            "name": "s",
            "source": {"type": "vitess", "keyspace": "shop"},
            "tables": [r"shop\..*"],
            "exclude_tables": [r"shop\.secret"],
        }
    )
    assert isinstance(connector.source, VitessOptions)
    metrics = ReadMetrics()
    with FakeVtgate([script], answers) as vtgate:
        source = VitessSource(connector.source, vtgate.connection, connector.selects)
        plan = source.plan(
            Position({"shop/-80": ShardPosition(gtid(5), 1)}).to_offset(), source.head(), ReadLimit()
        )
        batches = list(source.reader().read(plan.partitions, metrics))
        numbers = source.stream_metrics()["stream"]
        source.close()

    assert {t for b in batches for t in b["source_table"].to_pylist() if t} == {"shop.item"}
    reported = replace(numbers, filtered=metrics.counts["filtered"], creates=metrics.counts["creates"])
    found = metrics_of(JobResult(ok=True, origins=(OriginResult("stream", stream=reported),)))["streaming"]
    assert (found["NumberOfEventsFiltered"], found["TotalNumberOfCreateEventsSeen"]) == (2, 1)
    assert found["TotalNumberOfEventsSeen"] == 3


def test_an_expression_reads_each_matching_keyspace() -> None:
    tables: list[tuple[str, ...]] = [("item", "BASE TABLE"), ("secret", "BASE TABLE")]
    answers: Answers = {
        "SHOW VITESS_SHARDS": [("shop/-80",), ("shop/80-",), ("shop_archive/0",), ("lookup/0",)],
        "SHOW FULL TABLES": tables,
    }

    def standing(request: Any) -> list[bytes | Waits]:
        given = [
            event("VGTID", s.shard, s.keyspace, vgtid=vgtid({s.shard: 5}, s.keyspace))
            for s in request.vgtid.shard_gtids
        ]
        return [response(*given), Waits()]

    connector = Connector.from_dict(
        {"name": "s", "source": {"type": "vitess", "keyspace": "/^shop"}, "tables": [r".*\.item"]}
    )
    assert isinstance(connector.source, VitessOptions)
    with FakeVtgate([standing], answers) as vtgate:
        source = VitessSource(connector.source, vtgate.connection, connector.selects)
        assert set(source.start()) == {"shop/-80", "shop/80-", "shop_archive/0"}
        assert source.tables() == ["shop.item", "shop_archive.item"]
        with pytest.raises(ConfigurationError, match="no keyspace that matches /nothing"):
            VitessSource(VitessOptions("/nothing"), vtgate.connection, str.isascii).start()
        source.close()
    requested = [(s.keyspace, s.shard) for s in vtgate.requests[0].vgtid.shard_gtids]
    assert requested == [("shop", "-80"), ("shop", "80-"), ("shop_archive", "0")]
    for wrong in ({"keyspace": "/"}, {"keyspace": "/("}, {"keyspace": "/shop", "shards": ("0",)}):
        with pytest.raises(ConfigurationError, match="keyspace"):
            Connector.from_dict({"name": "s", "source": {"type": "vitess", **wrong}})


def test_a_start_position_may_contain_several_keyspaces() -> None:
    places = [{"keyspace": keyspace, "shard": "0", "gtid": gtid(5)} for keyspace in ("shop", "shop_archive")]
    declared = {"type": "vitess", "keyspace": "/^shop", "start_at": places}
    assert isinstance(Connector.from_dict({"name": "s", "source": declared}).source, VitessOptions)
    with pytest.raises(ConfigurationError, match="doesn't name the shards to read"):
        Connector.from_dict({"name": "s", "source": {**declared, "keyspace": "/^lookup"}})


def test_reference_tables_are_read_from_the_first_shard_and_others_from_all() -> None:
    answers: Answers = {
        **ANSWERS,
        "`shop`.`ref`": [('{"Variant": "Reference"}',)],
        "`shop`.`item`": [('{"Variant": "Scatter"}',)],
        "`lookup`.`ref`": [('{"Variant": "Reference"}',)],
    }
    tables = ["shop.ref", "shop.item", "shop.unknown", "lookup.ref"]
    options = VitessOptions(keyspace="/shop|lookup")
    with FakeVtgate([], answers) as server, VtgateClient(ConnectionValues.read(server.connection)) as client:
        assert home_shards(client, options, tables) == {"shop.ref": "shop/-80"}
        assert home_shards(client, replace(options, keyspace="shop", shards=("80-",)), tables) == {}
        assert not any("lookup" in sql for sql in server.statements if "VEXPLAIN" in sql)


@pytest.mark.parametrize(
    ("home", "shards"),
    [
        ("shop/-80", ["-80", "-40", "-"]),
        ("shop/40-80", ["40-80"]),
        ("", ["-80", "-40", "-", "40-80", "80-", "0"]),
    ],
)
def test_a_home_shard_stays_the_first_one_after_a_reshard(home: str, shards: list[str]) -> None:
    names = ("-80", "-40", "-", "40-80", "80-", "0")
    tables = [ShardTable("shop", shard, "ref") for shard in names]
    found = [t.shard for t in tables if is_captured(t, lambda _: True, {"shop.ref": home})]
    assert found == shards
