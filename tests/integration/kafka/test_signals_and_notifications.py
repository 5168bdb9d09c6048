"""Signals from a topic and notifications to one, by a real broker: what others see of them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import RecordsRejected, TransientError
from airflow_cdc_provider.jobs.channels.notification_topic import TopicChannel as NotificationTopic
from airflow_cdc_provider.jobs.channels.notification_topic import topic_of_notifications
from airflow_cdc_provider.jobs.channels.signal_topic import topic_of_signals
from airflow_cdc_provider.kafka.errors import BrokersUnavailable
from airflow_cdc_provider.kafka.notification_producer import NotificationProducer
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.kafka.signal_topic import TopicChannel
from airflow_cdc_provider.notifications.notifier import Notifier
from airflow_cdc_provider.notifications.snapshots import InitialSnapshot
from airflow_cdc_provider.signals.channels import ChannelRefused
from airflow_cdc_provider.signals.signal import MalformedSignal, ReceivedSignal, Signal
from server_kit import KafkaServer

pytestmark = pytest.mark.integration


@pytest.fixture
def name() -> str:
    """A name that no other test has, for topics and groups."""
    return f"n{uuid.uuid4().hex[:12]}"


def connector(name: str, **sections: Any) -> Connector:
    publish = {"topic_prefix": name, **sections.pop("publish", {})}
    return Connector.from_dict({"name": "c", "source": {"type": "mongodb"}, "publish": publish, **sections})


def listening(server: KafkaServer, name: str, **kafka: Any) -> TopicChannel:
    options = {"bootstrap_servers": server.bootstrap, "group_id": f"{name}.group", **kafka}
    declared = connector(name, signals={"channels": ["kafka"], "kafka": options})
    return topic_of_signals(declared, {})


def look(channel: TopicChannel, position: Mapping[str, Any] | None) -> Sequence[ReceivedSignal]:
    """Take in what there is, as a job does that begins."""
    channel.resume(position)
    return channel.receive()


def group_offset(server: KafkaServer, name: str) -> int:
    """Return what Kafka's tools show of a group: the offset of partition 0 of its topic."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    group = f"{name}.group"
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    (found,) = asked[group].result(10).topic_partitions
    assert (found.topic, found.partition) == (f"{name}-signal", 0)
    return int(found.offset)


@pytest.mark.covers("MDB-SIG-05", "MDB-SIG-06", "MDB-SIG-07", "MDB-SIG-08", "MDB-SIG-10")
def test_signals_of_a_topic_are_read_once_by_jobs_that_follow_each_other(
    kafka_server: KafkaServer, name: str
) -> None:
    topic = f"{name}-signal"
    channel = listening(kafka_server, name, consumer={"client.id": name, "fetch.wait.max.ms": 50})
    with pytest.raises(TransientError, match=f"there is no topic {topic}"):
        look(channel, None)
    kafka_server.create_topic(topic)
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap})
    transactional = Producer({"bootstrap.servers": kafka_server.bootstrap, "transactional.id": name})

    def send(key: str, value: str, by: Producer = producer) -> None:
        by.produce(topic, value, key)
        by.flush()

    send(name, '{"id": "one", "type": "log", "data": {"message": "hello"}}')
    send("other", '{"id": "not mine", "type": "log"}')
    send(name, "no JSON")
    transactional.init_transactions(20)
    transactional.begin_transaction()
    send(name, '{"id": "taken back", "type": "log"}', transactional)
    transactional.abort_transaction(20)
    send(name, '{"type": "pause-snapshot"}')

    channel = listening(kafka_server, name)
    found = look(channel, None)
    for _ in range(100):  # until the mark of the abort is written, which may be behind the last message
        if len(found) == 3:
            break
        found = channel.receive()
    first, wrong, second = found
    assert first == Signal("one", "log", {"message": "hello"}, "kafka")
    assert isinstance(wrong, MalformedSignal)
    assert wrong.reason.startswith(f"topic {topic}, offset 2: it is not JSON")
    assert isinstance(second, Signal)
    assert (second.type, second.id.rpartition("/")[0]) == ("pause-snapshot", f"{topic}/0")
    position = channel.position
    channel.done()
    channel.close()
    assert position is not None
    assert group_offset(kafka_server, name) == position["offset"]
    assert position["skipped"] == 1
    assert position["id"], "the broker distinguishes topics of one name"

    send(name, '{"id": "two", "type": "resume-snapshot"}')
    killed = listening(kafka_server, name)
    assert [one.id for one in look(killed, position)] == ["two"]
    killed.close()
    assert group_offset(kafka_server, name) == position["offset"], "it committed nothing"
    channel = listening(kafka_server, name, poll_timeout_seconds=0.5)
    assert [one.id for one in look(channel, position)] == ["two"]
    position = channel.position
    assert position is not None
    channel.done()
    send(name, '{"id": "three", "type": "log"}')
    for _ in range(20):
        if found := channel.receive():
            break
    assert [one.id for one in found] == ["three"], "a stream polls for what comes later"
    channel.close()

    admin = AdminClient({"bootstrap.servers": kafka_server.bootstrap})
    behind = TopicPartition(topic, 0, position["offset"] + 1)
    admin.delete_records([behind])[behind].result(10)
    (missed,) = look(listening(kafka_server, name), position)
    assert isinstance(missed, MalformedSignal)
    assert (
        f"messages {position['offset']} to {position['offset']} of topic {topic} were deleted"
        in missed.reason
    )

    kafka_server.create_topic(f"{name}.wide", 2)
    with pytest.raises(ChannelRefused, match=rf"topic {name}\.wide can't keep the order of signals"):
        look(listening(kafka_server, name, topic=f"{name}.wide"), None)


@pytest.mark.covers("MDB-NOT-01", "MDB-NOT-02")
@pytest.mark.parametrize("schemas", [False, True])
def test_notifications_go_to_their_topic_in_debeziums_form(
    kafka_server: KafkaServer, name: str, *, schemas: bool
) -> None:
    kafka_server.create_topic(f"{name}.notes")
    notifications = {"channels": ["sink"], "topic": f"{name}.notes", "connection": "k"}
    declared = connector(name, notifications=notifications, publish={"schemas": schemas, "headers": True})
    notifier = Notifier([topic_of_notifications(declared, {"bootstrap.servers": kafka_server.bootstrap}, {})])
    snapshot = InitialSnapshot(notifier, declared.topic_prefix)
    snapshot.started()
    snapshot.table_completed("shop.orders", 3)
    snapshot.completed()
    assert notifier.failed == {}
    found = kafka_server.read(f"{name}.notes")
    assert [message.headers() for message in found] == [None] * 3
    keys = [json.loads(message.key()) for message in found]
    values = [json.loads(message.value()) for message in found]
    if schemas:
        assert {key["schema"]["name"] for key in keys} == {"io.debezium.connector.common.NotificationKey"}
        assert {value["schema"]["name"] for value in values} == {"io.debezium.connector.common.Notification"}
        keys, values = [key["payload"] for key in keys], [value["payload"] for value in values]
    assert keys == [{"id": value["id"]} for value in values]
    assert [value["type"] for value in values] == ["STARTED", "TABLE_SCAN_COMPLETED", "COMPLETED"]
    assert {value["aggregate_type"] for value in values} == {"Initial Snapshot"}
    assert values[1]["additional_data"] == {
        "connector_name": name,
        "scanned_collection": "shop.orders",
        "status": "SUCCEEDED",
        "total_rows_scanned": "3",
    }


def test_a_missing_topic_or_broker_is_reported_and_blocks_nothing(
    kafka_server: KafkaServer, name: str
) -> None:
    notifications = {"channels": ["sink"], "topic": f"{name}.notes", "connection": "k"}
    declared = connector(name, notifications=notifications)
    for servers, error in ((kafka_server.bootstrap, RecordsRejected), ("127.0.0.1:1", BrokersUnavailable)):
        producer = NotificationProducer(ClientSettings({"bootstrap.servers": servers}), deliver_seconds=2.0)
        channel = NotificationTopic(declared, producer)
        snapshot = InitialSnapshot(Notifier([channel]), name)
        snapshot.started()
        assert channel.waiting == 1
        with pytest.raises(error):
            channel.flush()
        assert channel.waiting == 0
