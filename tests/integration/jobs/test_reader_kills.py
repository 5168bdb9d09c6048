"""A reader of topics through kills and restarts of its broker: the mirror equals what the topic says."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from server_kit import KafkaServer
from tests.integration.jobs.conftest import Application, data_files
from tests.integration.jobs.debezium_mirrors import connection, declaration, expected, mirror, send
from tests.integration.jobs.debezium_workload import Workload
from tests.integration.jobs.publishing import with_catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


@pytest.fixture
def own_broker() -> Iterator[KafkaServer]:
    """A broker that a test may kill."""
    with KafkaServer() as server:
        yield server


def _restart(server: KafkaServer, after_seconds: float) -> None:
    time.sleep(after_seconds)
    server.kill()
    time.sleep(1)
    server.start()


def _read_with_kills(
    spark: SparkSession, server: KafkaServer, application: Application, name: str, kills: int, restarts: int
) -> None:
    # One thread for all restarts, to the end: the kernel ends a server with the thread that has started it.
    with ThreadPoolExecutor(1) as restarter:
        _read_during_kills(restarter, spark, server, application, name, kills, restarts)


def _read_during_kills(
    restarter: ThreadPoolExecutor,
    spark: SparkSession,
    server: KafkaServer,
    application: Application,
    name: str,
    kills: int,
    restarts: int,
) -> None:
    topic = f"{name}.shop.orders"
    server.create_topic(topic, 3)
    workload = Workload(topic, 3, kills, schemas=True)
    plain = declaration(
        name,
        [rf"{name}\..*"],
        batch_messages=150,
        advanced={"slice_messages": 25, "retry_timeout_seconds": 120},
    )
    declared: dict[str, Any] = with_catalog(spark, plain)
    chance = random.Random(kills)
    restarting: list[Future[None]] = []
    started = 0

    def begin(number: int) -> subprocess.Popen[bytes]:
        nonlocal started
        started = number
        wait(restarting)
        workload.version = 2 if number else 1
        send(server, workload.messages(250), transactional=f"{topic}-tx" if number % 2 else "")
        if number % 3 == 0:
            send(server, workload.copy().messages(20), transactional=f"{topic}-tx", commit=False)
        process = application.start("sync", declared, connection(server))
        if len(restarting) < restarts:
            restarting.append(restarter.submit(_restart, server, chance.uniform(4, 16)))
        return process

    warehouse = Path(str(spark.conf.get("spark.sql.catalog.lake.warehouse")).removeprefix("file:"))
    application.kill_often(kills, begin, [data_files(warehouse / name, of_changes=True)])
    last = application.wait(begin(started + 1))
    assert last.ok, last.error
    for restart in restarting:
        restart.result()

    assert mirror(spark, f"{name}.shop_orders") == expected(workload.rows, schemas=True)
    rows = spark.table(f"lake.{name}.{name}_changes").where("kind = 'change'")
    found = sorted(
        (row["origin"], row["position"].hex()) for row in rows.select("origin", "position").collect()
    )
    sent = sorted(
        (f"{topic}/{message.partition()}", f"{0:08x}{message.offset():016x}")
        for message in server.read(topic)
    )
    assert found == sent, "each message that was committed once"


def test_a_killed_reader_whose_broker_restarts_mirrors_each_message_once(
    spark: SparkSession, own_broker: KafkaServer, application: Application
) -> None:
    _read_with_kills(spark, own_broker, application, "dzko", kills=1, restarts=1)


@pytest.mark.long
def test_a_reader_killed_often_whose_broker_restarts_mirrors_each_message_once(
    spark: SparkSession, own_broker: KafkaServer, application: Application
) -> None:
    _read_with_kills(spark, own_broker, application, "dzkm", kills=20, restarts=20)
