"""Grouping of all Cassandra records before events are built: sorted, or with the rows before changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.cell_times import latest_times
from airflow_cdc_provider.sources.cassandra.events.before_images import RowsBefore, data_of, keys_of
from airflow_cdc_provider.sources.cassandra.events.changes import (
    EventSettings,
    Numbered,
    all_records,
    fences_of,
    runs_of,
    table_ids_of,
)
from airflow_cdc_provider.sources.cassandra.events.mirror_rows import MirrorRowDecoder
from airflow_cdc_provider.sources.cassandra.events.types import EventTypes
from airflow_cdc_provider.sources.converters import Converter

_ROWS_AT_ONCE: Final = 10_000


class Grouping:
    """All records in memory: in the order of their write times if configured, with the row before each.

    Args:
        settings: The settings of events.
        batches: Records to build events of.
        earlier: Earlier records.
        types: Types of values in events.
        converters: Custom converters of values.
    """

    def __init__(
        self,
        settings: EventSettings,
        batches: Iterable[Numbered],
        earlier: Iterable[pa.RecordBatch],
        types: EventTypes,
        converters: Sequence[tuple[str, Converter]],
    ) -> None:
        before = pa.Table.from_batches(earlier, record.CHANGE_SCHEMA)
        now, numbers = all_records(batches)
        self._batch = np.concatenate([np.zeros(before.num_rows, np.int64), numbers])
        records = pa.concat_tables([before, now])
        self._records = records.combine_chunks()
        self.selected = np.arange(records.num_rows) >= before.num_rows
        """Per record, whether events are built of it."""
        source, choices = settings.source, settings.connector.publish.cassandra
        if choices.order == "write_time":
            self._sort(settings)
        self._numbers = np.zeros(records.num_rows, np.int64)
        self._befores: dict[bytes, RowsBefore] = {}
        table_ids = table_ids_of(self._records, source)
        for schema in settings.tables() if choices.before else ():
            table_id = bytes.fromhex(schema.id)
            changes, numbers = data_of(self._records, pc.equal(table_ids, table_id).fill_null(False))
            self._numbers[numbers] = np.arange(len(numbers))
            known = settings.known_of(schema.full_name, keys_of(changes))
            codec = source.codec_of(schema, known.memory if known else None)
            decoder = MirrorRowDecoder(codec.schema, types, converters)
            ours = self._records.filter(pc.equal(self._records["source_table"], schema.full_name))
            self._befores[table_id] = RowsBefore(codec, decoder, changes, fences_of(ours, schema.id), known)

    def batches(self) -> Iterator[Numbered]:
        """Yield the records, at most :data:`_ROWS_AT_ONCE` at a time."""
        for start, end in runs_of(self._batch):
            for batch in self._records.slice(start, end - start).to_batches(max_chunksize=_ROWS_AT_ONCE):
                yield int(self._batch[start]), batch

    def before(
        self, table_id: bytes, events: pa.RecordBatch, indexes: np.ndarray, keys: pa.Array
    ) -> pa.StructArray:
        """Return the rows before events of a table.

        Args:
            table_id: Id of the table.
            events: Decoded events.
            indexes: Indexes of the records that they were decoded from.
            keys: The partition keys of these records.
        """
        rows = events["row"].to_numpy()
        return self._befores[table_id].of(events, self._numbers[indexes[rows]], keys.take(events["row"]))

    def _sort(self, settings: EventSettings) -> None:
        """Sort the records by their greatest write times, within batches if configured; stable."""
        written = np.full(self._records.num_rows, np.iinfo(np.int64).min)
        table_ids = table_ids_of(self._records, settings.source)
        for schema in settings.tables():
            ours = pc.equal(table_ids, bytes.fromhex(schema.id)).fill_null(False)
            changes, numbers = data_of(self._records, ours)
            decoded = settings.source.codec_of(schema).decode(changes, ())
            times = latest_times(decoded.contributions["state"])
            np.maximum.at(written, numbers[np.asarray(decoded.rows, np.int64)], times)
        if not settings.by_batch:
            self._batch[:] = 0
        order = np.lexsort((written, self._batch))
        self._records = self._records.take(pa.array(order)).combine_chunks()
        self.selected, self._batch = self.selected[order], self._batch[order]
