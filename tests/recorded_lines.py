"""Recordings of any source as lines of events or of rows."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.sources.recordings import Recording
from airflow_cdc_provider.sources.registry import source_plugin


def event_lines(
    connector: Connector, recording: Recording, skipped: SkippedRecords
) -> Iterator[pa.LargeStringArray]:
    """Write a recording's events."""
    return source_plugin(connector.type).recordings().event_lines(connector, recording, skipped)


def row_lines(
    connector: Connector, recording: Recording, skipped: SkippedRecords
) -> Iterator[pa.LargeStringArray]:
    """Write the rows at the end of a recording."""
    return source_plugin(connector.type).recordings().row_lines(connector, recording, skipped)
