"""Events of Vitess's recordings: what ``airflow cdc events`` prints. See :mod:`.offline`."""

from __future__ import annotations

import gzip
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import to_lines
from airflow_cdc_provider.events.headers import context_headers
from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput
from airflow_cdc_provider.jobs.offline import Damage, Recording
from airflow_cdc_provider.jobs.vitess_events import VitessRecords
from airflow_cdc_provider.sources.vitess import wire
from airflow_cdc_provider.sources.vitess.options import VitessOptions

_ROWS_AT_ONCE: Final = 10_000


def event_lines(connector: Connector, recording: Recording, damage: Damage) -> Iterator[pa.LargeStringArray]:
    """Write a recording's events; see :func:`.offline.event_lines`."""
    options = connector.source
    assert isinstance(options, VitessOptions)
    headers = context_headers(connector.topic_prefix, connector.publish.task_id, "vitess", str(uuid.uuid4()))

    def captured(keyspace: str, table: str) -> bool:
        return connector.selects(f"{keyspace}.{table}") and in_keyspace(options, keyspace)

    maker = VitessRecords(connector, recording.now_ns, captured, damage.skipped)
    for file in recorded_files(recording.path):
        events = recorded_events(file)
        last = 0
        for first, last in wire_stretches(events):
            records, unread = maker.records(events, first, last)
            for place, reason in sorted(unread.items()):
                damage.add(f"{file} at byte {place}", reason)
            if records.num_rows:
                yield to_lines(records, headers if connector.publish.headers else ())
        open_rows = len(events.changes) - int(np.searchsorted(events.changes.events, last))
        if open_rows:
            damage.add(f"{file}, the last transaction", f"{open_rows} row changes that no COMMIT follows")
