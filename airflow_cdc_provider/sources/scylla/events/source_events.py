"""The events of ScyllaDB: what publishing, printing and comparing call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from airflow_cdc_provider.connector.publish.options import PublishOptions
from airflow_cdc_provider.events.event_batches import EventBatch, EventRequest
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.events.sliced import Sliced
from airflow_cdc_provider.exceptions import ConfigurationError
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

    operations: ClassVar = {"c": "insert", "r": "insert", "u": "update", "d": "delete"}

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
        return captured.sliced_records(stores.connector, stores.changes, after, through)

    def cql_rows(self, stores: Stores, source: Source, table: str, state: MirrorState) -> CqlRows:
        """Return the builder of events for a table's mirror; see :class:`.CqlSourceEvents`."""
        codec = source.codec(table, state.memory)
        assert isinstance(codec, CqlCodec)
        schemas = captured.schemas_of(stores.changes, stores.changes.state().batch)
        return ScyllaRows(connector=stores.connector, codec=codec, schemas=schemas)

    def in_cells(self, publish: PublishOptions) -> bool:
        """Only format legacy has cells."""
        return publish.scylla.format == "legacy"

    def shows_nested(self, publish: PublishOptions) -> bool:
        """Format legacy has no such columns by default."""
        return publish.scylla.all_types

    def require_rows(self, publish: PublishOptions) -> None:
        """Refuse events that don't contain the values that a change set, or no key.

        Raises:
            ConfigurationError: The events can't be compared with mirrors.
        """
        super().require_rows(publish)
        own = publish.scylla
        in_cells = own.format == "legacy" and not own.flatten_columns
        if not in_cells and own.after != "full" and not publish.kafka.after_merge:
            shape = "flatten_columns" if own.flatten_columns else f"after: {own.after}"
            raise ConfigurationError(
                "events of this form don't distinguish a null from an unchanged column",
                expected="publish.scylla.format legacy without flatten_columns, or advanced with after: full",
                found=f"{own.format}, {shape}",
            )
        if own.format == "advanced" and "kafka-key" not in own.key_placement:
            raise ConfigurationError(
                "events without a key don't identify their row",
                expected="kafka-key in publish.scylla.key_placement",
                found=", ".join(own.key_placement),
            )
