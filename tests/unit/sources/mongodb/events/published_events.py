"""Events that are built from change events of MongoDB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bson

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from airflow_cdc_provider.sources.recordings import Recording
from tests.unit.sources.mongodb.events.mongodb_recordings import NOW_NS, PROFILES, printed

TRANSFORM = "x.smt"
"""Leads the transform of profiles that had it applied to each record by itself, so a failure ends nothing."""


def properties_of(profile: str) -> dict[str, str]:
    found = dict(PROFILES[profile])
    if TRANSFORM in found:
        found = {
            name.replace(TRANSFORM, "transforms.t") if name != TRANSFORM else "transforms.t.type": value
            for name, value in found.items()
        }
        found["transforms"] = "t"
    return found


def connector_of(profile: str, **more: str) -> Connector:
    return from_debezium({"topic.prefix": profile, **properties_of(profile), **more}).connector


def change(**members: Any) -> bytes:
    event = {
        "_id": {"_data": "8265"},
        "operationType": "insert",
        "clusterTime": bson.Timestamp(1_700_000_000, 3),
        "ns": {"db": "shop", "coll": "flat"},
        "documentKey": {"_id": 1},
        "fullDocument": {"_id": 1, "x": 2},
    }
    event.update(members)
    return bson.encode({name: value for name, value in event.items() if value is not ...})


def published(
    folder: Path, events: list[bytes], publish: dict[str, Any], **source: Any
) -> list[dict[str, Any]]:
    file = folder / "stream.bson"
    file.write_bytes(b"".join(events))
    connector = Connector.from_dict(
        {"name": "shop", "source": {"type": "mongodb", **source}, "publish": {"headers": False, **publish}}
    )
    return printed(connector, Recording(file, "", NOW_NS))


UPDATE = {
    "operationType": "update",
    "fullDocumentBeforeChange": {"_id": 1, "x": 2, "secret": 1},
    "updateDescription": {"updatedFields": {"secret": 2}, "removedFields": [], "truncatedArrays": []},
    "fullDocument": {"_id": 1, "x": 2, "secret": 2},
}
