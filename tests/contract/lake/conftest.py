"""Every implementation of the lake, on the shared Spark session."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from airflow_cdc_provider.lake.iceberg import IcebergLake

MEMORY = "org.apache.iceberg.inmemory.InMemoryCatalog"
IMPLEMENTATIONS = {
    "iceberg-hadoop-v2": ("hadoop", 2),
    "iceberg-hadoop-v3": ("hadoop", 3),
    "iceberg-memory-v2": ("memory", 2),  # as metastores do: commits swap a pointer, nothing is locked
}

OF_FORMATS = ("test_difference.py", "test_mirror.py", "test_vitess_mirror.py")
"""What reads and writes files, whatever the catalog is: the third one is left to the long tests."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave a catalog to the long tests where it isn't what is tested."""
    for item in items:
        if item.path.name in OF_FORMATS and "[iceberg-memory-v2" in item.name:
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
def lake(request: pytest.FixtureRequest, catalogs: Any) -> IcebergLake:
    catalog, format_version = request.param
    return IcebergLake(catalogs, catalog, format_version=format_version)


@pytest.fixture
def namespace(lake: IcebergLake) -> str:
    name = f"n{uuid.uuid4().hex[:8]}"
    lake.create_namespace(name)
    return name
