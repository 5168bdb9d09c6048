"""A capture resumes where ScyllaDB's source connector stopped, from the offsets in Kafka Connect."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import json
import random
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_cdc_provider.cli import live_commands
from airflow_cdc_provider.jobs.spec import JobResult
from airflow_cdc_provider.sources.scylla.stream_ids import time_us, vnode_index
from server_kit import CassandraServer
from server_kit.scylla import ImitatedScylla, remove_cluster
from tests.integration.sources.scylla.captured import Captured, LogRow, scylla_source
from tests.integration.sources.scylla.logged_tables import imitated, insert, item, logged_rows
from tests.unit.cli.recorded_application import application
from tests.unit.migration.offsets.scylla_offsets import bound, entry

pytestmark = pytest.mark.integration


@pytest.fixture
def cluster(
    cassandra_session: Any, cassandra_server: CassandraServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ImitatedScylla]:
    """Changes of the last minute, every 50 ms, in two generations of eight streams in four vnodes."""
    keyspace = f"k{random.randrange(10**9)}"
    connection = {"conn_type": "cdc_scylla", "host": cassandra_server.host, "port": cassandra_server.port}
    monkeypatch.setenv("AIRFLOW_CONN_SCYLLA_SHOP", json.dumps(connection))
    now_us = time.time_ns() // 1000 - 60_000_000

    def clock_us() -> int:
        nonlocal now_us
        now_us += 50_001
        return now_us

    made = imitated(cassandra_session, keyspace, clock_us=clock_us)
    made.new_generation()
    table = item(keyspace)
    made.create_table(table)
    for number in range(200):
        if number == 100:
            made.new_generation()
        made.execute(table, insert(number, number))
    yield made
    remove_cluster(cassandra_session, keyspace, made.names)


@pytest.fixture
def connector(cluster: ImitatedScylla, tmp_path: Path) -> str:
    file = tmp_path / "shop.yaml"
    keyspaces = {
        "distributed_keyspace": cluster.names.distributed,
        "system_keyspace": cluster.names.system,
        "schema_keyspace": cluster.names.schema,
    }
    source = {"type": "scylla", "conn_id": "scylla_shop", "advanced": keyspaces}
    tables = [rf"{cluster.keyspace}\.item"]
    file.write_text(yaml.safe_dump({"name": "shop", "source": source, "tables": tables}))
    return str(file)


def place(row: LogRow) -> tuple[int, int]:
    """Return a log row's vnode and time, us since 1970."""
    values = dict(row[1])
    return vnode_index(values["cdc$stream_id"]), time_us(values["cdc$time"])


@pytest.mark.covers("SCY-OFF-05", "SCY-OFF-06")
def test_what_the_connector_has_not_handed_on_is_captured_and_nothing_else(
    cluster: ImitatedScylla,
    cassandra_server: CassandraServer,
    connector: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recorded = application(monkeypatch, JobResult(ok=True))
    first, second = (generation.time_ms for generation in cluster.generations.sets)
    keyspace = {"keyspace_name": cluster.keyspace}
    last = max(logged_rows(cluster.session, cluster), key=lambda row: place(row)[1])
    change = {
        "change_id_stream_id": "0x" + dict(last[1])["cdc$stream_id"].hex(),
        "change_id_time": bound(second + 1500, 3),
    }
    stored = [entry(vnode, second + 1, first) for vnode in range(4)]
    stored += [entry(0, second + 1000, second, **change), entry(1, second + 2000, second)]
    stored += [entry(3, second + 3000, second)]  # none of vnode 2: nothing of it was handed on
    for one in stored:
        one["partition"] |= keyspace
    file = tmp_path / "connect-offsets.json"
    file.write_text(json.dumps({"offsets": stored}))

    live_commands.import_offset(
        Namespace(connector=connector, file=str(file), allow_offset_invalidation=False, host_id="")
    )

    offset: Any = recorded.specs[-1].options["offset"]
    assert "1 of the vnodes" in capsys.readouterr().err
    source = scylla_source(cluster, cassandra_server)
    captured = Captured(source, offset).run()
    source.close()
    begins = {0: second + 1000, 1: second + 2000, 2: second, 3: second + 3000}
    logged = logged_rows(cluster.session, cluster)
    left = Counter({row: n for row, n in logged.items() if place(row)[1] >= begins[place(row)[0]] * 1000})
    assert captured.log_rows == left
    assert 20 < left.total() < 100

    exported = tmp_path / "exported.json"
    application(monkeypatch, JobResult(ok=True, offset=offset))
    arguments = {"to": "debezium", "moved_from": ""}
    live_commands.export_offset(Namespace(connector=connector, file=str(exported), **arguments))
    exported_offsets = json.loads(exported.read_text())["offsets"]
    assert {tuple(e["partition"].values())[2:]: e["offset"]["window_start"] for e in exported_offsets} == {
        **{(str(v), str(first)): bound(second + 1, 0x8080808080808080) for v in range(4)},
        **{(str(v), str(second)): bound(ms, 0x8080808080808080) for v, ms in begins.items()},
    }
    back = application(monkeypatch, JobResult(ok=True))
    live_commands.import_offset(
        Namespace(connector=connector, file=str(exported), allow_offset_invalidation=False, host_id="")
    )
    assert back.specs[-1].options["offset"] == offset


@pytest.mark.covers("SCY-OFF-05")
def test_offsets_of_another_cluster_are_refused(
    cluster: ImitatedScylla,
    connector: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recorded = application(monkeypatch, JobResult(ok=True))
    foreign = entry(0, cluster.generations.sets[-1].time_ms, 1_700_000_000_000)
    foreign["partition"]["keyspace_name"] = cluster.keyspace
    file = tmp_path / "connect-offsets.json"
    file.write_text(json.dumps({"offsets": [foreign]}))
    with pytest.raises(SystemExit):
        live_commands.import_offset(
            Namespace(connector=connector, file=str(file), allow_offset_invalidation=False, host_id="")
        )
    assert "a generation that this cluster doesn't have" in capsys.readouterr().err
    assert recorded.specs == []
