"""The events of ScyllaDB: what publishing, printing and comparing call."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_cdc_provider.events.event_batches import EventBatch, EventRequest
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.events.sliced import Sliced
from airflow_cdc_provider.lake.mirror import MirrorState
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.sources.contract import Source
from airflow_cdc_provider.sources.cql.codec import CqlCodec
from airflow_cdc_provider.sources.cql.events.rows import CqlRows
from airflow_cdc_provider.sources.cql.events.source_events import CqlSourceEvents
from airflow_cdc_provider.sources.schema_history import learn_schema, require_tables
from airflow_cdc_provider.sources.scylla.events import captured
from airflow_cdc_provider.sources.scylla.events.rows import ScyllaRows


class ScyllaSourceEvents(CqlSourceEvents):
    """Implements :class:`.event_source.SourceEvents`."""

    def captured_records(
        self, stores: Stores, source: Source, request: EventRequest, skipped: SkippedRecords
    ) -> Iterator[EventBatch]:
        """Build the records of batches; see :mod:`.captured`."""
        if request.tables:
            learn_schema(source, stores.changes)
            require_tables(source.tables(), request.tables, stores.connector.name)
        return captured.captured_records(stores.connector, stores.changes, request, skipped)

    def sliced_records(self, stores: Stores, source: Source, after: int, through: int) -> Sliced:
        """Partition records by their table."""
        del source
        return captured.sliced_records(stores.connector, stores.changes, after, through)

    def cql_rows(self, stores: Stores, source: Source, table: str, state: MirrorState) -> CqlRows:
        """Return the builder of events for a table's mirror; see :class:`.CqlSourceEvents`."""
        codec = source.codec(table, state.memory)
        assert isinstance(codec, CqlCodec)
        schemas = captured.schemas_of(stores.changes, stores.changes.state().batch)
        return ScyllaRows(connector=stores.connector, codec=codec, schemas=schemas)
