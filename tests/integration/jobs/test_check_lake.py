"""The lake is checked by a table that doesn't stay; mirrors that differ from the declaration are findings."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.lake.iceberg import IcebergLake
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
