"""Record the lake that tests/contract/lake/test_stored_layout.py compares with.

Run it only when the stored layout has changed on purpose, and raise the version of that layout:
``python -m tools.record_layout``.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from airflow_cdc_provider.lake.iceberg import IcebergLake
from server_kit import spark_jars
from tests.contract.lake.sample_lake import RECORDED, SampleLake, dump


def main() -> None:
    """Write the lake and its description."""
    with tempfile.TemporaryDirectory() as folder:
        spark = (
            SparkSession.builder.master("local[1]")
            .config("spark.jars", ",".join(map(str, spark_jars())))
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
            .config("spark.sql.catalog.lake.type", "hadoop")
            .config("spark.sql.catalog.lake.warehouse", Path(folder).as_uri())
            .config("spark.sql.catalog.lake.cache-enabled", "false")
            .getOrCreate()
        )
        lake = IcebergLake(spark, "lake")
        SampleLake(lake, "recorded").write()
        described = dump(lake, "recorded")
        spark.stop()
    RECORDED.parent.mkdir(parents=True, exist_ok=True)
    RECORDED.write_text(json.dumps(described, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
