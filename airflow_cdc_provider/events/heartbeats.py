"""Heartbeat records, which show that a connector is alive and advance the offsets of idle tables."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.events.connect import INT64, STRING, struct
from airflow_cdc_provider.events.encoder import Destination, Envelope
from airflow_cdc_provider.events.topics import topic_name

KEY_SCHEMA: Final = struct("io.debezium.connector.common.ServerNameKey", ("serverName", STRING), version=1)
VALUE_SCHEMA: Final = struct("io.debezium.connector.common.Heartbeat", ("ts_ms", INT64), version=1)


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
    return Envelope(
        [Destination(topic, KEY_SCHEMA, VALUE_SCHEMA)],
        np.zeros(1, np.int64),
        pa.array([{"serverName": topic_prefix}], pa.struct([("serverName", pa.utf8())])),
        pa.array([{"ts_ms": now_ms}], pa.struct([("ts_ms", pa.int64())])),
        np.zeros(1, np.bool_),
        partition=pa.array([0], pa.int32()),
        bare=True,
    )
