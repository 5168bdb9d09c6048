"""Sessions under spark-submit: what it has set stays, and what is missing is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import json, sys
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import CdcError
from airflow_cdc_provider.jobs.spark.session import build_lake, build_session

warehouse, asked = sys.argv[1], sys.argv[2:]
connector = Connector.from_dict({
    "name": "shop", "source": {"type": "mongodb", "conn_id": "unused"},
    "lake": {"catalog_options": {"type": "hadoop", "warehouse": warehouse}},
})
try:
    session = build_session(connector, "by the package")
    build_lake(session, connector).create_namespace("n")
    print("RESULT" + json.dumps({name: session.conf.get(name, None) for name in asked}))
except CdcError as error:
    print("RESULT" + json.dumps({"error": str(error)}))
"""


def submit(tmp_path: Path, *arguments: str, ask: tuple[str, ...] = ()) -> dict[str, Any]:
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    spark_submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    # Without Iceberg on the class path, where quick_spark puts it.
    inherited = {
        n: v for n, v in os.environ.items() if n not in ("SPARK_DIST_CLASSPATH", "SPARK_SUBMIT_OPTS")
    }
    environment = {
        **inherited,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    done = subprocess.run(
        [
            str(spark_submit),
            "--master",
            "local[1]",
            "--conf",
            "spark.ui.enabled=false",
            *arguments,
            str(script),
            (tmp_path / "warehouse").as_uri(),
            *ask,
        ],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert results, done.stderr[-3000:]
    return dict(json.loads(results[0].removeprefix("RESULT")))


def test_what_spark_submit_set_stays(tmp_path: Path, iceberg_jar: Path) -> None:
    expected = {
        "spark.master": "local[1]",
        "spark.app.name": "by the user",
        "spark.sql.shuffle.partitions": "7",
        "spark.python.unix.domain.socket.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.variable.substitute": "false",
        "spark.sql.catalog.lake.cache-enabled": "false",
        "spark.sql.catalog.lake.warehouse": (tmp_path / "of-the-user").as_uri(),
        "spark.pyspark.python": sys.executable,
    }
    found = submit(
        tmp_path,
        *("--jars", str(iceberg_jar), "--name", "by the user"),
        *("--conf", "spark.sql.shuffle.partitions=7"),
        *("--conf", "spark.python.unix.domain.socket.enabled=false"),
        *("--conf", "spark.sql.session.timeZone=Europe/Berlin"),
        *("--conf", "spark.sql.variable.substitute=true"),
        *("--conf", f"spark.sql.catalog.lake.warehouse={expected['spark.sql.catalog.lake.warehouse']}"),
        ask=tuple(expected),
    )
    assert found == expected


def test_a_missing_jar_is_named(tmp_path: Path) -> None:
    found = submit(tmp_path)
    assert found["error"].startswith("[CDC-CONFIGURATION] Iceberg is not on Spark's class path")
    assert "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0" in found["error"]
