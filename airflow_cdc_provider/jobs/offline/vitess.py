"""Recordings of Vitess (files of VStreamResponse) as lines of events or of rows. See :mod:`.recordings`."""

from __future__ import annotations

from airflow_cdc_provider.jobs.offline.vitess_events import event_lines
from airflow_cdc_provider.jobs.offline.vitess_rows import row_lines

__all__ = ["event_lines", "row_lines"]
