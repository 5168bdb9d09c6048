"""Defaults of a ScyllaDB source, the option ``cdc``, and the history of logs."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.sources.cql.describe import parse_cql
from airflow_cdc_provider.sources.scylla.log_options import UNREPORTED, CdcOption, read_log_options
from airflow_cdc_provider.sources.scylla.options import ScyllaOptions
from airflow_cdc_provider.sources.scylla.payload import LOG_SUFFIX
from airflow_cdc_provider.sources.scylla.schema_history import LogHistory, log_tables
from tests.unit.sources.scylla.server_session import ServerSession

OTHERS = {"k", "c", "o", "u", "l", "cdc$deleted_o", "cdc$deleted_u", "cdc$deleted_l"}
OTHERS |= {"cdc$deleted_elements_u", "cdc$deleted_elements_l"}
SCHEMA = """
CREATE TYPE s.inner (a int);
CREATE TYPE s.outer (b frozen<inner>, c text);
CREATE TABLE s.t (k int, c int, o int static, u outer, l list<int>, PRIMARY KEY (k, c))
    WITH CLUSTERING ORDER BY (c DESC);
CREATE TABLE s.t_scylla_cdc_log (
    "cdc$stream_id" blob, "cdc$time" timeuuid, "cdc$batch_seq_no" int, "cdc$operation" tinyint,
    "cdc$ttl" bigint, "cdc$end_of_batch" boolean, k int, c int, o int, u frozen<outer>,
    l frozen<map<timeuuid, int>>, "cdc$deleted_o" boolean, "cdc$deleted_u" boolean, "cdc$deleted_l" boolean,
    "cdc$deleted_elements_u" frozen<set<smallint>>, "cdc$deleted_elements_l" frozen<set<timeuuid>>,
    PRIMARY KEY ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no")
);
CREATE TABLE s.plain (k int PRIMARY KEY);
"""


@pytest.mark.covers("SCY-CFG-10", "SCY-WIN-01", "SCY-WIN-02", "SCY-WIN-04", "SCY-WIN-05")
def test_defaults_are_the_connectors() -> None:
    options = ScyllaOptions()
    windows = (options.query_window_seconds, options.confidence_window_seconds)
    assert windows == (30.0, 30.0)
    assert (options.lookback_seconds, options.minimal_wait_seconds, options.fetch_size) == (0.0, 0.0, 0)
    assert options.consistency == "QUORUM"
    own = options.advanced
    pauses = (own.retry_backoff_seconds, own.retry_max_backoff_seconds, own.retry_jitter_percent, own.retries)
    assert pauses == (0.05, 30.0, 20.0, 20)
    keyspaces = (own.distributed_keyspace, own.system_keyspace, own.schema_keyspace)
    assert keyspaces == ("system_distributed", "system", "system_schema")


@pytest.mark.covers("SCY-LOG-09", "SCY-LOG-10")
def test_the_option_of_a_table_has_the_servers_defaults() -> None:
    assert CdcOption.read({"enabled": "true"}) == CdcOption(True, 86400, "full")
    assert CdcOption.read({"enabled": "true", "ttl": "0", "delta": "keys"}) == CdcOption(True, 0, "keys")
    assert not CdcOption.read(None).enabled
    assert not CdcOption.read({"enabled": "false", "ttl": "60"}).enabled


@pytest.mark.covers("SCY-LOG-10")
def test_an_unlisted_log_is_enabled_and_has_its_tables_ttl() -> None:
    names = [("t", 0), ("t" + LOG_SUFFIX, 60), ("u", 9), ("u" + LOG_SUFFIX, 0), ("plain", 5)]
    tables = [{"keyspace_name": "s", "table_name": n, "default_time_to_live": ttl} for n, ttl in names]
    session = ServerSession({"system_schema.tables": tables})
    unreported = {"s.t": CdcOption(True, 60, UNREPORTED), "s.u": CdcOption(True, 0, UNREPORTED)}
    assert read_log_options(session) == unreported

    listed: list[dict[str, Any]] = [
        {"keyspace_name": "s", "table_name": "t", "cdc": {"enabled": "true", "postimage": "true"}}
    ]
    listed += [{"keyspace_name": "s", "table_name": "plain", "cdc": None}]
    session = ServerSession({"system_schema.tables": tables, "mine.scylla_tables": listed})
    options = read_log_options(session, "mine")
    assert options["s.t"] == CdcOption(True, 86400, "full", frozenset({"postimage"}))
    assert options["s.u"] == unreported["s.u"]
    assert not options["s.plain"].enabled


def test_a_schema_record_decodes_a_log_by_itself() -> None:
    tables = log_tables(parse_cql(SCHEMA), {"s.t": CdcOption(True, 60, "full")})
    assert list(tables) == ["s.t"]
    content = json.loads(tables["s.t"].payload)
    assert [name for name, _ in content["columns"]] == [
        "cdc$stream_id",
        "cdc$time",
        "cdc$batch_seq_no",
        "cdc$operation",
        "cdc$ttl",
        "cdc$end_of_batch",
        "ttl(cdc$operation)",
        *sorted(OTHERS),
    ]
    assert dict(content["columns"])["l"] == "frozen<map<timeuuid, int>>"
    assert content["base"] == {"k": "int", "c": "int", "o": "int", "u": "outer", "l": "list<int>"}
    assert content["types"] == {"inner": [["a", "int"]], "outer": [["b", "frozen<inner>"], ["c", "text"]]}
    assert (content["partition_key"], content["clustering"], content["static"]) == (
        ["k"],
        [["c", "desc"]],
        ["o"],
    )
    assert (content["log_ttl"], content["delta"]) == (60, "full")


def test_what_changes_of_a_log_is_recorded_once() -> None:

    on, off = CdcOption(True), CdcOption(False)
    records: list[dict[str, Any]] = []
    history = LogHistory()
    for at_us, option in enumerate([off, on, on, off, off, on, CdcOption(True, ttl_seconds=60)], 1):
        found = list(history.new_records(log_tables(parse_cql(SCHEMA), {"s.t": option}).values(), (), at_us))
        records += [{name: r.get(name) for name in CHANGE_SCHEMA.names} for r in found]
        history = LogHistory(pa.Table.from_pylist(records, CHANGE_SCHEMA))
    times = [int.from_bytes(r["position"][-8:], "big") for r in records]
    assert times == [2, 4, 6, 7]
    assert history.switched_us("s.t") == (0, 6)
    assert history.captured("s.t")
    assert not history.captured("s.plain")
    assert len(history.payloads_of("s.t")) == 2
