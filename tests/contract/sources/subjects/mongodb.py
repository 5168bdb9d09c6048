"""MongoDB: a real replica set of one."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from airflow_cdc_provider.sources.contract import Offset
from airflow_cdc_provider.sources.mongodb.change_stream.stream_events import EventSlice
from tests.contract.sources.harness import BROKEN, Put, SourceUnderTest, Write, begin

_OPERATION = b"\x02operationType\0"
_LOST = 286
"""The server's error code of a change stream whose start is no longer in the oplog."""


class Mongodb(SourceUnderTest):
    """Collections of one database."""

    type = "mongodb"
    limitations: ClassVar = {"head": "a reply of the server is stored whole: it may have later events"}
    indivisible = 2
    place_of_broken = r"event 1 at byte \d+, fault at byte \d+"

    def set_up(self) -> None:
        self.server = self.fixture("mongo_server")
        self.client = self.fixture("mongo_client")

    def tear_down(self) -> None:
        self.client.drop_database(self.database)

    def create(self, name: str) -> str:
        self.client[self.database].create_collection(name)
        return f"{self.database}.{name}"

    def apply(self, table: str, writes: Sequence[Write]) -> None:
        collection = self.client[self.database][table.partition(".")[2]]
        for write in writes:
            if isinstance(write, Put):
                values = {"n": write.n, "note": write.note}
                collection.update_one({"_id": write.id}, {"$set": values}, upsert=True)
            else:
                collection.delete_one({"_id": write.id})

    def lose(self, table: str) -> Offset:
        with self.source(table) as source:
            offset = begin(source)
        self.write(table, Put(1, 1))
        # Shrinking the oplog would lose the changes of other tests: the server says once that it did.
        self.client.admin.command(
            "configureFailPoint",
            "failCommand",
            mode={"times": 1},
            data={"failCommands": ["aggregate"], "errorCode": _LOST, "appName": self.database},
        )
        assert offset is not None
        return offset

    def write_broken(self, table: str) -> None:
        self.write(table, Put(2, 1, BROKEN), Put(3, 1))

    def damage(self, parts: Sequence[Any]) -> Sequence[Any]:
        return [
            replace(part, events=b"".join(_damaged(part.events))) if isinstance(part, EventSlice) else part
            for part in parts
        ]

    def options(self, table: str) -> Mapping[str, Any]:
        # Small replies, since a batch consists of whole ones.
        return {
            "advanced": {"batch_events": 3},
            "columns": {table: {"id": "_id int", "n": "n int", "note": "note string"}},
        }

    def connection(self) -> Mapping[str, Any]:
        extra = {"replicaSet": "rs0", "appname": self.database}
        return {"host": self.server.host, "port": self.server.port, "extra": extra}


def _damaged(events: bytes) -> Iterator[bytes]:
    """Yield events, the one of the broken change with an operation of an unknown BSON type."""
    at = 0
    while at < len(events):
        (length,) = struct.unpack_from("<i", events, at)
        event = events[at : at + length]
        yield event.replace(_OPERATION, b"\x7e" + _OPERATION[1:]) if BROKEN.encode() in event else event
        at += length
