"""Cassandra: a real node's cdc_raw, whose segments are completed to settle writes."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_cdc_provider.sources.contract import Offset
from tests.contract.sources.harness import BROKEN, GROUP, Put, SourceUnderTest, Write, capture


class Cassandra(SourceUnderTest):
    """A table of one keyspace; where segments must be lost or broken, its source reads a copy of cdc_raw."""

    type = "cassandra"
    place_of_broken = r"segment \d+ of node \S+ .*from position \d+"
    # A batch ends at the end of a section, which has all writes between two syncs.
    indivisible = GROUP

    def set_up(self) -> None:
        self.server = self.fixture("cassandra_server")
        self.session = self.fixture("cassandra_session")
        self._copies: dict[str, Path] = {}
        self._lost: set[str] = set()
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        self.session.execute(f"CREATE KEYSPACE {self.database} WITH replication = {replication}")
        self.server.forget_segments(self.session)

    def tear_down(self) -> None:
        self.session.execute(f"DROP KEYSPACE {self.database}")
        for folder in self._copies.values():
            shutil.rmtree(folder)

    def create(self, name: str) -> str:
        table = f"{self.database}.{name}"
        self.session.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, n int, note text) WITH cdc = true")
        return table

    def apply(self, table: str, writes: Sequence[Write]) -> None:
        for write in writes:
            if isinstance(write, Put):
                values = (write.id, write.n, write.note)
                self.session.execute(f"INSERT INTO {table} (id, n, note) VALUES (%s, %s, %s)", values)
            else:
                self.session.execute(f"DELETE FROM {table} WHERE id = %s", (write.id,))

    def settle(self) -> None:
        self.server.roll_segment(self.session)
        for table in self._copies:
            self._copy(table)

    def lose(self, table: str) -> Offset:
        self.write(table, Put(1, 1))
        offset = self._offset_after(table, rows=1)
        partly_read = self.server.open_segments()
        self.write(table, Put(2, 1))
        self.settle()
        self.write(table, Put(3, 1))
        self.settle()
        for index in partly_read:
            self._lost |= {index, f"{index.removesuffix('_cdc.idx')}.log"}
        self._copy(table)
        return offset

    def write_broken(self, table: str) -> None:
        self.write(table, Put(2, 1, BROKEN), Put(3, 1))
        self.settle()
        for segment in self._copy(table).glob("*.log"):
            data = segment.read_bytes()
            if BROKEN.encode() in data:
                segment.write_bytes(data.replace(BROKEN.encode(), BROKEN.upper().encode()))

    def options(self, table: str) -> Mapping[str, Any]:
        folder = self._copies.get(table, self.server.cdc_raw)
        return {"cdc_raw": str(folder), "node": self.server.host_id, "consistency": "LOCAL_ONE"}

    def connection(self) -> Mapping[str, Any]:
        return {"host": self.server.host, "port": self.server.port}

    def _offset_after(self, table: str, rows: int) -> Offset:
        """Return the offset in the middle of a growing segment, once its index includes rows."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with self.source(table) as source:
                captured = capture(source, None)
            if captured.offset is not None and len(captured.changes) == rows:
                return captured.offset
            time.sleep(0.2)
        raise TimeoutError(f"{rows} changes of {table} aren't durable after 60 s")

    def _copy(self, table: str) -> Path:
        """Copy what cdc_raw has now, but for what is lost, into the folder of a table."""
        if table not in self._copies:
            self._copies[table] = Path(tempfile.mkdtemp(prefix="cdc-raw-"))
        folder = self._copies[table]
        shutil.copytree(
            self.server.cdc_raw, folder, dirs_exist_ok=True, ignore=lambda _, names: self._lost & set(names)
        )
        return folder
