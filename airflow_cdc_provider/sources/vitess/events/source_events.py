"""The events of Vitess: what publishing, printing and comparing call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.event_batches import EventBatch, EventRequest
from airflow_cdc_provider.events.framing import Registrar
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.events.sliced import Sliced
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.lake.mirror import MirrorState
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.sources.contract import ReadMetrics, Source
from airflow_cdc_provider.sources.event_source import SourceEvents
from airflow_cdc_provider.sources.row_events import RowEvents, events_of_mirror
from airflow_cdc_provider.sources.schema_history import learn_schema
from airflow_cdc_provider.sources.vitess.codec import VitessCodec
from airflow_cdc_provider.sources.vitess.events import captured
from airflow_cdc_provider.sources.vitess.events.rows import VitessRows

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame


class VitessSourceEvents(SourceEvents):
    """Implements :class:`.event_source.SourceEvents`."""

    heartbeats_have_offset = True

    def captured_records(
        self, stores: Stores, source: Source, request: EventRequest, skipped: SkippedRecords
    ) -> Iterator[EventBatch]:
        """Build the records of batches; see :mod:`.captured`."""
        return captured.captured_records(stores.connector, stores.changes, request, skipped)

    def sliced_records(self, stores: Stores, source: Source, after: int, through: int) -> Sliced:
        """Partition records by their shard: a transaction is of one shard."""
        return captured.sliced_records(stores.connector, stores.changes, after, through)

    def row_events(self, stores: Stores, source: Source, table: str) -> RowEvents:
        """Return the builder of events for a table's mirror.

        Raises:
            ConfigurationError: The table has no key.
        """
        learn_schema(source, stores.changes)
        codec = source.codec(table, stores.mirror(table).state().memory)
        assert isinstance(codec, VitessCodec)
        if not codec.has_key:
            raise ConfigurationError(
                f"rows of {table} can't be published after merges: the table has no key",
                expected="tables with a primary key, or a unique key of columns that aren't null",
                remedy="add the table to exclude_tables; or set publish.kafka.mode: changes",
            )
        return _rows(stores, table)

    def mirror_events(
        self,
        stores: Stores,
        source: Source,
        table: str,
        state: MirrorState,
        now_us: int,
        metrics: Accumulator[ReadMetrics],
    ) -> DataFrame:
        """Return key and value of the event of each row of a mirror."""
        return events_of_mirror(_rows(stores, table), stores.mirror(table), state, now_us, metrics)

    def heartbeat_records(
        self,
        connector: Connector,
        offset: Callable[[], Mapping[str, Any] | None],
        now_ns: int,
        registrar: Registrar | None = None,
    ) -> pa.RecordBatch:
        """Build a heartbeat of the stored offset, in place of the stream's, which aren't stored."""
        return captured.heartbeat_records(connector, offset(), now_ns, registrar)


def _rows(stores: Stores, table: str) -> VitessRows:
    schema = captured.recorded_schema(stores.changes, stores.changes.state().batch)
    return VitessRows(stores.connector, table, schema.only(table))
