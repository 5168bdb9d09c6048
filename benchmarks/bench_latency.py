"""Continuous running: how long after a write its row is in the mirror.

A real node takes a write every 250 ms; the stream stage follows it in this process, round after round. A
write's latency is the time from before its statement to the commit of the mirror's snapshot that first has
it. Its parts: Cassandra's log becomes durable (``commitlog_sync_period``, here 100 ms; 10 s by default), the
round that is under way ends, the write's own round captures and merges. At the end the mirror must hold every
write.

Usage: python benchmarks/bench_latency.py [--writes 400] [--pause 0.25] [--cores 2]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.context.clients import Clients, Connections
from airflow_cdc_provider.jobs.context.job import Job
from airflow_cdc_provider.jobs.context.run import Run
from airflow_cdc_provider.jobs.context.run_report import RunReport
from airflow_cdc_provider.jobs.spark.session import build_lake, build_session
from airflow_cdc_provider.jobs.spec import JobSpec
from airflow_cdc_provider.jobs.stream import stream
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.sources.registry import source_plugin
from server_kit import CassandraServer, spark_jars
from server_kit.cassandra import create_keyspace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MIRROR = "lake.bench.bench_seen"
_WARM_UP = 40
_DRAIN_SECONDS = 600


def main() -> None:
    """Run it and print the quantiles."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--writes", type=int, default=400)
    parser.add_argument("--pause", type=float, default=0.25, help="seconds between writes")
    parser.add_argument("--cores", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, CassandraServer() as server:
        session = server.connect()
        create_keyspace(session, "bench")
        session.execute("CREATE TABLE bench.seen (id int PRIMARY KEY, at bigint) WITH cdc = true")
        insert = session.prepare("INSERT INTO bench.seen (id, at) VALUES (?, ?)")
        running = _Stream(Path(folder), server, arguments.cores)
        running.start()
        for number in range(_WARM_UP + arguments.writes):
            session.execute(insert, (number, time.time_ns() // 1_000_000))
            time.sleep(arguments.pause)
        seconds = running.latencies(_WARM_UP + arguments.writes)[_WARM_UP:]
        running.stop()
    p50, p99 = np.quantile(seconds, [0.5, 0.99])
    print(f"{len(seconds)} writes: p50 {p50:.1f} s, p99 {p99:.1f} s, longest {max(seconds):.1f} s")


class _Stream:
    """The stream stage in a thread of this process."""

    def __init__(self, folder: Path, server: CassandraServer, cores: int) -> None:
        self.folder = folder
        self.declaration: dict[str, Any] = {
            "name": "bench",
            "source": {"type": "cassandra", "cdc_raw": str(server.cdc_raw), "node": server.host_id},
            "tables": [r"bench\..*"],
            "snapshot": {"mode": "never"},
            "lake": {"catalog_options": {"type": "hadoop", "warehouse": (folder / "lake").as_uri()}},
        }
        self.connection = {"host": server.host, "port": server.port}
        self.connector = Connector.from_dict(self.declaration)
        self.spark = self._session(cores)
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        """Begin, and wait for the mirror."""
        self._thread.start()
        while not (self.folder / "state.json").exists():
            time.sleep(0.1)

    def latencies(self, writes: int) -> list[float]:
        """Wait until the mirror has all writes; return the seconds of each, in their order."""
        until = time.monotonic() + _DRAIN_SECONDS
        while not self.spark.catalog.tableExists(_MIRROR) or self.spark.table(_MIRROR).count() < writes:
            if time.monotonic() > until or not self._thread.is_alive():
                raise SystemExit("the mirror doesn't get all writes")
            time.sleep(1)
        snapshots = self.spark.sql(
            f"SELECT committed_at, snapshot_id FROM {_MIRROR}.snapshots ORDER BY committed_at"
        ).collect()
        seen = [-1.0] * writes
        known = 0
        for committed_at, snapshot in snapshots:
            frame = self.spark.sql(
                f"SELECT id, at FROM {_MIRROR} VERSION AS OF {snapshot} WHERE id >= {known}"
            )
            for number, at in frame.collect():
                seen[number] = committed_at.timestamp() - at / 1000
                known = max(known, number + 1)
        assert min(seen) >= 0
        return seen

    def stop(self) -> None:
        """Request a stop and wait for it."""
        (self.folder / "stop").touch()
        self._thread.join()
        self.spark.stop()

    def _run(self) -> None:
        lake = build_lake(self.spark, self.connector)
        lake.create_namespace(self.connector.namespace)
        options = {
            "state_path": str(self.folder / "state.json"),
            "stop_path": str(self.folder / "stop"),
            "commit_interval_seconds": 0.1,
        }
        spec = JobSpec("stream", self.declaration, "", options=options)
        with closing(source_plugin(self.connector.type).source(self.connector, self.connection)) as source:
            job, stores = Job(spec, self.connector), Stores.of(self.spark, lake, self.connector)
            stream(Run(job, stores, source, Clients(job, lake, Connections()), RunReport()))

    def _session(self, cores: int) -> SparkSession:
        os.environ["SPARK_LOCAL_DIRS"] = str(self.folder / "spark")
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        os.environ["PYSPARK_SUBMIT_ARGS"] = (
            f"--master local[{cores}] --driver-memory 2g --jars {','.join(map(str, spark_jars()))} "
            "--conf spark.ui.enabled=false --conf spark.ui.showConsoleProgress=false pyspark-shell"
        )
        spark = build_session(self.connector, "benchmark")
        spark.sparkContext.setLogLevel("ERROR")
        return spark


if __name__ == "__main__":
    main()
