"""The events of MongoDB: what publishing, printing and comparing call."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_cdc_provider.events.event_batches import EventBatch, EventRequest
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.events.sliced import Sliced
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.sources.contract import Source
from airflow_cdc_provider.sources.event_source import SourceEvents
from airflow_cdc_provider.sources.mongodb.events import captured
from airflow_cdc_provider.sources.mongodb.events.rows import MongodbRows
from airflow_cdc_provider.sources.row_events import RowEvents


class MongodbSourceEvents(SourceEvents):
    """Implements :class:`.event_source.SourceEvents`."""

    def captured_records(
        self, stores: Stores, source: Source, request: EventRequest, skipped: SkippedRecords
    ) -> Iterator[EventBatch]:
        """Build the records of batches; see :mod:`.captured`."""
        return captured.captured_records(stores.connector, stores.changes, request, skipped)

    def sliced_records(self, stores: Stores, source: Source, after: int, through: int) -> Sliced:
        """Partition records by their document; records without one by their feed."""
        return captured.sliced_records(stores.connector, stores.changes, after, through)

    def row_events(self, stores: Stores, source: Source, table: str) -> RowEvents:
        """Return the builder of events for a collection's mirror."""
        return MongodbRows(stores.connector, table)
