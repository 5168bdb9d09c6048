"""What the events of Cassandra and ScyllaDB share: those of the rows of mirrors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from airflow_cdc_provider.connector.publish.options import PublishOptions
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.lake.mirror import MirrorState
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.sources.contract import ReadMetrics, Source
from airflow_cdc_provider.sources.cql.events.known_static_columns import known_static_columns
from airflow_cdc_provider.sources.cql.events.rows import CqlRows, events_of_cql_mirror
from airflow_cdc_provider.sources.event_source import SourceEvents
from airflow_cdc_provider.sources.row_events import RowEvents
from airflow_cdc_provider.sources.schema_history import learn_schema

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame


class CqlSourceEvents(SourceEvents):
    """Implements a part of :class:`.event_source.SourceEvents`.

    Attributes:
        operations: Effect of each ``op``: ``insert``, ``update``, ``delete`` or ``delete_range``.
        exact_deletions: Whether a deletion of cells has its own time, and one of a partition's key deletes
            the partition.
    """

    operations: ClassVar[Mapping[str, str]]
    exact_deletions: ClassVar[bool] = False

    @abstractmethod
    def cql_rows(self, stores: Stores, source: Source, table: str, state: MirrorState) -> CqlRows:
        """Return the builder of events for a table's mirror, without static columns.

        Args:
            stores: The lake.
            source: The source, with the recorded schema.
            table: ``keyspace.table``.
            state: The state of the mirror.
        """

    @abstractmethod
    def in_cells(self, publish: PublishOptions) -> bool:
        """Return whether values of an envelope are objects with a member ``value``, if they were written."""

    def deletion_unit_us(self, publish: PublishOptions) -> int:
        """Return the unit of ``deletion_ts`` in cells, us."""
        return 1

    @abstractmethod
    def shows_nested(self, publish: PublishOptions) -> bool:
        """Return whether events have columns with collections, tuples and user-defined types."""

    def require_rows(self, publish: PublishOptions) -> None:
        """Refuse events that don't contain the values that a change set.

        Raises:
            ConfigurationError: The events can't be compared with mirrors.
        """
        if publish.envelope not in ("debezium", "datastax", "datastax-cells") or publish.unwrap.enabled:
            raise ConfigurationError(
                "events of this form don't contain rows",
                expected="publish.envelope debezium, datastax or datastax-cells, and no publish.unwrap",
                found="publish.unwrap" if publish.unwrap.enabled else publish.envelope,
            )

    def row_events(self, stores: Stores, source: Source, table: str) -> RowEvents:
        """Return the builder of events for a table's mirror."""
        learn_schema(source, stores.changes)
        mirror = stores.mirror(table)
        state = mirror.state()
        rows = self.cql_rows(stores, source, table, state)
        known_of = partial(known_static_columns, mirror, rows.codec, state.fences)
        return replace(rows, known_of=known_of)

    def mirror_events(
        self,
        stores: Stores,
        source: Source,
        table: str,
        state: MirrorState,
        now_us: int,
        metrics: Accumulator[ReadMetrics],
    ) -> DataFrame:
        """Return key and value of the event of each row, and of each partition's static columns."""
        rows = self.cql_rows(stores, source, table, state)
        return events_of_cql_mirror(rows, stores.mirror(table), state, now_us, metrics)
