"""Options of a ScyllaDB source. Has no heavy imports: DAG files import it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from airflow_cdc_provider.connector.publish.scylla import validate_scylla_options
from airflow_cdc_provider.options import option
from airflow_cdc_provider.sources.plugin import SourceOptions

if TYPE_CHECKING:
    from airflow_cdc_provider.connector import Connector


@dataclass(frozen=True)
class ScyllaAdvanced:
    """Options that few users need."""

    distributed_keyspace: str = option(
        "Keyspace of cdc_generation_timestamps and cdc_streams_descriptions_v2", "system_distributed"
    )
    system_keyspace: str = option("Keyspace of cdc_timestamps and cdc_streams", "system")
    schema_keyspace: str = option("Keyspace of scylla_tables", "system_schema")
    generation_poll_seconds: float = option(
        "Maximum age of cached generations when a batch is planned", 30.0, minimum=0
    )
    request_timeout_seconds: float = option("Timeout of one request to the cluster", 30.0, minimum=0.1)
    requests_in_flight: int = option(
        "Maximum number of log requests in flight, for all tasks together", 256, minimum=1
    )
    slow_request_seconds: float = option(
        "A request that takes longer than this halves the number of requests in flight", 2.0, minimum=0.001
    )
    retries: int = option("How often a request is retried if the cluster is overloaded", 20, minimum=0)
    retry_backoff_seconds: float = option(
        "Pause before the first retry; doubled for each further one", 0.05, minimum=0
    )
    retry_max_backoff_seconds: float = option("Maximum pause between retries", 30.0, minimum=0)
    retry_jitter_percent: float = option("Random variation of the pauses", 20.0, minimum=0)
    ranges_per_snapshot: int = option("Minimum number of token ranges of a table's snapshot", 16, minimum=1)
    snapshot_fetch_size: int = option("Rows per page of a snapshot read", 5000, minimum=1)
    timestamps: Literal["timestamp", "milliseconds"] = option(
        "Type of CQL timestamps in mirrors: the lake's timestamp type, or int64 milliseconds, which also "
        "support values beyond the year 294247",
        "timestamp",
    )


@dataclass(frozen=True)
class ScyllaOptions(SourceOptions):
    """How to connect to the cluster, and how to read its logs."""

    conn_id: str = option("Airflow connection of the cluster; not required offline", "")
    consistency: str = option(
        "Consistency level for reading logs. It must overlap with the level of the writers, as QUORUM and "
        "QUORUM do, else changes can be missed",
        "QUORUM",
    )
    snapshot_consistency: str = option(
        "Consistency level of snapshots and re-reads. ALL reads what any replica has, and fails while one is "
        "down; a lower level continues, and may miss data that only that replica has",
        "ALL",
    )
    query_window_seconds: float = option(
        "Initial width of a stream's query window; windows grow while there are few changes",
        30.0,
        minimum=0.001,
    )
    max_query_window_seconds: float = option(
        "Maximum width of a window; set it to query_window_seconds for a fixed width", 86400.0, minimum=0.001
    )
    confidence_window_seconds: float = option(
        "Age at which a time is read, to allow for lagging replicas, clocks and coordinators", 30.0, minimum=0
    )
    minimal_wait_seconds: float = option(
        "Minimum time between two windows, to throttle reading", 0.0, minimum=0
    )
    lookback_seconds: float = option(
        "How far back a new connector starts; 0: at the start of the log", 0.0, minimum=0
    )
    fetch_size: int = option("Rows per page of a log; 0: the driver's default", 0, minimum=0)
    advanced: ScyllaAdvanced = option("Options that few users need", ScyllaAdvanced)

    def validate(self, connector: Connector) -> None:
        """Validate the event options of ScyllaDB."""
        validate_scylla_options(connector.publish.scylla, rows=connector.publish.unwrap.enabled)
