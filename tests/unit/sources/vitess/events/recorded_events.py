"""Events that are built from a recording of Vitess in the lake."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.sources.contract import ReadMetrics
from airflow_cdc_provider.sources.vitess.assembler import TransactionAssembler
from airflow_cdc_provider.sources.vitess.events.recording import recorded_events
from airflow_cdc_provider.sources.vitess.position import Position, ShardPosition
from airflow_cdc_provider.sources.vitess.reader import SliceReader
from airflow_cdc_provider.sources.vitess.schema_ids import DDL
from tests.unit.sources.vitess.events.vitess_recordings import FIXTURES


def captured(
    name: str | Path, keyspace: str, shards: tuple[str, ...]
) -> tuple[pa.Table, dict[tuple[str, str], bytes]]:
    """Turn a recording into records as a capture does; return them in the lake's order, and all fields."""
    path = name if isinstance(name, Path) else FIXTURES / "vstream" / f"{name}.vstream"

    def selects(table: str) -> bool:
        return True

    def is_recorded(table: str, schema_id: str) -> bool:
        return (table, schema_id) in fields

    fields: dict[tuple[str, str], bytes] = {}
    events = recorded_events(path, SkippedRecords(strict=True))
    place = Position({f"{keyspace}/{shard}": ShardPosition("current") for shard in shards})
    assembler = TransactionAssembler(
        place, selects, is_recorded, slice_bytes=4096, keep_empty=True, stops_at_journals=False
    )
    spans = zip(events.keys, events.ends, strict=True)
    assembler.add(b"".join(events.data[first:last].tobytes() for first, last in spans), 0)
    slices, schemas = assembler.drain(0)
    fields.update({(one["source_table"], one["schema_id"]): one["payload"] for one in schemas})
    reader = SliceReader(selects, empty_transactions=not isinstance(name, Path))
    statements = [one for one in schemas if (one["kind"], one["schema_id"]) == (record.SCHEMA, DDL)]
    everything = pa.Table.from_batches(
        [
            *reader.read(slices, ReadMetrics()),
            pa.RecordBatch.from_pylist(statements, record.CHANGE_SCHEMA),
        ],
        record.CHANGE_SCHEMA,
    )
    order = pc.sort_indices(everything, [("origin", "ascending"), ("position", "ascending")])
    return everything.take(order).combine_chunks(), fields
