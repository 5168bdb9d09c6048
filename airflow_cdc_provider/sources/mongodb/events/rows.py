"""Rows of a mirror of MongoDB as events in the form of documents that a snapshot reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.framing import Registrar
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.lake.row_changes import DELETE
from airflow_cdc_provider.sources.mongodb.events import decode as mongodb_events
from airflow_cdc_provider.sources.mongodb.events.records import MongodbRecords
from airflow_cdc_provider.sources.mongodb.events.second_reading import shows
from airflow_cdc_provider.sources.row_events import RowBuilder, RowEvents

_DOLLAR_NAME: Final = r"[\x01-\x13\x7f\xff]\$"
"""A member whose name begins with ``$``, after the byte of its type."""
_READ_TWICE: Final = 200
_LARGE_BYTES: Final = 100_000


@dataclass(frozen=True)
class MongodbRows(RowEvents):
    """Builds events of documents.

    Args:
        connector: The declaration.
        table: ``database.collection``.
    """

    connector: Connector
    table: str

    def builder(self, now_ns: int, registrar: Registrar | None, skipped: SkippedRecords) -> RowBuilder:
        """Return a function that builds records of rows; see :class:`.row_events.RowEvents`."""
        builder = MongodbRecords(self.connector, now_ns, skipped.by_kind, registrar=registrar)
        database, _, collection = self.table.partition(".")
        form = builder.form(database, collection)

        def build(rows: pa.RecordBatch) -> pa.RecordBatch:
            decoded = mongodb_events.decode_snapshot(
                rows["state"], database, collection, form, rows["version"]
            )
            events = with_operations(decoded.events, rows["op"].take(decoded.events["row"]))
            skipped.inexact_keys.update(decoded.inexact_keys)
            records, reasons = builder.records(events)
            reasons |= dict(zip(decoded.undecodable, decoded.reasons, strict=True))
            for row, reason in sorted(reasons.items()):
                ids = decoded.events.filter(pc.equal(decoded.events["row"], row))["id"].to_pylist()
                key = ids[0] if ids else rows["key"][row].as_py().hex()
                skipped.add(f"{self.table} at {key}", reason)
            return records

        return build

    def disagreement(self, rows: pa.RecordBatch) -> str:
        """Let the driver read some documents: the first, and those that look like Extended JSON."""
        database, _, collection = self.table.partition(".")
        form = MongodbRecords(self.connector, 0).form(database, collection)
        if form.rules:  # documents differ from their rows
            return ""
        states = rows["state"].cast(pa.binary())
        states = states.filter(pc.less(pc.binary_length(states), _LARGE_BYTES))
        chosen = pc.match_substring_regex(states, _DOLLAR_NAME).to_numpy(zero_copy_only=False)
        chosen = np.flatnonzero(chosen)[:_READ_TWICE]
        states = states.take(pa.array(np.union1d(chosen, np.arange(min(len(states), _READ_TWICE)))))
        decoded = mongodb_events.decode_snapshot(states, database, collection, form).events
        for state, key, text in zip(states, decoded["id"], decoded["after"], strict=True):
            if not shows(state.as_py(), text.as_py()):
                return f"{self.table}, key {key}: {text}"
        return ""


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
