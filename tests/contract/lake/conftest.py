"""Every implementation of the lake, on the shared Spark session."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_cdc_provider.lake.iceberg import IcebergLake

MEMORY = "org.apache.iceberg.inmemory.InMemoryCatalog"
IMPLEMENTATIONS = {
    "iceberg-hadoop-v2": ("hadoop", 2),
    "iceberg-hadoop-v3": ("hadoop", 3),
    "iceberg-memory-v2": ("memory", 2),  # as metastores do: commits swap a pointer, nothing is locked
}

COMMITS, FILES, OTHERS = "each_catalog", "each_format", "neither"
RUN_ALWAYS: dict[str, set[str]] = {
    "iceberg-hadoop-v2": {COMMITS},
    "iceberg-hadoop-v3": {FILES},
    "iceberg-memory-v2": {COMMITS, OTHERS},
}
"""The marks of those tests that run on an implementation in every run.

The others of its tests are left to the long tests: what they prove depends neither on how a catalog commits
(``each_catalog``) nor on how a version of the format stores deletes, columns and rewritten files
(``each_format``). In version 2 these are what all tests of jobs are about.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave an implementation to the long tests where it isn't what is tested."""
    for item in items:
        own = {mark for mark in (COMMITS, FILES) if item.get_closest_marker(mark)} or {OTHERS}
        for name, marks in RUN_ALWAYS.items():
            if f"[{name}" in item.name and not own & marks:
                item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def catalogs(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The session, with the catalogs ``hadoop`` and ``memory``."""
    options = {
        "hadoop": {"type": "hadoop"},
        "memory": {"catalog-impl": MEMORY, "io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"},
    }
    for name, own in options.items():
        catalog = f"spark.sql.catalog.{name}"
        spark.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
        warehouse = tmp_path_factory.mktemp(name).as_uri()
        for option, value in {**own, "warehouse": warehouse, "cache-enabled": "false"}.items():
            spark.conf.set(f"{catalog}.{option}", value)
    return spark


@pytest.fixture(params=list(IMPLEMENTATIONS.values()), ids=list(IMPLEMENTATIONS))
def lake(request: pytest.FixtureRequest, catalogs: Any, several_partitions: None) -> IcebergLake:
    catalog, format_version = request.param
    return IcebergLake(catalogs, catalog, format_version=format_version)


@pytest.fixture
def several_partitions(spark: Any) -> Iterator[None]:
    """Let rows of one key meet only if they were shuffled by it."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", before)


@pytest.fixture
def namespace(lake: IcebergLake) -> str:
    name = f"n{uuid.uuid4().hex[:8]}"
    lake.create_namespace(name)
    return name
