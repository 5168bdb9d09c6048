"""The log of a table with a key and a value."""

from __future__ import annotations

from airflow_cdc_provider.sources.cql.describe import parse_cql
from airflow_cdc_provider.sources.scylla.log_options import CdcOption
from airflow_cdc_provider.sources.scylla.schema_history import log_tables

SCHEMA = """
CREATE TABLE s.t (k int PRIMARY KEY, v int);
CREATE TABLE s.t_scylla_cdc_log (
    "cdc$stream_id" blob, "cdc$time" timeuuid, "cdc$batch_seq_no" int, "cdc$operation" tinyint,
    "cdc$ttl" bigint, "cdc$end_of_batch" boolean, k int, v int, "cdc$deleted_v" boolean,
    PRIMARY KEY ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no")
);
"""
TABLE = log_tables(parse_cql(SCHEMA), {"s.t": CdcOption(enabled=True, ttl_seconds=60)})["s.t"]
