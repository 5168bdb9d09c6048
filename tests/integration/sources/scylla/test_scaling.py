"""The benchmark of a whole capture reports the points at which scaling was published: one, three and five."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import bench_scylla_capture
from server_kit import CassandraServer
from server_kit.scylla import SystemKeyspaces, remove_cluster

pytestmark = pytest.mark.integration


@pytest.mark.covers("SCY-STM-08")
def test_the_benchmark_reports_one_three_and_five_workers(
    cassandra_server: CassandraServer, cassandra_session: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        cluster = bench_scylla_capture.cluster_of(cassandra_server)
        bench_scylla_capture.fill(cluster, 3_000)
        faster = bench_scylla_capture.compare_workers(cluster, cassandra_server, 1, (1, 3, 5))
    finally:
        remove_cluster(cassandra_session, bench_scylla_capture.KEYSPACE, SystemKeyspaces())
    assert faster[1] == 1
    assert faster.keys() == {1, 3, 5}
    output = capsys.readouterr().out
    assert "records of several workers are those of one" in output
    assert all(f"workers on cores of their own: {workers} " in output for workers in (1, 3, 5))
