"""A ``spark-submit`` that keeps a record and runs no JVM, so that operators are tested in milliseconds."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PASSWORD = "s3cr3t-of-the-cluster"

DECLARATION: dict[str, Any] = {
    "name": "shop",
    "source": {"type": "cassandra", "conn_id": "cassandra_shop", "cdc_raw": "/landing/shop"},
    "tables": [r"shop\.orders"],
    "lake": {"catalog_options": {"type": "hadoop", "warehouse": "file:///tmp/lake"}},
}

_PROGRAM = """#!{python}
import json, os, pathlib, sys, time
record = pathlib.Path({record!r})
spec = json.loads(pathlib.Path(sys.argv[-1]).read_text())
connection = spec["connection"]["file"]
seen = {{
    "arguments": sys.argv[1:], "spec": spec, "pid": os.getpid(),
    "connection": json.loads(pathlib.Path(connection).read_text()) if connection else None,
    "mode": oct(os.stat(connection).st_mode & 0o777) if connection else None,
}}
(record / "seen.json").write_text(json.dumps(seen))
script = record / "script.py"
exec(script.read_text())
"""


@dataclass
class FakeSpark:
    """A folder with a ``spark-submit`` whose behaviour a test writes as Python lines.

    The lines see ``spec`` (the job spec), ``connection`` (the path of its values) and ``record`` (the
    folder).
    """

    folder: Path

    def behaves(self, lines: str) -> None:
        (self.folder / "script.py").write_text(lines)

    def answers(self, exit_code: int = 0, **result: Any) -> None:
        """Write a result, then end."""
        self.behaves(
            f"pathlib.Path(spec['result_path']).write_text({json.dumps({'ok': True, **result})!r})\n"
            f"sys.exit({exit_code})\n"
        )

    @property
    def seen(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "seen.json").read_text())
        return found

    @property
    def started(self) -> bool:
        return (self.folder / "seen.json").exists()


@pytest.fixture
def work_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configured work folder."""
    folder = tmp_path / "work"
    monkeypatch.setenv("AIRFLOW__CDC__WORK_FOLDER", str(folder))
    return folder


@pytest.fixture
def spark_submit(tmp_path: Path, work_folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSpark:
    """A fake ``spark-submit``, a Spark connection that uses it, and the source's connection."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "spark-submit"
    program.write_text(_PROGRAM.format(python=sys.executable, record=str(folder)))
    program.chmod(0o755)
    monkeypatch.setattr(
        "airflow_cdc_provider.tasks.spark_process.search_path", lambda: f"{folder}:{os.environ['PATH']}"
    )
    monkeypatch.setattr(
        "airflow_cdc_provider.operators.spark_stage.search_path", lambda: f"{folder}:{os.environ['PATH']}"
    )
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    monkeypatch.setenv(
        "AIRFLOW_CONN_CASSANDRA_SHOP",
        json.dumps(
            {
                "conn_type": "cdc_cassandra",
                "host": "db1,db2",
                "port": 9042,
                "login": "capture",
                "password": PASSWORD,
                "extra": {"local_datacenter": "dc1", "tls_key_password": "key-" + PASSWORD},
            }
        ),
    )
    fake = FakeSpark(folder)
    fake.answers()
    return fake
