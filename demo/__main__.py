"""``make demo``: capture from both databases into a lake, run by a private Airflow, and verify the result.

The steps: start the servers, migrate Airflow, create tables and first rows, run both DAGs (which take
snapshots) during a mixed workload, write more of it, run both DAGs again, and compare every mirror with its
source row by row. It exits with 1 on any difference.
"""

from __future__ import annotations

import argparse
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from airflow_cdc_provider.exceptions import CdcError
from airflow_cdc_provider.jobs.spec import JobResult
from demo import cassandra_workload, mongodb_workload
from demo.lake import read
from demo.layout import Layout
from demo.private_airflow import DemoFailed, PrivateAirflow
from demo.servers import clear, servers
from server_kit.equality import Comparison, compare_cassandra, compare_mongodb

if TYPE_CHECKING:
    from cassandra.cluster import Session
    from pymongo import MongoClient

_SLICES = 8
_MOST_SLICES = 30
_PAUSE_SECONDS = 4
_SHOWN_DIFFERENCES = 20


class Stages:
    """Times each stage of the demo and prints its progress."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._started = time.monotonic()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage."""
        started = time.monotonic()
        print(f"[{started - self._started:5.0f} s] {name} ...", flush=True)
        yield
        self.seconds[name] = time.monotonic() - started

    @property
    def total(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started


def main() -> int:
    """Run the demo; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--rows", type=int, default=2000, help="rows per table at the start")
    parser.add_argument("--changes", type=int, default=4000, help="statements per database and part")
    arguments = parser.parse_args()
    layout = Layout()
    stages = Stages()
    try:
        clear(layout)
        comparisons, results = _run(layout, stages, arguments.rows, arguments.changes)
    except (CdcError, DemoFailed) as error:
        print(f"\nThe demo stopped: {error}", file=sys.stderr)
        return 1
    _report(comparisons, results, stages)
    if any(c.differences for c in comparisons):
        return 1
    _say_what_next(layout)
    return 0


def _run(
    layout: Layout, stages: Stages, rows: int, changes: int
) -> tuple[Sequence[Comparison], Mapping[str, Sequence[JobResult]]]:
    with ExitStack() as running:
        with stages.stage("start Cassandra and MongoDB"):
            cassandra, mongodb = running.enter_context(servers(layout))
        airflow = PrivateAirflow(layout)
        with stages.stage("migrate a private Airflow"):
            airflow.migrate()
        session, client = cassandra.connect(), mongodb.client()
        with stages.stage("create tables and write the first rows"):
            cassandra_workload.create(session)
            cassandra_workload.load(session, rows)
            mongodb_workload.load(client, rows)
        with stages.stage("declare connectors and connections"):
            airflow.declare(cassandra, mongodb)
        results = _run_dags(airflow, stages, session, client, changes)
        with stages.stage("compare every mirror with its source, row by row"):
            comparisons = [
                *(_compare_shop(layout, session, table) for table in cassandra_workload.TABLES),
                *(_compare_store(layout, client, table) for table in mongodb_workload.COLLECTIONS),
            ]
    return comparisons, results


def _run_dags(
    airflow: PrivateAirflow, stages: Stages, session: Session, client: MongoClient, changes: int
) -> Mapping[str, Sequence[JobResult]]:
    results: dict[str, list[JobResult]] = {"shop": [], "store": []}

    def run(number: int, name: str, database: str) -> None:
        with stages.stage(f"run {number} of DAG cdc_{name} ({database})"):
            results[name].append(airflow.run_dag(f"cdc_{name}", f"cdc_{name}-{number}"))

    cassandra_workload.write_expiring(session)
    expired_at = time.monotonic() + cassandra_workload.MEDIUM_TTL_SECONDS + 2
    with _writing_on(partial(cassandra_workload.change, session), changes):
        run(1, "shop", "Cassandra")
    with _writing_on(partial(mongodb_workload.change, client), changes):
        run(1, "store", "MongoDB")
    with stages.stage("write the second part of the workload"):
        cassandra_workload.change(session, changes, seed=99)
        mongodb_workload.change(client, changes, seed=99)
    with stages.stage("wait for short TTLs to end"):
        time.sleep(max(cassandra_workload.SHORT_TTL_SECONDS + 1.5, expired_at - time.monotonic()))
    run(2, "shop", "Cassandra")
    run(2, "store", "MongoDB")
    return results


@contextmanager
def _writing_on(write_slice: Callable[[int, int], int], changes: int) -> Iterator[None]:
    """Write a workload in slices while a run reads, so that snapshot and capture have concurrent changes.

    Args:
        write_slice: Takes how many statements, and the seed of their choice.
        changes: Statements of the first :data:`_SLICES` slices, which are written in any case.
    """
    failures: list[Exception] = []
    ended = threading.Event()

    def write() -> None:
        try:
            for number in range(_MOST_SLICES):
                if number >= _SLICES and ended.is_set():
                    break
                write_slice(changes // _SLICES, number)
                ended.wait(_PAUSE_SECONDS)
        except Exception as error:  # noqa: BLE001  # raised in the main thread below
            failures.append(error)

    writer = threading.Thread(target=write, name="workload")
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()
    if failures:
        raise failures[0]


def _compare_shop(layout: Layout, session: Session, table: str) -> Comparison:
    return compare_cassandra(session, f"shop.{table}", read(layout.warehouse, f"shop_{table}").to_pylist())


def _compare_store(layout: Layout, client: MongoClient, table: str) -> Comparison:
    documents = read(layout.warehouse, f"store_{table}")["document"].to_pylist()
    return compare_mongodb(client, f"store.{table}", documents)


def _report(
    comparisons: Sequence[Comparison], results: Mapping[str, Sequence[JobResult]], stages: Stages
) -> None:
    row = "{:<18} {:>9} {:>9} {:>7} {:>11} {:>11} {:>11}"
    print(
        "\n" + row.format("table", "snapshot", "changes", "lag s", "source rows", "mirror rows", "different")
    )
    for comparison in comparisons:
        runs = results[comparison.table.split(".")[0]]
        own = [table for run in runs for table in run.tables if table.table == comparison.table]
        lag = runs[-1].lag_seconds
        print(
            row.format(
                comparison.table,
                sum(table.snapshot_rows for table in own),
                sum(table.changes for table in own),
                "?" if lag is None else f"{lag:.1f}",
                comparison.source_rows,
                comparison.mirror_rows,
                len(comparison.differences),
            )
        )
    print("\nseconds per stage")
    for name, seconds in stages.seconds.items():
        print(f"{seconds:7.1f}  {name}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{stages.total:7.1f}  all; {used.ru_utime + used.ru_stime:.0f} CPU seconds")
    print("\nof which in Spark, per DAG run")
    for name, runs in results.items():
        for number, run in enumerate(runs, 1):
            parts = ", ".join(f"{part} {value:.1f}" for part, value in run.seconds.items() if part != "run")
            print(f"         cdc_{name}, run {number}: {run.changes} changes, {run.batches} batches; {parts}")
    different = [text for comparison in comparisons for text in comparison.differences]
    for text in different[:_SHOWN_DIFFERENCES]:
        print(f"DIFFERENT {text}")
    if different:
        print(f"\n{len(different)} differences: the mirrors do not equal their sources")
    else:
        rows = sum(comparison.mirror_rows for comparison in comparisons)
        print(f"\nall {rows} rows of {len(comparisons)} mirrors equal their source")


def _say_what_next(layout: Layout) -> None:
    print(
        f"""
Look at it in Airflow:      make ui
Query the mirrors:          .venv/bin/python -m demo.lake "SELECT sku, price FROM shop_products LIMIT 5"
The connectors:             {layout.connectors}
The DAGs:                   demo/dags/cdc_demo.py
Output of the runs:         {layout.logs}"""
    )


if __name__ == "__main__":
    sys.exit(main())
