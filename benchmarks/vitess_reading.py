"""A recorded stream read as a capture reads it: change records of whole transactions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.record import SCHEMA, TRANSACTION
from airflow_cdc_provider.sources.contract import ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.vitess.capture import ChangeStream
from airflow_cdc_provider.sources.vitess.connection import ConnectionValues
from airflow_cdc_provider.sources.vitess.options import VitessOptions
from airflow_cdc_provider.sources.vitess.position import Position, ShardPosition
from airflow_cdc_provider.sources.vitess.reader import SliceReader
from airflow_cdc_provider.sources.vitess.requests import filter_of
from airflow_cdc_provider.sources.vitess.snapshot import RangeReader, SnapshotRange
from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient
from benchmarks.vitess_recording import COPY, KEYSPACE, TABLE, Recording

_SHARD: Final = f"{KEYSPACE}/0"
_ROWS_AT_ONCE: Final = 10_000
_LIMIT: Final = ReadLimit(bytes=256 << 20, changes=100_000)


class Reading:
    """Reads streams of a server.

    Args:
        recorded: What it sends.
        port: Its port.
    """

    def __init__(self, recorded: Recording, port: int) -> None:
        self.recorded = recorded
        self.schema: list[dict[str, Any]] = []
        """Records of kind ``schema`` that came so far."""
        self._fields: dict[tuple[str, str], bytes] = {}
        self._values = ConnectionValues.read({"host": "127.0.0.1", "port": port})
        self._options = VitessOptions(keyspace=KEYSPACE)

    def fields(self, table: str, schema_id: str) -> bytes:
        """Return the fields that rows came with."""
        return self._fields[table, schema_id]

    def records(self, stream: str, *, in_order: bool) -> Iterator[pa.RecordBatch]:
        """Read a stream; give its records but those of kind ``schema``, some thousands at a time.

        Args:
            stream: Which.
            in_order: Whether each batch has whole transactions, in the order of their positions, as rows of a
                changes table come to whoever makes events of them.
        """
        waiting: list[pa.RecordBatch] = []
        for batch in self._copied() if stream == COPY else self._streamed(stream):
            waiting.append(batch)
            whole = stream == COPY or batch["kind"][-1].as_py() == TRANSACTION
            if whole and sum(one.num_rows for one in waiting) >= _ROWS_AT_ONCE:
                yield _joined(waiting, in_order=in_order)
                waiting = []
        if waiting:
            yield _joined(waiting, in_order=in_order)

    def _copied(self) -> Iterator[pa.RecordBatch]:
        part = SnapshotRange(f"{KEYSPACE}.{TABLE}", 1, "0", self.recorded.ends[COPY], 1, "")
        for batch in RangeReader(self._values, self._options).read([part], ReadMetrics()):
            if batch["kind"][0].as_py() == SCHEMA:
                self._learn(batch.to_pylist())
            else:
                yield batch

    def _streamed(self, stream: str) -> Iterator[pa.RecordBatch]:
        begin = Position({_SHARD: ShardPosition(self.recorded.starts[stream], 1)})
        head = Position({_SHARD: ShardPosition(self.recorded.ends[stream], 1)})
        reader = SliceReader(_selects)
        with VtgateClient(self._values) as client:
            changes = ChangeStream(
                lambda: client,
                self._options,
                lambda: filter_of(None),
                _selects,
                lambda table, name: (table, name) in self._fields,
            )
            at_head = False
            while not at_head:
                plan = changes.plan(begin, head, _LIMIT)
                self._learn(plan.records)
                yield from reader.read(plan.partitions, ReadMetrics())
                begin, at_head = Position.from_offset(plan.end), plan.at_head
            changes.close()

    def _learn(self, records: Any) -> None:
        self.schema += records
        for record in records:
            self._fields[record["source_table"], record["schema_id"]] = record["payload"]


def _joined(batches: list[pa.RecordBatch], *, in_order: bool) -> pa.RecordBatch:
    table = pa.Table.from_batches(batches)
    if in_order:
        table = table.take(pc.sort_indices(table["position"]))
    (rows,) = table.combine_chunks().to_batches()
    return rows


def _selects(table: str) -> bool:
    return table == f"{KEYSPACE}.{TABLE}"
