"""Decodes schema changes: change events of collections and databases, not of documents.

They are ``create``, ``drop``, ``rename``, ``dropDatabase``, ``modify``, ``createIndexes``, ``dropIndexes``,
``shardCollection``, ``reshardCollection``, ``refineCollectionShardKey``, ``invalidate``, and types that later
servers add.

The server always sends ``drop``, ``rename``, ``dropDatabase`` and ``invalidate``; the others require
``showExpandedEvents`` (6.0). They are rare: they are selected from whole batches by kernels and decoded one
by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import bson
import numpy as np
import pyarrow as pa
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument

from airflow_cdc_provider.formats.arrow_bytes import binary_slices
from airflow_cdc_provider.formats.bson import DOCUMENT, Spans
from airflow_cdc_provider.formats.extended_json import write_values
from airflow_cdc_provider.sources.mongodb.change_stream import change_event
from airflow_cdc_provider.sources.mongodb.change_stream.change_event import read_facts
from airflow_cdc_provider.sources.mongodb.events.decode import JSON_FORMS
from airflow_cdc_provider.sources.mongodb.selection import OWN_DATABASES, is_temporary

SCHEMA: Final = pa.schema(
    [
        pa.field("row", pa.int64()),
        pa.field("database", pa.utf8()),
        pa.field("collection", pa.utf8()),
        pa.field("type", pa.utf8()),
        pa.field("event", pa.utf8()),
        pa.field("source_ms", pa.int64()),
        pa.field("ord", pa.int32()),
    ]
)
"""Columns of schema changes, one row each.

``row``         row number in the input.
``database``    the database; empty for an ``invalidate``, which names none.
``collection``  the collection; null for changes of a whole database.
``type``        the event's ``operationType``.
``event``       the event as the server sent it, as Extended JSON.
``source_ms``   the server's wall clock, else the second of the cluster time.
``ord``         increment of the cluster time.
"""

_OF_ROWS: Final = (change_event.INSERT, change_event.UPDATE, change_event.REPLACE, change_event.DELETE)
_PLAIN: Final[CodecOptions[Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)


def decode_schema_changes(
    payloads: pa.Array, captured: Callable[[str, str], bool], json: str
) -> pa.RecordBatch:
    """Find schema changes among raw change events.

    Args:
        payloads: Change event documents (binary), in stream order. Broken ones are skipped.
        captured: Whether a collection, given by database and name, is captured. Changes of other collections
            are skipped, and those of the server's temporary collections; a rename belongs to both its
            collections. Changes of whole databases are always included, except for the server's own.
        json: Format of the events, a name in :data:`.events.JSON_FORMS`.

    Returns:
        Batch of :data:`SCHEMA`.
    """
    data, starts, ends, _ = binary_slices(payloads)
    facts = read_facts(data, Spans(starts, ends, len(data)), 0)
    rows = np.flatnonzero(facts.complete & ~np.isin(facts.operations, _OF_ROWS))
    members = [_members(data[starts[row] : ends[row]].tobytes()) for row in rows]
    kept = np.array([_is_captured(one, captured) for one in members], np.bool_)
    rows, members = rows[kept], [one for one, keep in zip(members, kept, strict=True) if keep]
    kinds = np.full(len(rows), DOCUMENT, np.uint8)
    texts, _, _ = write_values(data, kinds, starts[rows], ends[rows], JSON_FORMS[json][0])
    namespaces = [_namespace(one, "ns") for one in members]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(rows, pa.int64()),
            pa.array([database for database, _ in namespaces], pa.utf8()),
            pa.array([collection or None for _, collection in namespaces], pa.utf8()),
            pa.array([one["operationType"] for one in members], pa.utf8()),
            texts.cast(pa.utf8()),
            pa.array(facts.committed_us[rows] // 1000, pa.int64()),
            pa.array((facts.times[rows] & 0x7FFF_FFFF).astype(np.int32)),
        ],
        schema=SCHEMA,
    )


def _members(event: bytes) -> Mapping[str, Any]:
    """Return the members of an event that identify its operation and namespaces."""
    raw = RawBSONDocument(event)
    found = {name: raw[name] for name in ("operationType", "ns", "to") if name in raw}
    return {
        name: bson.decode(value.raw, _PLAIN) if isinstance(value, RawBSONDocument) else value
        for name, value in found.items()
    }


def _namespace(members: Mapping[str, Any], name: str) -> tuple[str, str]:
    namespace = members.get(name) or {}
    return namespace.get("db", ""), namespace.get("coll", "")


def _is_captured(members: Mapping[str, Any], captured: Callable[[str, str], bool]) -> bool:
    database, collection = _namespace(members, "ns")
    if is_temporary(collection):
        return False
    if not collection:
        return database not in OWN_DATABASES
    to = _namespace(members, "to")
    return captured(database, collection) or (all(to) and captured(*to))
