"""The stage publish through kills and outages: readers of topics see each printed event once all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.jobs.spec import JobResult
from airflow_cdc_provider.kafka.errors import BrokersUnavailable
from server_kit import KafkaServer
from tests.integration.jobs.conftest import Application, RunStage
from tests.integration.jobs.publishing import (
    declaration,
    make_topics,
    printed,
    read,
    records_of,
    sequences_of,
    topic_of,
    with_broker,
    with_catalog,
    write,
)
from tests.integration.kafka.broker_kills import killing_producer

if TYPE_CHECKING:
    from pymongo.database import Database
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

_EVENTS_PER_KILL = 1_000
"""They are published in transactions of 50: what is killed has more to send."""


def _captured(
    run_stage: RunStage,
    database: Database,
    both: dict[str, Any],
    count: int,
    slices: int = 1,
    **publish: Any,
) -> dict[str, Any]:
    """Capture events in some batches, and publish none."""
    kafka = {"records_per_commit": 50, "retry_timeout_seconds": 60, "slices": slices}
    declared = declaration(database, kafka, **publish)
    silent = {**declared, "publish": {**declared["publish"], "kafka": {}}}
    database.create_collection("orders")
    database.create_collection("customers")
    assert run_stage("sync", silent, both).ok
    for turn in range(2):
        database.orders.insert_many([{"_id": f"bulk-{turn}-{n}", "n": n} for n in range(count // 4)])
        database.orders.update_many({"n": {"$lt": count // 4}}, {"$set": {"turn": turn}})
        write(database, turn)
        assert run_stage("capture", silent, both).ok
    return declared


def _publish_with_kills(
    spark: SparkSession,
    run_stage: RunStage,
    database: Database,
    both: dict[str, Any],
    server: KafkaServer,
    application: Application,
    kills: int,
) -> None:
    topics = make_topics(server, database, "orders", "customers")
    declared = _captured(run_stage, database, both, _EVENTS_PER_KILL * kills)
    own = with_catalog(spark, declared)

    def begin(_: int) -> subprocess.Popen[bytes]:
        return application.start("publish", own, both)

    # A job that runs longer would leave nothing to publish for the others.
    application.kill_often(kills, begin, [records_of(server, topics[1:2])] * 2, longest_seconds=6)
    assert run_stage("publish", declared, both).ok
    assert sequences_of(read(server, topics)) == printed(run_stage, declared, application.folder)


def test_killed_jobs_publish_each_event_once(
    spark: SparkSession,
    run_stage: RunStage,
    database: Database,
    both: dict[str, Any],
    kafka_server: KafkaServer,
    application: Application,
) -> None:
    _publish_with_kills(spark, run_stage, database, both, kafka_server, application, kills=2)


@pytest.mark.long
def test_jobs_killed_often_publish_each_event_once(
    spark: SparkSession,
    run_stage: RunStage,
    database: Database,
    both: dict[str, Any],
    kafka_server: KafkaServer,
    application: Application,
) -> None:
    _publish_with_kills(spark, run_stage, database, both, kafka_server, application, kills=20)


def _replay_with_kills(
    spark: SparkSession,
    run_stage: RunStage,
    database: Database,
    both: dict[str, Any],
    server: KafkaServer,
    application: Application,
    kills: int,
) -> None:
    names = make_topics(server, database, "orders", "customers")
    declared = _captured(run_stage, database, both, _EVENTS_PER_KILL * kills)
    moved = [f"again{name.removeprefix(database.name)}" for name in names]
    for topic in moved:
        server.create_topic(topic, 1 if topic.endswith("transaction") else 3)
    own = with_catalog(spark, declared)
    done = 0

    def count_ended() -> None:
        nonlocal done
        if application.result_path.exists():
            done += 1  # the run before had come to its end; the next one is another replay

    def begin(_: int) -> subprocess.Popen[bytes]:
        count_ended()
        return application.start("replay", own, both, topic_prefix="again", request=f"{done}")

    application.kill_often(kills, begin, [records_of(server, moved[1:2])])
    count_ended()
    assert run_stage("replay", declared, both, topic_prefix="again", request=f"{done}").ok
    once = printed(run_stage, declared, application.folder)
    expected = {
        (f"again{topic.removeprefix(database.name)}", key): events * (done + 1)
        for (topic, key), events in once.items()
    }
    assert sequences_of(read(server, moved)) == expected, "the range once for each replay, in order"
    assert not sequences_of(read(server, names)), "nothing elsewhere"


def test_a_killed_replay_sends_its_range_once(
    spark: SparkSession,
    run_stage: RunStage,
    database: Database,
    both: dict[str, Any],
    kafka_server: KafkaServer,
    application: Application,
) -> None:
    _replay_with_kills(spark, run_stage, database, both, kafka_server, application, kills=1)


@pytest.mark.long
def test_a_replay_killed_often_sends_its_range_once(
    spark: SparkSession,
    run_stage: RunStage,
    database: Database,
    both: dict[str, Any],
    kafka_server: KafkaServer,
    application: Application,
) -> None:
    _replay_with_kills(spark, run_stage, database, both, kafka_server, application, kills=20)


@pytest.mark.long
def test_killed_executors_and_jobs_publish_each_event_of_slices_once(
    spark: SparkSession,
    run_stage: RunStage,
    database: Database,
    both: dict[str, Any],
    kafka_server: KafkaServer,
    application: Application,
) -> None:
    topics = make_topics(kafka_server, database, "orders", "customers")[1:]
    declared = _captured(run_stage, database, both, 40_000, slices=2, transactions=False)
    own = with_catalog(spark, declared)
    master = "local-cluster[2,1,1024] --conf spark.executor.memory=700m"

    def at_work() -> subprocess.Popen[bytes]:
        before = len(read(kafka_server, topics))
        job = application.start("publish", own, both, master=master)
        deadline = time.monotonic() + 300
        while len(read(kafka_server, topics)) == before:
            assert job.poll() is None, application.log_tail()
            assert time.monotonic() < deadline, application.log_tail()
        return job

    assert application.kill(at_work(), 0), "a job and all its executors"
    job = at_work()
    try:
        os.kill(_executors_of(job)[0], signal.SIGKILL)
        outcome = application.wait(job)
    finally:
        if job.poll() is None:
            application.kill(job, 0)
    assert outcome.ok, outcome.error
    assert "Lost executor" in (application.folder / "log").read_text(errors="replace"), "while it worked"
    assert sequences_of(read(kafka_server, topics)) == printed(run_stage, declared, application.folder)


def _executors_of(job: subprocess.Popen[bytes]) -> list[int]:
    """Return the processes of a job's executors, which its JVM has started in the job's group."""
    listed = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "-g", str(job.pid)], capture_output=True, text=True, check=False
    )
    lines = [line.split(maxsplit=1) for line in listed.stdout.splitlines()]
    return [int(pid) for pid, text in lines if "CoarseGrainedExecutorBackend" in text]


@pytest.fixture
def own_broker() -> Iterator[KafkaServer]:
    """A broker that a test may kill, and that makes topics when they are asked for."""
    with KafkaServer(create_topics=True) as server:
        yield server


@pytest.mark.covers("MDB-FAULT-08", "MDB-TPC-08")
@pytest.mark.long
def test_a_job_waits_for_brokers_keeps_its_place_and_goes_on(
    run_stage: RunStage,
    database: Database,
    connection: dict[str, Any],
    own_broker: KafkaServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = with_broker(connection, own_broker)
    topics = [f"{database.name}.transaction", topic_of(database, "orders"), topic_of(database, "customers")]
    declared = _captured(run_stage, database, both, 8_000, topics={"create": False})
    results: list[JobResult] = []
    job = threading.Thread(target=lambda: results.append(run_stage("publish", declared, both)))
    monkeypatch.setattr("confluent_kafka.Producer", killing_producer(own_broker.kill, commits=2))
    job.start()
    deadline = time.monotonic() + 60
    while own_broker.running:
        assert time.monotonic() < deadline, "nothing is published"
        time.sleep(0.02)
    time.sleep(3)
    assert job.is_alive(), "it waits"
    own_broker.start()
    job.join(120)
    (outcome,) = results
    assert outcome.ok, outcome.error
    assert sequences_of(read(own_broker, topics)) == printed(run_stage, declared, tmp_path)

    database.orders.insert_one({"_id": "while the brokers are away"})
    before = run_stage("offsets", declared, both, action="show").published
    own_broker.kill()
    hasty = declaration(database, {"retry_timeout_seconds": 2}, topics={"create": False})
    with pytest.raises(BrokersUnavailable):
        run_stage("publish", hasty, both)
    outcome = run_stage("sync", hasty, both)
    assert (outcome.ok, outcome.error_code, outcome.changes) == (False, "TRANSIENT", 1)
    own_broker.start()
    after = run_stage("offsets", declared, both, action="show").published
    assert before is not None
    assert after is not None
    assert after.batch == before.batch, "the position is where it was"
    assert run_stage("publish", declared, both).ok
    assert sequences_of(read(own_broker, topics)) == printed(run_stage, declared, tmp_path)
