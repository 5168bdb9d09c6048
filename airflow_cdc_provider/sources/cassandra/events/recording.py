"""Recordings of Cassandra (segments in folders) as lines of events or of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA
from airflow_cdc_provider.changes.fence import newest_generation
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import to_lines
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.lake.reconcile import reconcile_cells
from airflow_cdc_provider.sources.cassandra.commit_log.segments import list_faults, list_segments
from airflow_cdc_provider.sources.cassandra.events.changes import (
    EventSettings,
    cluster_name,
    describe_position,
    fences_of,
    note,
)
from airflow_cdc_provider.sources.cassandra.events.records import build_events
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.cassandra.position import NodeOffset
from airflow_cdc_provider.sources.cassandra.source import CassandraSource
from airflow_cdc_provider.sources.contract import Offset, ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.encoding import headers_of
from airflow_cdc_provider.sources.recordings import Recording, row_lines_of

_ROWS_AT_ONCE: Final = 10_000


def event_lines(
    connector: Connector, recording: Recording, skipped: SkippedRecords
) -> Iterator[pa.LargeStringArray]:
    """Write a recording's events in the order of the log; see :class:`.recordings.Recordings`."""
    source = _source(connector, recording)
    cluster = source.options.cluster or cluster_name(recording.path)
    settings = EventSettings(connector, source, cluster, recording.now_ns)
    batches = ((0, batch) for batch in _records(source, recording, skipped))
    for events in build_events(settings, batches, skipped):
        yield to_lines(events.records, headers_of(connector))


def row_lines(
    connector: Connector, recording: Recording, skipped: SkippedRecords
) -> Iterator[pa.LargeStringArray]:
    """Write the rows at the end of a recording; see :class:`.recordings.Recordings`."""
    source = _source(connector, recording)
    records = pa.Table.from_batches(_records(source, recording, skipped), record.CHANGE_SCHEMA)
    for table in source.tables():
        if recording.table not in ("", table):
            continue
        codec = source.codec(table)
        changes = records.filter(pc.equal(records["source_table"], table))
        fences = fences_of(changes)
        contributions = []
        for batch in changes.filter(pc.equal(changes["kind"], record.CHANGE)).to_batches():
            decoded = codec.decode(batch, fences)
            note(table, batch, decoded.undecodable, decoded.reasons, skipped)
            contributions.append(decoded.contributions)
        live = reconcile_cells(
            pa.Table.from_batches(contributions, CONTRIBUTION_SCHEMA),
            recording.now_ns // 1_000_000_000,
            codec.rules,
            min_generation=newest_generation(fences),
        ).live
        for batch in live.to_batches(max_chunksize=_ROWS_AT_ONCE):
            yield row_lines_of(table, codec.to_json(batch))


def _source(connector: Connector, recording: Recording) -> CassandraSource:
    """Build the source on the recording, without a connection."""
    options = connector.source
    assert isinstance(options, CassandraOptions)
    schema = recording.schema or options.schema_file
    source = CassandraSource(
        replace(options, cdc_raw=str(recording.path), schema_file=schema),
        {},
        connector.selects,
        names=connector.names,
        recorded=True,
    )
    if any(list_segments(recording.path, options.node, recorded=True).values()):
        source.learn_from_log()
    return source


def _records(
    source: CassandraSource, recording: Recording, skipped: SkippedRecords
) -> Iterator[pa.RecordBatch]:
    """Read all segments; unreadable records are collected and skipped."""
    if not any(list_segments(recording.path, source.options.node, recorded=True).values()):
        raise ConfigurationError(
            f"there is no recording at {recording.path}",
            expected="a folder with CommitLog-*.log (or .log.gz) and *_cdc.idx files",
        )
    for origin, segment, reason in list_faults(recording.path, source.options.node):
        skipped.add(f"node {origin}, segment {segment}", reason)
    stop = source.head()
    reader = source.reader()
    start: Offset | None = None
    if source.options.advanced.latest_segment_only:
        nodes = list_segments(recording.path, source.options.node, recorded=True)
        newest = {node: max(file.segment for file in files) for node, files in nodes.items() if files}
        start = {node: NodeOffset(floor=segment - 1).to_json() for node, segment in newest.items()}
    while True:
        plan = source.plan(start, stop, ReadLimit())
        for batch in reader.read(plan.partitions, ReadMetrics()):
            broken = pc.equal(batch["kind"], record.QUARANTINE)
            for row in batch.filter(broken).to_pylist():
                skipped.add(describe_position(row["origin"], row["position"]), row["reason"])
            yield batch.filter(pc.invert(broken))
        if plan.at_head or plan.end == start:
            return
        start = plan.end
