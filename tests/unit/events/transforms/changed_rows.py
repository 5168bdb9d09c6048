"""Pieces of records for transforms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.events.connect import OPTIONAL_STRING, STRING, ConnectSchema, struct
from airflow_cdc_provider.events.encoder import Destination, Envelope
from airflow_cdc_provider.events.transforms.pieces import Piece

ROW = struct("shop.t.Value", ("id", ConnectSchema("int64")), ("email", OPTIONAL_STRING), optional=True)
VALUE = struct("shop.t.Envelope", ("before", ROW), ("after", ROW), ("op", STRING))
ARROW_ROW = pa.struct([("id", pa.int64()), ("email", pa.utf8())])
ARROW = pa.struct([("before", ARROW_ROW), ("after", ARROW_ROW), ("op", pa.utf8())])
KEY = struct("shop.t.Key", ("id", ConnectSchema("int64")))


def change(number: int, op: str, email: str | None = None) -> dict[str, Any]:
    row = {"id": number, "email": email}
    return {"before": row if op == "d" else None, "after": None if op == "d" else row, "op": op}


def piece(events: list[dict[str, Any]], topics: tuple[str, ...] = ("shop.t",)) -> Piece:
    """Return events, those of deletes with a tombstone after them; the topics take turns."""
    count = len(events)
    numbers = [(event["after"] or event["before"])["id"] for event in events]
    envelope = Envelope(
        [Destination(topic, KEY, VALUE) for topic in topics],
        np.arange(count) % len(topics),
        pa.array([{"id": number} for number in numbers], pa.struct([("id", pa.int64())])),
        pa.array(events, ARROW),
        np.array([event["op"] == "d" for event in events]),
        {"n": pa.array([str(number) for number in numbers], pa.large_utf8())},
    )
    return Piece(envelope, np.arange(count) * 10)
