"""Source to mirror: changes per second of one sync into a mirror of a million rows.

A real Cassandra takes the rows and then, part by part, random updates; its segments are recorded and it is
stopped, so that it takes nothing from the cores. A first sync mirrors the rows. Then each part is put into
``cdc_raw`` and one more sync, in the warm session, is timed: capture (segments to changes table) and merge
(changes table to mirror). CPU seconds are those of the driver, the JVM and the Python workers together. At
the end the mirror is compared with what was written, row by row, and with what the database counted.

Usage: python benchmarks/bench_end_to_end.py [--rows 1000000] [--changes 400000,100000,400000] [--cores 2]
           [--folder FOLDER] [--conf NAME=VALUE ...]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]  # comes with Airflow

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.capturing.capture import capture
from airflow_cdc_provider.jobs.context.job import Job
from airflow_cdc_provider.jobs.context.run_report import RunReport
from airflow_cdc_provider.jobs.merging.merge import merge_tables
from airflow_cdc_provider.jobs.spark.session import build_lake, build_session
from airflow_cdc_provider.jobs.spec import JobSpec
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.sources.registry import source_plugin
from server_kit import CassandraServer, spark_jars
from server_kit.cassandra import create_keyspace

if TYPE_CHECKING:
    from cassandra.cluster import Session
    from pyspark.sql import SparkSession

TABLE = (
    "CREATE TABLE bench.orders (id bigint PRIMARY KEY, customer text, amount bigint, status text, "
    "note text, total double) WITH cdc = true"
)
INSERT = "INSERT INTO bench.orders (id, customer, amount, status, note, total) VALUES (?, ?, ?, ?, ?, ?)"
_COLUMNS = ("id", "customer", "amount", "status", "note", "total")
_ROWS_PER_BATCH = 100


def row(key: int, part: int) -> tuple[Any, ...]:
    """Return what a part writes for a key; about 217 bytes in the commit log."""
    return (
        key,
        f"customer-{key % 5000:08d}",
        (key * 7919 + part * 104_729) % 10**6,
        "paid",
        "n" * 90,
        key / 2,
    )


def keys_of(part: int, count: int, rows: int) -> list[int]:
    """Return the keys that a part writes: all in the first, random ones with repetitions in the others."""
    if part == 0:
        return list(range(rows))
    rng = random.Random(part)
    return [rng.randrange(rows) for _ in range(count)]


def write(session: Session, keys: Sequence[int], part: int) -> None:
    """Write a row per key. The batches are the driver's: each row is a mutation of its own in the log."""
    from cassandra.concurrent import execute_concurrent
    from cassandra.query import BatchStatement, BatchType

    statement = session.prepare(INSERT)

    def batches() -> Any:
        for start in range(0, len(keys), _ROWS_PER_BATCH):
            batch = BatchStatement(BatchType.UNLOGGED)
            for key in keys[start : start + _ROWS_PER_BATCH]:
                batch.add(statement, row(key, part))
            yield batch, None

    execute_concurrent(session, batches(), concurrency=8, raise_on_first_error=True)


def record(folder: Path, rows: int, changes: Sequence[int]) -> None:
    """Write all parts to a real node and keep its segments, its schema and what it counted."""
    with CassandraServer(commitlog_segment_size_mib=32, cdc_total_space_mib=4096) as server:
        session = server.connect()
        create_keyspace(session, "bench")
        session.execute(TABLE)
        kept: set[str] = set()
        for part, count in enumerate([rows, *changes]):
            print(f"writing {count} rows", flush=True)
            write(session, keys_of(part, count, rows), part)
            server.roll_segment(session)
            target = folder / f"part-{part}"
            target.mkdir(parents=True)
            for file in sorted(server.cdc_raw.iterdir()):
                if file.suffix == ".log" and file.name not in kept and _complete(file):
                    shutil.copy(file, target)
                    shutil.copy(_index(file), target)
                    kept.add(file.name)
        described = session.execute("DESCRIBE KEYSPACE bench WITH INTERNALS")
        (folder / "schema.cql").write_text("\n".join(found.create_statement for found in described))
        known = {"node": server.host_id, "counted": counted(session), "rows": rows, "changes": list(changes)}
    (folder / "recording.json").write_text(json.dumps(known))


def counted(session: Session) -> list[int]:
    """Return the number of rows that the database shows, and the sums of ``amount`` and ``id``."""
    found = [0, 0, 0]
    # Page by page: an aggregate over all rows takes longer than the server allows one request.
    for amount, key in session.execute("SELECT amount, id FROM bench.orders"):
        found = [found[0] + 1, found[1] + amount, found[2] + key]
    return found


def _index(segment: Path) -> Path:
    return segment.with_name(segment.stem + "_cdc.idx")


def _complete(segment: Path) -> bool:
    index = _index(segment)
    return index.exists() and "COMPLETED" in index.read_text()


@dataclass(frozen=True)
class Timing:
    """One sync: changes captured, and wall and CPU seconds of its two halves."""

    changes: int
    capture: float
    merge: float
    capture_cpu: float
    merge_cpu: float

    def __str__(self) -> str:
        seconds, cpu = self.capture + self.merge, self.capture_cpu + self.merge_cpu
        return (
            f"{self.changes} changes: capture {self.capture:.1f} s, merge {self.merge:.1f} s, "
            f"{self.changes / seconds:,.0f} changes/s; CPU {self.capture_cpu:.1f} + {self.merge_cpu:.1f} s, "
            f"{1e6 * cpu / self.changes:.0f} us per change"
        )


class Bench:
    """A Spark session, a lake, and a ``cdc_raw`` that is filled part by part.

    Args:
        folder: For all of it; holds the recording.
        cores: How many Spark may use.
        conf: Further settings of Spark, ``NAME=VALUE``.
    """

    def __init__(self, folder: Path, cores: int, conf: Sequence[str] = ()) -> None:
        self.folder = folder
        self.known = json.loads((folder / "recording.json").read_text())
        self.raw = folder / "cdc_raw"
        self.raw.mkdir(exist_ok=True)
        self.declaration = {
            "name": "bench",
            "source": {
                "type": "cassandra",
                "cdc_raw": str(self.raw),
                "node": self.known["node"],
                "schema_file": str(folder / "schema.cql"),
            },
            "tables": [r"bench\..*"],
            "snapshot": {"mode": "never"},
            "lake": {"catalog_options": {"type": "hadoop", "warehouse": (folder / "lake").as_uri()}},
        }
        self.connector = Connector.from_dict(self.declaration)
        self.spark = self._session(cores, conf)

    def _session(self, cores: int, conf: Sequence[str]) -> SparkSession:
        jars = ",".join(map(str, spark_jars()))
        settings = ["spark.ui.enabled=false", "spark.ui.showConsoleProgress=false", *conf]
        os.environ["SPARK_LOCAL_DIRS"] = str(self.folder / "spark")
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        os.environ["PYSPARK_SUBMIT_ARGS"] = (
            f"--master local[{cores}] --driver-memory 3g --jars {jars} "
            + " ".join(f"--conf {setting}" for setting in settings)
            + " pyspark-shell"
        )
        spark = build_session(self.connector, "benchmark")
        spark.sparkContext.setLogLevel("ERROR")
        return spark

    def sync(self, part: int) -> Timing:
        """Put a part's segments into ``cdc_raw``, capture and merge them."""
        for file in (self.folder / f"part-{part}").iterdir():
            shutil.copy(file, self.raw)
        lake = build_lake(self.spark, self.connector)
        lake.create_namespace(self.connector.namespace)
        with closing(source_plugin(self.connector.type).source(self.connector, {})) as source:
            job = Job(JobSpec("sync", self.declaration, ""), self.connector)
            stores = Stores.of(self.spark, lake, self.connector)
            started, cpu = time.monotonic(), _cpu_seconds()
            captured = capture(job, stores, source, RunReport())
            between, between_cpu = time.monotonic(), _cpu_seconds()
            merge_tables(job, stores, source, force=True)
            return Timing(
                captured.changes,
                between - started,
                time.monotonic() - between,
                between_cpu - cpu,
                _cpu_seconds() - between_cpu,
            )

    def check(self) -> None:
        """Compare the mirror with what was written, and with what the database counted.

        Raises:
            SystemExit: They differ.
        """
        rows = self.known["rows"]
        newest = dict.fromkeys(range(rows), 0)
        for part, count in enumerate(self.known["changes"], start=1):
            newest.update(dict.fromkeys(keys_of(part, count, rows), part))
        mirror = self.spark.table("lake.bench.bench_orders").select(*_COLUMNS).orderBy("id").toArrow()
        found = list(zip(*(mirror[name].to_pylist() for name in _COLUMNS), strict=True))
        if found != [row(key, newest[key]) for key in range(rows)]:
            raise SystemExit("the mirror differs from what was written")
        counted = [len(found), sum(r[2] for r in found), sum(r[0] for r in found)]
        if counted != self.known["counted"]:
            raise SystemExit(f"the mirror has {counted}, the source {self.known['counted']}")
        print(f"all {rows} rows of the mirror equal the source's")


def _cpu_seconds() -> float:
    """CPU seconds of this process and all below it, those that ended included."""
    me = psutil.Process()
    return sum(sum(process.cpu_times()[:4]) for process in [me, *me.children(recursive=True)])


def main() -> None:
    """Run it and print a line per sync."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--changes", default="400000,100000,400000")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="keep the recording there, or use the one that is there")
    parser.add_argument("--conf", action="append", default=[], help="a setting of Spark")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        recording = arguments.folder or Path(temporary, "recording")
        if not (recording / "recording.json").exists():
            record(recording, arguments.rows, [int(n) for n in arguments.changes.split(",")])
        work = Path(temporary, "work")
        work.mkdir()
        for item in recording.iterdir():
            (work / item.name).symlink_to(item.absolute())
        bench = Bench(work, arguments.cores, arguments.conf)
        print(f"first sync: {bench.sync(0)}", flush=True)
        for part in range(1, len(bench.known["changes"]) + 1):
            print(bench.sync(part), flush=True)
        bench.check()
        bench.spark.stop()


if __name__ == "__main__":
    main()
