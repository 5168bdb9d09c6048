"""Options of a Cassandra source. Light: read by DAG files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from airflow_cdc_provider.options import option


@dataclass(frozen=True)
class CassandraAdvanced:
    """Options that few users need."""

    rules: Literal["4.0", "3.11"] = option(
        "Tie rules of the read path: those of Cassandra 4.0 and later, or of 3.11", "4.0"
    )
    strict: bool = option("Fail on the first corrupt or undecodable entry instead of setting it apart", False)
    request_timeout_seconds: float = option(
        "How long to wait for one answer from the cluster", 30.0, minimum=0.1
    )
    ranges_per_snapshot: int = option(
        "Token ranges that a table's snapshot is cut into, at least", 16, minimum=1
    )
    fetch_size: int = option("Rows per page of a snapshot read", 5000, minimum=1)
    timestamps: Literal["timestamp", "milliseconds"] = option(
        "How mirrors show CQL timestamps: as the lake's own type, or as int64 milliseconds, which alone hold "
        "values beyond the year 294247",
        "timestamp",
    )


@dataclass(frozen=True)
class CassandraOptions:
    """Where the segments are and how to reach the cluster."""

    conn_id: str = option("Airflow connection of the cluster; not needed offline", "")
    cdc_raw: str = option(
        "Folder that holds one folder per node, named by host id, with its segments; or one node's segments",
        "",
    )
    node: str = option("Host id of the node whose segments lie directly in cdc_raw", "")
    schema_file: str = option(
        "CQL file with the schema, as DESCRIBE ... WITH INTERNALS prints it, for offline use", ""
    )
    consistency: str = option("Consistency level of snapshot reads", "LOCAL_QUORUM")
    advanced: CassandraAdvanced = option("Options that few users need", CassandraAdvanced)
