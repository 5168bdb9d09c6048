"""A snapshot that is held back, and what it says of its way."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.jobs import snapshot
from tests.integration.jobs.conftest import RunStage

if TYPE_CHECKING:
    from server_kit import CassandraServer

pytestmark = pytest.mark.integration


def test_a_snapshot_keeps_to_its_rate_and_tells_how_far_it_is(
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for limit in ("_RANGES_PER_CORE", "_MOST_RANGES_PER_CORE"):
        monkeypatch.setattr(snapshot, limit, 4)
    cassandra_session.execute(f"CREATE TABLE {keyspace}.t (k int PRIMARY KEY, v text) WITH cdc = true")
    insert = cassandra_session.prepare(f"INSERT INTO {keyspace}.t (k, v) VALUES (?, 'x')")
    for k in range(600):
        cassandra_session.execute(insert, (k,))
    shop = {
        "name": f"pace_{keyspace}",
        "source": {
            "type": "cassandra",
            "cdc_raw": str(cassandra_server.cdc_raw),
            "node": cassandra_server.host_id,
            "advanced": {"fetch_size": 10},
        },
        "tables": [rf"{keyspace}\..*"],
        "snapshot": {"rows_per_second": 100},
        "lake": {"catalog": "lake", "namespace": keyspace},
    }
    caplog.set_level(logging.INFO)
    started = time.monotonic()

    outcome = run_stage("sync", shop, connection)

    assert time.monotonic() - started > 5
    assert [t.snapshot_rows for t in outcome.tables] == [600]
    told = [r.getMessage() for r in caplog.records if "ranges read, about" in r.getMessage()]
    assert len(told) > 1
    assert told[-1].startswith(f"snapshot of {keyspace}.t: ")
    assert told[-1].endswith("ranges read, about 0 s left")
