"""Sensors on topics, on a real broker: plain and deferred they see the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_cdc_provider.kafka.positions import PositionsTopic, PublishPosition
from airflow_cdc_provider.kafka.producer import RecordProducer
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.sensors.topics import CdcConsumerLagSensor, CdcPublishLagSensor
from airflow_cdc_provider.tasks.state import STATE_LAYOUT
from server_kit import KafkaServer
from tests.unit.airflow_context import TaskContext
from tests.unit.sensors.sensor_runs import both_ways

pytestmark = pytest.mark.integration


def connector(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "source": {"type": "mongodb", "conn_id": "m"},
        "publish": {"topic_prefix": name, "kafka": {"connection": "kafka_shop"}},
    }


@pytest.fixture(autouse=True)
def kafka_connection(monkeypatch: pytest.MonkeyPatch, kafka_server: KafkaServer) -> None:
    """The connection that declarations name."""
    values = {"conn_type": "kafka", "extra": {"bootstrap.servers": kafka_server.bootstrap}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_SHOP", json.dumps(values))


def publish(server: KafkaServer, name: str, batch: int) -> None:
    """Store a position as publishing does."""
    settings = ClientSettings({"bootstrap.servers": server.bootstrap})
    topic = PositionsTopic(settings, f"{name}.cdc-positions", name)
    topic.make(1)
    producer = RecordProducer(settings, topic, transactional_id=f"{name}.0")
    producer.take_over()
    producer.publish((), (), PublishPosition(name, batch + 1))
    producer.close()


@both_ways
def test_publish_sensor_ends_when_no_more_than_so_many_batches_wait(
    wait: Any, kafka_server: KafkaServer, request: pytest.FixtureRequest
) -> None:
    name = f"lag-{request.node.callspec.id}"
    context = TaskContext()
    batches = {"layout": STATE_LAYOUT, "commits": [[3, 100.0], [7, 200.0]]}

    def make(**how: Any) -> CdcPublishLagSensor:
        sensor = CdcPublishLagSensor(task_id="near", connector=connector(name), max_batches=2, **how)
        context.assets[sensor.inlets[0]].set("batches", batches)
        return sensor

    publish(kafka_server, name, 4)
    value = wait(make, context, lambda: publish(kafka_server, name, 5))
    assert {key: value[key] for key in ("batch", "newest_batch", "pending_batches")} == {
        "batch": 5,
        "newest_batch": 7,
        "pending_batches": 2,
    }
    assert value["lag_seconds"] > 10**9, "batch 7 was committed in 1970"


def consume(server: KafkaServer, topic: str, group: str, count: int) -> None:
    """Read and commit as an application does."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    read = 0
    while read < count:
        message = consumer.poll(10)
        assert message is not None
        assert message.error() is None
        consumer.commit(message, asynchronous=False)
        read += 1
    consumer.close()


def send(server: KafkaServer, topic: str, count: int) -> None:
    """Send records in transactions, whose marks take offsets, too."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for _ in range(count):
        producer.begin_transaction()
        producer.produce(topic, b"{}")
        producer.commit_transaction(30)


@both_ways
def test_consumer_sensor_ends_when_a_group_has_read_nearly_all(
    wait: Any, kafka_server: KafkaServer, request: pytest.FixtureRequest
) -> None:
    name = f"group-{request.node.callspec.id}"
    topic, other = f"{name}.shop.orders", f"{name}.shop.customers"
    for one in (topic, other):
        kafka_server.create_topic(one)
        send(kafka_server, one, 3)

    def make(**how: Any) -> CdcConsumerLagSensor:
        return CdcConsumerLagSensor(task_id="read", connector=connector(name), group_id=name, **how)

    assert not make().poke(TaskContext()), "it has read nothing yet"
    gate = make(wait_for_first_commit=False).poke(TaskContext())
    assert (gate.is_done, gate.xcom_value) == (True, {"lag": 0, "topics": {}})
    consume(kafka_server, topic, name, 2)
    assert make().poke(TaskContext()).xcom_value == {"lag": 1, "topics": {topic: 1}}
    value = wait(make, TaskContext(), lambda: consume(kafka_server, topic, name, 1))
    assert value == {"lag": 0, "topics": {topic: 0}}, "marks of transactions don't count"
    named = make(topics=rf"{name}\..*", max_lag="3").poke(TaskContext())
    assert (named.is_done, named.xcom_value) == (True, {"lag": 3, "topics": {other: 3, topic: 0}})
    with pytest.raises(AirflowFailException, match="no topic is selected"):
        make(topics="nothing").poke(TaskContext())
    nothing = make(topics="nothing", wait_for_first_commit=False).poke(TaskContext())
    assert nothing.xcom_value == {"lag": 0, "topics": {}}
