"""Heartbeat records, which show that a connector is alive and advance the offsets of idle tables."""

from __future__ import annotations

import pyarrow as pa

from airflow_cdc_provider.events.connect import INT64, STRING, Values, struct_values
from airflow_cdc_provider.events.encoder import Destination, Envelope
from airflow_cdc_provider.events.topics import topic_name


def heartbeat_topic(topic_prefix: str, delimiter: str, heartbeat_prefix: str, name: str = "") -> str:
    """Return the topic of heartbeats.

    Args:
        topic_prefix: The connector's topic prefix.
        delimiter: Delimiter of the parts.
        heartbeat_prefix: Prefix before the topic prefix.
        name: Full name, which overrides the parts.
    """
    return topic_name(name) if name else topic_name(heartbeat_prefix, topic_prefix, delimiter=delimiter)


def build(topic: str, topic_prefix: str, now_ms: int) -> Envelope:
    """Return one heartbeat record, for partition 0 and without headers.

    Args:
        topic: Its topic.
        topic_prefix: The connector's topic prefix, which is the key.
        now_ms: Current time, ms since 1970.
    """
    name = "io.debezium.connector.common.Heartbeat"
    return build_of(topic, topic_prefix, struct_values(name, ("ts_ms", INT64, pa.array([now_ms])), version=1))


def build_of(topic: str, topic_prefix: str, values: Values) -> Envelope:
    """Return heartbeat records with values of a connector's own schema; see :func:`build`."""
    schema, value = values
    key_schema, key = struct_values(
        "io.debezium.connector.common.ServerNameKey",
        ("serverName", STRING, pa.repeat(topic_prefix, len(value))),
        version=1,
    )
    partition = pa.repeat(pa.scalar(0, pa.int32()), len(value))
    return Envelope.of_topic(
        Destination(topic, key_schema, schema), key, value, partition=partition, bare=True
    )
