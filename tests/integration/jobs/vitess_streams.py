"""A continuous application that reads Vitess, and what it captured."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.integration.jobs.conftest import Application

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def captured(spark: SparkSession, table: str) -> list[tuple[str, bytes]]:
    """Origin and position of each change that was captured."""
    rows = spark.sql(f"REFRESH TABLE lake.vt_{table}.vt_{table}_changes")
    rows = spark.table(f"lake.vt_{table}.vt_{table}_changes").where("kind = 'change'")
    return [(row[0], bytes(row[1])) for row in rows.select("origin", "position").collect()]


class Streaming:
    """A stream in a separate process, and its state file.

    Args:
        application: The process's folder.
        declared: The declaration.
        connection: The connection.
    """

    def __init__(
        self,
        application: Application,
        spark: SparkSession,
        declared: dict[str, Any],
        connection: dict[str, Any],
    ) -> None:
        warehouse = spark.conf.get("spark.sql.catalog.lake.warehouse")
        declared["lake"]["catalog_options"] = {"type": "hadoop", "warehouse": warehouse}
        self._application = application
        self._state_path: Path = application.folder / "state.json"
        self._state_path.unlink(missing_ok=True)
        self.process: subprocess.Popen[bytes] = application.start(
            "stream", declared, connection, state_path=str(self._state_path), commit_interval_seconds=0.1
        )

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = (
            json.loads(self._state_path.read_text()) if self._state_path.exists() else {"rounds": 0}
        )
        return found

    def wait_for_rounds(self, count: int, timeout_seconds: float = 180) -> None:
        target = self.state["rounds"] + count
        deadline = time.monotonic() + timeout_seconds
        while self.state["rounds"] < target:
            assert self.process.poll() is None, self._application.log_tail()
            assert time.monotonic() < deadline, self._application.log_tail()
            time.sleep(0.05)

    def stop(self) -> None:
        """Ask for a clean stop, and require one."""
        self.process.terminate()
        outcome = self._application.wait(self.process)
        assert outcome.ok, outcome.error
