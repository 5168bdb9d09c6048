"""Pulsar's binary protocol, as far as producers need it: commands, messages and schemas as bytes.

The frames of a command, and of a command with a message; numbers are big-endian::

    total size 4 | command size 4 | command
    total size 4 | command size 4 | command | metadata size 4 | metadata | payload

Commands and metadata are Protobuf messages. They have few fields, which are written by their numbers in the
protocol (``PulsarApi.proto``, version 19). Messages have no checksum, which brokers accept: TCP has one, and
the broker computes its own for stored messages.

A KeyValue schema is ``size 4 | key's schema | size 4 | value's schema``; its properties describe both.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from airflow_cdc_provider.formats.protobuf_wire import Fields, Value, message

PROTOCOL_VERSION: Final = 19
KEY_VALUE: Final = 15
"""Number of the schema type KeyValue."""

CONNECT: Final = 2
CONNECTED: Final = 3
PRODUCER: Final = 5
SEND: Final = 6
SEND_RECEIPT: Final = 7
SEND_ERROR: Final = 8
SUCCESS: Final = 13
ERROR: Final = 14
CLOSE_PRODUCER: Final = 15
PRODUCER_SUCCESS: Final = 17
PING: Final = 18
PONG: Final = 19
PARTITIONS: Final = 21
PARTITIONS_RESPONSE: Final = 22
LOOKUP: Final = 23
LOOKUP_RESPONSE: Final = 24
AUTH_CHALLENGE: Final = 36
AUTH_RESPONSE: Final = 37


def signed(number: int) -> int:
    """Convert the unsigned number of a field to a signed one."""
    return number - (1 << 64) if number >= 1 << 63 else number


def command(kind: int, fields: Fields) -> bytes:
    """Write the frame of a command."""
    body = _command_body(kind, fields)
    return struct.pack(">II", len(body) + 4, len(body)) + body


def _command_body(kind: int, fields: Fields) -> bytes:
    # The number of a command's type is also that of its field.
    return message({1: kind, kind: message(fields)})


@dataclass(frozen=True)
class Message:
    """One message.

    Args:
        sequence: Its sequence id, by which the broker deduplicates.
        key: Key in base64, None for none.
        value: Value, None for a deletion.
        properties: Encoded as by :func:`properties`.
        published_ms: Publish time, ms since 1970.
    """

    sequence: int
    key: str | None
    value: bytes | None
    properties: bytes
    published_ms: int


def properties(pairs: Mapping[str, str]) -> bytes:
    """Write a message's properties."""
    return b"".join(message({4: message({1: name, 2: text})}) for name, text in pairs.items())


def send(producer: int, name: str, schema_version: bytes, sent: Message) -> bytes:
    """Write the frame of a message.

    Args:
        producer: The producer's id on this connection.
        name: Its name.
        schema_version: Version of the topic's schema, as returned by the broker.
        sent: The message.
    """
    fields: dict[int, Value] = {1: name, 2: sent.sequence, 3: sent.published_ms}
    if sent.key is None:
        fields[30] = 1
    else:
        fields |= {6: sent.key, 17: 1}
    if schema_version:
        fields[16] = schema_version
    if sent.value is None:
        fields[25] = 1
    metadata = message(fields) + sent.properties
    body = _command_body(SEND, {1: producer, 2: sent.sequence})
    value = sent.value or b""
    total = 4 + len(body) + 4 + len(metadata) + len(value)
    return b"".join(
        (struct.pack(">II", total, len(body)), body, struct.pack(">I", len(metadata)), metadata, value)
    )


def key_value_schema(name: str, key: str, value: str) -> bytes:
    """Write the KeyValue schema of two Avro records; the key is the message's key (``SEPARATED``).

    Args:
        name: Name of both records.
        key: Avro schema of keys.
        value: Avro schema of values.
    """
    data = b"".join(struct.pack(">I", len(part)) + part for part in (key.encode(), value.encode()))
    schema_properties = {
        "key.schema.name": name,
        "key.schema.type": "AVRO",
        "key.schema.properties": "{}",
        "value.schema.name": name,
        "value.schema.type": "AVRO",
        "value.schema.properties": "{}",
        "kv.encoding.type": "SEPARATED",
    }
    pairs = b"".join(message({5: message({1: key, 2: text})}) for key, text in schema_properties.items())
    return message({1: "KeyValue", 3: data, 4: KEY_VALUE}) + pairs
