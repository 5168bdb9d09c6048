"""The events of Cassandra: what publishing, printing and comparing call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from airflow_cdc_provider.connector.publish.options import PublishOptions
from airflow_cdc_provider.events.event_batches import EventBatch, EventRequest
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.events.sliced import Sliced
from airflow_cdc_provider.lake.mirror import MirrorState
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.sources.cassandra.events import captured
from airflow_cdc_provider.sources.cassandra.events.changes import (
    cluster_of,
    converters_of,
    excluded_columns,
    excluded_of,
)
from airflow_cdc_provider.sources.cassandra.events.datastax_records import whole_columns
from airflow_cdc_provider.sources.cassandra.events.rows import CassandraCells, DatastaxRows
from airflow_cdc_provider.sources.cassandra.source import CassandraSource
from airflow_cdc_provider.sources.contract import Source
from airflow_cdc_provider.sources.cql.events.rows import CqlRows
from airflow_cdc_provider.sources.cql.events.source_events import CqlSourceEvents
from airflow_cdc_provider.sources.schema_history import learn_schema, require_tables


class CassandraSourceEvents(CqlSourceEvents):
    """Implements :class:`.event_source.SourceEvents`."""

    operations: ClassVar = {
        "i": "insert",
        "c": "insert",
        "u": "update",
        "d": "delete",
        "r": "delete_range",
        "t": "delete_range",
    }
    exact_deletions = True

    def captured_records(
        self, stores: Stores, source: Source, request: EventRequest, skipped: SkippedRecords
    ) -> Iterator[EventBatch]:
        """Build the records of batches; see :mod:`.captured`."""
        assert isinstance(source, CassandraSource)
        learn_schema(source, stores.changes)
        if request.tables:
            require_tables(source.tables(), request.tables, stores.connector.name)
        return captured.captured_records(stores, source, request, skipped)

    def sliced_records(self, stores: Stores, source: Source, after: int, through: int) -> Sliced:
        """Partition records by their partition key; see :mod:`.captured`."""
        assert isinstance(source, CassandraSource)
        learn_schema(source, stores.changes)
        return captured.sliced_records(stores, source, after, through)

    def cql_rows(self, stores: Stores, source: Source, table: str, state: MirrorState) -> CqlRows:
        """Return the builder of events for a table's mirror; see :class:`.CqlSourceEvents`."""
        assert isinstance(source, CassandraSource)
        connector, codec = stores.connector, source.codec(table, state.memory)
        excluded = excluded_of(codec.schema, excluded_columns(connector, source), former=False)
        if connector.publish.envelope == "datastax":
            return DatastaxRows(connector=connector, codec=codec, excluded=whole_columns(excluded))
        converters_of(connector, [source.schemas.tables[name] for name in source.tables()])
        return CassandraCells(connector=connector, codec=codec, excluded=excluded, cluster=cluster_of(source))

    def in_cells(self, publish: PublishOptions) -> bool:
        """All values of an envelope are cells."""
        return publish.envelope != "datastax"

    def deletion_unit_us(self, publish: PublishOptions) -> int:
        """The documented form has ms."""
        return 1000 if publish.deletions_in_keys else 1

    def shows_nested(self, publish: PublishOptions) -> bool:
        """Events have all columns."""
        return True
