"""What is checked of a ScyllaDB cluster, and its hook, on the imitation's tables."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_cdc_provider.sources.base import Finding
from airflow_cdc_provider.sources.scylla.check import WantedImages, release_of
from server_kit import CassandraServer
from server_kit.scylla import Preimage
from tests.integration.sources.scylla.captured import scylla_source
from tests.integration.sources.scylla.test_log_reading import imitated, item

pytestmark = pytest.mark.integration

BOTH = WantedImages("publish.scylla.before", "publish.scylla.after")


@pytest.fixture
def keyspace(cassandra_session: Any) -> Iterator[str]:
    name = f"k{random.randrange(10**9)}"
    yield name
    for suffix in ("", "_distributed", "_system", "_schema"):
        cassandra_session.execute(f"DROP KEYSPACE IF EXISTS {name}{suffix}")


def told(findings: list[Finding], level: str) -> list[str]:
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
    assert told(source.check(), "error") == [
        f"{keyspace}.plain: publish.scylla.before needs preimages, which its log doesn't have",
        f"{keyspace}.plain: publish.scylla.after needs postimages, which its log doesn't have",
    ]
    assert told(scylla_source(cluster, cassandra_server).check(), "error") == []


@pytest.mark.covers("SCY-CFG-07")
def test_levels_logs_and_releases_are_told(
    cassandra_session: Any, cassandra_server: CassandraServer, keyspace: str
) -> None:
    cluster = imitated(cassandra_session, keyspace)
    cluster.new_generation()
    cluster.create_table(item(keyspace, ttl=20))
    findings = scylla_source(cluster, cassandra_server, confidence_window_seconds=30).check()
    assert told(findings, "warning") == [
        "consistency: logs are read at ONE: only changes that were written at ALL are sure to be seen"
    ]
    assert told(findings, "error") == [
        f"{keyspace}.item: its log lives for 20 s, and is read 30 s after the write at the earliest"
    ]
    findings = scylla_source(cluster, cassandra_server, consistency="QUORUM").check()
    assert told(findings, "warning") == told(findings, "error") == []
    assert any(text.startswith("release: ScyllaDB ") for text in told(findings, "ok"))
    assert f"{keyspace}.item: its log lives for 20 s: the longest pause between two runs" in told(
        findings, "ok"
    )


def test_a_hook_opens_a_session_and_names_the_cluster(
    cassandra_session: Any, cassandra_server: CassandraServer, keyspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_cdc_provider.hooks.scylla import ScyllaCdcHook

    cluster = imitated(cassandra_session, keyspace)
    told = {"conn_type": "cdc_scylla", "host": cassandra_server.host, "port": cassandra_server.port}
    monkeypatch.setenv("AIRFLOW_CONN_SCYLLA_SHOP", json.dumps(told))
    hook = ScyllaCdcHook("scylla_shop")
    with hook as session:
        assert release_of(session, cluster.names.system) == cluster.release
    assert hook.describe_server().startswith("ScyllaDB that speaks as Cassandra ")
    assert hook.session_state(2)["nodes"] == 1
