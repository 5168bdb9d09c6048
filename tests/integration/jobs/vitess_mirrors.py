"""A connector of one table in Vitess, and its comparison with the mirror."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from server_kit import VitessServer
from tests.integration.sources.vitess.workload import selected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def declaration(table: str, **further: Any) -> dict[str, Any]:
    return {
        "name": f"vt_{table}",
        "source": {"type": "vitess", "keyspace": "shop"},
        "tables": [rf"shop\.{table}"],
        "lake": {"catalog": "lake", "namespace": f"vt_{table}"},
        **further,
    }


def assert_mirror_equals_table(spark: SparkSession, server: VitessServer, table: str) -> int:
    rows = spark.table(f"lake.vt_{table}.shop_{table}").select("id", "name", "amount").collect()
    mirror = {str(r[0]): tuple(None if v is None else str(v) for v in r) for r in rows}
    assert len(rows) == len(mirror)
    assert mirror == selected(server, table)
    return len(rows)
