"""Source to mirror: changes per second of one sync into a mirror of a million rows.

A real Cassandra takes the rows, a first sync mirrors them, then N random updates are written and one more
sync, in a warm session, is timed: capture (segments to changes table) and merge (changes table to mirror).
The mirror is compared with the source at the end. The database is stopped while the sync is timed: what is
read are its files.

Usage: python benchmarks/bench_end_to_end.py [--rows 1000000] [--changes 400000,100000] [--cores 2]
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from cassandra.concurrent import execute_concurrent_with_args

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.capture import capture
from airflow_cdc_provider.jobs.context import JobContext, build_source
from airflow_cdc_provider.jobs.merge import merge_tables
from airflow_cdc_provider.jobs.session import build_lake, build_session
from airflow_cdc_provider.jobs.spec import JobSpec
from airflow_cdc_provider.lake.changes_table import ChangesTable
from server_kit import CassandraServer, spark_jars

TABLE = (
    "CREATE TABLE bench.orders (id bigint PRIMARY KEY, customer text, amount bigint, status text, "
    "note text, total double) WITH cdc = true"
)
INSERT = "INSERT INTO bench.orders (id, customer, amount, status, note, total) VALUES (?, ?, ?, ?, ?, ?)"


def write(session: Any, keys: list[int], seed: int) -> None:
    """Write a row per key; about 217 bytes each in the commit log."""
    rng = random.Random(seed)
    statement = session.prepare(INSERT)
    rows = ((k, f"customer-{k % 5000:08d}", rng.randrange(10**6), "paid", "n" * 90, k * 0.5) for k in keys)
    execute_concurrent_with_args(session, statement, rows, concurrency=200, raise_on_first_error=True)


def main() -> None:
    """Run it and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--changes", default="400000,100000")
    parser.add_argument("--cores", type=int, default=2)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        CassandraServer(commitlog_segment_size_mib=32, cdc_total_space_mib=4096) as server,
    ):
        measure(Path(folder), server, arguments)


def measure(folder: Path, server: CassandraServer, arguments: argparse.Namespace) -> None:
    """Fill the source, mirror it, then time syncs of pending changes."""
    session = server.connect()
    session.execute(
        "CREATE KEYSPACE bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    session.execute(TABLE)
    declaration = {
        "name": "bench",
        "source": {"type": "cassandra", "cdc_raw": str(server.cdc_raw), "node": server.host_id},
        "tables": [r"bench\..*"],
        "snapshot": {"mode": "never"},
        "lake": {"catalog_options": {"type": "hadoop", "warehouse": (folder / "lake").as_uri()}},
    }
    connector = Connector.from_dict(declaration)
    jars = ",".join(map(str, spark_jars()))
    os.environ["PYSPARK_SUBMIT_ARGS"] = (
        f"--master local[{arguments.cores}] --driver-memory 3g --jars {jars} "
        f"--conf spark.ui.enabled=false --conf spark.local.dir={folder} pyspark-shell"
    )
    spark = build_session(connector, "benchmark")
    spark.sparkContext.setLogLevel("ERROR")
    lake = build_lake(spark, connector)
    lake.create_namespace(connector.namespace)
    connection = {"host": server.host, "port": server.port}

    def sync() -> tuple[int, float, float]:
        with closing(build_source(connector, connection)) as source:
            spec = JobSpec("sync", declaration, "")
            context = JobContext(spec, connector, spark, lake, ChangesTable(lake, connector), source)
            captured = capture(context)
            started = time.monotonic()
            merge_tables(context, force=True)
            return captured.changes, captured.seconds, time.monotonic() - started

    print(f"writing {arguments.rows} rows")
    write(session, list(range(arguments.rows)), seed=0)
    server.roll_segment(session)
    count, first_capture, first_merge = sync()
    print(f"{count} rows mirrored: capture {first_capture:.1f} s, merge {first_merge:.1f} s")
    for number in map(int, arguments.changes.split(",")):
        rng = random.Random(number)
        write(session, [rng.randrange(arguments.rows) for _ in range(number)], seed=number)
        server.roll_segment(session)
        count, capturing, merging = sync()
        rate = count / (capturing + merging)
        print(f"{count} changes: capture {capturing:.1f} s, merge {merging:.1f} s, {rate:,.0f} changes/s")
    rows = spark.table("lake.bench.bench_orders")
    expected = session.execute("SELECT count(*) FROM bench.orders", timeout=600).one()[0]
    found = rows.count()
    print(f"rows: source {expected}, mirror {found}")
    if expected != found:
        raise SystemExit("the mirror differs from the source")


if __name__ == "__main__":
    main()
