"""A connector's name is its own: a second one never goes on from the first one's offset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError
from tests.integration.jobs.conftest import RunStage
from tests.integration.jobs.equality import assert_mirror_equals_collection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.integration


@pytest.mark.covers("MDB-NAME-01", "MDB-NAME-03")
def test_a_second_connector_of_a_name_is_refused_and_another_prefix_is_another_source(
    spark: SparkSession, run_stage: RunStage, database: Any, connection: dict[str, Any], tmp_path: Path
) -> None:
    database.orders.insert_one({"_id": 1})
    shop: dict[str, Any] = {
        "name": "shop",
        "source": {"type": "mongodb", "conn_id": "one", "scope": "database", "target": database.name},
        "lake": {"catalog": "lake", "namespace": database.name},
    }
    mirror = f"{database.name}.{database.name}_orders"
    changes = f"lake.{database.name}.shop_changes"
    run_stage("sync", shop, connection)
    database.orders.insert_one({"_id": 2})
    others = [
        {**shop, "source": {**shop["source"], "conn_id": "two"}},
        {**shop, "source": {"type": "mongodb", "conn_id": "one"}},
        {**shop, "publish": {"topic_prefix": "crm"}},
    ]
    before = spark.table(changes).count()
    for other in others:
        for stage in ("sync", "capture", "merge", "snapshot", "stream", "verify", "maintain"):
            with pytest.raises(ConfigurationError, match="holds the changes of another connector"):
                run_stage(stage, other, connection, state_path=str(tmp_path / "state"))
        with pytest.raises(ConfigurationError, match="offsets adopt"):
            run_stage("offsets", other, connection, action="reset")
    assert spark.table(changes).count() == before

    # The first one goes on, with other tables and options, behind another address of the same connection.
    changed = {**shop, "tables": [rf"{database.name}\.o.*"], "snapshot": {"mode": "never"}}
    run_stage("sync", changed, connection)
    assert assert_mirror_equals_collection(spark, database.orders, mirror) == 2

    # Another prefix under a name of its own starts over; adopted, it resumes from the old one's position.
    crm = {**others[2], "name": "crm", "lake": {"catalog": "lake", "namespace": f"{database.name}_crm"}}
    assert run_stage("sync", crm, connection).tables[0].snapshot_rows == 2
    database.orders.insert_one({"_id": 3})
    run_stage("offsets", others[2], connection, action="adopt")
    done = run_stage("sync", others[2], connection)
    assert [(t.changes, t.snapshot_rows) for t in done.tables] == [(1, 0)]
    assert assert_mirror_equals_collection(spark, database.orders, mirror) == 3
    with pytest.raises(ConfigurationError, match=r"topic_prefix crm, found publish\.topic_prefix shop"):
        run_stage("sync", shop, connection)
    for name, declaration in (("crm", others[2]), ("shop", shop)):
        path = tmp_path / f"{name}.jsonl"
        run_stage("events", declaration, connection, path=str(path))
        events = [json.loads(line) for line in path.read_text().splitlines()]
        assert events
        assert {event["topic"] for event in events} == {f"{name}.{database.name}.orders"}
        values = [json.loads(event["value"]) for event in events]
        assert {value.get("payload", value)["source"]["name"] for value in values} == {name}
