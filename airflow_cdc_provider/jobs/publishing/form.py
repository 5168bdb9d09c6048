"""Common parts of all ways of publishing: the digest of options, the lag, and checks of batches."""

from __future__ import annotations

import hashlib
import json
import time

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.options import to_plain


def form_of(connector: Connector) -> str:
    """Return a digest of all options that determine the records of a batch."""
    plain = to_plain(connector)
    excluded = ("kafka", "pulsar", "registry", "topics", "heartbeat_interval_seconds")
    form = {name: value for name, value in plain.get("publish", {}).items() if name not in excluded}
    source = {k: v for k, v in plain.get("source", {}).items() if k not in ("conn_id", "advanced")}
    tables = {name: plain.get(name) for name in ("name", "type", "tables", "exclude_tables")}
    text = json.dumps([form, source, tables], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def publishing_lag(changes: ChangesTable, batch: int) -> float:
    """Return the age of the oldest batch that is not published, in seconds; 0 for none."""
    from pyspark.sql import functions as f

    state = changes.state()
    if batch >= state.batch:
        return 0.0
    rows = changes.pending(batch, state.batch, kinds=(record.OFFSET,))
    (found,) = rows.agg(f.unix_micros(f.min("captured_at"))).collect()
    return 0.0 if found[0] is None else round(time.time() - found[0] / 1_000_000, 3)


def require_batch(changes: ChangesTable, batch: int) -> None:
    """Refuse a batch that publishing can't continue with.

    Raises:
        ConfigurationError: The batch neither exists nor is the next one.
    """
    following = changes.state().batch + 1
    if not 1 <= batch <= following:
        raise ConfigurationError(
            f"publishing can't continue with batch {batch}",
            expected=f"a batch from 1 to {following}, the next one",
            found=str(batch),
        )
