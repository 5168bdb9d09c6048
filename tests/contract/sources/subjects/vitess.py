"""Vitess: a real cluster in one process, whose keyspace ``shop`` has two shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from airflow_cdc_provider.sources.contract import Offset
from tests.contract.sources.harness import BROKEN, Put, SourceUnderTest, Write, begin

_LENGTHS = bytes([0x02, 0x02, 2 * len(BROKEN), 0x12])
"""Lengths of a row's values, of which two have one digit, and the tag of the values."""


class Vitess(SourceUnderTest):
    """Tables of both shards of keyspace ``shop``."""

    type = "vitess"
    limitations: ClassVar = {"head": "a reply of VTGate is stored whole: it may contain later transactions"}
    place_of_broken = r"shop\.\w+_broken in shop/\S+ at MySQL56/\S+, row 0"

    def set_up(self) -> None:
        self.server = self.fixture("vitess_server")
        self._session = self.server.connect("shop")

    def create(self, name: str) -> str:
        table = f"{self.database}_{name}"
        columns = "id bigint primary key, n int, note varchar(200)"
        self.server.define("shop", f"create table {table} ({columns})", shard_by={table: "id"})
        return f"shop.{table}"

    def apply(self, table: str, writes: Sequence[Write]) -> None:
        name = table.partition(".")[2]
        upsert = "on duplicate key update n = values(n), note = values(note)"
        with self._session.cursor() as cursor:
            for write in writes:
                if isinstance(write, Put):
                    values = (write.id, write.n, write.note)
                    cursor.execute(f"insert into {name} (id, n, note) values (%s, %s, %s) {upsert}", values)
                else:
                    cursor.execute(f"delete from {name} where id = %s", (write.id,))

    def lose(self, table: str) -> Offset:
        with self.source(table) as source:
            offset = begin(source)
        self.write(table, *(Put(number, 1) for number in range(8)))
        self.server.purge_binlogs()
        assert offset is not None
        return offset

    def write_broken(self, table: str) -> None:
        self.write(table, Put(2, 1, BROKEN), Put(3, 1))

    def damage(self, parts: Sequence[Any]) -> Sequence[Any]:
        longer = bytes([*_LENGTHS[:2], _LENGTHS[2] + 2, _LENGTHS[3]])
        return [replace(part, data=part.data.replace(_LENGTHS, longer)) for part in parts]

    def options(self, table: str) -> Mapping[str, Any]:
        del table
        return {"keyspace": "shop", "stream": {"heartbeat_seconds": 2}}

    def connection(self) -> Mapping[str, Any]:
        connection: Mapping[str, Any] = self.server.connection
        return connection
