"""A writer in a process of its own that runs commands from stdin: one JSON line in, one out.

``python -m tests.contract.lake.worker FOLDER CATALOG``; ``use`` comes before all else.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_cdc_provider.exceptions import CdcError
from airflow_cdc_provider.lake.changes_table import ChangesState, ChangesTable
from airflow_cdc_provider.lake.iceberg import IcebergLake, IcebergTable
from tests.contract.lake.sessions import catalog_options, connector, spark_session

ROWS = 4
"""Changes in each batch; their positions go on where the stored offset ends."""


class Writer:
    """Appends batches whose rows follow from the offset, as a capture does."""

    def __init__(self, folder: Path, catalog: str) -> None:
        self.folder = folder
        self.spark = spark_session(folder)
        self.catalog = catalog
        self.changes: ChangesTable
        self.state: ChangesState

    def use(self, namespace: str) -> dict[str, Any]:
        """Write to the changes table of a namespace from now on; it is created if need be."""
        declared = connector(self.catalog, namespace=namespace)
        self.changes = ChangesTable(IcebergLake(self.spark, self.catalog), declared)
        self.changes.create()
        return self.read()

    def read(self) -> dict[str, Any]:
        """Read the state from which the next batch is derived."""
        self.state = self.changes.state()
        return {"batch": self.state.batch, "offset": self.state.offset}

    def append(self, at: float = 0.0) -> dict[str, Any]:
        """Append one batch at a moment (epoch seconds)."""
        begin = 0 if self.state.offset is None else int(self.state.offset["stream"]["position"])
        rows = self.spark.range(begin, begin + ROWS, 1, 2).selectExpr(
            "'s.t' source_table",
            "'change' kind",
            "'stream' origin",
            "cast(cast(id as string) as binary) position",
            "0L generation",
            *(f"cast(null as binary) {name}" for name in ("key", "version")),
            *(f"timestamp'2026-01-01' {name}" for name in ("committed_at", "captured_at")),
            *(f"cast(null as string) {name}" for name in ("transaction", "schema_id", "reason", "request")),
            "cast(null as binary) payload",
        )
        time.sleep(max(0.0, at - time.time()))
        try:
            self.state = self.changes.append_batch(
                rows, {"stream": {"v": 1, "position": begin + ROWS}}, self.state
            )
        except CdcError as error:
            return {"error": error.code}
        return {"batch": self.state.batch}

    def create_namespace(self, name: str, at: float) -> dict[str, Any]:
        """Create a namespace at a moment (epoch seconds)."""
        time.sleep(max(0.0, at - time.time()))
        self.changes.lake.create_namespace(name)
        return {}

    def create_catalog(self, name: str, namespace: str, at: float) -> dict[str, Any]:
        """Create a namespace in a new catalog of the same type at a moment (epoch seconds)."""
        for option, value in catalog_options(self.folder, self.catalog, name).items():
            self.spark.conf.set(option, value)
        time.sleep(max(0.0, at - time.time()))
        IcebergLake(self.spark, name).create_namespace(namespace)
        return {}

    def append_for_ever(self) -> dict[str, Any]:
        """Append until killed."""
        while True:
            answer(self.append())

    def append_and_die(self, stage: str) -> dict[str, Any]:
        """Append, and be killed before or after a stage of the commit."""
        when, _, name = stage.partition(" ")
        method = getattr(IcebergTable, name)

        def dying(*arguments: Any) -> Any:
            if when == "before":
                os.killpg(0, signal.SIGKILL)
            result = method(*arguments)
            os.killpg(0, signal.SIGKILL)
            return result

        setattr(IcebergTable, name, dying)
        return self.append()

    def maintain(self) -> dict[str, Any]:
        """Do the table's maintenance."""
        self.changes.table.maintain(retain_seconds=3600)
        return {}

    def positions(self) -> dict[str, Any]:
        """List the positions of all changes, and the branches that are left."""
        rows = self.changes.pending(0, 1 << 40).select("position").collect()
        table = self.changes.table
        assert isinstance(table, IcebergTable)
        refs = [str(name) for name in table.load().refs()]
        return {"positions": sorted(int(bytes(row[0])) for row in rows), "refs": sorted(refs)}


def answer(value: dict[str, Any]) -> None:
    """Write one line for the test."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Serve until stdin ends."""
    folder, catalog = sys.argv[1:]
    writer = Writer(Path(folder), catalog)
    answer({"ready": True})
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        method: Callable[..., dict[str, Any]] = getattr(writer, command)
        answer(method(*arguments))


if __name__ == "__main__":
    main()
