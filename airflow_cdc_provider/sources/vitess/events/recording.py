"""Events of Vitess's recordings, for ``airflow cdc events``. See :class:`.recordings.Recordings`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import to_lines
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.sources import recordings
from airflow_cdc_provider.sources.encoding import headers_of
from airflow_cdc_provider.sources.recordings import Recording
from airflow_cdc_provider.sources.vitess import wire
from airflow_cdc_provider.sources.vitess.events.decode import Stream, heartbeats, split_stream
from airflow_cdc_provider.sources.vitess.events.records import VitessRecords
from airflow_cdc_provider.sources.vitess.options import VitessOptions, has_keyspace
from airflow_cdc_provider.sources.vitess.recordings import read_recording

_ROWS_AT_ONCE: Final = 10_000


def event_lines(
    connector: Connector, recording: Recording, skipped: SkippedRecords
) -> Iterator[pa.LargeStringArray]:
    """Write a recording's events; see :class:`.recordings.Recordings`."""
    options = connector.source
    assert isinstance(options, VitessOptions)
    headers = headers_of(connector)

    def captured(keyspace: str, table: str) -> bool:
        return has_keyspace(options.keyspace, keyspace) and connector.selects(f"{keyspace}.{table}")

    builder = VitessRecords(connector, recording.now_ns, captured, skipped.by_kind)
    for file in recorded_files(recording.path):
        events = recorded_events(file, skipped)
        stream, last = Stream(events), 0
        for first, last in split_stream(events, _ROWS_AT_ONCE):
            records, unread = builder.records(stream, first, last)
            for offset, reason in sorted(unread.items()):
                skipped.add(f"{file} at byte {offset}", reason)
            if records.num_rows:
                yield to_lines(records, headers)
        beats = builder.heartbeats(heartbeats(events, last, len(events)))
        if beats.num_rows:
            yield to_lines(beats, headers)
        open_rows = len(events.changes) - int(np.searchsorted(events.changes.events, last))
        if open_rows:
            skipped.add(f"{file}, the last transaction", f"{open_rows} row changes without a COMMIT")


def recorded_files(path: Path) -> list[Path]:
    """Find the files of a recording; see :func:`.recordings.recorded_files`."""
    messages = "a file of VStreamResponse messages, each after its length as a varint"
    expected = f"{messages}, or a folder with *.vstream (or *.vstream.gz) files"
    return recordings.recorded_files(path, ".vstream", expected)


def recorded_events(file: Path, skipped: SkippedRecords) -> wire.Events:
    """Read the readable messages of a recording.

    Args:
        file: The recording.
        skipped: Collects skipped messages.

    Raises:
        CorruptInput: The file can't be read, or a message is corrupt and the source is strict.
    """
    recorded = read_recording(recordings.read_file(file))
    for offset, reason in recorded.broken:
        skipped.add(f"{file} at byte {offset}", reason)
    return recorded.events
