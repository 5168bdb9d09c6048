"""A capture that was stopped for so long that its node refuses writes: restarted, and nothing is missing."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_cdc_provider.assets import changes_asset
from airflow_cdc_provider.exceptions import CdcError
from airflow_cdc_provider.operators.rebootstrap import CassandraRebootstrapOperator
from airflow_cdc_provider.sensors.cassandra import CdcRawSpaceSensor
from airflow_cdc_provider.tasks.state import STATE_LAYOUT
from server_kit import create_keyspace
from tests.integration.full_node import CAP_MIB, FullNode, full_node
from tests.integration.jobs.equality import assert_mirror_equals_table
from tests.unit.airflow_context import TaskContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.integration.jobs.conftest import RunStage

pytestmark = pytest.mark.integration


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FullNode]:
    with full_node(tmp_path / "landing") as made:
        values = {"conn_type": "cdc_cassandra", "host": made.server.host, "port": made.server.port}
        monkeypatch.setenv("AIRFLOW_CONN_CASSANDRA_QUOTA", json.dumps(values))
        monkeypatch.setenv(
            "AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"})
        )
        monkeypatch.setenv("AIRFLOW__CDC__WORK_FOLDER", str(tmp_path / "work"))
        yield made


def declaration(node: FullNode, warehouse: Path) -> dict[str, Any]:
    return {
        "name": "stopped",
        "source": {
            "type": "cassandra",
            "conn_id": "cassandra_quota",
            "cdc_raw": str(node.server.cdc_raw),
            "node": node.server.host_id,
        },
        "tables": [r"quota\..*"],
        "lake": {
            "catalog": "lake",
            "namespace": "stopped",
            "catalog_options": {"type": "hadoop", "warehouse": warehouse.as_uri()},
        },
    }


def flag(node: FullNode, table: str = "orders") -> bool:
    query = "SELECT cdc FROM system_schema.tables WHERE keyspace_name = 'quota' AND table_name = %s"
    return bool(node.session.execute(query, (table,)).one().cdc)


@pytest.mark.covers("CAS-FAULT-07")
def test_a_node_that_refuses_writes_is_reported_and_restarted(
    spark: SparkSession,
    run_stage: RunStage,
    node: FullNode,
    iceberg_jar: Path,
    warehouse: Path,
) -> None:
    shop = declaration(node, warehouse)
    connection = {"host": node.server.host, "port": node.server.port}
    node.write(3)
    first = run_stage("sync", shop, connection)
    assert first.ok

    # The capture stops for long.
    node.write_until_refused()
    context = TaskContext()
    stored = {"layout": STATE_LAYOUT, "connector": "stopped", "source": "cassandra", "offset": first.offset}
    context.assets[changes_asset("stopped")].set("offset", stored)

    def look(**limit: Any) -> Any:
        sensor = CdcRawSpaceSensor(
            task_id="full",
            connector=shop,
            cdc_raw=str(node.server.cdc_raw),
            total_space_bytes=CAP_MIB << 20,
            deferrable=False,
            **limit,
        )
        return sensor.poke(context)

    seen = look(max_used_ratio=0.7)
    assert seen.is_done
    assert 0.7 < seen.xcom_value["used_ratio"] <= 1
    assert seen.xcom_value["unread_segments"] >= CAP_MIB - 1
    assert seen.xcom_value["oldest_unread_seconds"] > 0
    assert look(max_used_ratio=None, max_unread_seconds=0).is_done
    assert not look(max_used_ratio=None, max_unread_seconds=3600).is_done

    again = CassandraRebootstrapOperator(task_id="again", connector=shop, jars=str(iceberg_jar))
    xcom = again.execute(context)

    assert xcom["rebootstrapped"] == ["quota.orders"]
    assert xcom["segments_removed"] >= CAP_MIB - 1
    assert xcom["offset"] is None, "the position is reset"
    assert flag(node), "cdc is on again"
    node.write_again(5)
    last = run_stage("sync", shop, connection)
    assert last.snapshot is not None
    assert last.snapshot.rows == node.written, "a new snapshot is taken"
    node.write(5)
    node.server.roll_segment(node.session)
    run_stage("sync", shop, connection)
    rows = assert_mirror_equals_table(spark, node.session, "stopped.quota_orders", "quota.orders")
    assert rows == node.written, "each write that the node took is there"


@pytest.mark.covers("CAS-FAULT-07")
def test_a_try_that_failed_half_way_is_continued_and_others_tables_keep_their_segments(
    node: FullNode, iceberg_jar: Path, warehouse: Path
) -> None:
    shop = declaration(node, warehouse)
    node.session.execute("CREATE TABLE quota.never (id int PRIMARY KEY)")
    create_keyspace(node.session, "other")
    node.session.execute("CREATE TABLE other.orders (id int PRIMARY KEY) WITH cdc = true")

    def operator() -> CassandraRebootstrapOperator:
        return CassandraRebootstrapOperator(task_id="again", connector=shop, jars=str(iceberg_jar))

    with pytest.raises(AirflowFailException, match=r"aren't this connector's.*cdc = true of other\.orders"):
        operator().execute(TaskContext())
    assert flag(node), "nothing was switched"

    node.session.execute("ALTER TABLE other.orders WITH cdc = false")
    node.write(3)
    for changes, what, others in (
        ({"snapshot": {"mode": "never"}}, "no new snapshots would be taken", {}),
        ({}, "there is no Spark connection", {"spark_conn_id": "spark_nowhere"}),
        ({}, "folder /nowhere can't be read", {"cdc_raw": "/nowhere"}),
    ):
        unfit = CassandraRebootstrapOperator(
            task_id="again", connector={**shop, **changes}, jars=str(iceberg_jar), **others
        )
        with pytest.raises(AirflowFailException, match=what):
            unfit.execute(TaskContext())
        assert flag(node), "nothing was switched"

    failing = CassandraRebootstrapOperator(
        task_id="again", connector=shop, jars=str(iceberg_jar), application="/nowhere.py"
    )
    with pytest.raises((CdcError, AirflowFailException)):
        failing.execute(TaskContext(run_id="first"))
    assert not flag(node), "the failed try left it off"

    xcom = operator().execute(TaskContext())
    assert xcom["rebootstrapped"] == ["quota.orders"]
    assert (flag(node), flag(node, "never")) == (True, False), "only what was captured at first is again"
