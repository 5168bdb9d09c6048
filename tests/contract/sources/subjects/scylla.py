"""ScyllaDB: the imitation of its log tables on a real Cassandra."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow_cdc_provider.sources.contract import Offset
from server_kit.scylla import CdcOptions, Column, CqlType, Table, remove_cluster
from server_kit.scylla.statements import DeleteRow, Insert
from tests.contract.sources.harness import GROUP, Put, SourceUnderTest, Write, begin
from tests.integration.sources.scylla.logged_tables import imitated, log_row


def _packed(number: int) -> bytes:
    return struct.pack(">i", number)


def _statement(write: Write) -> Insert | DeleteRow:
    key = (_packed(write.id),)
    if isinstance(write, Put):
        return Insert(key, (), {"n": _packed(write.n), "note": write.note.encode()})
    return DeleteRow(key, ())


class Scylla(SourceUnderTest):
    """Tables of one keyspace, without a confidence window, so that writes are read at once."""

    type = "scylla"
    limitations: ClassVar = {
        "strict": "a change with an unknown operation is always quarantined: a later release reads it"
    }
    # A window of time is read whole; how many changes it has is known afterwards.
    indivisible = GROUP
    small_batches: ClassVar = {"max_query_window_seconds": 0.2}

    def set_up(self) -> None:
        self.server = self.fixture("cassandra_server")
        self.session = self.fixture("cassandra_session")
        self.cluster = imitated(self.session, self.database)
        self.cluster.new_generation()

    def tear_down(self) -> None:
        remove_cluster(self.session, self.database, self.cluster.names)

    def create(self, name: str) -> str:
        columns = (Column("n", CqlType("int")), Column("note", CqlType("text")))
        key = (Column("id", CqlType("int")),)
        # The rest of a log row's time to live, which differs at each read, is a part of its change.
        unlimited = CdcOptions(ttl=0)
        self.cluster.create_table(Table(self.database, name, key, regular=columns, cdc=unlimited))
        return f"{self.database}.{name}"

    def apply(self, table: str, writes: Sequence[Write]) -> None:
        self.cluster.execute(table.partition(".")[2], *(_statement(write) for write in writes))

    def settle(self) -> None:
        time.sleep(0.3)  # more than a window, so that one has no writes of two groups

    def lose(self, table: str) -> Offset:
        with self.source(table) as source:
            offset = begin(source)
        self.write(table, Put(1, 1))
        self.settle()
        self.cluster.truncate_log(table.partition(".")[2])
        self.settle()
        self.write(table, Put(2, 1))
        self.settle()
        assert offset is not None
        return offset

    def write_broken(self, table: str) -> None:
        name = table.partition(".")[2]
        (change,) = self.cluster.execute(name, _statement(Put(2, 1)))
        self.session.execute(
            f'UPDATE {table}_scylla_cdc_log SET "cdc$operation" = 77 WHERE {log_row(change)}'
        )
        self.write(table, Put(3, 1))
        self.settle()

    def options(self, table: str) -> Mapping[str, Any]:
        del table
        names = self.cluster.names
        return {
            "consistency": "ONE",
            "snapshot_consistency": "ONE",
            "confidence_window_seconds": 0,
            "query_window_seconds": 0.2,
            "lookback_seconds": 1,
            "advanced": {
                "distributed_keyspace": names.distributed,
                "system_keyspace": names.system,
                "schema_keyspace": names.schema,
                "generation_poll_seconds": 0,
            },
        }

    def connection(self) -> Mapping[str, Any]:
        return {"host": self.server.host, "port": self.server.port}
