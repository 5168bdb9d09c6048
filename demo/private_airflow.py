"""The demo's private Airflow: SQLite, its DAGs and connections, nothing shared with another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from airflow_cdc_provider.jobs.spec import JobResult
from demo.layout import ROOT, Layout
from server_kit import CassandraServer, MongoServer, spark_jars


class DemoFailed(Exception):
    """A step of the demo failed; the message names the log."""


class PrivateAirflow:
    """Airflow in the demo's folder.

    Args:
        layout: The folder.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    @property
    def environment(self) -> dict[str, str]:
        """Variables for every process of this Airflow."""
        binaries = str(Path(sys.executable).parent)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        return {
            **inherited,
            "PATH": os.pathsep.join([binaries, inherited.get("PATH", "")]),
            "PYTHONPATH": str(ROOT),
            "AIRFLOW_HOME": str(self.layout.airflow),
            "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "demo" / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "2",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.layout.airflow}/airflow.db",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
            "AIRFLOW__CDC__SPARK_JARS": ",".join(map(str, spark_jars())),
            "AIRFLOW__CDC__WORK_FOLDER": str(self.layout.folder / "work"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "CDC_DEMO_CONNECTORS": str(self.layout.connectors),
        }

    def migrate(self) -> None:
        """Create the database, and record the DAGs in it."""
        self.layout.airflow.mkdir(parents=True, exist_ok=True)
        self._airflow("db", "migrate")

    def declare(self, cassandra: CassandraServer, mongodb: MongoServer) -> None:
        """Write the connectors, and import the connections that they name."""
        for name, connector in connectors(self.layout, cassandra.cdc_raw, cassandra.host_id).items():
            path = self.layout.connectors / f"{name}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(yaml.safe_dump(connector, sort_keys=False))
        connections = self.layout.airflow / "connections.json"
        connections.write_text(
            json.dumps(
                {
                    "cassandra_shop": {
                        "conn_type": "cdc_cassandra",
                        "host": cassandra.host,
                        "port": cassandra.port,
                    },
                    "mongodb_store": {
                        "conn_type": "cdc_mongodb",
                        "host": mongodb.host,
                        "port": mongodb.port,
                        "extra": json.dumps({"replicaSet": "rs0"}),
                    },
                    "spark_default": {"conn_type": "spark", "host": "local[2]"},
                }
            )
        )
        self._airflow("connections", "import", str(connections), "--overwrite")
        self._airflow("dags", "reserialize")

    def run_dag(self, dag: str, label: str) -> JobResult:
        """Run a DAG once, synchronously.

        Returns:
            What its task's Spark application reported.

        Raises:
            DemoFailed: The run did not succeed.
        """
        before = set(self._results())
        started = time.monotonic()
        self._airflow("dags", "test", dag, label=label)
        new = sorted(set(self._results()) - before)
        if not new:
            raise DemoFailed(f"the run of {dag} left no result; see {self.layout.logs / label}.log")
        result = JobResult.read(str(new[-1]))
        return JobResult(**{**vars(result), "seconds": {**result.seconds, "run": time.monotonic() - started}})

    def _results(self) -> list[Path]:
        return list((self.layout.folder / "work").rglob("result.json"))

    def _airflow(self, *arguments: str, label: str = "") -> None:
        label = label or "-".join(arguments[:2])
        log = self.layout.logs / f"{label}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            done = subprocess.run(
                ["airflow", *arguments],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if done.returncode != 0:
            end = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
            raise DemoFailed(f"airflow {' '.join(arguments)} failed; {log} ends with\n{end}")


def connectors(layout: Layout, cdc_raw: Path, host_id: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the declarations of the two connectors."""
    lake = {
        "catalog": "lake",
        "catalog_options": {"type": "hadoop", "warehouse": layout.warehouse.as_uri()},
    }
    return {
        "shop": {
            "name": "shop",
            "source": {
                "type": "cassandra",
                "conn_id": "cassandra_shop",
                "cdc_raw": str(cdc_raw),
                "node": host_id,
            },
            "tables": [r"shop\..*"],
            "lake": lake,
        },
        "store": {
            "name": "store",
            "source": {"type": "mongodb", "conn_id": "mongodb_store"},
            "tables": [r"store\..*"],
            "lake": lake,
        },
    }
