"""The hook's numbers of CQL requests, on a real server."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from cassandra.query import SimpleStatement

from airflow_cdc_provider.hooks.cassandra import CassandraCdcHook

if TYPE_CHECKING:
    from server_kit import CassandraServer

pytestmark = pytest.mark.integration

THREADS = 4
EACH = 50


@pytest.mark.covers("CAS-METRIC-12")
def test_the_hook_returns_number_and_latency_of_its_requests(
    cassandra_server: CassandraServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"conn_type": "cdc_cassandra", "host": cassandra_server.host, "port": cassandra_server.port}
    monkeypatch.setenv("AIRFLOW_CONN_MEASURED", json.dumps(values))
    hook = CassandraCdcHook("measured")
    assert hook.request_numbers().requests == 0

    with hook as session:

        def request(_: int) -> list[float]:
            seconds = []
            for _ in range(EACH):
                began = time.perf_counter()
                session.execute("SELECT release_version FROM system.local")
                seconds.append(time.perf_counter() - began)
            return seconds

        with ThreadPoolExecutor(THREADS) as pool:
            seen = sorted(one for part in pool.map(request, range(THREADS)) for one in part)
        numbers = hook.request_numbers()
        for _ in range(3):
            with pytest.raises(Exception, match="nowhere"):
                session.execute("SELECT * FROM nowhere.at_all")

    assert (numbers.requests, numbers.errors, numbers.in_flight) == (THREADS * EACH, 0, 0)
    assert numbers.mean_seconds is not None
    assert numbers.p50_seconds is not None
    assert numbers.p99_seconds is not None
    assert numbers.max_seconds is not None
    # Each latency is part of its caller's wait; a bucket is at most 9 % too high.
    assert 0 < numbers.mean_seconds <= sum(seen) / len(seen)
    assert numbers.p50_seconds <= seen[len(seen) // 2] * 1.1
    assert 0 < numbers.p50_seconds <= numbers.p99_seconds <= numbers.max_seconds <= seen[-1]

    after = hook.request_numbers()
    assert (after.requests, after.errors) == (THREADS * EACH + 3, 3), "closing the hook keeps the numbers"
    assert after.errors_by_class == {"InvalidRequest": 3}
    with hook as session:
        result = session.execute(SimpleStatement("SELECT * FROM system_schema.columns", fetch_size=50))
        turned = 0
        while result.has_more_pages:
            result.fetch_next_page()
            turned += 1
    again = hook.request_numbers()
    assert again.requests == after.requests + 1
    assert again.pages == turned > 1
