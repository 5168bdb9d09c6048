"""Settings of the driver, as a file and as extras, on a real server."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.hooks._of_connector import hook_for
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from airflow_cdc_provider.sources.registry import source_plugin

if TYPE_CHECKING:
    from server_kit import CassandraServer

pytestmark = pytest.mark.integration

WORD = "s3cr3t-word"


@pytest.mark.covers("CAS-D3X-03")
def test_debeziums_driver_file_and_extras_reach_sessions_and_jobs(
    cassandra_server: CassandraServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "application.conf"
    file.write_text(
        f"""datastax-java-driver {{
          basic.contact-points = [ "{cassandra_server.host}:{cassandra_server.port}" ]
          basic.load-balancing-policy.local-datacenter = datacenter1
          basic.request {{ timeout = 9 seconds, consistency = LOCAL_QUORUM, page-size = 77 }}
          advanced.auth-provider {{ class = PlainTextAuthProvider, username = capture, password = {WORD} }}
          advanced.protocol.version = V4
          advanced.heartbeat.interval = 11 s
        }}"""
    )
    properties = {
        "connector.class": "io.debezium.connector.cassandra.Cassandra5Connector",
        "topic.prefix": "shop",
        "cassandra.driver.config.file": str(file),
    }
    connector = from_debezium(properties).connector
    values = {"conn_type": "cdc_cassandra", "extra": {"page_size": 55}}
    monkeypatch.setenv("AIRFLOW_CONN_FROM_FILE", json.dumps(values))

    hook = hook_for(connector, "from_file")
    session = hook.get_conn()
    try:
        assert session.execute("SELECT key FROM system.local").one() is not None
        profile = session.cluster.profile_manager.profiles[EXEC_PROFILE_DEFAULT]
        assert (profile.request_timeout, profile.consistency_level) == (9, ConsistencyLevel.LOCAL_QUORUM)
        assert session.default_fetch_size == 55, "the connection's own extra wins"
        assert (session.cluster.protocol_version, session.cluster.idle_heartbeat_interval) == (4, 11)
        assert session.cluster.auth_provider.username == "capture"
    finally:
        session.cluster.shutdown()

    source = source_plugin(connector.type).source(connector, hook.connection_values())
    try:
        assert source.tables() is not None, "a job reads the cluster's schema by the same file"
    finally:
        source.close()

    file.write_text(f"{file.read_text()}\nadvanced.netty.size = {WORD}")
    with pytest.raises(ConfigurationError, match=r"unsupported setting advanced\.netty\.size in ") as no:
        hook_for(connector, "from_file").get_conn()
    good, text = hook_for(connector, "from_file").test_connection()
    assert not good
    assert WORD not in text + str(no.value)
