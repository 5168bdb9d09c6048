"""An Airflow of the tests' own: SQLite, the example DAGs, a local Spark with an Iceberg catalog."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.warm_spark import WarmSpark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from server_kit import CassandraServer, KafkaServer, MongoServer, VitessServer
    from server_kit.scylla import ImitatedScylla

ROOT = Path(__file__).resolve().parents[2]

INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""For few rows, as in the tests' shared session. Applications that tests of jobs start compile code."""


@dataclass
class Airflow:
    """Runs DAGs. Connections are declared with :meth:`connect`."""

    home: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def dags(self) -> Path:
        return self.home / "dags"

    @property
    def warehouse(self) -> Path:
        return self.home / "warehouse"

    @property
    def work(self) -> Path:
        return self.home / "work"

    def connect(self, conn_id: str, **values: Any) -> None:
        self.environment[f"AIRFLOW_CONN_{conn_id.upper()}"] = json.dumps(values)

    def run(self, dag_id: str, timeout_seconds: float = 900, *, warm: bool = False, **params: Any) -> Outcome:
        """Run a DAG to its end.

        Args:
            dag_id: The DAG.
            timeout_seconds: When to give up.
            warm: Whether the tests' session runs the jobs; else each starts a Spark of its own.
            params: Of the run.
        """
        log = self.home / f"{dag_id}.log"
        log.unlink(missing_ok=True)
        self.connect(
            "spark_default",
            conn_type="spark",
            host="local[2]",
            extra={"spark-binary": "spark3-submit" if warm else "spark-submit"},
        )
        self._job(timeout_seconds, output=log, errors=log, dag_id=dag_id, run_conf=params)
        text = log.read_text()
        try:
            result = json.loads(text.strip().splitlines()[-1])
        except (IndexError, ValueError):
            pytest.fail(f"{dag_id} printed no result:\n{text[-6000:]}")
        return Outcome(result, text)

    def command(self, *arguments: str, timeout_seconds: float = 300) -> subprocess.CompletedProcess[str]:
        """Run ``airflow`` with these arguments."""
        output, errors = (self.home / f"command.{name}" for name in ("output", "errors"))
        for path in (output, errors):
            path.unlink(missing_ok=True)
        code = self._job(timeout_seconds, output=output, errors=errors, arguments=arguments)
        return subprocess.CompletedProcess(
            ["airflow", *arguments], code, output.read_text(), errors.read_text()
        )

    def close(self) -> None:
        """End the resident process."""
        if "_resident" in vars(self):
            self._resident.communicate()

    @cached_property
    def _resident(self) -> subprocess.Popen[str]:
        with (self.home / "resident.log").open("w") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.resident"],
                env=self.environment,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def _job(self, timeout_seconds: float, *, output: Path, errors: Path, **job: Any) -> int:
        """Run a job of :mod:`tests.e2e.resident`, and return its exit code."""
        job |= {"output": str(output), "errors": str(errors), "environment": self.environment}
        ask, answers = self._resident.stdin, self._resident.stdout
        assert ask is not None
        assert answers is not None
        ask.write(json.dumps(job) + "\n")
        ask.flush()
        pid = answers.readline()
        assert pid, (self.home / "resident.log").read_text()[-6000:]
        overdue = threading.Timer(timeout_seconds, os.killpg, (int(pid), signal.SIGKILL))
        overdue.start()
        code = int(answers.readline())
        overdue.cancel()
        if code == -signal.SIGKILL:
            pytest.fail(f"{job} took over {timeout_seconds:.0f} s:\n{output.read_text()[-6000:]}")
        return code


@dataclass
class Outcome:
    """What came of a run."""

    result: dict[str, Any]
    log: str

    @property
    def state(self) -> str:
        return str(self.result["state"]).rpartition(".")[2].lower()

    def value(self, task_id: str) -> Any:
        """Return a task's XCom."""
        return self.result["xcoms"].get(f"{task_id}.return_value")

    def events(self) -> dict[str, Any]:
        """Return the extra of each asset event, by the asset's name."""
        return dict(self.result["events"])

    def succeeded(self) -> Outcome:
        """Fail the test, with the log's end, unless the run succeeded."""
        assert self.state == "success", f"{self.result}\n{self.log[-8000:]}"
        return self


def migrated_database() -> Path:
    """Return the folder of an empty ``airflow.db``, which is made once per version of Airflow."""
    from server_kit.cache import cached

    return cached("airflow-database", version("apache-airflow"), _migrate, "an Airflow database", "migrating")


def _migrate(folder: Path) -> None:
    from server_kit.programs import run_program

    database = f"sqlite:///{folder}/airflow.db"
    own = {"AIRFLOW_HOME": str(folder), "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database}
    run_program([sys.executable, "-m", "airflow", "db", "migrate"], "migrating Airflow", environment=own)


@pytest.fixture(scope="session")
def airflow(
    tmp_path_factory: pytest.TempPathFactory, iceberg_jar: Path, spark: SparkSession
) -> Iterator[Airflow]:
    """A migrated Airflow with the example DAGs in its folder."""
    home = tmp_path_factory.mktemp("airflow")
    made = Airflow(home)
    shutil.copytree(ROOT / "dags_examples", made.dags)
    made.warehouse.mkdir()
    catalog = {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": made.warehouse.as_uri(),
        "spark.sql.catalog.lake.cache-enabled": "false",
    }
    settings = {
        **catalog,
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(home / "spark-local"),
        **INTERPRETED,
    }
    # As spark-defaults.conf would: but with a folder of settings Java would not take the archive of classes.
    spark_options = [os.environ["SPARK_SUBMIT_OPTS"], *(f"-D{k}={v}" for k, v in settings.items())]
    programs = home / "programs"
    programs.mkdir()
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "PYSPARK", "SPARK"))}
    made.environment = {
        **inherited,
        "PYTHONPATH": str(ROOT),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), str(programs), inherited.get("PATH", "")]),
        "SPARK_SUBMIT_OPTS": " ".join(spark_options),
        "SPARK_DIST_CLASSPATH": os.environ["SPARK_DIST_CLASSPATH"],
        "SPARK_LOCAL_IP": "127.0.0.1",
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(made.dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__CDC__WORK_FOLDER": str(made.work),
        "AIRFLOW__CDC__SPARK_JARS": str(iceberg_jar),
    }
    shutil.copy(migrated_database() / "airflow.db", home)
    with closing(WarmSpark(spark, catalog, programs)), closing(made):
        yield made


@pytest.fixture(scope="session")
def store(airflow: Airflow, mongo_server: MongoServer) -> Any:
    """The database of the MongoDB examples, with two collections."""
    airflow.connect(
        "mongodb_shop",
        conn_type="cdc_mongodb",
        host="127.0.0.1",
        port=mongo_server.port,
        extra={"replicaSet": "rs0"},
    )
    database = mongo_server.client()["store"]
    database["orders"].insert_many([{"_id": n, "amount": n * 10} for n in range(100)])
    database["customers"].insert_many([{"_id": n, "name": f"c{n}"} for n in range(10)])
    return database


@pytest.fixture(scope="session")
def topics(airflow: Airflow, kafka_server: KafkaServer) -> KafkaServer:
    """The broker of the examples that publish."""
    airflow.connect("kafka_shop", conn_type="kafka", extra={"bootstrap.servers": kafka_server.bootstrap})
    return kafka_server


@pytest.fixture(scope="session")
def vitess_shop(airflow: Airflow, vitess_server: VitessServer) -> VitessServer:
    """The keyspace of the Vitess example, with two tables in two shards."""
    airflow.connect("vitess_shop", conn_type="cdc_vitess", **vitess_server.connection)
    tables = ("orders", "items")
    made = [f"CREATE TABLE {table} (id bigint PRIMARY KEY, amount int)" for table in tables]
    vitess_server.define("shop", *made, shard_by=dict.fromkeys(tables, "id"))
    values = ", ".join(f"({number}, {number * 10})" for number in range(50))
    with vitess_server.connect("shop") as connection, connection.cursor() as cursor:
        for table in tables:
            cursor.execute(f"INSERT INTO {table} (id, amount) VALUES {values}")
    return vitess_server


@pytest.fixture(scope="session")
def scylla_shop(airflow: Airflow, cassandra_server: CassandraServer) -> Iterator[ImitatedScylla]:
    """The keyspace of the ScyllaDB example: two tables, 50 rows of a minute ago; a node is joining."""
    from server_kit.scylla import CdcOptions, Column, CqlType, ImitatedScylla, SystemKeyspaces, Table
    from server_kit.scylla.statements import Insert

    airflow.connect(
        "scylla_shop", conn_type="cdc_scylla", host=cassandra_server.host, port=cassandra_server.port
    )
    session = cassandra_server.connect()
    names = SystemKeyspaces("shop_of_scylla_distributed", "shop_of_scylla_system", "shop_of_scylla_schema")
    clock = itertools.count(time.time_ns() // 1000 - 60_000_000)
    cluster = ImitatedScylla(session, "shop_of_scylla", names=names, clock_us=lambda: next(clock))
    cluster.create()
    number = CqlType("int")
    for name in ("orders", "items"):
        columns = (Column("id", number),), (Column("amount", number),)
        table = Table(cluster.keyspace, name, columns[0], regular=columns[1], cdc=CdcOptions())
        cluster.create_table(table)
        for id_ in range(50):
            amount = struct.pack(">i", id_ * 10)
            cluster.execute(table, Insert((struct.pack(">i", id_),), (), {"amount": amount}))
    cluster.new_generation(round(time.time() * 1000) + 3_600_000, nodes=2)
    declared = airflow.dags / "shop_scylla.yaml"
    keyspaces = (
        f"distributed_keyspace: {names.distributed}, system_keyspace: {names.system}, "
        f"schema_keyspace: {names.schema}"
    )
    text = declared.read_text().replace("shop\\.", "shop_of_scylla\\.")
    declared.write_text(text.replace("scylla_shop\n", f"scylla_shop\n  advanced: {{{keyspaces}}}\n"))
    yield cluster
    for name in ("shop_of_scylla", names.distributed, names.system, names.schema):
        session.execute(f"DROP KEYSPACE {name}")


@pytest.fixture(scope="session")
def synced(airflow: Airflow, store: Any) -> Outcome:
    """The first run of sync_on_news, after which the mirrors of the store are there."""
    return airflow.run("sync_on_news").succeeded()


@pytest.fixture(scope="session")
def shop(airflow: Airflow, cassandra_server: CassandraServer) -> Any:
    """The keyspace of the Cassandra examples, with two tables, and the segments where the examples look."""
    from server_kit import create_keyspace

    airflow.connect(
        "cassandra_shop", conn_type="cdc_cassandra", host=cassandra_server.host, port=cassandra_server.port
    )
    session = cassandra_server.connect()
    create_keyspace(session, "shop")
    session.execute("CREATE TABLE shop.orders (id int PRIMARY KEY, amount int) WITH cdc = true")
    session.execute("CREATE TABLE shop.customers (id int PRIMARY KEY, name text) WITH cdc = true")
    landing = airflow.home / "landing"
    landing.mkdir()
    declared = airflow.dags / "shop_cassandra.yaml"
    declared.write_text(declared.read_text().replace("/landing/shop", str(landing)))
    for number in range(50):
        session.execute("INSERT INTO shop.orders (id, amount) VALUES (%s, %s)", (number, number * 10))
    return session


@pytest.fixture
def landed(airflow: Airflow, cassandra_server: CassandraServer) -> Callable[[], None]:
    """Bring the node's segments to the landing folder, as a transfer task does: ``landed()``."""
    from airflow_cdc_provider.transfer.stores import FolderStore
    from airflow_cdc_provider.transfer.transfer import Transfer
    from airflow_cdc_provider.transfer.whole import WholeSegments

    def bring() -> None:
        host = cassandra_server.host_id
        folders = (cassandra_server.cdc_raw, airflow.home / "landing" / host)
        source, target = (WholeSegments(FolderStore(folder), host) for folder in folders)
        Transfer(source, target).run()

    return bring
