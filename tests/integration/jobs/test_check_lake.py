"""The lake is checked by a table that doesn't stay; mirrors that differ from the declaration are findings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.lake.iceberg import IcebergLake
from tests.integration.jobs.conftest import RunStage
from tests.integration.jobs.shop import Shop

pytestmark = pytest.mark.integration


def test_a_lake_is_written_and_read_and_nothing_stays(
    shop: Shop, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run("CREATE TABLE plain (k int PRIMARY KEY) WITH cdc = true")
    shop.run("INSERT INTO plain (k) VALUES (1)")
    assert shop.sync().ok
    folder = warehouse / shop.keyspace
    before = sorted(folder.iterdir())
    assert shop.stage("check_lake").findings == ()
    shop.declare(lake={"format_version": 3})
    (finding,) = shop.stage("check_lake").findings
    assert "has version 2 of the format, lake.format_version is 3" in finding
    assert sorted(folder.iterdir()) == before

    folder.rename(folder.with_name(f"{shop.keyspace}_away"))
    folder.write_text("a file where the namespace's folder was")
    monkeypatch.setattr(IcebergLake, "create_namespace", lambda self, name: None)
    with pytest.raises(ConfigurationError, match=r"can't be created, written, read and dropped: found"):
        shop.stage("check_lake")


def test_tables_without_runs_and_rows_without_events_are_findings(
    spark: SparkSession, warehouse: Path, run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    del warehouse
    shop: dict[str, Any] = {
        "name": f"mongo_{database.name}",
        "source": {"type": "mongodb"},
        "tables": [rf"{database.name}\..*"],
        "lake": {"catalog": "lake", "namespace": database.name},
    }
    database.kept.insert_one({"_id": 1})
    database.left.insert_one({"_id": 1})
    assert run_stage("sync", shop, connection).ok
    shop["publish"] = {"kafka": {"connection": "kafka", "mode": "after_merge"}}
    assert run_stage("check_lake", shop, connection).findings == ()

    spark.sql(f"UPDATE lake.{database.name}.{database.name}_kept SET _cdc.state = NULL")
    shop["tables"] = [rf"{database.name}\.kept"]
    (without, left) = run_stage("check_lake", shop, connection).findings
    assert "_kept has rows without the source's own bytes" in without
    assert left.startswith(f"{database.name}.left: captured before, no longer selected")
