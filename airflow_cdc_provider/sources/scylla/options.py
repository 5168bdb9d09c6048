"""Options of a ScyllaDB source. Light: read by DAG files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from airflow_cdc_provider.options import option


@dataclass(frozen=True)
class ScyllaAdvanced:
    """Options that few users need."""

    distributed_keyspace: str = option(
        "Keyspace of cdc_generation_timestamps and cdc_streams_descriptions_v2", "system_distributed"
    )
    system_keyspace: str = option("Keyspace of cdc_timestamps and cdc_streams", "system")
    schema_keyspace: str = option("Keyspace of scylla_tables", "system_schema")
    generation_poll_seconds: float = option(
        "How old the knowledge of generations may be when a batch is planned", 30.0, minimum=0
    )
    request_timeout_seconds: float = option(
        "How long to wait for one answer from the cluster", 30.0, minimum=0.1
    )
    requests_in_flight: int = option(
        "Requests of the log that wait for an answer at a time, all tasks together", 256, minimum=1
    )
    slow_request_seconds: float = option(
        "A request that takes longer than this halves the number of those in flight", 2.0, minimum=0.001
    )
    retries: int = option(
        "How often a request is asked again that the cluster is too busy for", 20, minimum=0
    )
    retry_pause_seconds: float = option("Pause before it is asked again; doubled each time", 0.05, minimum=0)
    retry_longest_pause_seconds: float = option("The longest pause", 30.0, minimum=0)
    retry_jitter_percent: float = option("By how much pauses differ at random", 20.0, minimum=0)
    ranges_per_snapshot: int = option(
        "Token ranges that a table's snapshot is cut into, at least", 16, minimum=1
    )
    snapshot_fetch_size: int = option("Rows per page of a snapshot read", 5000, minimum=1)
    timestamps: Literal["timestamp", "milliseconds"] = option(
        "How mirrors show CQL timestamps: as the lake's own type, or as int64 milliseconds, which alone hold "
        "values beyond the year 294247",
        "timestamp",
    )


@dataclass(frozen=True)
class ScyllaOptions:
    """How to reach the cluster, and how its logs are read."""

    conn_id: str = option("Airflow connection of the cluster; not needed offline", "")
    consistency: str = option(
        "Consistency level of reading logs. Together with that of the writers it must overlap, as QUORUM and "
        "QUORUM do, else changes can be missed",
        "QUORUM",
    )
    snapshot_consistency: str = option(
        "Consistency level of snapshots and re-reads. ALL sees whatever any replica has, and fails while one "
        "is down; a lower level goes on, and may miss what only that replica has",
        "ALL",
    )
    query_window_seconds: float = option(
        "Time that the first query of a stream is about; over time with few changes windows grow",
        30.0,
        minimum=0.001,
    )
    widest_window_seconds: float = option(
        "Up to which width; the same as query_window_seconds for windows of one width", 86400.0, minimum=0.001
    )
    confidence_window_seconds: float = option(
        "A time is read when it is so far in the past: replicas, clocks and coordinators lag", 30.0, minimum=0
    )
    minimal_wait_seconds: float = option("Wait so long between two windows, to read slowly", 0.0, minimum=0)
    lookback_seconds: float = option(
        "How far back a new connector begins; 0: at the beginning of the log", 0.0, minimum=0
    )
    fetch_size: int = option("Rows per page of a log; 0: the driver's own", 0, minimum=0)
    advanced: ScyllaAdvanced = option("Options that few users need", ScyllaAdvanced)
