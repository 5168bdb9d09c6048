"""Shared set-up of all tests: real servers and Spark, each started once per session when a test first asks.

A test that uses one of them is marked ``integration`` by hand, so that ``make test-unit`` needs no Java.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import settings

from airflow_cdc_provider import masking

if TYPE_CHECKING:
    from cassandra.cluster import Session
    from pymongo import MongoClient
    from pyspark.sql import SparkSession
    from xdist.remote import Producer

    from server_kit import (
        CassandraServer,
        KafkaServer,
        MongoServer,
        PulsarServer,
        RegistryServer,
        VitessServer,
    )
    from tests.scheduling import FewSparkSessions

ROOT = Path(__file__).resolve().parent.parent

JAVA_OPTIONS = "-XX:+UseSerialGC -Xmn500m -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""Of the JVMs that run Spark.

Plans are garbage as soon as they ran; Java's default would collect them in a young generation of 330 MiB.
Each test runs other plans: the second compiler would take 40 % of the CPU time of a session. Without it Java
reserves 48 MiB for compiled code, of which a session would need more: 30 % of its CPU time to make room.
"""

QUICK_PLANS = {
    "spark.ui.enabled": "false",
    # Workers begin with their imports done.
    "spark.python.daemon.module": "server_kit.spark_daemon",
    # Rows are few: compiling code for them costs more than it saves. The DAGs of tests/e2e do it.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Each execution would describe its whole plan for the UI, with all columns of all nodes.
    "spark.sql.ui.explainMode": "simple",
}
"""Spark settings of every session in tests that runs plans over few rows."""

LAKE_IN_MEMORY = {
    "spark.sql.catalog.lake.catalog-impl": "org.apache.iceberg.inmemory.InMemoryCatalog",
    "spark.sql.catalog.lake.io-impl": "org.apache.iceberg.inmemory.InMemoryFileIO",
}
"""Spark settings of the catalog ``lake``. A sync takes a sixth less CPU time than on a lake in files."""

_REASONS_TO_SKIP = (
    "only root can give a file to another user",
    "root reads everything",
    "mounting a small disk needs root's rights",
    "this machine lets nobody mount",
)
"""All that a test may be skipped for: the rights of the user who runs it. A proof must not vanish unseen."""

# First calls compile kernels: an example's time says nothing here. ``make test`` tries the same examples each
# time, so that a change is judged by what it changes; ``make test-long`` tries all, and others each time.
_SAME_EXAMPLES = os.environ.get("CDC_EXAMPLES") != "all"
settings.register_profile("cdc", deadline=None, derandomize=_SAME_EXAMPLES, print_blob=True)
settings.load_profile("cdc")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a ``covers`` mark without an id, or with one that docs/ledger.yaml doesn't have."""
    ledger: dict[str, str] | None = None
    wrong = []
    for item in items:
        for mark in item.iter_markers("covers"):
            if ledger is None:
                ledger = yaml.load((ROOT / "docs" / "ledger.yaml").read_text(), yaml.CSafeLoader)
            unknown = [feature for feature in mark.args if feature not in ledger]
            if unknown or not mark.args:
                wrong.append(f"{item.nodeid}: {', '.join(map(str, unknown)) or 'no id'}")
    if wrong:
        raise pytest.UsageError("covers marks that docs/ledger.yaml doesn't know:\n" + "\n".join(wrong))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FewSparkSessions | None:
    """Let ``--dist loadfile`` start fewer Spark sessions than workers."""
    from tests.scheduling import FewSparkSessions

    return FewSparkSessions(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_finish() -> None:
    """Spare the garbage collector what imports and collection have made: it stays to the end."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that skips itself for another reason than the listed ones."""
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail a module that skips itself."""
    report = yield
    _refuse_skip(report)
    return report


def pytest_unconfigure(config: pytest.Config) -> None:
    """Name the failed tests in the very last lines: their messages, of any length, come before."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        for outcome in ("failed", "error"):
            for report in reporter.stats.get(outcome, ()):
                reporter.write_line(f"{outcome}: {report.nodeid}")


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and not any(reason in str(report.longrepr) for reason in _REASONS_TO_SKIP):
        report.outcome = "failed"
        report.longrepr = f"skipped, for no reason that tests/conftest.py lists: {report.longrepr}"


@pytest.fixture(autouse=True)
def known_secrets() -> Iterator[None]:
    """What one test registers must not be masked in the texts of another one."""
    yield
    masking.forget()


@pytest.fixture(scope="session")
def cassandra_server() -> Iterator[CassandraServer]:
    """One Cassandra 5.0 node (commit log version 7, segments of 1 MiB). Use a keyspace of your own.

    It is never killed, so it needn't flush the tables of its schema at each change of it.
    """
    from server_kit import CassandraServer

    with CassandraServer(properties={"cassandra.test.flush_local_schema_changes": "false"}) as server:
        yield server


@pytest.fixture(scope="session")
def cassandra_session(cassandra_server: CassandraServer) -> Session:
    """A driver session on the shared node."""
    return cassandra_server.connect()


@pytest.fixture(scope="session")
def mongo_server() -> Iterator[MongoServer]:
    """One MongoDB 6.0 server, a replica set of one. Use a database of your own."""
    from server_kit import MongoServer

    with MongoServer() as server:
        yield server


@pytest.fixture(scope="session")
def mongo_client(mongo_server: MongoServer) -> MongoClient:
    """A client of the shared server."""
    return mongo_server.client()


@pytest.fixture(scope="session")
def vitess_server() -> Iterator[VitessServer]:
    """One Vitess with keyspaces ``shop`` (shards -80 and 80-) and ``lookup``. Use tables of your own."""
    from server_kit import VitessServer

    with VitessServer() as server:
        yield server


@pytest.fixture(scope="session")
def kafka_server(of_all_workers: Path) -> Iterator[KafkaServer]:
    """One Kafka broker that makes no topics by itself. Use topics and transactional ids of your own."""
    from server_kit import KafkaServer
    from tests.shared_servers import shared

    with shared(KafkaServer, of_all_workers / "kafka") as server:
        yield server


@pytest.fixture(scope="session")
def pulsar_server(of_all_workers: Path) -> Iterator[PulsarServer]:
    """One Pulsar that deduplicates. Use topics and names of producers of your own."""
    from server_kit import PulsarServer
    from tests.shared_servers import shared

    with shared(PulsarServer, of_all_workers / "pulsar") as server:
        yield server


@pytest.fixture(scope="session")
def of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this run have."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def registry_server() -> Iterator[RegistryServer]:
    """One schema registry. Use subjects of your own."""
    from server_kit import RegistryServer

    with RegistryServer() as server:
        yield server


@pytest.fixture(scope="session")
def iceberg_jar() -> Path:
    """The jar that gives Spark the Iceberg table format. Who asks will start Spark: it is made quick, too."""
    from server_kit import quick_spark, spark_jars

    os.environ.update(quick_spark())
    return next(jar for jar in spark_jars() if jar.name.startswith("iceberg-spark-runtime"))


@pytest.fixture(scope="session")
def spark(iceberg_jar: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark session on two cores whose catalog ``lake`` has Iceberg tables in memory; see ``warehouse``.

    It plans as a job's own session does. A shuffle has one partition, so that a plan over few rows has few
    tasks: set another number where the partitions are the subject.
    """
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    settings = {
        "spark.master": "local[2]",
        "spark.app.name": "tests",
        **QUICK_PLANS,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.jars": str(iceberg_jar),
        "spark.local.dir": str(tmp_path_factory.mktemp("spark-local")),
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark-warehouse")),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        # As jobs.spark.session says:
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.variable.substitute": "false",
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.ansi.enabled": "true",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.cache-enabled": "false",
        **LAKE_IN_MEMORY,
    }
    # Only spark-submit reads spark.pyspark.python; a session started from here takes the variable.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Python workers import the tests and the package from the clone.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(
        os.pathsep
    )
    session = builder.config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def warehouse(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """Keep the tables of the catalog ``lake`` in files of this folder, where other processes find them."""
    in_files = {
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": (tmp_path / "lake").as_uri(),
    }
    _replace_catalog(spark, LAKE_IN_MEMORY, in_files)
    yield tmp_path / "lake"
    _replace_catalog(spark, in_files, LAKE_IN_MEMORY)


def _replace_catalog(spark: SparkSession, old: Mapping[str, str], new: Mapping[str, str]) -> None:
    for name in old:
        spark.conf.unset(name)
    for name, value in new.items():
        spark.conf.set(name, value)
    # Spark keeps a catalog that it has loaded.
    spark._jsparkSession.sessionState().catalogManager().reset()
