"""Tables in the shared session's catalog ``lake``."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from airflow_cdc_provider.lake.iceberg import IcebergLake, IcebergTable

MakeTable = Callable[..., IcebergTable]


@pytest.fixture
def make_table(spark: Any, warehouse: Path) -> MakeTable:
    """``make_table(ddl, format_version=2)``: a new table in files, with a name of its own."""

    def make(ddl: str = "id bigint", *, format_version: int = 2) -> IcebergTable:
        lake = IcebergLake(spark, "lake", format_version=format_version)
        namespace = f"n{uuid.uuid4().hex[:8]}"
        lake.create_namespace(namespace)
        table = lake.table(f"{namespace}.t")
        table.create(StructType.fromDDL(ddl))
        return table

    return make
