"""Notifications as topic records in Debezium's format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.events.connect import INT64, STRING, ConnectSchema, struct
from airflow_cdc_provider.events.encoder import Destination, Envelope
from airflow_cdc_provider.notifications.notification import Notification

_DATA: Final = ConnectSchema("map", optional=True, keys=STRING, items=STRING)
KEY_SCHEMA: Final = struct("io.debezium.connector.common.NotificationKey", ("id", STRING), version=1)
VALUE_SCHEMA: Final = struct(
    "io.debezium.connector.common.Notification",
    ("id", STRING),
    ("type", STRING),
    ("aggregate_type", STRING),
    ("additional_data", _DATA),
    ("timestamp", INT64),
    version=1,
)
_VALUE: Final = pa.struct(
    [
        pa.field("id", pa.utf8()),
        pa.field("type", pa.utf8()),
        pa.field("aggregate_type", pa.utf8()),
        pa.field("additional_data", pa.map_(pa.utf8(), pa.utf8())),
        pa.field("timestamp", pa.int64()),
    ]
)


def build(topic: str, notifications: Sequence[Notification]) -> Envelope:
    """Build the envelope of notifications, without headers.

    Args:
        topic: Their topic.
        notifications: In order.
    """
    values = [
        {**n.value(), "additional_data": list(n.value()["additional_data"].items())} for n in notifications
    ]
    return Envelope(
        [Destination(topic, KEY_SCHEMA, VALUE_SCHEMA)],
        np.zeros(len(notifications), np.int64),
        pa.array([n.key() for n in notifications], pa.struct([("id", pa.utf8())])),
        pa.array(values, _VALUE),
        np.zeros(len(notifications), np.bool_),
        bare=True,
    )
