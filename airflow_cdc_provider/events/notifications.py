"""Notifications as topic records in Debezium's format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from airflow_cdc_provider.events.connect import INT64, STRING, ConnectSchema, struct_values
from airflow_cdc_provider.events.encoder import Destination, Envelope
from airflow_cdc_provider.notifications.notification import Notification

_DATA: Final = ConnectSchema("map", optional=True, keys=STRING, items=STRING)
_DATA_TYPE: Final = pa.map_(pa.utf8(), pa.utf8())


def build(topic: str, notifications: Sequence[Notification]) -> Envelope:
    """Build the envelope of notifications, without headers.

    Args:
        topic: Their topic.
        notifications: In order.
    """
    values = [notification.value() for notification in notifications]
    data = pa.array([list(value["additional_data"].items()) for value in values], _DATA_TYPE)
    texts = {n: pa.array([v[n] for v in values], pa.utf8()) for n in ("id", "type", "aggregate_type")}
    name = "io.debezium.connector.common.Notification"
    key_schema, key = struct_values(f"{name}Key", ("id", STRING, texts["id"]), version=1)
    schema, value = struct_values(
        name,
        *((member, STRING, array) for member, array in texts.items()),
        ("additional_data", _DATA, data),
        ("timestamp", INT64, pa.array([value["timestamp"] for value in values], pa.int64())),
        version=1,
    )
    return Envelope.of_topic(Destination(topic, key_schema, schema), key, value, bare=True)
