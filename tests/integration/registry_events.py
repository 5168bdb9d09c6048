"""Events and settings for a real schema registry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.events.connect import INT64, OPTIONAL_STRING, SNAPSHOT, ConnectSchema, struct
from airflow_cdc_provider.events.encoder import Destination, Envelope
from airflow_cdc_provider.kafka.registry import RegistrySettings
from server_kit import RegistryServer


def settings_of(server: RegistryServer, **choices: Any) -> RegistrySettings:
    return RegistrySettings({"url": server.url, "timeout": 30}, **choices)


def events(topic: str, *more: tuple[str, ConnectSchema]) -> Envelope:
    """A create, an update and a delete; fields more than the plain ones are null."""
    kind = pa.struct(
        [
            ("id", pa.int64()),
            ("name", pa.utf8()),
            ("amount", pa.binary()),
            ("tags", pa.map_(pa.utf8(), pa.int64())),
            ("snapshot", pa.utf8()),
            *((name, pa.null()) for name, _ in more),
        ]
    )
    rows = [
        {"id": 1, "name": "ä", "amount": b"\x01\x00", "tags": [("x", 1), ("y", -2)], "snapshot": "last"},
        {"id": 2, "name": None, "amount": None, "tags": [], "snapshot": None},
        None,
    ]
    decimal = "org.apache.kafka.connect.data.Decimal"
    value = struct(
        f"{topic}.Value",
        ("id", INT64),
        ("name", OPTIONAL_STRING),
        ("amount", ConnectSchema("bytes", optional=True, name=decimal, parameters={"scale": "2"})),
        ("tags", ConnectSchema("map", keys=ConnectSchema("string"), items=INT64)),
        ("snapshot", SNAPSHOT),
        *more,
    )
    return Envelope(
        [Destination(topic, struct(f"{topic}.Key", ("id", INT64)), value)],
        np.zeros(3, np.int64),
        pa.array([{"id": 1}, {"id": 2}, {"id": 1}], pa.struct([("id", pa.int64())])),
        pa.array(rows, kind),
        np.array([False, False, True]),
    )
