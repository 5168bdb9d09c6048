"""What each way of publishing asks of a connector: what its records depend on, and what waits for it."""

from __future__ import annotations

import hashlib
import json
import time

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.context import JobContext
from airflow_cdc_provider.options import to_plain


def form_of(connector: Connector) -> str:
    """Return a digest of all that decides which records a batch has."""
    plain = to_plain(connector)
    elsewhere = ("kafka", "pulsar", "registry", "topics", "heartbeat_interval_seconds")
    form = {name: value for name, value in plain.get("publish", {}).items() if name not in elsewhere}
    source = {k: v for k, v in plain.get("source", {}).items() if k not in ("conn_id", "advanced")}
    tables = {name: plain.get(name) for name in ("name", "type", "tables", "exclude_tables")}
    text = json.dumps([form, source, tables], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def publishing_lag(context: JobContext, batch: int) -> float:
    """Return how long ago the oldest batch was committed that is not published; 0 for none."""
    from pyspark.sql import functions as f

    state = context.changes.state()
    if batch >= state.batch:
        return 0.0
    rows = context.changes.pending(batch, state.batch, kinds=(record.OFFSET,))
    (found,) = rows.agg(f.unix_micros(f.min("captured_at"))).collect()
    return 0.0 if found[0] is None else round(time.time() - found[0] / 1_000_000, 3)


def require_batch(context: JobContext, batch: int) -> None:
    """Refuse to go on publishing with a batch that can't be.

    Raises:
        ConfigurationError: It is neither there nor the next one.
    """
    following = context.changes.state().batch + 1
    if not 1 <= batch <= following:
        raise ConfigurationError(
            "publishing can't go on there",
            expected=f"a batch from 1 to {following}, the next one",
            found=str(batch),
        )
