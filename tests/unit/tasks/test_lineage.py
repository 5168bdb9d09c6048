"""What is reported to OpenLineage's provider."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.openlineage.extractors.base import DefaultExtractor

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.spec import JobResult, SnapshotResult, TableResult
from airflow_cdc_provider.operators.stages import CdcMergeOperator, CdcSyncOperator, CdcVerifyOperator
from airflow_cdc_provider.tasks.lineage import Dataset, catalog_namespace, lineage_of, source_namespace
from tests.unit.airflow_context import TaskContext
from tests.unit.fake_spark import DECLARATION, PASSWORD, FakeSpark

CASSANDRA = "cassandra://db1:9042"
LAKE = "file:///tmp/lake"
TABLES = [
    {"table": "shop.orders", "rows_written": 20, "snapshot_rows": 5},
    {"table": "shop.carts"},
    {"table": "shop.broken", "error_code": "TRANSIENT", "error": "[CDC-TRANSIENT] no room"},
]

Extract = Callable[[Any], Any]


@pytest.fixture
def extract() -> Extract:
    """Ask an operator as OpenLineage's provider does when its task has ended."""
    return lambda operator: DefaultExtractor(operator).extract_on_complete(None)


def outputs(found: Any) -> dict[tuple[str, str], int]:
    return {(one.namespace, one.name): one.outputFacets["outputStatistics"].rowCount for one in found.outputs}


@pytest.mark.covers("CAS-D3X-13")
def test_a_sync_reads_the_sources_tables_and_writes_changes_and_mirrors(
    spark_submit: FakeSpark, extract: Extract
) -> None:
    spark_submit.answers(
        offset={}, changes=30, tables=TABLES[:2], selected=["shop.carts", "shop.new", "shop.orders"]
    )
    sync = CdcSyncOperator(task_id="sync", connector=DECLARATION)
    sync.execute(TaskContext())

    found = extract(sync)

    assert [(one.namespace, one.name) for one in found.inputs] == [
        (CASSANDRA, "shop.carts"),
        (CASSANDRA, "shop.new"),
        (CASSANDRA, "shop.orders"),
    ]
    assert outputs(found) == {
        (LAKE, "shop.shop_changes"): 30,
        (LAKE, "shop.shop_orders"): 20,
        (LAKE, "shop.shop_carts"): 0,
    }
    assert PASSWORD not in repr(found)


@pytest.mark.covers("MDB-XD-34")
def test_a_sync_of_mongodb_reads_collections_and_writes_changes_and_mirrors(
    spark_submit: FakeSpark, extract: Extract, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = {"conn_type": "cdc_mongodb", "host": f"mongodb://me:{PASSWORD}@m1:27018,m2:27019/?replicaSet=rs0"}
    monkeypatch.setenv("AIRFLOW_CONN_MONGODB_SHOP", json.dumps(uri))
    spark_submit.answers(
        offset={}, changes=30, tables=TABLES, selected=["shop.carts", "shop.new", "shop.orders"]
    )
    declaration = {
        **DECLARATION,
        "source": {"type": "mongodb", "conn_id": "mongodb_shop"},
        "tables": [r"shop\..*"],
    }
    sync = CdcSyncOperator(task_id="sync", connector=declaration)
    sync.execute(TaskContext())

    found = extract(sync)

    assert [(one.namespace, one.name) for one in found.inputs] == [
        ("mongodb://m1:27018", name) for name in ("shop.carts", "shop.new", "shop.orders")
    ]
    assert outputs(found) == {
        (LAKE, "shop.shop_changes"): 30,
        (LAKE, "shop.shop_orders"): 20,
        (LAKE, "shop.shop_carts"): 0,
    }
    assert PASSWORD not in repr(found)


def test_a_merge_reads_the_changes_and_a_table_that_failed_is_not_written(
    spark_submit: FakeSpark, extract: Extract
) -> None:
    spark_submit.answers(
        1, ok=False, error_code="CONFIGURATION", error="[CDC-CONFIGURATION] no", offset={}, tables=TABLES
    )
    merge = CdcMergeOperator(task_id="merge", connector=DECLARATION)
    with pytest.raises(AirflowFailException):
        merge.execute(TaskContext())

    found = extract(merge)

    assert [(one.namespace, one.name) for one in found.inputs] == [(LAKE, "shop.shop_changes")]
    assert outputs(found) == {(LAKE, "shop.shop_orders"): 20, (LAKE, "shop.shop_carts"): 0}


def test_what_moves_no_data_has_no_lineage(spark_submit: FakeSpark, extract: Extract) -> None:
    spark_submit.answers(offset={}, tables=TABLES[:1])
    verify = CdcVerifyOperator(task_id="verify", connector=DECLARATION)
    assert (extract(verify).inputs, extract(verify).outputs) == ([], []), "it has not run"
    verify.execute(TaskContext())
    assert (extract(verify).inputs, extract(verify).outputs) == ([], [])


def test_a_snapshots_rows_are_written_to_the_changes_too() -> None:
    connector = Connector.from_dict(DECLARATION)
    result = JobResult(
        True, tables=(TableResult("shop.orders"),), snapshot=SnapshotResult(tables=1, remaining=0, rows=7)
    )
    found = lineage_of(connector, {}, result, captures=True, changes_mirrors=True)
    assert found.inputs == (Dataset("cassandra://shop", "shop.orders"),)
    assert found.outputs[0] == Dataset(LAKE, "shop.shop_changes", 7)


@pytest.mark.parametrize(
    ("kind", "connection", "namespace"),
    [
        ("cassandra", {"host": "db1,db2", "port": 9142}, "cassandra://db1:9142"),
        ("cassandra", {"host": "db1:9143,db2"}, "cassandra://db1:9143"),
        ("cassandra", {"host": "2001:db8::1", "port": 9042}, "cassandra://[2001:db8::1]:9042"),
        ("cassandra", {"host": "[2001:db8::1]:9044"}, "cassandra://[2001:db8::1]:9044"),
        ("cassandra", {}, "cassandra://shop"),
        ("mongodb", {"host": "a,b", "port": 27017}, "mongodb://a:27017"),
        ("mongodb", {"host": "mongodb://me:hunter2@a:27018,b/x?tls=true"}, "mongodb://a:27018"),
        (
            "mongodb",
            {"port": 27017, "extra": {"secret_uri": "mongodb+srv://me:hunter2@shop.example"}},
            "mongodb://shop.example:27017",
        ),
    ],
)
def test_a_source_is_named_by_its_first_host_without_login(
    kind: str, connection: dict[str, Any], namespace: str
) -> None:
    connector = Connector.from_dict({"name": "shop", "source": {"type": kind}})
    assert source_namespace(connector, connection) == namespace


@pytest.mark.parametrize(
    ("options", "namespace"),
    [
        ({}, "iceberg://lake"),
        ({"type": "hadoop", "warehouse": "s3://bucket/lake/"}, "s3://bucket/lake"),
        ({"type": "hadoop", "warehouse": "/data/lake"}, "file:///data/lake"),
        (
            {"type": "rest", "uri": "https://me:hunter2@catalog:8181/v1?token=hunter2"},
            "https://catalog:8181/v1",
        ),
        ({"type": "hive", "uri": "thrift://meta:9083", "warehouse": "s3://b"}, "hive://meta:9083"),
        ({"type": "jdbc", "uri": "jdbc:postgresql://db/cat?password=hunter2"}, "postgresql://db/cat"),
    ],
)
def test_a_catalog_is_named_as_it_is_declared_without_login(options: dict[str, str], namespace: str) -> None:
    lake = {"catalog_options": options}
    connector = Connector.from_dict({"name": "shop", "source": {"type": "mongodb"}, "lake": lake})
    assert catalog_namespace(connector) == namespace
