"""Rows of mirrors as events with whole rows in their current state.

A mirror keeps the source form of its rows: the Row messages of Vitess, the documents of MongoDB, the cell
rows of CQL databases (:mod:`.cql.events.rows`). They pass through the same decoder, envelope and transforms
as published changes: to publish the rows that merges changed, and as the expected content of the last event
of each key when topics are compared with mirrors. There they are JSON without schemas, whatever format the
topics have, so each option of ``publish`` (masks, names, time formats) applies to both sides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final

import pyarrow as pa

from airflow_cdc_provider.changes.worker import map_in_arrow
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.framing import Registrar
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.lake.mirror import CDC_COLUMN, Mirror, MirrorState
from airflow_cdc_provider.lake.row_changes import READ
from airflow_cdc_provider.sources.contract import ReadMetrics
from airflow_cdc_provider.sources.encoding import converters_of

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame

EVENT_DDL: Final = "key binary, value binary"
_MAX_REPORTED: Final = 20

RowBuilder = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Builds the records of some rows, in their order."""


class RowEvents(ABC):
    """Builds events of the rows of one mirror. Picklable, unless it reads static columns.

    Attributes:
        static_columns_table: Whether static columns have separate events. Each partition whose static columns
            changed is a row without a state then, and a row has an event if its own cells changed.
    """

    static_columns_table: ClassVar[bool] = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the mirror that events need in addition to the stored state of each row."""
        return ()

    @abstractmethod
    def builder(self, now_ns: int, registrar: Registrar | None, skipped: SkippedRecords) -> RowBuilder:
        """Return a function that builds events of rows.

        The rows have the columns of :func:`~airflow_cdc_provider.lake.row_changes.changed_rows`.

        Args:
            now_ns: Build time of events, ns since 1970.
            registrar: Assigns ids to schemas; None for none.
            skipped: Collects skipped records.
        """

    def disagreement(self, rows: pa.RecordBatch) -> str:
        """Compare events of rows with another reading of their states that shares no code with them.

        Returns:
            The first row whose event differs; empty for none. Default: there is no other reading.
        """
        return ""


def events_of_mirror(
    rows: RowEvents, mirror: Mirror, state: MirrorState, now_us: int, metrics: Accumulator[ReadMetrics]
) -> DataFrame:
    """Return key and value of the event of each row of a mirror, in the columns of :data:`EVENT_DDL`.

    Args:
        rows: Builds the events; picklable.
        mirror: The mirror.
        state: The state of the mirror to read.
        now_us: Build time of events, us since 1970.
        metrics: Gets the rows without an event.
    """
    of_cdc = (f"{CDC_COLUMN}.{name} {name}" for name in ("key", "version", "state"))
    stored = mirror.table.read(state.head).selectExpr(f"'{READ}' op", *of_cdc)
    return map_in_arrow(stored, _MirrorEvents(rows, mirror.name, now_us * 1000, metrics), EVENT_DDL)


@dataclass(frozen=True)
class _MirrorEvents:
    """Builds events of stored rows. Picklable."""

    rows: RowEvents
    mirror: str
    now_ns: int
    metrics: Accumulator[ReadMetrics]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        skipped = SkippedRecords(strict=False)
        build = self.rows.builder(self.now_ns, None, skipped)
        for batch in batches:
            if batch.num_rows:
                for records in built(build, batch, self.mirror, skipped):
                    yield keys_and_values(records, skipped)
                if found := self.rows.disagreement(batch):
                    raise CorruptInput(f"an event differs from its row of {self.mirror}", found=found)
        report_skipped(skipped, self.mirror, self.metrics)


def built(
    build: RowBuilder, rows: pa.RecordBatch, table: str, skipped: SkippedRecords
) -> Iterator[pa.RecordBatch]:
    """Build records of rows; a row that the builder fails at is skipped alone, found by bisection."""
    try:
        records = build(rows)
    except (CorruptInput, ValueError, pa.ArrowException) as error:
        half = rows.num_rows // 2
        if not half:
            skipped.add(f"{table} at {rows['key'][0].as_py().hex()}", str(error))
            return
        yield from built(build, rows.slice(0, half), table, skipped)
        yield from built(build, rows.slice(half), table, skipped)
    else:
        yield records


def keys_and_values(records: pa.RecordBatch, skipped: SkippedRecords) -> pa.RecordBatch:
    """Return keys and values of encoded records, without those that can't be built, which are skipped."""
    names = ["key", "value"]
    for one in records.filter(records["fault"].is_valid()).to_pylist():
        skipped.add(f"topic {one['topic']}, key {one['key']}", one["fault"])
    records = records.filter(records["fault"].is_null())
    both = [records[name].cast(pa.large_binary()).cast(pa.binary()) for name in names]
    return pa.RecordBatch.from_arrays(both, names)


def report_skipped(skipped: SkippedRecords, table: str, metrics: Accumulator[ReadMetrics] | None) -> None:
    """Add skipped rows to the metrics of a task: their number as ``skipped``, and the texts of the first."""
    named = Counter({(table, text): 1 for text in skipped.undecodable[:_MAX_REPORTED]})
    if metrics is not None:
        metrics.add(ReadMetrics(Counter(skipped=len(skipped.undecodable)), named))


def as_json(connector: Connector) -> Connector:
    """Return the connector with events in JSON without schemas, and without other records.

    Records that can't be built have a fault.
    """
    publish = connector.publish
    schema_names, field_names = converters_of(connector).adjustments()
    return replace(
        connector,
        publish=replace(
            publish,
            key="string" if publish.key == "string" else "json",
            value="json",
            schemas=False,
            schema_names=schema_names,
            field_names=field_names,
            transactions=False,
            skipped_operations=(),
            skip_unchanged=False,
            registry=type(publish.registry)(),
            kafka=replace(publish.kafka, slices=1, on_record_error="dead_letters"),
        ),
    )
