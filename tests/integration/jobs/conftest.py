"""Jobs in tests: a stage here on the shared Spark session, or an application in a process of its own."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.application import STAGES
from airflow_cdc_provider.jobs.context.clients import Clients, Connections
from airflow_cdc_provider.jobs.context.job import Job
from airflow_cdc_provider.jobs.context.run import Run
from airflow_cdc_provider.jobs.context.run_report import RunReport
from airflow_cdc_provider.jobs.spark.session import build_lake
from airflow_cdc_provider.jobs.spec import ConnectionRef, JobResult, JobSpec
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.sources.registry import source_plugin
from tests.conftest import JAVA_OPTIONS, QUICK_PLANS
from tests.integration.jobs.publishing import with_broker
from tests.integration.jobs.shop import Shop

if TYPE_CHECKING:
    from pymongo import MongoClient
    from pymongo.database import Database
    from pyspark.sql import SparkSession

    from server_kit import CassandraServer, KafkaServer, MongoServer
    from server_kit.scylla import SystemKeyspaces

APPLICATION = Path(__file__).resolve().parents[3] / "airflow_cdc_provider" / "jobs" / "application.py"

RunStage = Callable[..., JobResult]

_START_SECONDS = 5.0
"""An application's JVM takes about as long to start."""


@pytest.fixture
def run_stage(spark: SparkSession) -> RunStage:
    """Run a stage here and now: ``run_stage(stage, declaration, connection, tables=(), **options)``."""

    def run(
        stage: str,
        declaration: Mapping[str, Any],
        connection: Mapping[str, Any],
        tables: Any = (),
        **options: Any,
    ) -> JobResult:
        connector = Connector.from_dict(declaration)
        lake = build_lake(spark, connector)
        lake.create_namespace(connector.namespace)
        spec = JobSpec(stage, declaration, "", tables=tables, options=options)  # type: ignore[arg-type]
        connections, values = Connections.split_off(connection)
        with closing(source_plugin(connector.type).source(connector, values)) as source:
            job, report = Job(spec, connector), RunReport()
            clients = Clients(job, lake, connections)
            outcome = STAGES[stage](Run(job, Stores.of(spark, lake, connector), source, clients, report))
            report.on_finished()
            return outcome

    return run


class Application:
    """A job in a process of its own, which can be killed.

    Args:
        folder: For its spec, connection file and result.
        jar: Iceberg's.
    """

    def __init__(self, folder: Path, jar: Path) -> None:
        self.folder = folder
        self.jar = jar
        self.result_path = folder / "result.json"
        self._started: list[subprocess.Popen[bytes]] = []

    def close(self) -> None:
        """End what still runs, with all that it has started: of a test that failed."""
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait(30)

    def start(
        self,
        stage: str,
        declaration: Mapping[str, Any],
        connection: Mapping[str, Any],
        *,
        master: str = "local[2]",
        **options: Any,
    ) -> subprocess.Popen[bytes]:
        """Start it, on executors that ``master`` says; its output goes to ``log`` in the folder."""
        secret = self.folder / "connection.json"
        secret.touch(0o600)
        secret.write_text(json.dumps(connection))
        spec = self.folder / "spec.json"
        self.result_path.unlink(missing_ok=True)
        spec.write_text(
            JobSpec(
                stage,  # type: ignore[arg-type]
                declaration,
                str(self.result_path),
                ConnectionRef(file=str(secret)),
                options=options,
            ).to_json()
        )
        settings = " ".join(f"--conf {name}={value}" for name, value in QUICK_PLANS.items())
        environment = {
            **os.environ,
            "PYTHONPATH": str(APPLICATION.parents[2]),
            "PYSPARK_SUBMIT_ARGS": f"--master {master} --driver-memory 1g --jars {self.jar} "
            f"--driver-java-options '{JAVA_OPTIONS}' {settings} "
            f"--conf spark.local.dir={self.folder} pyspark-shell",
        }
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, str(APPLICATION), str(spec)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def wait(self, process: subprocess.Popen[bytes], timeout_seconds: float = 240) -> JobResult:
        """Wait for its end and read its result."""
        process.wait(timeout_seconds)
        if not self.result_path.exists():
            raise AssertionError(f"no result; the log ends with\n{self.log_tail()}")
        return JobResult.read(str(self.result_path))

    def kill(self, process: subprocess.Popen[bytes], after_seconds: float) -> bool:
        """SIGKILL the whole process group after a while; False if it had ended before."""
        deadline = time.monotonic() + after_seconds
        while time.monotonic() < deadline:
            if process.poll() is not None:
                return False
            time.sleep(0.02)
        os.killpg(process.pid, 9)
        process.wait(30)
        return True

    def kill_when(self, process: subprocess.Popen[bytes], written: Callable[[], Set[Any]]) -> bool:
        """SIGKILL an application as soon as it has written something; False if it ended before.

        Args:
            process: The application.
            written: Returns what was written until now, by anybody.
        """
        before = written()
        while process.poll() is None:
            if written() - before:
                return self.kill(process, after_seconds=0)
            time.sleep(0.002)
        return False

    def kill_often(
        self,
        times: int,
        begin: Callable[[int], subprocess.Popen[bytes]],
        moments: Sequence[Callable[[], Set[Any]]] = (),
        longest_seconds: float = 22.0,
    ) -> None:
        """Start an application again and again and kill it in the middle of its work.

        Args:
            times: How many are to be killed; those that end before their moment don't count.
            begin: Starts the application of a number that counts up.
            moments: The first kills come when there is more of what these return, then one comes at a random
                moment, and so on.
            longest_seconds: The latest of the random moments.
        """
        rng = random.Random(times)
        killed = number = 0
        while killed < times:
            assert number < 3 * times + 3, "most runs end before they can be killed"
            process = begin(number)
            started = time.monotonic()
            turn = killed % (len(moments) + 1)
            if turn < len(moments):
                ended_early = not self.kill_when(process, moments[turn])
            else:
                ended_early = not self.kill(process, rng.uniform(_START_SECONDS, longest_seconds))
            if not ended_early:
                killed += 1
            else:
                longest_seconds = max(time.monotonic() - started, _START_SECONDS)
                outcome = self.wait(process)
                assert outcome.ok, outcome.error
            number += 1

    def log_tail(self) -> str:
        """Return the last lines that it printed."""
        return "\n".join((self.folder / "log").read_text(errors="replace").splitlines()[-30:])


def data_files(namespace: Path, *, of_changes: bool) -> Callable[[], set[Path]]:
    """Return a function that lists the data files of a namespace's changes tables, or of its other tables."""

    def found() -> set[Path]:
        files = namespace.glob("*/data/**/*.parquet")
        return {
            file for file in files if file.relative_to(namespace).parts[0].endswith("_changes") == of_changes
        }

    return found


def merge_and_capture(namespace: Path) -> list[Callable[[], set[Path]]]:
    """Return moments for kills: while a batch that was committed is merged, and while one is written."""
    return [data_files(namespace, of_changes=False), data_files(namespace, of_changes=True)]


@pytest.fixture
def application(tmp_path: Path, iceberg_jar: Path, warehouse: Path) -> Iterator[Application]:
    """A job application with a folder of its own."""
    found = Application(tmp_path, iceberg_jar)
    yield found
    found.close()


@pytest.fixture
def keyspace(cassandra_server: CassandraServer, cassandra_session: Any) -> Iterator[str]:
    """An empty keyspace of one's own; cdc_raw holds nothing of other tests."""
    cassandra_server.forget_segments(cassandra_session)
    name = f"k{random.randrange(10**9)}"
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    cassandra_session.execute(f"CREATE KEYSPACE {name} WITH replication = {replication}")
    yield name
    cassandra_session.execute(f"DROP KEYSPACE IF EXISTS {name}")


@pytest.fixture
def names(cassandra_session: Any, keyspace: str) -> Iterator[SystemKeyspaces]:
    """Keyspaces that stand for the own ones of an imitated ScyllaDB of that keyspace."""
    from server_kit.scylla import SystemKeyspaces, remove_cluster

    names = SystemKeyspaces()
    yield names
    remove_cluster(cassandra_session, keyspace, names)


@pytest.fixture
def database(mongo_client: MongoClient) -> Iterator[Database]:
    """A MongoDB database of one's own."""
    name = f"m{random.randrange(10**9)}"
    yield mongo_client[name]
    mongo_client.drop_database(name)


@pytest.fixture
def connection(mongo_server: MongoServer) -> dict[str, Any]:
    """The values of an Airflow connection to the shared MongoDB server."""
    return {"host": mongo_server.host, "port": mongo_server.port, "extra": {"replicaSet": "rs0"}}


@pytest.fixture
def both(connection: dict[str, Any], kafka_server: KafkaServer) -> dict[str, Any]:
    """The connection of a job that publishes: to MongoDB, and to the shared broker."""
    return with_broker(connection, kafka_server)


@pytest.fixture
def shop(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
) -> Shop:
    """That keyspace with the connector of its tables."""
    return Shop(spark, cassandra_server, cassandra_session, keyspace, run_stage)
