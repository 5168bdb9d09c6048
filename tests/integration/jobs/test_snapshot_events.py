"""Rows of a snapshot as events: in the form that their writes have in the log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.spark.session import build_lake
from airflow_cdc_provider.lake.changes_table import ChangesTable
from tests.conftest import ROOT
from tests.integration.jobs.shop import Shop

pytestmark = pytest.mark.integration

STATEMENTS = (
    "CREATE TYPE place (street text, number int)",
    """CREATE TABLE wide (p int, c text, s text static, a int, b text, d decimal, u uuid, t timestamp,
        l list<int>, m map<text, int>, e set<text>, fl frozen<list<int>>, fm frozen<map<text, int>>,
        pl place, fp frozen<place>, tu tuple<int, text>, PRIMARY KEY (p, c)) WITH cdc = true""",
    "CREATE TABLE bare (p int, c int, PRIMARY KEY (p, c)) WITH cdc = true",
    """INSERT INTO wide (p, c, s, a, b, d, u, t, l, m, e, fl, fm, pl, fp, tu)
        VALUES (1, 'full', 'st', 7, '', 1.50, 123e4567-e89b-12d3-a456-426614174000, 1000,
        [3, 1, 3], {'x': 1, 'y': 2}, {'q', 'r'}, [], {'z': 9}, {street: 'S', number: 4},
        {street: 'F', number: null}, (5, null)) USING TIMESTAMP 1700000000000001""",
    """INSERT INTO wide (p, c, a, b, d, u, t, l, m, e, fl, fm, pl, fp, tu)
        VALUES (1, 'nulls', null, null, null, null, null, null, null, null, null, null, null, null, null)
        USING TIMESTAMP 1700000000000002""",
    """INSERT INTO wide (p, c, a, b, d, u, t, l, m, e, fl, fm, pl, fp, tu)
        VALUES (2, 'ttl', 1, 'b', 2, 123e4567-e89b-12d3-a456-426614174000, 0, [1], {'x': 1}, {'q'}, [1],
        {'z': 9}, {street: 'S', number: 4}, {street: 'F', number: 1}, (5, 'x'))
        USING TIMESTAMP 1700000000000003 AND TTL 86400""",
    "INSERT INTO bare (p, c) VALUES (1, 2) USING TIMESTAMP 1700000000000004",
)


def printed(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{**line, "value": json.loads(line["value"])} for line in lines]


def named(event: dict[str, Any]) -> tuple[str, str, str]:
    return event["topic"].rpartition(".")[2], event["key"], event["value"]["op"]


@pytest.mark.covers("CAS-SNAP-04")
def test_rows_of_a_snapshot_have_the_events_of_their_inserts_flagged_as_snapshot(
    shop: Shop, tmp_path: Path
) -> None:
    for statement in STATEMENTS:
        shop.run(statement)
    shop.close_segments()
    # Without a merge, which may read unresolved keys again.
    shop.stage("snapshot", merge=False)
    connector = Connector.from_dict(shop.declaration)
    snapped = ChangesTable(build_lake(shop.spark, connector), connector).state().batch
    shop.stage("capture")
    path = tmp_path / "events.jsonl"
    assert shop.stage("events", path=str(path)).ok

    events = printed(path)
    sources = [event["value"]["source"] for event in events]
    read = [e for e, source in zip(events, sources, strict=True) if source["snapshot"] == "true"]
    logged = {named(e): e["value"] for e in events if e["value"]["source"]["snapshot"] == "false"}
    assert {named(e) for e in read} == set(logged), "each row, and the static columns, once"
    assert len(read) == len(logged) == 5
    for event in read:
        found, written = event["value"], logged[named(event)]
        assert list(found) == list(written)
        assert list(found["source"]) == list(written["source"])
        assert (found["source"]["file"], found["source"]["pos"]) == ("", -1)
        assert written["source"]["file"].startswith("CommitLog-")
        same = ("version", "connector", "name", "cluster", "keyspace", "table")
        assert [found["source"][n] for n in same] == [written["source"][n] for n in same]
        if named(event)[0] == "bare" or '"nulls"' in event["key"]:
            # A SELECT shows no write time of a row without values: it is that of the reading.
            assert found["source"]["ts_us"] > written["source"]["ts_us"]
        else:
            assert found["source"]["ts_us"] == written["source"]["ts_us"]
        assert found["after"].keys() == written["after"].keys()
        for name, cell in found["after"].items():
            expected = written["after"][name]
            if cell and cell["deletion_ts"]:
                assert abs(cell.pop("deletion_ts") - expected.pop("deletion_ts")) <= 1_000_000, name
            assert cell == expected, (event["key"], name)
    (nulls,) = [e["value"]["after"] for e in read if '"nulls"' in e["key"]]
    assert all(nulls[name] is not None for name in ("a", "b", "l", "fp", "tu")), "all columns are there"
    (alone,) = [e["value"] for e in read if e["value"]["op"] == "u"]
    assert alone["after"]["s"]["value"] == "st"

    # From a batch on, and of one table, nothing else comes.
    bare = [shop.table_name("bare")]
    shop.stage("events", tables=bare, path=str(path))
    assert [event["value"]["source"]["snapshot"] for event in printed(path)] == ["true", "false"]
    shop.stage("events", tables=bare, path=str(path), after_batch=snapped)
    assert [event["value"]["source"]["snapshot"] for event in printed(path)] == ["false"]


def test_whole_rows_of_a_snapshot_are_states_to_build_on(shop: Shop, tmp_path: Path) -> None:
    shop.run("CREATE TABLE t (p int PRIMARY KEY, a int, b int) WITH cdc = true")
    shop.run(f"ALTER KEYSPACE {shop.keyspace} WITH durable_writes = false")
    shop.run("INSERT INTO t (p, a, b) VALUES (1, 1, 1)")
    shop.run(f"ALTER KEYSPACE {shop.keyspace} WITH durable_writes = true")
    shop.declare(publish={"envelope": "datastax"})
    shop.stage("sync")
    shop.run("UPDATE t SET b = 2 WHERE p = 1")
    shop.sync()
    path = tmp_path / "events.jsonl"
    shop.stage("events", path=str(path))
    assert [event["value"] for event in printed(path)] == [{"a": 1, "b": 1}, {"a": 1, "b": 2}]
    with pytest.raises(ConfigurationError, match="need all batches"):
        shop.stage("events", path=str(path), after_batch=1)


@pytest.mark.covers("DSX-CON-01")
def test_whole_rows_are_of_logged_values_and_read_again_on_request_alone(shop: Shop, tmp_path: Path) -> None:
    shop.run("CREATE TABLE t (p int, c int, s text static, a int, PRIMARY KEY (p, c)) WITH cdc = true")
    shop.run("INSERT INTO t (p, c, a) VALUES (1, 1, 1)")
    shop.run("INSERT INTO t (p, c, a) VALUES (1, 2, 2)")
    shop.run("UPDATE t SET a = 10 WHERE p = 1 AND c = 1")
    shop.run("DELETE FROM t WHERE p = 1 AND c = 2")
    shop.run("UPDATE t SET s = 'x' WHERE p = 2")
    shop.close_segments()
    shop.declare(snapshot={"mode": "never"}, publish={"envelope": "datastax"})
    shop.stage("capture")
    shop.run("UPDATE t SET a = 99, s = 'new' WHERE p = 1 AND c = 1")  # nobody captures it before the events
    path = tmp_path / "events.jsonl"

    def published() -> list[tuple[str, Any]]:
        assert shop.stage("events", path=str(path)).ok
        return [(event["key"], event["value"]) for event in map(json.loads, path.read_text().splitlines())]

    assert published() == [
        ('{"p":1,"c":1}', '{"a":1,"s":null}'),
        ('{"p":1,"c":2}', '{"a":2,"s":null}'),
        ('{"p":1,"c":1}', '{"a":10,"s":null}'),
        ('{"p":1,"c":2}', None),
        ('{"p":2,"c":null}', '{"s":"x"}'),
    ]
    shop.declare(publish={"cassandra": {"reread": True}})
    assert published() == [
        ('{"p":1,"c":1}', '{"a":99,"s":"new"}'),
        ('{"p":1,"c":2}', None),
        ('{"p":2,"c":null}', '{"s":"x"}'),
    ]


@pytest.mark.long
@pytest.mark.usefixtures("warehouse")
def test_the_command_prints_what_lies_in_the_lake_without_a_cluster(
    shop: Shop, iceberg_jar: Path, tmp_path: Path
) -> None:
    shop.run("CREATE TABLE t (p int PRIMARY KEY, a int) WITH cdc = true")
    shop.run("INSERT INTO t (p, a) VALUES (1, 7)")
    shop.close_segments()
    shop.declare(source={"cluster": "tests"})
    shop.stage("snapshot", merge=False)
    shop.stage("capture")
    path = tmp_path / "events.jsonl"
    shop.stage("events", path=str(path), now_ns=10**18)
    shop.declare_catalog()
    (tmp_path / "shop.json").write_text(json.dumps(shop.declaration))
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CDC__SPARK_JARS": str(iceberg_jar)}
    command = ["cdc", "events", "--connector", str(tmp_path / "shop.json"), "--from-lake", "--at", str(10**9)]

    done = subprocess.run(
        [sys.executable, "-m", "airflow", *command],
        env={**environment, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == path.read_text()
    assert len(done.stdout.splitlines()) == 2
