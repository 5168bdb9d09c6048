"""What is checked of a ScyllaDB cluster, and its hook, on the imitation's tables."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.contract import Finding
from airflow_cdc_provider.sources.scylla.check import RequiredImages, release_of
from airflow_cdc_provider.sources.scylla.log_state import read_log_state
from server_kit import CassandraServer
from server_kit.scylla import Column, CqlType, InvalidRequest, Preimage
from tests.integration.imitated_keyspace import imitated_keyspace
from tests.integration.sources.scylla.captured import Captured, scylla_source
from tests.integration.sources.scylla.logged_tables import imitated, insert, item

pytestmark = pytest.mark.integration

BOTH = RequiredImages("publish.scylla.before", "publish.scylla.after")


@pytest.fixture
def keyspace(cassandra_session: Any) -> Iterator[str]:
    yield from imitated_keyspace(cassandra_session)


def messages(findings: list[Finding], level: str) -> list[str]:
    return [f"{f.subject}: {f.message}" for f in findings if f.level == level]


@pytest.mark.covers("SCY-EVT-15", "SCY-EVT-16")
def test_images_that_events_are_to_show_must_be_logged(
    cassandra_session: Any, cassandra_server: CassandraServer, keyspace: str
) -> None:
    cluster = imitated(cassandra_session, keyspace)
    cluster.new_generation()
    cluster.create_table(item(keyspace, "plain"))
    cluster.create_table(item(keyspace, "whole", preimage=Preimage.FULL, postimage=True))
    source = scylla_source(cluster, cassandra_server, images=BOTH)
    assert messages(source.check(), "error") == [
        f"{keyspace}.plain: publish.scylla.before needs preimages, which its log doesn't have",
        f"{keyspace}.plain: publish.scylla.after needs postimages, which its log doesn't have",
    ]
    assert messages(scylla_source(cluster, cassandra_server).check(), "error") == []


@pytest.mark.covers("SCY-CFG-07")
def test_levels_logs_and_releases_are_reported(
    cassandra_session: Any, cassandra_server: CassandraServer, keyspace: str
) -> None:
    cluster = imitated(cassandra_session, keyspace)
    cluster.new_generation()
    cluster.create_table(item(keyspace, ttl=20))
    findings = scylla_source(cluster, cassandra_server, confidence_window_seconds=30).check()
    assert messages(findings, "warning") == [
        "consistency: logs are read at ONE: only changes that were written at ALL are guaranteed to be read"
    ]
    assert messages(findings, "error") == [
        f"{keyspace}.item: its log expires after 20 s, and is read 30 s or more after the write"
    ]
    findings = scylla_source(cluster, cassandra_server, consistency="QUORUM").check()
    assert messages(findings, "warning") == messages(findings, "error") == []
    assert any(text.startswith("release: ScyllaDB ") for text in messages(findings, "ok"))
    assert f"{keyspace}.item: its log expires after 20 s: the longest pause between two runs" in messages(
        findings, "ok"
    )


def test_logs_without_scylla_tables_are_read_and_check_says_what_is_not_known(
    cassandra_session: Any, cassandra_server: CassandraServer, keyspace: str
) -> None:
    cluster = imitated(cassandra_session, keyspace)
    cluster.new_generation()
    cluster.create_table(item(keyspace))
    cluster.create_table(item(keyspace, "brief"))
    cluster.execute("item", insert(1, 1))
    cassandra_session.execute(f"ALTER TABLE {keyspace}.brief_scylla_cdc_log WITH default_time_to_live = 20")
    for table in ("scylla_tables", "scylla_keyspaces"):
        cassandra_session.execute(f"DROP TABLE {cluster.names.schema}.{table}")
    for table in ("truncated", "versions"):
        cassandra_session.execute(f"DROP TABLE {cluster.names.system}.{table}")
    time.sleep(0.02)
    source = scylla_source(cluster, cassandra_server, consistency="QUORUM", images=BOTH)
    findings = source.check()
    (warning,) = messages(findings, "warning")
    assert warning.startswith(
        f"options: {cluster.names.schema}.scylla_tables doesn't list the CDC options of "
        f"{keyspace}.brief, {keyspace}.item: a log counts as enabled"
    )
    assert messages(findings, "error") == []
    assert f"{keyspace}.brief: its log expires after 20 s: the longest pause between two runs" in messages(
        findings, "ok"
    )
    captured = Captured(source).run()
    assert [record["source_table"] for record in captured.records] == [f"{keyspace}.item"]
    hour_ago_us = time.time_ns() // 1000 - 3_600_000_000
    old = {"v": 1, "generation": 0, "read_to": hour_ago_us}
    lost, _ = source.gaps({f"{keyspace}.item": old, f"{keyspace}.brief": old})
    assert [one.message.partition(" was read")[0] for one in lost] == [
        f"the log of {keyspace}.brief keeps changes for 20 s and"
    ]
    logs = read_log_state(cassandra_session, source.options.advanced, lambda table: keyspace in table)
    assert logs.ttl_seconds == {f"{keyspace}.brief": 20, f"{keyspace}.item": 0}


@pytest.mark.covers("SCY-TYP-12")
def test_tables_with_counters_are_reported(
    cassandra_session: Any, cassandra_server: CassandraServer, keyspace: str
) -> None:
    cluster = imitated(cassandra_session, keyspace)
    cluster.new_generation()
    counts = replace(item(keyspace, "counts"), regular=(Column("n", CqlType("counter")),))
    with pytest.raises(InvalidRequest, match="Counter support missing"):
        cluster.create_table(counts)
    cluster.create_table(counts.with_cdc(enabled=False))
    with pytest.raises(InvalidRequest, match="Counter support missing"):
        cluster.alter_cdc("counts", enabled=True)
    cluster.create_table(item(keyspace))
    source = scylla_source(cluster, cassandra_server)
    assert source.tables() == [f"{keyspace}.item"]
    assert (
        f"tables: {keyspace}.counts: ScyllaDB writes no log for tables with counters, so they are skipped"
        in (messages(source.check(), "warning"))
    )
    named = scylla_source(cluster, cassandra_server, spelled_out=lambda table: table.endswith(".counts"))
    (refused,) = [found for found in named.check() if f"{keyspace}.counts" in found.message]
    assert refused.level == "error"
    assert refused.remedy == "remove it from tables"
    assert re.search(r"counts is named .* counters, for which ScyllaDB", refused.message)
    for read in (named.codec, named.plan_snapshot):
        with pytest.raises(ConfigurationError, match=r"counts is named .* counters, for which ScyllaDB"):
            read(f"{keyspace}.counts")


def test_a_hook_opens_a_session_and_names_the_cluster(
    cassandra_session: Any, cassandra_server: CassandraServer, keyspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_cdc_provider.hooks.scylla import ScyllaCdcHook

    cluster = imitated(cassandra_session, keyspace)
    connection = {"conn_type": "cdc_scylla", "host": cassandra_server.host, "port": cassandra_server.port}
    monkeypatch.setenv("AIRFLOW_CONN_SCYLLA_SHOP", json.dumps(connection))
    hook = ScyllaCdcHook("scylla_shop")
    with hook as session:
        assert release_of(session, cluster.names.system) == cluster.release
    assert hook.describe_server().startswith("ScyllaDB that reports Cassandra ")
    assert hook.session_state(2)["nodes"] == 1
