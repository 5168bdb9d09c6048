"""A server of its own: it writes heartbeats, keeps binlogs for an hour only, and loses them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pymysql
import pytest

from airflow_cdc_provider.changes.record import CHANGE
from airflow_cdc_provider.exceptions import PositionLost
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from airflow_cdc_provider.sources.contract import ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.vitess.options import VitessOptions
from airflow_cdc_provider.sources.vitess.protocol import RowChange
from airflow_cdc_provider.sources.vitess.source import VitessSource
from server_kit import VitessServer
from tests.integration.sources.vitess.checked_sources import findings
from tests.integration.sources.vitess.checked_sources import source as source_in
from tests.integration.sources.vitess.vitess_sources import captured, source_of
from tests.integration.sources.vitess.workload import applied, create, run, selected

pytestmark = pytest.mark.integration

LEAST = {
    "connector.class": "io.debezium.connector.vitess.VitessConnector",
    "name": "beats",
    "topic.prefix": "beats",
    "vitess.keyspace": "shop",
}


@pytest.fixture(scope="module")
def server() -> Iterator[VitessServer]:
    with VitessServer(
        options=("--heartbeat-enable", "--heartbeat-interval", "250ms"),
        my_cnf="binlog_expire_logs_seconds = 3600\n",
    ) as started:
        yield started


@pytest.mark.covers("VIT-HBT-03", "VIT-MET-04")
def test_rows_of_the_tablets_heartbeats_are_streamed_if_enabled(server: VitessServer) -> None:
    server.define("shop", "create table item (id bigint primary key)", shard_by={"item": "id"})

    def streamed(**properties: str) -> tuple[list[dict[str, Any]], Counter[str]]:
        connector = from_debezium({**LEAST, **properties}).connector
        assert isinstance(connector.source, VitessOptions)
        metrics = ReadMetrics()
        with closing(VitessSource(connector.source, server.connection, connector.selects)) as source:
            start = source.start()
            time.sleep(1)  # some heartbeats
            with server.connect("shop").cursor() as cursor:
                cursor.execute("insert into item (id) values (%s)", (time.time_ns(),))
            plan = source.plan(start, source.head(), ReadLimit())
            batches = list(source.reader().read(plan.partitions, metrics))
        rows = [row for batch in batches for row in batch.to_pylist() if row["kind"] == CHANGE]
        return rows, metrics.counts

    without, _ = streamed()
    beating, counts = streamed(**{"vitess.stream.keyspace.heartbeats": "true"})
    excluded, left = streamed(
        **{"vitess.stream.keyspace.heartbeats": "true", "table.include.list": r"shop\.item"}
    )

    assert {row["source_table"] for row in without} == {"shop.item"}
    assert {row["source_table"] for row in beating} == {"shop.item", "shop.heartbeat"}
    beats = [row for row in beating if row["source_table"] == "shop.heartbeat"]
    assert len(beats) > 2
    assert all(RowChange.FromString(row["payload"]).HasField("after") for row in beats)
    assert counts["filtered"] == 0
    assert {row["source_table"] for row in excluded} == {"shop.item"}
    assert left["filtered"] > 2, "what the server sent and the list leaves out"


@pytest.mark.covers("VIT-FLT-09")
def test_a_long_stop_loses_nothing_until_binlogs_are_purged(server: VitessServer) -> None:
    create(server, "purged1")
    with closing(source_of(server, "purged1")) as source:
        start = source.start()
        run(server, "purged1", 1, 5)
        mysqld = pymysql.connect(unix_socket=str(server.tablet_folder / "mysql.sock"), user="vt_dba")
        with closing(mysqld), mysqld.cursor() as cursor:
            cursor.execute("flush binary logs")
            run(server, "purged1", 2, 5)
            kept, _ = captured(source, start)
            assert applied([kept], "shop.purged1") == selected(server, "purged1")
            source.close()
            cursor.execute("show binary logs")
            newest = cursor.fetchall()[-1][0]
            cursor.execute(f"purge binary logs to '{newest}'")

        with pytest.raises(PositionLost, match="purged"):
            captured(source, start)


def test_purged_binlogs_and_a_foreign_offset_are_a_lost_position(server: VitessServer) -> None:
    server.define("lookup", "CREATE TABLE t (id bigint PRIMARY KEY)")
    capture = source_in(server, "lookup")
    start = capture.head()
    with server.connect("lookup") as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO t (id) VALUES (1)")
    assert findings(capture.check(start)) == {
        "binlogs": "binlogs are retained for 1 h 0 min: after a longer pause changes are lost. "
        "raise binlog_expire_logs_seconds, or capture more often"
    }
    server.purge_binlogs()
    assert "were purged" in findings(capture.check(start))["stored offset"]
    with pytest.raises(PositionLost, match=r"binlogs of lookup/0 after the stored offset were purged"):
        capture.plan(start, capture.head(), ReadLimit())
    server.mysqld(
        "SET GLOBAL binlog_row_image = 'NOBLOB'; SET GLOBAL binlog_row_value_options = PARTIAL_JSON"
    )
    assert "row image" in findings(capture.check(), "error")
    capture.close()

    foreign = {
        "lookup/0": {
            **start["lookup/0"],
            "gtid": "MySQL56/" + "-".join(["ab" * 4, *["ab" * 2] * 3, "ab" * 6]) + ":1-9",
        }
    }
    other = source_in(server, "lookup")
    assert "lacks transactions of the stored offset" in findings(other.check(foreign))["stored offset"]
    other.close()
