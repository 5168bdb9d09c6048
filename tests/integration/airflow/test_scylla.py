"""Sensors of ScyllaDB on the imitation's tables."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import json
import random
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSensorTimeout

from airflow_cdc_provider.assets import changes_asset
from airflow_cdc_provider.sensors.observing import ObservingSensor
from airflow_cdc_provider.sensors.scylla import ScyllaGenerationSensor, ScyllaLagSensor
from airflow_cdc_provider.tasks.state import STATE_LAYOUT
from server_kit import CassandraServer
from server_kit.scylla import ImitatedScylla, SystemKeyspaces
from tests.integration.sources.scylla.logged_tables import imitated, item
from tests.unit.airflow_context import TaskContext
from tests.unit.sensors.sensor_runs import WAYS, Make

pytestmark = pytest.mark.integration

both_ways = pytest.mark.parametrize("wait", WAYS)


@pytest.fixture(autouse=True)
def connection(cassandra_server: CassandraServer, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = {"conn_type": "cdc_scylla", "host": cassandra_server.host, "port": cassandra_server.port}
    monkeypatch.setenv("AIRFLOW_CONN_SCYLLA_SHOP", json.dumps(connection))


@pytest.fixture(scope="module")
def vnodes(cassandra_session: Any) -> Iterator[ImitatedScylla]:
    """A cluster with a generation of ten minutes ago: four groups of streams."""
    yield from imitation(cassandra_session, 0)


@pytest.fixture(scope="module")
def tablets(cassandra_session: Any) -> Iterator[ImitatedScylla]:
    yield from imitation(cassandra_session, 2)


@pytest.fixture(params=["vnodes", "tablets"])
def cluster(request: pytest.FixtureRequest) -> ImitatedScylla:
    found: ImitatedScylla = request.getfixturevalue(request.param)
    return found


def imitation(session: Any, tablets: int) -> Iterator[ImitatedScylla]:
    """Imitate a cluster with logged tables ``item``, ``unit`` and ``brief``, whose log lives for 100 s."""
    keyspace = f"k{random.randrange(10**9)}"
    names = SystemKeyspaces(*(f"{keyspace}_{part}" for part in ("distributed", "system", "schema")))
    cluster = imitated(session, keyspace, names=names, tablets=tablets)
    if not tablets:
        cluster.new_generation(_ms(-600))
    for name, cdc in (("item", {}), ("unit", {}), ("brief", {"ttl": 100})):
        cluster.create_table(item(keyspace, name, **cdc))
    yield cluster
    for suffix in ("", "_distributed", "_system", "_schema"):
        session.execute(f"DROP KEYSPACE IF EXISTS {keyspace}{suffix}")


def declared(cluster: ImitatedScylla, **more: Any) -> dict[str, Any]:
    names = cluster.names
    return {
        "name": "shop",
        "source": {
            "type": "scylla",
            "conn_id": "scylla_shop",
            "confidence_window_seconds": 1,
            "advanced": {
                "distributed_keyspace": names.distributed,
                "system_keyspace": names.system,
                "schema_keyspace": names.schema,
            },
        },
        "tables": [rf"{cluster.keyspace}\.(item|unit)"],
        **more,
    }


def _ms(seconds: float) -> int:
    return round((time.time() + seconds) * 1000)


def read_to(cluster: ImitatedScylla, seconds: float, **ahead: float) -> dict[str, Any]:
    """Build an offset that is so many seconds from now; ``ahead`` has further groups of ``item``."""
    offset: dict[str, Any] = {}
    for name in ("item", "unit"):
        sets = cluster.stream_sets[name].sets if cluster.tablets else cluster.generations.sets
        place = {"v": 1, "generation": sets[-1].time_ms, "read_to": _ms(seconds) * 1000}
        offset[f"{cluster.keyspace}.{name}"] = place
    if ahead:
        groups = {group: _ms(nearer) * 1000 for group, nearer in ahead.items()}
        offset[f"{cluster.keyspace}.item"] |= {"groups": groups}
    return offset


def context_of(offset: Any) -> TaskContext:
    context = TaskContext()
    context.assets[changes_asset("shop")].set(
        "offset", {"layout": STATE_LAYOUT, "source": "scylla", "offset": offset}
    )
    return context


def store_later(context: TaskContext, offset: Any) -> None:
    """Store another offset, in what a trigger that runs already reads too."""
    context.assets[changes_asset("shop")].get("offset")["offset"] = offset


def lag(cluster: ImitatedScylla, seconds: float, **declaration: Any) -> Make:
    def make(**how: Any) -> ObservingSensor:
        connector = declared(cluster, **declaration)
        return ScyllaLagSensor(task_id="near", connector=connector, max_lag_seconds=seconds, **how)

    return make


def streams(cluster: ImitatedScylla) -> Make:
    def make(**how: Any) -> ObservingSensor:
        return ScyllaGenerationSensor(task_id="streams", connector=declared(cluster), **how)

    return make


@both_ways
def test_lag_sensor_waits_until_the_slowest_group_of_all_tables_is_near(
    wait: Any, cluster: ImitatedScylla
) -> None:
    context = context_of(read_to(cluster, -500))
    value = wait(lag(cluster, 60), context, lambda: store_later(context, read_to(cluster, -20)))
    assert 20 <= value["lag_seconds"] < 60
    assert set(value["tables"]) == {f"{cluster.keyspace}.item", f"{cluster.keyspace}.unit"}
    assert value["lag_seconds"] == value["tables"][value["table"]]["seconds"]
    assert value["lost"] == []


@both_ways
def test_one_group_that_is_behind_decides(wait: Any, vnodes: ImitatedScylla) -> None:
    items, units = (f"{vnodes.keyspace}.{name}" for name in ("item", "unit"))
    offset = read_to(vnodes, -500, **{"0": -20, "1": -30, "3": -20})
    offset[units] = read_to(vnodes, -20)[units]
    context = context_of(offset)
    with pytest.raises(AirflowSensorTimeout):
        lag(vnodes, 60)(deferrable=False, poke_interval=0.2, timeout=0.5).execute(context)
    seen = lag(vnodes, 600)(deferrable=False).execute(context)
    table_lag = seen["tables"][items]
    assert (seen["table"], table_lag["group"], set(table_lag["ahead"])) == (items, "2", {"0", "1", "3"})
    assert 500 <= seen["lag_seconds"] < 560
    assert 30 <= table_lag["ahead"]["1"] < 90

    offset[items]["groups"]["2"] = _ms(-25) * 1000
    value = wait(lag(vnodes, 60), context, lambda: None)
    assert value["tables"][items]["group"] == "1", "30 s behind, and 2 no longer holds them up"
    assert 30 <= value["lag_seconds"] < 60


@both_ways
def test_expired_log_fails_the_lag_sensor_unless_runs_make_it_good(wait: Any, vnodes: ImitatedScylla) -> None:
    brief = f"{vnodes.keyspace}.brief"
    context = context_of({brief: read_to(vnodes, -500)[f"{vnodes.keyspace}.item"]})
    tables = {"tables": [r".*\.brief"]}
    strict = {**tables, "snapshot": {"on_lost_position": "fail"}}
    with pytest.raises(AirflowFailException, match="have expired past the stored offset"):
        wait(lag(vnodes, 600, **strict), context, lambda: None)
    value = wait(lag(vnodes, 600, **tables), context, lambda: None)
    assert value["lost"] == [brief]


@both_ways
def test_generation_sensor_waits_for_streams_that_are_not_read_yet(
    wait: Any, cluster: ImitatedScylla
) -> None:
    context = context_of(read_to(cluster, -10))
    present = (cluster.stream_sets["item"] if cluster.tablets else cluster.generations).sets[-1]
    begins = _ms(60)

    def change() -> None:
        if cluster.tablets:
            cluster.resize_tablets("item", 2 * len(cluster.stream_sets["item"].sets[-1].streams), begins)
        else:
            cluster.new_generation(begins)

    value = wait(streams(cluster), context, change)
    both = [f"{cluster.keyspace}.item", f"{cluster.keyspace}.unit"]
    assert value["changed"] == (both[:1] if cluster.tablets else both), "tablets are split by table"
    assert value["tables"][both[0]] == {"generation": present.time_ms, "newest": begins}
    gone_over = context_of(read_to(cluster, 60))
    with pytest.raises(AirflowSensorTimeout):
        streams(cluster)(deferrable=False, poke_interval=0.2, timeout=0.5).execute(gone_over)


def test_before_the_first_capture_both_sensors_wait(vnodes: ImitatedScylla) -> None:
    for make in (lag(vnodes, 60), streams(vnodes)):
        with pytest.raises(AirflowSensorTimeout):
            make(deferrable=False, poke_interval=0.2, timeout=0.5).execute(TaskContext())


@both_ways
def test_what_a_person_must_change_fails_both_sensors(wait: Any, vnodes: ImitatedScylla) -> None:
    context = context_of(read_to(vnodes, -10))
    with pytest.raises(AirflowFailException, match=r"expected more than .*_window_seconds, 1:"):
        wait(lag(vnodes, 1), context, lambda: None)
    with pytest.raises(AirflowFailException, match="no table that the connector selects has a log"):
        wait(lag(vnodes, 60, tables=["other.*"]), context, lambda: None)
    with pytest.raises(AirflowFailException, match="invalid offset of"):
        wait(streams(vnodes), context_of({"shop.item": {"v": 9}}), lambda: None)


def test_what_the_lag_sensor_sees_are_gauges(vnodes: ImitatedScylla, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_cdc_provider.sensors import feed, scylla

    gauges: dict[tuple[str, str], float] = {}
    stats = SimpleNamespace(
        gauge=lambda name, value, tags: gauges.update({(name, tags.get("table", "")): value})
    )
    monkeypatch.setattr(scylla, "Stats", stats)
    monkeypatch.setattr(feed, "Stats", stats)
    value = lag(vnodes, 60)(deferrable=False).execute(context_of(read_to(vnodes, -20)))
    assert gauges == {
        ("cdc.lag_seconds", ""): value["lag_seconds"],
        **{
            ("cdc.table_lag_seconds", table): table_lag["seconds"]
            for table, table_lag in value["tables"].items()
        },
    }
