"""Rows of a mirror of MongoDB as events in the form of documents that a snapshot reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.framing import Registrar
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.lake.row_changes import DELETE
from airflow_cdc_provider.sources.mongodb.events import decode as mongodb_events
from airflow_cdc_provider.sources.mongodb.events.records import MongodbRecords
from airflow_cdc_provider.sources.row_events import RowBuilder, RowEvents

DOCUMENT = "document"
"""The column with documents as canonical Extended JSON."""


@dataclass(frozen=True)
class MongodbRows(RowEvents):
    """Builds events of documents.

    Args:
        connector: The declaration.
        table: ``database.collection``.
        as_text: Whether the mirror has the documents as text in a column, not their BSON as states.
    """

    connector: Connector
    table: str
    as_text: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The column with the documents, if they are stored as text."""
        return (DOCUMENT,) if self.as_text else ()

    def builder(self, now_ns: int, registrar: Registrar | None, skipped: SkippedRecords) -> RowBuilder:
        """Return a function that builds records of rows; see :class:`.row_events.RowEvents`."""
        builder = MongodbRecords(self.connector, now_ns, skipped.by_kind, registrar=registrar)
        database, _, collection = self.table.partition(".")
        form = builder.form(database, collection)

        def build(rows: pa.RecordBatch) -> pa.RecordBatch:
            documents = as_bson(rows[DOCUMENT]) if self.as_text else rows["state"]
            decoded = mongodb_events.decode_snapshot(documents, database, collection, form, rows["version"])
            events = with_operations(decoded.events, rows["op"].take(decoded.events["row"]))
            records, reasons = builder.records(events)
            undecodable = zip(decoded.undecodable, decoded.reasons, strict=True)
            for row, reason in (*undecodable, *sorted(reasons.items())):
                skipped.add(f"{self.table} at {rows['key'][row].as_py().hex()}", reason)
            return records

        return build


def with_operations(events: pa.RecordBatch, ops: pa.Array) -> pa.RecordBatch:
    """Return decoded documents with the operations that changed them.

    The event of a deleted document has neither the document nor a time, since its version is that of the last
    change before the deletion.

    Args:
        events: The events of the documents.
        ops: The operation of each.
    """
    deletes = pc.equal(ops, DELETE)
    cleared = {"after": None, "after_bson": None, "source_ms": None, "ord": np.int32(-1)}
    columns = []
    for one in events.schema:
        values = ops.cast(one.type) if one.name == "op" else events[one.name]
        if one.name in cleared:
            values = pc.if_else(deletes, pa.scalar(cleared[one.name], one.type), values)
        columns.append(values)
    return pa.RecordBatch.from_arrays(columns, schema=events.schema)


def as_bson(texts: pa.Array) -> pa.Array:
    """Parse documents that a mirror keeps only as text, one at a time with the driver's parser."""
    import bson
    from bson import json_util

    form = json_util.JSONOptions(
        json_mode=json_util.JSONMode.CANONICAL, datetime_conversion=bson.DatetimeConversion.DATETIME_AUTO
    )
    return pa.array(
        [bson.encode(json_util.loads(text, json_options=form)) for text in texts.to_pylist()], pa.binary()
    )
