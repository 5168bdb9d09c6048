"""Replay events of some hours to separate topics, from the Trigger button; then compare them."""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG, Param

from airflow_cdc_provider.operators.topics import CdcCompareTopicsOperator, CdcReplayOperator

EVENTS = str(Path(__file__).with_name("shop_events.yaml"))

with DAG(
    "replay_events",
    schedule=None,
    max_active_runs=1,
    params={
        "since": Param(
            None, type=["string", "null"], description="Start, ISO 8601; empty: all retained events"
        ),
        "until": Param(None, type=["string", "null"], description="Up to when; empty: the newest"),
        "topic_prefix": Param(
            "again.store",
            type="string",
            description="Topics begin with this; another one for each replay",
        ),
    },
    tags=["cdc"],
    doc_md=__doc__,
):
    replay = CdcReplayOperator(
        task_id="replay",
        connector=EVENTS,
        since="{{ params.since or '' }}",
        until="{{ params.until or '' }}",
        topic_prefix="{{ params.topic_prefix }}",
    )
    # Only a replay of all events has each row.
    differs = CdcCompareTopicsOperator(
        task_id="differs", connector=EVENTS, topic_prefix="{{ params.topic_prefix }}", max_differences=None
    )

    replay >> differs
