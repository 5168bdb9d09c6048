"""Broken messages on a real broker and a real registry: quarantined with their reasons, the rest is read."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

import fastavro
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from airflow_cdc_provider.exceptions import CorruptInput
from server_kit import KafkaServer, RegistryServer
from tests.integration.jobs.debezium_workload import Message
from tests.integration.sources.debezium_sources import batches, merged, source_of
from tests.unit.sources.debezium.debezium_messages import Table, feed_of
from tests.unit.sources.debezium.registry_writers import head

pytestmark = pytest.mark.integration

HUGE: Final = "x" * (3 << 20)
AVRO: Final = {
    "type": "record",
    "name": "Row",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
}
JSON_SCHEMA: Final = {
    "type": "object",
    "title": "Row",
    "properties": {"id": {"type": "integer", "connect.type": "int64"}, "name": {"type": "string"}},
}
SCHEMAS: Final[Mapping[str, tuple[str, str]]] = {
    "avro": ("AVRO", json.dumps(AVRO)),
    "protobuf": ("PROTOBUF", 'syntax = "proto3"; message Row { int64 id = 1; string name = 2; }'),
    "json_schema": ("JSON", json.dumps(JSON_SCHEMA)),
}


def written(encoding: str, row_id: int, name: str) -> bytes:
    """Write a row, without a schema's id."""
    text = json.dumps({"id": row_id, "name": name}).encode()
    if encoding == "avro":
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), {"id": row_id, "name": name})
        return out.getvalue()
    if encoding == "protobuf":
        length, raw = len(name.encode()), b""
        while length > 127:
            raw, length = raw + bytes([length & 127 | 128]), length >> 7
        return b"\0\x08" + bytes([row_id]) + b"\x12" + raw + bytes([length]) + name.encode()
    return text


def broken(encoding: str, lead: bytes) -> list[tuple[bytes, str]]:
    """Values that can't be read, with the codes of their reasons."""
    good = written(encoding, 9, "never seen")
    if encoding == "json":
        cut = [(good[:-3], "MALFORMED"), (b"\0\0\0\0\1\2", "MALFORMED"), (b"", "MALFORMED")]
        return [*cut, (b"[1]", "MALFORMED"), (b"\xff\xfe", "MALFORMED")]
    found = [
        (lead + good[:-3], "MALFORMED"),
        (lead, "BAD-SCHEMA" if encoding == "protobuf" else "MALFORMED"),
        (b"\1" + lead[1:] + good, "NOT-FRAMED"),
        (lead[:3], "NOT-FRAMED"),
        (b"", "NOT-FRAMED"),
        (head(0x7FFFFFF0) + good, "UNKNOWN-SCHEMA"),
        (b"\0\xff\xff\xff\xff" + good, "UNKNOWN-SCHEMA"),
    ]
    if encoding == "protobuf":
        found += [(lead + b"\2\x0e" + good[1:], "BAD-SCHEMA"), (lead + b"\xff" * 12, "BAD-SCHEMA")]
    return found


@pytest.mark.parametrize("encoding", ["json", "avro", "protobuf", "json_schema"])
def test_broken_messages_are_quarantined_with_their_reasons_and_all_others_read(
    kafka_server: KafkaServer, registry_server: RegistryServer, encoding: str
) -> None:
    topic = f"dzh.shop.{encoding}"
    kafka_server.create_topic(topic, max_message_bytes=8 << 20)
    options: dict[str, Any] = {"envelope": "unwrapped", "value_converter": encoding}
    lead = b""
    if encoding in SCHEMAS:
        kind, text = SCHEMAS[encoding]
        client = SchemaRegistryClient({"url": registry_server.url})
        lead = head(client.register_schema(f"{topic}-value", Schema(text, kind)))
        options["registry"] = {"url": registry_server.url}
    wrong = broken(encoding, lead)
    sent: list[tuple[bytes | None, bytes]] = []
    rows: dict[int, dict[str, str]] = {}
    for number, (value, _) in enumerate(wrong):
        name = HUGE if number == 1 else f"é{number}"
        rows[number] = {"name": name}
        sent.append((b'{"id":%d}' % number, lead + written(encoding, number, name)))
        sent.append((b'{"id":%d}' % (100 + number), value))
    sent.append((None, lead + written(encoding, 99, "without a key")))
    _send(kafka_server, [(topic, 0, key, value) for key, value in sent])

    advanced = {"schema_lookup_timeout_seconds": 0.1}
    with closing(source_of(kafka_server, topic, **options, advanced=advanced)) as source:
        ((end, records),) = batches(source, None)
        assert end == source.head(), "it goes on behind them"
    reasons = {
        int.from_bytes(record["position"][4:], "big"): record["reason"]
        for batch in records
        for record in batch.to_pylist()
        if record["kind"] == "quarantine"
    }
    assert {at: reason.partition(":")[0] for at, reason in reasons.items()} == {
        2 * number + 1: code for number, (_, code) in enumerate(wrong)
    }
    assert all(f"partition 0, offset {at}" in reason for at, reason in reasons.items())
    table = Table(feed=feed_of(topic))
    table.form = replace(table.form, unwrapped=True)
    assert merged(table, records) == rows
    assert [reason.partition(":")[0] for reason in table.reasons] == ["NO-KEY"]

    strict = {**advanced, "strict": True}
    with (
        closing(source_of(kafka_server, topic, **options, advanced=strict)) as source,
        pytest.raises(CorruptInput, match="partition 0, offset 1"),
    ):
        list(batches(source, None))


def _send(server: KafkaServer, messages: list[Message]) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": server.bootstrap, "message.max.bytes": 8 << 20})
    for topic, partition, key, value in messages:
        producer.produce(topic, value, key, partition)
    assert producer.flush(30) == 0
