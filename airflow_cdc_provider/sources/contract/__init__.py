"""What a source is to jobs: a :class:`Source`, the :class:`Codec` of each table, and :class:`Reader` objects.

The driver builds one source per job. A job calls it in this order; a phase that it doesn't need is skipped::

    set-up      cancel_when, seek_to; check in its own command
    schema      learn, tables, schema_records
    snapshot    plan_snapshot -> snapshot_reader().read(ranges) on executors
    capture     start (once), head, gaps; then plan -> reader().read(partitions) on executors ->
                on_batch_read, until a plan is at the head
    decode      codec(table) -> Codec.decode(changes) on executors -> Codec.project(rows)
    re-reads    read_keys
    signals     parse_signals
    metrics     lag, stream_metrics
    end         close

Only abstract methods are required. Each other method has a default that means "this source has no such
thing"; where a job must know it beforehand, an attribute says so (``has_schema_history``, ``reads_chunks``
and so on), whose default is False.

A job calls a source from one thread of the driver. Readers and codecs are pickled to executors, where each
task has its own copy. Plans are plain data: they can be pickled, and the same part always yields the same
changes.

Errors: :class:`~airflow_cdc_provider.exceptions.TransientError` and whatever isn't a ``CdcError`` fail the
run, and the next run resumes at the last commit. :class:`~airflow_cdc_provider.exceptions.PositionLost` is
handled as option ``snapshot.on_lost_position`` says.
:class:`~airflow_cdc_provider.exceptions.ConfigurationError` fails the task without a retry. Methods document
only what is different.
"""

from __future__ import annotations

from airflow_cdc_provider.sources.contract.codec import Codec
from airflow_cdc_provider.sources.contract.reader import Reader, ReadMetrics
from airflow_cdc_provider.sources.contract.source import Source
from airflow_cdc_provider.sources.contract.values import (
    ChunkPlan,
    ChunkRequest,
    Decoded,
    Finding,
    Lag,
    Offset,
    Plan,
    ReadLimit,
    SchemaLimit,
    SegmentCounts,
    SnapshotPlan,
)

__all__ = [
    "ChunkPlan",
    "ChunkRequest",
    "Codec",
    "Decoded",
    "Finding",
    "Lag",
    "Offset",
    "Plan",
    "ReadLimit",
    "ReadMetrics",
    "Reader",
    "SchemaLimit",
    "SegmentCounts",
    "SnapshotPlan",
    "Source",
]
