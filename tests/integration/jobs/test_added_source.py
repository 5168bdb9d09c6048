"""A source of another distribution, found by its entry point, is captured and mirrored like ours."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.sources.registry import source_names, source_plugin
from tests.contract.sources.distribution import build_distribution
from tests.integration.jobs.conftest import RunStage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

TABLES = ("shop.items", "shop.orders")


@pytest.fixture
def installed(spark: SparkSession, tmp_path: Path) -> Iterator[None]:
    """The distribution, installed here and for Spark's workers."""
    path = str(build_distribution(tmp_path))
    before = list(sys.path)
    sys.path.insert(0, path)
    spark.sparkContext.addPyFile(path)  # its copy is in the path, too
    yield
    sys.path[:] = before
    source_plugin.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "jsonl_source"]:
        del sys.modules[name]


class Files:
    """The files of the source's tables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def write(self, table: str, *lines: str | dict[str, Any]) -> None:
        with (self.folder / f"{table}.jsonl").open("a") as file:
            file.writelines(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)

    def rows(self, table: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for line in (self.folder / f"{table}.jsonl").read_text().splitlines():
            if line.startswith("{"):
                change = json.loads(line)
                found[str(change["id"])] = change.get("row")
        return {key: row for key, row in found.items() if row is not None}


def test_source_of_another_distribution_is_captured_and_mirrored(
    installed: None, spark: SparkSession, run_stage: RunStage, tmp_path: Path
) -> None:
    namespace = f"n{uuid.uuid4().hex[:8]}"
    files = Files(tmp_path / "files")
    for table in TABLES:
        files.write(table, *({"id": n, "row": {"n": n}} for n in range(20)), {"id": 3})
    declaration = {
        "name": "files",
        "source": {"type": "jsonl", "folder": str(files.folder)},
        "tables": [r"shop\..*"],
        "lake": {"catalog": "lake", "namespace": namespace},
    }

    def assert_mirrors_equal_files() -> None:
        for table in TABLES:
            mirror = spark.table(f"lake.{namespace}.{table.replace('.', '_')}")
            rows = {row["id"]: json.loads(row["row"]) for row in mirror.collect()}
            assert rows == files.rows(table)

    connector = Connector.from_dict(declaration)
    assert "jsonl" in source_names()
    (finding,) = source_plugin("jsonl").source(connector, {}).check()
    assert (finding.level, finding.message[-17:]) == ("ok", "2 selected tables")

    first = run_stage("sync", declaration, {})
    assert [table.snapshot_rows for table in first.tables] == [19, 19]
    assert_mirrors_equal_files()

    files.write("shop.orders", {"id": 4, "row": {"n": "new"}}, {"id": 5}, {"id": "x", "row": {}}, "not JSON")
    second = run_stage("sync", declaration, {}, batch_bytes=30)
    assert (second.changes, second.batches) == (4, 3)
    assert any("1 records could not be read" in finding for finding in second.findings)
    assert second.lag_bytes == 0
    assert_mirrors_equal_files()
    assert run_stage("verify", declaration, {}).ok
