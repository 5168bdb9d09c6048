"""Topics of Cassandra and ScyllaDB against mirrors: which events suffice, and how tasks compare them.

:mod:`.reported_rows` reads single events, :mod:`.row_comparison` combines them to rows and compares these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.worker import map_in_arrow
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.names import adjusted_field
from airflow_cdc_provider.formats.arrow_bytes import binary_buffer
from airflow_cdc_provider.jobs.comparing.differences import OUTCOME_DDL, outcome_of
from airflow_cdc_provider.jobs.comparing.reported_rows import REPORTED_DDL, RowForm, reported_by
from airflow_cdc_provider.jobs.comparing.row_comparison import compare_reported
from airflow_cdc_provider.sources.cql.events.source_events import CqlSourceEvents
from airflow_cdc_provider.sources.cql.schema import Column, CqlType, TableSchema
from airflow_cdc_provider.sources.debezium.json_members import read_values
from airflow_cdc_provider.sources.debezium.json_texts import compact
from airflow_cdc_provider.sources.debezium.options import FRAMED
from airflow_cdc_provider.sources.encoding import converters_of
from airflow_cdc_provider.sources.registry import source_plugin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OFFSET_AT = 4
_OFFSET_BYTES = 8
"""Offset and size of the topic offset in a record's position."""


def row_form(connector: Connector, schema: TableSchema) -> RowForm:
    """Return the form in which a connector's events contain the rows of a table."""
    publish = connector.publish
    _, adjustment = converters_of(connector).adjustments()
    enveloped = publish.envelope != "datastax"
    events = source_plugin(connector.type).events()
    assert isinstance(events, CqlSourceEvents)
    in_cells, shows_nested = enveloped and events.in_cells(publish), events.shows_nested(publish)
    excluded = {path.removeprefix(f"{schema.full_name}.") for path in publish.exclude_columns}

    def names(columns: tuple[Column, ...]) -> tuple[str, ...]:
        return tuple(adjusted_field(column.name, adjustment) for column in columns)

    left_out = [
        column
        for column in (*schema.regular, *schema.static)
        if column.name in excluded
        or (in_cells and (column.type.multi_cell or column.type.name == "counter"))
        or (in_cells and column.type.parameters and not shows_nested)
        # JSON writes some maps as objects, converters with a registry write none.
        or (publish.value in FRAMED and _holds(column.type, "map"))
        # Protobuf doesn't distinguish an empty list from none.
        or (publish.value == "protobuf" and _holds(column.type, "list", "set", "vector"))
    ]
    return RowForm(
        operations=events.operations,
        exact_deletions=events.exact_deletions,
        deletion_unit_us=events.deletion_unit_us(publish),
        partition=names(schema.partition_key),
        clustering=names(schema.clustering),
        static_columns=names(schema.static),
        left_out=names(tuple(left_out)),
        enveloped=enveloped,
        in_cells=in_cells,
        whole=not enveloped or publish.kafka.after_merge,
    )


def _holds(kind: CqlType, *names: str) -> bool:
    return kind.name in names or any(_holds(inner, *names) for inner in kind.parameters)


def compared_rows(
    topic: DataFrame, mirror: DataFrame, form: RowForm, partitions: int, now_us: int
) -> DataFrame:
    """Compare records of topics with events of a mirror's rows.

    Args:
        topic: Columns of ``CHANGE_SCHEMA``; the payload is the whole value.
        mirror: Columns ``key`` and ``value``, JSON.
        form: The form of rows in events.
        partitions: How many tasks compare.
        now_us: The time at which expiry is evaluated, us since 1970: the same as for the mirror's events.
    """
    reported = map_in_arrow(topic, _ReadTopic(form), REPORTED_DDL)
    expected = map_in_arrow(mirror, _ReadMirror(form), REPORTED_DDL)
    both = reported.unionByName(expected).repartition(partitions, "partition")
    return map_in_arrow(both, _Compared(form, now_us), OUTCOME_DDL)


@dataclass(frozen=True)
class _ReadTopic:
    """Reads records of topics. Picklable."""

    form: RowForm

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            changes = batch.filter(pc.equal(batch["kind"], record.CHANGE))
            if changes.num_rows:
                offsets = _offsets(changes["position"])
                yield reported_by(changes["key"], changes["payload"], offsets, self.form, of_mirror=False)


@dataclass(frozen=True)
class _ReadMirror:
    """Reads events of a mirror's rows. Picklable."""

    form: RowForm

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keys = compact(*read_values(batch["key"]))
            yield reported_by(keys, batch["value"], np.zeros(len(keys), np.int64), self.form, of_mirror=True)


@dataclass(frozen=True)
class _Compared:
    """Compares all events of some partitions. Picklable."""

    form: RowForm
    now_us: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = [batch for batch in batches if batch.num_rows]
        if found:
            yield outcome_of(compare_reported(pa.Table.from_batches(found), self.form, self.now_us))


def _offsets(positions: pa.Array) -> np.ndarray:
    """Read the offsets in positions of records."""
    data, starts, _ = binary_buffer(positions)
    indexes = starts[:, np.newaxis] + _OFFSET_AT + np.arange(_OFFSET_BYTES)
    return np.ascontiguousarray(data[indexes]).view(">i8").ravel().astype(np.int64)
