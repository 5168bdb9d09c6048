"""ScyllaDB's log, captured whole: queries, pages, Arrow records, contributions; on one core, then on two.

The published figure of the Scylla CDC Source Connector is 46,000 rows per second on a node with 8 vCPU, 5,700
per second and vCPU. It can't be run here, nor can ScyllaDB: the log is one of the imitation, on a real
Cassandra, and what is counted is the CPU time of *our* processes alone (driver included), each pinned to a
core of its own. Servers' time is not in it, on neither side.

Each worker is a process of its own: it gets its part of the plan and the reader as bytes, reads the log,
makes change records, decodes them to contributions, and shares nothing with the others. Before figures count,
the records of two workers must be those of one.

The scaling points that were published are one, three and five nodes (46,000, 129,000 and 215,000 rows/s, 2.8
and 4.7 times). Here a worker on a core stands for a node: one, three and five, and two. Where there are fewer
cores than workers, they take turns: the figures are what the slowest worker's CPU time allows.

Then: requests that a first start makes over an empty day, with windows that adapt and with fixed ones.

Usage: python benchmarks/bench_scylla_capture.py [--rows 200000] [--rounds 4]
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_cdc_provider.options import parse
from airflow_cdc_provider.sources.contract import Offset, ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.scylla.capture import LogPart
from airflow_cdc_provider.sources.scylla.options import ScyllaOptions
from airflow_cdc_provider.sources.scylla.source import ScyllaSource
from server_kit import CassandraServer
from server_kit.scylla import Column, CqlType, ImitatedScylla, Table
from server_kit.scylla.cluster import token_of_key

PUBLISHED_PER_VCPU = 5_700
KEYSPACE = "bench"
_HALF_A_DAY_US = 43_200_000_000
INT, TEXT = CqlType("int"), CqlType("text")
VALUES = (
    Column("city", TEXT),
    Column("name", TEXT),
    Column("note", TEXT),
    Column("price", CqlType("bigint")),
    Column("qty", INT),
    Column("tags", CqlType("set", (TEXT,))),
)
ORDERS = Table(KEYSPACE, "orders", (Column("shop", INT),), (Column("sku", INT),), regular=VALUES)
EMPTY = Table(KEYSPACE, "nothing", (Column("sku", INT),), regular=(Column("qty", INT),))


@dataclass(frozen=True)
class Read:
    """What a worker did.

    Args:
        seconds: CPU time, of each round.
        rows: Log rows.
        bytes: Their bytes.
        digest: Sum of hashes of records, which doesn't depend on their order.
        contributions: How many were decoded of them.
    """

    seconds: dict[str, list[float]]
    rows: int
    bytes: int
    digest: int
    contributions: int


def fill(cluster: ImitatedScylla, rows: int) -> None:
    """Write a plain workload's log rows, each into the stream of its key, in the middle of the log's time."""
    from cassandra.concurrent import execute_concurrent
    from cassandra.query import UNSET_VALUE, BoundStatement

    from benchmarks.bench_scylla_rows import BEGIN_US, COLUMNS, make_rows
    from server_kit.scylla.timeuuids import log_time

    chance = random.Random(1)
    begin_us = cluster.generations.sets[0].time_ms * 1000 + _HALF_A_DAY_US
    names = [name for name in COLUMNS if not name.startswith("ttl(")]
    quoted = ", ".join(f'"{name}"' for name in names)
    marks = ", ".join("?" * len(names))
    text = f"INSERT INTO {KEYSPACE}.{ORDERS.log_name} ({quoted}) VALUES ({marks}) USING TTL 86400"
    prepared = cluster.session.prepare(text)
    streams: dict[bytes, bytes] = {}

    def values() -> Iterator[list[Any]]:
        for at_us, _, log_rows in make_rows(rows):
            moved_us = begin_us + (at_us - BEGIN_US)
            moment = log_time(moved_us, chance)
            for row in log_rows:
                key = row["shop"]
                if key not in streams:
                    token = token_of_key(ORDERS, (key,))
                    streams[key] = cluster.generations.sets[0].stream_for(token)
                logged = {**row, "cdc$stream_id": streams[key], "cdc$time": moment}
                yield [logged.get(name, UNSET_VALUE) for name in names]

    def statements() -> Iterator[tuple[Any, None]]:
        for row in values():
            bound = BoundStatement(prepared)
            bound.values = row
            yield bound, None

    execute_concurrent(cluster.session, statements(), concurrency=200, results_generator=False)


def source_of(cluster: ImitatedScylla, server: CassandraServer, table: str, **options: Any) -> ScyllaSource:
    """Build a source of one table of the imitation."""
    names = cluster.names
    advanced = {
        "distributed_keyspace": names.distributed,
        "system_keyspace": names.system,
        "schema_keyspace": names.schema,
    }
    plain = {"consistency": "ONE", **options, "advanced": advanced}
    return ScyllaSource(
        parse(ScyllaOptions, plain, "source"),
        {"host": server.host, "port": server.port},
        lambda name: name == f"{KEYSPACE}.{table}",
    )


def work() -> None:
    """Read a part repeatedly in a separate process; print the results to standard output."""
    core, rounds, reader, codec, part = pickle.load(sys.stdin.buffer)  # noqa: S301  # from our own parent
    import pyarrow as pa

    from airflow_cdc_provider.sources.scylla.quarantine import payload_rows

    os.sched_setaffinity(0, {core})
    pa.set_cpu_count(1)
    seconds: dict[str, list[float]] = {"records": [], "contributions": []}
    for number in range(rounds + 1):  # the first is to warm up
        rows = size = digest = decoded = 0
        began = time.process_time()
        batches = list(reader.read([part], ReadMetrics()))
        read = time.process_time()
        for batch in batches:
            found = codec.decode(batch, ())
            if found.reasons:
                raise SystemExit(found.reasons[0])
            decoded += found.contributions.num_rows
        ended = time.process_time()
        if number:
            seconds["records"].append(read - began)
            seconds["contributions"].append(ended - began)
    for batch in batches:
        for position, payload in zip(
            batch["position"].to_pylist(), batch["payload"].to_pylist(), strict=True
        ):
            rows += sum(1 for _ in payload_rows(payload))
            size += len(payload)
            # What is left of the TTL differs from reading to reading.
            digest += int.from_bytes(position[-12:], "big")
    sys.stdout.buffer.write(pickle.dumps(Read(seconds, rows, size, digest, decoded)))


def read_with(
    source: ScyllaSource, parts: Sequence[LogPart], rounds: int, cores: Sequence[int]
) -> list[Read]:
    """Read parts, each in a process of its own; as many at a time as there are cores, each on one."""
    (table,) = source.tables()
    found: list[Read] = []
    for first in range(0, len(parts), len(cores)):
        workers = []
        for core, part in zip(cores, parts[first : first + len(cores)], strict=False):
            process = subprocess.Popen(
                [sys.executable, "-c", "from benchmarks.bench_scylla_capture import work; work()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert process.stdin is not None
            process.stdin.write(pickle.dumps((core, rounds, source.reader(), source.codec(table), part)))
            process.stdin.close()
            workers.append(process)
        for process in workers:
            assert process.stdout is not None
            found.append(pickle.loads(process.stdout.read()))  # noqa: S301  # from our own child
            if process.wait():
                raise SystemExit("a worker failed")
    return found


def compare_workers(
    cluster: ImitatedScylla, server: CassandraServer, rounds: int, points: Sequence[int] = (1, 2, 3, 5)
) -> dict[int, float]:
    """Measure one worker and several, and print them; return by their number how much faster they are."""
    all_at_once = {"query_window_seconds": 200_000, "confidence_window_seconds": 0}
    cores = sorted(os.sched_getaffinity(0))
    reads: dict[int, list[Read]] = {}
    for workers in points:
        source = source_of(cluster, server, ORDERS.name, **all_at_once)
        start, head = source.start(), source.head()
        plan = source.plan(start, head, ReadLimit(tasks=workers))
        assert len(plan.partitions) == workers
        assert plan.at_head
        reads[workers] = read_with(source, plan.partitions, rounds, cores)
        source.close()
    (one,) = reads[1]
    for workers, parts in reads.items():
        if [sum(part.rows for part in parts), sum(part.digest for part in parts)] != [one.rows, one.digest]:
            raise SystemExit(f"{workers} workers read other records than one")
    streams = len(cluster.generations.sets[0].streams)
    print(
        f"{one.rows} log rows, {one.bytes / one.rows:.0f} bytes each, in {streams} streams; "
        f"{one.contributions} contributions; records of several workers are those of one"
    )
    for what, seconds in one.seconds.items():
        rate = one.rows / min(seconds)
        print(
            f"one worker, log to {what:14} {rate:10,.0f} rows per CPU second   "
            f"x {rate / PUBLISHED_PER_VCPU:.1f} of the published {PUBLISHED_PER_VCPU} per vCPU"
        )
    faster = {}
    for workers, parts in reads.items():
        times = [min(part.seconds["contributions"]) for part in parts]
        alone = min(one.seconds["contributions"])
        faster[workers] = alone / max(times)
        print(
            f"workers on cores of their own: {workers}   {one.rows / max(times):10,.0f} rows/s, "
            f"{faster[workers]:.1f} times as many; CPU per row {sum(times) / alone:.2f} times that of one"
        )
    return faster


def count_requests(cluster: ImitatedScylla, server: CassandraServer) -> None:
    """Count the requests of a first start over an empty day."""
    found = {}
    for name, options in (("adaptive", {}), ("fixed", {"max_query_window_seconds": 30})):
        source = source_of(cluster, server, EMPTY.name, **options)
        offset: Offset | None = source.start()
        head = source.head()
        reader = source.reader()
        requests = 0
        while offset is not None:
            plan = source.plan(offset, head, ReadLimit(tasks=1))
            metrics = ReadMetrics()
            if name == "adaptive":
                list(reader.read(plan.partitions, metrics))
                requests += metrics.counts["requests"]
            else:  # one query of each stream and window, which adaptive windows show to be so
                requests += sum(len(read.streams) for part in plan.partitions for read in part.reads)
            source.on_batch_read(metrics)
            offset = None if plan.at_head else plan.end
        found[name] = requests
        source.close()
    print(
        f"a first start over 24 empty hours: {found['adaptive']} requests with windows that adapt, "
        f"{found['fixed']} with fixed ones of 30 s: {found['fixed'] / found['adaptive']:.0f} times fewer"
    )


def cluster_of(server: CassandraServer) -> ImitatedScylla:
    """Begin a cluster whose only generation is a day old."""
    cluster = ImitatedScylla(server.connect(), KEYSPACE, vnodes=16, shards=4)
    cluster.create(first_generation=False)
    cluster.new_generation(time.time_ns() // 1_000_000 - 86_400_000)
    for table in (ORDERS, EMPTY):
        cluster.create_table(table)
    return cluster


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    with CassandraServer() as server:
        cluster = cluster_of(server)
        fill(cluster, arguments.rows)
        compare_workers(cluster, server, arguments.rounds)
        count_requests(cluster, server)
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
