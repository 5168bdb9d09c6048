"""Debezium: topics of a real broker, in two partitions each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from airflow_cdc_provider.sources.contract import Offset
from tests.contract.sources.harness import Put, SourceUnderTest, Write, capture
from tests.integration.jobs.debezium_mirrors import connection, send
from tests.integration.jobs.debezium_workload import Message

_PARTITIONS = 2
_FIELDS = [
    {"type": "int64", "optional": False, "field": "id"},
    {"type": "int32", "optional": True, "field": "n"},
    {"type": "string", "optional": True, "field": "note"},
]
_SIDES = [
    {"type": "struct", "fields": _FIELDS, "optional": True, "field": side} for side in ("before", "after")
]
_OPERATION = {"type": "string", "optional": False, "field": "op"}
_KEY_SCHEMA = {"type": "struct", "fields": _FIELDS[:1], "optional": False}
_SCHEMA = {"type": "struct", "fields": [*_SIDES, _OPERATION], "name": "Envelope"}


def _framed(schema: Mapping[str, Any], payload: Mapping[str, Any]) -> bytes:
    return json.dumps({"schema": schema, "payload": payload}).encode()


class Debezium(SourceUnderTest):
    """Topics of one server, with schemas in each message."""

    type = "debezium"
    limitations: ClassVar = {
        "snapshot": "a topic has the rows of Debezium's own snapshot, and no table to read"
    }
    place_of_broken = r"topic \S+\.broken, partition 0, offset 0"

    def set_up(self) -> None:
        self.server = self.fixture("kafka_server")

    def create(self, name: str) -> str:
        table = f"shop.{name}"
        self.server.create_topic(self._topic(table), _PARTITIONS)
        return table

    def apply(self, table: str, writes: Sequence[Write]) -> None:
        send(self.server, list(self._messages(table, writes)))

    def lose(self, table: str) -> Offset:
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import AdminClient

        self.write(table, Put(2, 1), Put(4, 1))
        with self.source(table) as source:
            offset = capture(source, None).offset
        self.write(table, Put(6, 1), Put(8, 1))
        admin = AdminClient({"bootstrap.servers": self.server.bootstrap})
        lost = TopicPartition(self._topic(table), 0, 3)
        admin.delete_records([lost])[TopicPartition(lost.topic, 0)].result(30)
        assert offset is not None
        return offset

    def write_broken(self, table: str) -> None:
        ((topic, partition, key, value),) = self._messages(table, [Put(2, 1)])
        assert value is not None
        send(self.server, [(topic, partition, key, value[:-9])])
        self.write(table, Put(3, 1))

    def options(self, table: str) -> Mapping[str, Any]:
        return {"topics": [self._topic(table).replace(".", r"\.")]}

    def connection(self) -> Mapping[str, Any]:
        return connection(self.server)

    def _topic(self, table: str) -> str:
        return f"{self.database}.{table}"

    def _messages(self, table: str, writes: Sequence[Write]) -> Iterator[Message]:
        rows = self.rows(table)
        for write in writes:
            before = _row(write.id, rows.pop(write.id)) if write.id in rows else None
            after = None
            if isinstance(write, Put):
                rows[write.id] = (write.n, write.note)
                after = _row(write.id, rows[write.id])
            operation = "d" if after is None else "c" if before is None else "u"
            event = {"before": before, "after": after, "op": operation}
            key = _framed(_KEY_SCHEMA, {"id": write.id})
            yield self._topic(table), write.id % _PARTITIONS, key, _framed(_SCHEMA, event)


def _row(row_id: int, values: tuple[int, str]) -> dict[str, Any]:
    return {"id": row_id, "n": values[0], "note": values[1]}
