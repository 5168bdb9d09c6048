"""What publishing, printing and comparing need of a source's events: one interface for all sources."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.encoding import heartbeat_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame

    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.connector.publish.options import PublishOptions
    from airflow_cdc_provider.events.event_batches import EventBatch, EventRequest
    from airflow_cdc_provider.events.framing import Registrar
    from airflow_cdc_provider.events.skipped_records import SkippedRecords
    from airflow_cdc_provider.events.sliced import Sliced
    from airflow_cdc_provider.lake.mirror import MirrorState
    from airflow_cdc_provider.lake.stores import Stores
    from airflow_cdc_provider.sources.contract import ReadMetrics, Source
    from airflow_cdc_provider.sources.row_events import RowEvents


class SourceEvents(ABC):
    """Builds a source's events from the lake.

    Attributes:
        heartbeats_have_offset: Whether heartbeats have the stored offset, so printed events end with one.
    """

    heartbeats_have_offset: ClassVar[bool] = False

    @abstractmethod
    def captured_records(
        self, stores: Stores, source: Source, request: EventRequest, skipped: SkippedRecords
    ) -> Iterator[EventBatch]:
        """Build the records of batches of the changes table on the driver, oldest first.

        Args:
            stores: The lake.
            source: The source.
            request: The events to build.
            skipped: Collects skipped records.

        Raises:
            CorruptInput: A record can't be decoded and ``skipped`` is strict.
            ConfigurationError: The declaration doesn't match the captured tables.
            TransientError: Rows must be read again and the source doesn't respond.
        """

    @abstractmethod
    def sliced_records(self, stores: Stores, source: Source, after: int, through: int) -> Sliced:
        """Partition the records of batches so that each row of the source is in one slice.

        Args:
            stores: The lake.
            source: The source.
            after: Batches up to this one are left out.
            through: The last one.

        Raises:
            ConfigurationError: The declaration doesn't match the captured tables.
        """

    @abstractmethod
    def row_events(self, stores: Stores, source: Source, table: str) -> RowEvents:
        """Return the builder of events for the rows of a table's mirror that merges changed.

        Raises:
            ConfigurationError: The mirror's rows have no form that events can be built from.
        """

    def mirror_events(
        self,
        stores: Stores,
        source: Source,
        table: str,
        state: MirrorState,
        now_us: int,
        metrics: Accumulator[ReadMetrics],
    ) -> DataFrame:
        """Return key and value of the event of each row of a mirror, in the columns of ``EVENT_DDL``.

        Args:
            stores: The lake, whose declaration is that of the events: :func:`~.row_events.as_json`.
            source: The source.
            table: The source table of the mirror.
            state: The state of the mirror to read.
            now_us: The time at which events are built and expiry is evaluated, us since 1970.
            metrics: Gets the rows without an event, by :func:`~.row_events.report_skipped`.

        Raises:
            ConfigurationError: The mirror's rows have no form that events can be built from.
        """
        from airflow_cdc_provider.sources.row_events import events_of_mirror

        rows = self.row_events(stores, source, table)
        return events_of_mirror(rows, stores.mirror(table), state, now_us, metrics)

    def require_rows(self, publish: PublishOptions) -> None:
        """Refuse events of which the last one of a key doesn't contain the row, to compare them with mirrors.

        Raises:
            ConfigurationError: The events can't be compared.
        """
        if publish.outbox.enabled or publish.envelope not in ("debezium", "document"):
            raise ConfigurationError(
                "events of this form don't contain rows",
                expected="publish.envelope debezium or document, and no publish.outbox",
                found="an outbox" if publish.outbox.enabled else publish.envelope,
            )

    def heartbeat_records(
        self,
        connector: Connector,
        offset: Callable[[], Mapping[str, Any] | None],
        now_ns: int,
        registrar: Registrar | None = None,
    ) -> pa.RecordBatch:
        """Build a heartbeat.

        Args:
            connector: The declaration.
            offset: Returns the source's stored offset; None if there is none, or its batch isn't published.
            now_ns: Build time, ns since 1970.
            registrar: Assigns ids to schemas; None for none.
        """
        return heartbeat_of(connector, now_ns // 1_000_000, registrar)
