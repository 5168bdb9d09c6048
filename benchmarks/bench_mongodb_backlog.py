"""A backlog of MongoDB change events: read by one change stream, and by several at once.

A real server takes the documents first, so that all of their events wait in its oplog. Then two things are
timed for one stream and for slices of time, in turns:

* ``read``: processes of their own read the events to Arrow records and drop them.
* ``capture``: the capture stage in a Spark session, from the stored offset to the head, into a changes table
  in Iceberg.

Before figures count, the records of the slices must be those of one stream, in the same order and byte for
byte, and all changes tables must hold the same rows. CPU seconds are those of the server, and of everything
else (driver, JVM, workers), separately.

Usage: python benchmarks/bench_mongodb_backlog.py [--events 1000000] [--large 20000] [--streams 2]
           [--rounds 3] [--cores 2] [--only read|capture]
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bson
import psutil  # type: ignore[import-untyped]  # comes with Airflow
import pyarrow as pa
from bson.raw_bson import RawBSONDocument

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.capturing.capture import capture
from airflow_cdc_provider.jobs.context.job import Job
from airflow_cdc_provider.jobs.context.run_report import RunReport
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.jobs.spark.session import build_lake, build_session
from airflow_cdc_provider.jobs.spec import JobSpec
from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.sources.contract import Offset, ReadMetrics
from airflow_cdc_provider.sources.mongodb.change_stream.backlog import OplogSample
from airflow_cdc_provider.sources.mongodb.driver.raw_cursor import as_timestamp
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.mongodb.position import StreamPosition
from airflow_cdc_provider.sources.mongodb.reader import TimeSlice
from airflow_cdc_provider.sources.mongodb.selection import Selection
from airflow_cdc_provider.sources.mongodb.source import MongodbSource
from airflow_cdc_provider.sources.registry import source_plugin
from server_kit import MongoServer, spark_jars

if TYPE_CHECKING:
    from pymongo import MongoClient
    from pyspark.sql import DataFrame, SparkSession

_COMPARED = [name for name in CHANGE_SCHEMA.names if name != "captured_at"]
_AT_A_TIME = 10_000
_LARGE_BYTES = 20_000


@dataclass(frozen=True)
class Load:
    """What waits in the oplog.

    Args:
        name: Of its collection.
        start: Place before it.
        end: Cluster time after it, seconds in the upper half.
        events: How many change events.
        bytes: Of their documents.
    """

    name: str
    start: StreamPosition
    end: int
    events: int
    bytes: int

    def slices(self, client: MongoClient, count: int) -> list[TimeSlice]:
        """Cut it into parts of about equal size."""
        sample = OplogSample.take(client, self.start.time, self.end)
        assert sample is not None
        inside = sample.between(self.start.time, self.end)
        cuts = [int(sample.times[inside[len(inside) * n // count]]) for n in range(1, count)]
        starts = [self.start, *(StreamPosition.before(as_timestamp(cut)) for cut in cuts)]
        return [TimeSlice(s, e, 0) for s, e in zip(starts, [*cuts, self.end], strict=True)]


def write(client: MongoClient, name: str, count: int, document_bytes: int) -> Load:
    """Insert documents, and say where their events are."""
    rng = random.Random(name)
    noise = rng.randbytes(document_bytes * 2).hex()
    collection = client["bench"][name]
    client["bench"].create_collection(name)
    start = StreamPosition.after(client.admin.command("ping")["operationTime"])
    total = 0
    for first in range(0, count, _AT_A_TIME):
        documents = []
        for number in range(first, min(first + _AT_A_TIME, count)):
            at = rng.randrange(len(noise) - document_bytes)
            body = {"_id": number, "customer": number % 5000, "note": noise[at : at + document_bytes - 60]}
            documents.append(RawBSONDocument(bson.encode(body)))
            total += len(documents[-1].raw)
        collection.insert_many(documents, ordered=False)
    reached = StreamPosition.after(client.admin.command("ping")["operationTime"])
    client["bench"]["after"].insert_one({})  # the head moves beyond what is measured
    return Load(name, start, reached.time + 1, count, total)


@dataclass(frozen=True)
class Took:
    """Seconds of one run: wall, and CPU of the server and of all else."""

    wall: float
    server: float
    ours: float

    def report(self, load: Load) -> str:
        """Say it with the rate."""
        rate, mb = load.events / self.wall, load.bytes / self.wall / 1e6
        return (
            f"{self.wall:6.2f} s, {rate:9,.0f} events/s, {mb:6.1f} MB/s, "
            f"CPU {self.server:5.1f} s server + {self.ours:5.1f} s ours"
        )


class Stopwatch:
    """Wall and CPU time from its making on."""

    def __init__(self, server: MongoServer) -> None:
        self._server = psutil.Process(server.pid)
        self._wall, self._of_server, self._of_ours = time.monotonic(), self._server_cpu(), self._ours_cpu()

    def read(self) -> Took:
        """Return what passed."""
        wall = time.monotonic() - self._wall
        return Took(wall, self._server_cpu() - self._of_server, self._ours_cpu() - self._of_ours)

    def _server_cpu(self) -> float:
        return sum(self._server.cpu_times()[:2])

    def _ours_cpu(self) -> float:
        me = psutil.Process()
        below = [p for p in me.children(recursive=True) if p.pid != self._server.pid]
        return sum(sum(process.cpu_times()[:4]) for process in [me, *below])


def _source(server: MongoServer, load: Load) -> MongodbSource:
    options = MongodbOptions(full_document="none")
    connection = {"host": server.uri}
    return MongodbSource(options, connection, Selection((rf"bench\.{load.name}",)))


def _drop_records(reader: Any, part: TimeSlice) -> int:
    return sum(batch.num_rows for batch in reader.read([part], ReadMetrics()))


def _digests(batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    """Give a digest of each 1,000 rows, without regard to how they are cut into batches."""
    table = pa.Table.from_batches(batches, CHANGE_SCHEMA).select(_COMPARED).combine_chunks()
    for first in range(0, len(table), 1000):
        rows = table.slice(first, 1000)
        yield hashlib.sha256(repr(rows.to_pydict()).encode()).digest()


def bench_read(server: MongoServer, load: Load, streams: int, rounds: int) -> None:
    """Compare, then time reading alone."""
    client = server.client()
    with closing(_source(server, load)) as source:
        reader = source.reader()
    one, several = load.slices(client, 1), load.slices(client, streams)
    wanted = list(_digests(reader.read(one, ReadMetrics())))
    if wanted != list(_digests(reader.read(several, ReadMetrics()))):
        raise SystemExit("slices give other records than one stream")
    print(f"read, {load.name}: {load.events} events, records of {streams} slices equal those of one stream")
    best: dict[int, Took] = {}
    context = multiprocessing.get_context("spawn")
    for parts in (one, several):
        with context.Pool(len(parts)) as pool:
            pool.starmap(_drop_records, [(reader, part) for part in parts], chunksize=1)  # compiles, connects
            for _ in range(rounds):
                watch = Stopwatch(server)
                counts = pool.starmap(_drop_records, [(reader, part) for part in parts], chunksize=1)
                took = watch.read()
                if sum(counts) != load.events:
                    raise SystemExit(f"{sum(counts)} records of {load.events} events")
                if len(parts) not in best or took.wall < best[len(parts)].wall:
                    best[len(parts)] = took
    _print_result("read", load, best)


def _print_result(what: str, load: Load, best: dict[int, Took]) -> None:
    one = best[1]
    for streams, took in sorted(best.items()):
        print(f"  {what}, {streams} stream(s): {took.report(load)}, {one.wall / took.wall:.2f} times as fast")


class CaptureBench:
    """The capture stage in one Spark session.

    Args:
        folder: For the lake.
        server: The server.
        cores: How many Spark may use.
    """

    def __init__(self, folder: Path, server: MongoServer, cores: int) -> None:
        self.folder = folder
        self.server = server
        self._runs = 0
        self.spark = self._session(cores)

    def run(self, load: Load, streams: int) -> tuple[Took, DataFrame]:
        """Capture from the load's begin to the head; return what it took and the records."""
        self._runs += 1
        declaration = {
            "name": f"run{self._runs}",
            "source": {
                "type": "mongodb",
                "full_document": "none",
                "advanced": {"backlog_streams": streams, "backlog_threshold_seconds": 1.0},
            },
            "tables": [rf"bench\.{load.name}"],
            "lake": {"namespace": "bench", "catalog_options": self._catalog()},
        }
        connector = Connector.from_dict(declaration)
        lake = build_lake(self.spark, connector)
        lake.create_namespace(connector.namespace)
        changes = ChangesTable(lake, connector)
        begin: Offset = load.start.to_offset()
        progress = Progress.from_offset(None).with_source(begin)
        changes.append_batch(None, progress.to_offset(), changes.state())
        with closing(source_plugin(connector.type).source(connector, {"host": self.server.uri})) as source:
            job = Job(JobSpec("capture", declaration, ""), connector)
            stores = Stores(self.spark, lake, changes, connector)
            watch = Stopwatch(self.server)
            found = capture(job, stores, source, RunReport())
            took = watch.read()
        if found.changes != load.events:
            raise SystemExit(f"{found.changes} changes of {load.events} events")
        table = changes.table.read(changes.table.head())
        return took, table.where("kind = 'change'").select(*_COMPARED)

    def _catalog(self) -> dict[str, str]:
        return {"type": "hadoop", "warehouse": (self.folder / "lake").as_uri()}

    def _session(self, cores: int) -> SparkSession:
        os.environ["SPARK_LOCAL_DIRS"] = str(self.folder / "spark")
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        os.environ["PYSPARK_SUBMIT_ARGS"] = (
            f"--master local[{cores}] --driver-memory 3g --jars {','.join(map(str, spark_jars()))} "
            "--conf spark.ui.enabled=false --conf spark.ui.showConsoleProgress=false pyspark-shell"
        )
        declaration = {"name": "bench", "source": {"type": "mongodb"}, "tables": [".*"]}
        declaration["lake"] = {"catalog_options": self._catalog()}
        spark = build_session(Connector.from_dict(declaration), "benchmark")
        spark.sparkContext.setLogLevel("ERROR")
        return spark


def bench_capture(bench: CaptureBench, load: Load, streams: int, rounds: int) -> None:
    """Compare, then time the capture stage."""
    (_, one), (_, several) = bench.run(load, 1), bench.run(load, streams)
    differing = one.exceptAll(several).count() + several.exceptAll(one).count()
    if differing:
        raise SystemExit(f"{differing} rows of the changes tables differ")
    print(f"capture, {load.name}: {load.events} events, the changes tables hold the same rows")
    best: dict[int, Took] = {}
    for _ in range(rounds):
        for count in (1, streams):
            took, _ = bench.run(load, count)
            if count not in best or took.wall < best[count].wall:
                best[count] = took
    _print_result("capture", load, best)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it and print figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=1_000_000, help="of some 214 bytes")
    parser.add_argument("--large", type=int, default=20_000, help="documents of 20 KB")
    parser.add_argument("--streams", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--only", choices=("read", "capture"))
    given = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory() as folder,
        MongoServer(oplog_size_mib=4096) as server,
    ):
        client = server.client()
        bench = None
        for name, count, size in (("small", given.events, 214), ("large", given.large, _LARGE_BYTES)):
            if not count:
                continue
            load = write(client, name, count, size)
            print(f"{name}: {count} documents, {load.bytes / 1e6:.0f} MB", flush=True)
            if given.only != "capture":
                bench_read(server, load, given.streams, given.rounds)
            if given.only != "read":
                bench = bench or CaptureBench(Path(folder), server, given.cores)
                bench_capture(bench, load, given.streams, given.rounds)
        if bench is not None:
            bench.spark.stop()


if __name__ == "__main__":
    main()
