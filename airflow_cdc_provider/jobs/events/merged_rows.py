"""Rows of mirrors that merges changed, as events with whole rows in their current state.

A mirror keeps the source form of its rows, which passes through the same decoder, envelope and transforms as
published changes. Each source has a :data:`RowBuilder`, which takes rows in the columns of
:func:`~airflow_cdc_provider.lake.row_changes.changed_rows` and returns records in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.framing import Registrar
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.context.stores import Stores
from airflow_cdc_provider.jobs.events.cassandra.merged_cells import CassandraCells
from airflow_cdc_provider.jobs.events.cassandra.merged_rows import CassandraRows
from airflow_cdc_provider.jobs.events.mirrored import as_bson
from airflow_cdc_provider.jobs.events.mongodb.records import MongodbRecords
from airflow_cdc_provider.jobs.events.scylla.merged_rows import ScyllaRows
from airflow_cdc_provider.jobs.events.skipped_records import SkippedRecords
from airflow_cdc_provider.jobs.events.vitess.merged_rows import VitessRows
from airflow_cdc_provider.lake.row_changes import DELETE
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.contract import Source
from airflow_cdc_provider.sources.mongodb import events as mongodb_events
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.scylla.options import ScyllaOptions
from airflow_cdc_provider.sources.vitess.options import VitessOptions

RowBuilder = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Builds the records of some rows, in their order."""

_DOCUMENT = "document"


class RowEvents(Protocol):
    """Builds events of the rows of one mirror."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the mirror that events need in addition to the stored state of each row."""
        ...

    @property
    def static_columns_table(self) -> bool:
        """Whether these are static columns that have separate events.

        Each partition whose static columns changed is a row without a state then, and a row has an event if
        its own cells changed.
        """
        ...

    def builder(self, now_ns: int, registrar: Registrar | None, skipped: SkippedRecords) -> RowBuilder:
        """Return a function that builds events.

        Args:
            now_ns: Build time of events, ns since 1970.
            registrar: Assigns ids to schemas; None for none.
            skipped: Collects skipped records.
        """
        ...


def row_events(connector: Connector, stores: Stores, source: Source, table: str) -> RowEvents:
    """Return the builder of events for a table's mirror.

    Raises:
        ConfigurationError: The mirror's rows have no form that events can be built from.
    """
    options = connector.source
    if isinstance(options, CassandraOptions):
        if connector.publish.envelope == "datastax":
            return CassandraRows.of(connector, stores, source, table)
        return CassandraCells.of(connector, stores, source, table)
    if isinstance(options, ScyllaOptions):
        return ScyllaRows.of(connector, stores, source, table)
    if isinstance(options, VitessOptions):
        return VitessRows.of(connector, stores, source, table)
    assert isinstance(options, MongodbOptions)
    return _of_mongodb(connector, stores, source, options, table)


def _of_mongodb(
    connector: Connector, stores: Stores, source: Source, options: MongodbOptions, table: str
) -> RowEvents:
    codec = source.codec(table, stores.mirror(table).state().memory)
    if getattr(codec, "stores_state", False):
        return MongodbRows(connector, table, ())
    if options.document_column != "extended_json":
        raise ConfigurationError(
            f"the mirror of {table} doesn't keep its documents in a form that events can be built from",
            expected="source.document_column: extended_json, or columns inferred by source.infer",
            found=options.document_column,
        )
    return MongodbRows(connector, table, (_DOCUMENT,))


@dataclass(frozen=True)
class MongodbRows:
    """Builds events of documents.

    Args:
        connector: The declaration.
        table: ``database.collection``.
        columns: The column with the documents as text, unless the mirror keeps their BSON.
    """

    connector: Connector
    table: str
    columns: tuple[str, ...]

    @property
    def static_columns_table(self) -> bool:
        """MongoDB has no static columns."""
        return False

    def builder(self, now_ns: int, registrar: Registrar | None, skipped: SkippedRecords) -> RowBuilder:
        """Return a function that builds events; see :class:`RowEvents`."""
        builder = MongodbRecords(self.connector, now_ns, skipped.by_kind, registrar=registrar)
        database, _, collection = self.table.partition(".")
        form = builder.form(database, collection)

        def build(rows: pa.RecordBatch) -> pa.RecordBatch:
            documents = as_bson(rows[_DOCUMENT]) if self.columns else rows["state"]
            decoded = mongodb_events.decode_snapshot(documents, database, collection, form, rows["version"])
            for row, reason in zip(decoded.undecodable, decoded.reasons, strict=True):
                skipped.add(f"{self.table} at {rows['key'][row].as_py().hex()}", reason)
            events = with_operations(decoded.events, rows["op"].take(decoded.events["row"]))
            records, reasons = builder.records(events)
            for row, reason in sorted(reasons.items()):
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
