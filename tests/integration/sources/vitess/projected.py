"""Rows of a mirror as a codec makes them from records, without a lake."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA
from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.lake.reconcile import reconcile_rows
from airflow_cdc_provider.sources.vitess.codec import VitessCodec


def projected_rows(codec: VitessCodec, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Decode, reconcile and project records, all of which can be decoded."""
    decoded = codec.decode(pa.RecordBatch.from_pylist(list(records), CHANGE_SCHEMA), ())
    assert decoded.reasons == ()
    contributions = pa.Table.from_batches([decoded.contributions], CONTRIBUTION_SCHEMA)
    (live,) = reconcile_rows(contributions, 0).live.combine_chunks().to_batches()
    rows: list[dict[str, Any]] = codec.project(live).to_pylist()
    return rows
