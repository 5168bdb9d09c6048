"""Which shards and tablets are asked for."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError, PositionLost
from airflow_cdc_provider.sources.base import ReadLimit
from airflow_cdc_provider.sources.vitess.connection import ConnectionValues
from airflow_cdc_provider.sources.vitess.options import VitessOptions, VitessStream
from airflow_cdc_provider.sources.vitess.protocol import VGtid
from airflow_cdc_provider.sources.vitess.requests import serving_shards, stream_request
from airflow_cdc_provider.sources.vitess.source import VitessSource
from airflow_cdc_provider.sources.vitess.tablets import require_kept
from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient
from tests.unit.sources.vitess.fake_vtgate import FakeVtgate, Waits, event, gtid, response, vgtid

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
def test_shards_without_tablets_are_left_out_of_the_first_position_if_wanted() -> None:
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


def test_keyspace_that_nothing_serves_is_told() -> None:
    options = VitessOptions(keyspace="shop", tablet_type="RDONLY", exclude_empty_shards=True)
    with (
        FakeVtgate([], ANSWERS) as vtgate,
        VtgateClient(ConnectionValues.read(vtgate.connection)) as client,
        pytest.raises(ConfigurationError, match="no shard of keyspace shop has a tablet of type RDONLY"),
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
            require_kept(client, {"shop/0": gtid(5)}, "REPLICA", 5)
        assert sum("GLOBAL" in sql for sql in vtgate.statements) == 3
        answers["SHOW GLOBAL VARIABLES"] = [("gtid_purged", purged[1].partition("/")[2])]
        require_kept(client, {"shop/0": gtid(5)}, "REPLICA", 5)
        require_kept(client, {"shop/0": "current"}, "REPLICA", 5)


@pytest.mark.covers("VIT-SCO-02", "VIT-SCO-11", "VIT-SCO-15")
@pytest.mark.parametrize("shards", [["-80", "80-"], ["0"]])
def test_one_stream_has_all_shards_and_a_rule_for_each_wanted_table(shards: list[str]) -> None:
    migration = "_4e5dcf80_354b_11eb_82cd_f875a4d24e90_20201203114014"
    names = ("order", "item", "other", "_vt_hld_1", f"{migration}_gho", f"{migration}_vrepl")
    tables: list[tuple[str, ...]] = [("v", "VIEW"), *((name, "BASE TABLE") for name in names)]
    all_shards: list[tuple[str, ...]] = [(f"shop/{shard}",) for shard in shards]
    answers = {"SHOW VITESS_SHARDS": all_shards, "SHOW FULL TABLES": tables}

    def standing(number: int) -> list[bytes | Waits]:
        told: dict[str, int | str] = dict.fromkeys(shards, number)
        found = [event("VGTID", shards[0], vgtid=vgtid(told)), *(event("OTHER", shard) for shard in shards)]
        return [response(*found), Waits()]

    def moving(request: Any) -> list[bytes | Waits]:
        told: dict[str, int | str] = {s.shard: 5 for s in request.vgtid.shard_gtids}
        found: list[Any] = []
        for shard in list(told):
            told[shard] = 6
            found += [event("BEGIN", shard), event("VGTID", shard, vgtid=vgtid(told)), event("COMMIT", shard)]
        return [response(*found), Waits()]

    by_name = {name: (name, f"select * from `{name}`") for name in ("item", "order")}
    for wanted, rules in (
        ({"order"}, [by_name["order"]]),
        ({"item", "order"}, list(by_name.values())),
        ({"item", "order", "other"}, [("/.*", "")]),
    ):
        selected = {f"shop.{name}" for name in wanted}
        with FakeVtgate([standing(5), standing(6), moving], answers) as vtgate:
            source = VitessSource(VitessOptions(keyspace="shop"), vtgate.connection, selected.__contains__)
            start = source.start()
            assert source.tables() == sorted(selected)
            assert source.plan(start, source.head(), ReadLimit()).at_head
            source.close()
        *_, asked = vtgate.requests
        assert [(s.keyspace, s.shard) for s in asked.vgtid.shard_gtids] == [("shop", s) for s in shards]
        assert [(rule.match, rule.filter) for rule in asked.filter.rules] == rules
