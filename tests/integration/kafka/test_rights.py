"""Users with the rights that docs/publishing.md and docs/signals-kafka.md list, on a broker that wants them.

With all of them everything works, and without any single one the error names it, or the topic that it is
about. Each case drives what stages, operators and sensors do with brokers, as far as that needs no Spark.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import Converters
from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, RecordsRejected
from airflow_cdc_provider.feeds.topics import GroupLag, look_at_group, look_at_publishing
from airflow_cdc_provider.jobs.channels.heartbeats import heartbeat_producer
from airflow_cdc_provider.jobs.publishing.targets.kafka import Producers
from airflow_cdc_provider.jobs.topics.rules import create_topics
from airflow_cdc_provider.kafka.consumer import MessageRange, read_range
from airflow_cdc_provider.kafka.notification_producer import NotificationProducer
from airflow_cdc_provider.kafka.partitions import ClusterTopics, require_patterns
from airflow_cdc_provider.kafka.positions import PositionsTopic, PublishPosition
from airflow_cdc_provider.kafka.producer import RecordProducer
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.kafka.signal_topic import SignalTopic, TopicChannel
from airflow_cdc_provider.kafka.topic_facts import TopicFacts, TopicInspector
from airflow_cdc_provider.kafka.topics import TopicCreator, TopicRule
from server_kit import KafkaServer

pytestmark = pytest.mark.integration

USER = "cdc"
TOPIC, ID, GROUP = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID, ResourceType.GROUP


@dataclass(frozen=True)
class Right:
    """An operation on something.

    Args:
        operation: By Kafka's name.
        on: What kind of thing it is on.
        name: The thing's, behind the name that each test has of its own.
    """

    operation: str
    on: ResourceType
    name: str

    def __str__(self) -> str:
        return f"without-{self.operation}-on-{self.name.strip('.')}"


def on(kind: ResourceType, name: str, *operations: str) -> tuple[Right, ...]:
    return tuple(Right(operation, kind, name) for operation in operations)


@dataclass
class Broker:
    """The broker, for one test.

    Args:
        server: It.
        name: Leads the names of all that the test has there.
    """

    server: KafkaServer
    name: str

    @property
    def settings(self) -> ClientSettings:
        """Of the user's clients."""
        return ClientSettings(self.server.config_of(USER), retry_timeout_seconds=20)

    @property
    def events(self) -> str:
        return f"{self.name}.events"

    @property
    def positions(self) -> PositionsTopic:
        return PositionsTopic(self.settings, f"{self.name}.positions", self.name)

    @property
    def builder(self) -> TopicCreator:
        return TopicCreator(self.settings, [TopicRule("default")])

    def grant(self, rights: Sequence[Right]) -> None:
        """Let the user do this and nothing else."""
        admin = AdminClient({"bootstrap.servers": self.server.bootstrap})
        wanted = {
            AclBinding(
                right.on,
                self.name + right.name,
                ResourcePatternType.LITERAL,
                f"User:{USER}",
                "*",
                AclOperation[right.operation],
                AclPermissionType.ALLOW,
            )
            for right in rights
        }
        everything = AclBindingFilter(
            ResourceType.ANY,
            None,
            ResourcePatternType.ANY,
            f"User:{USER}",
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        (gone,) = admin.delete_acls([everything]).values()
        gone.result(30)
        for made in (admin.create_acls(list(wanted)) if wanted else {}).values():
            made.result(30)
        deadline = time.monotonic() + 30
        while set(admin.describe_acls(everything).result(30)) != wanted:
            assert time.monotonic() < deadline, "the broker doesn't take rights over"
            time.sleep(0.01)

    def fill(self, topic: str, count: int = 3, key: str = "k", value: str = "{}") -> None:
        """Make a topic with messages, as somebody who may do everything."""
        self.server.create_topic(topic)
        producer = Producer({"bootstrap.servers": self.server.bootstrap})
        for _ in range(count):
            producer.produce(topic, value, key)
        assert producer.flush(30) == 0

    def store(self) -> None:
        """Have a position stored, as somebody who may do everything."""
        settings = ClientSettings({"bootstrap.servers": self.server.bootstrap})
        positions = replace_settings(self.positions, settings)
        positions.make(1)
        producer = RecordProducer(settings, positions)
        producer.publish((), (), PublishPosition(self.name, 1))
        producer.close()


def replace_settings(positions: PositionsTopic, settings: ClientSettings) -> PositionsTopic:
    return PositionsTopic(settings, positions.topic, positions.connector)


def records(topic: str) -> list[pa.RecordBatch]:
    row = {"topic": topic, "bare": False, "headers": "", "key": "k", "value": "{}"}
    return [pa.RecordBatch.from_pylist([row], schema=Converters().record_schema)]


@pytest.fixture(scope="module")
def server() -> Iterator[KafkaServer]:
    """A broker that lets its user do what is allowed."""
    with KafkaServer(users=[USER]) as server:
        broker = Broker(server, "first")
        broker.fill(broker.events)
        commit_one(broker)  # has the broker make its topic of groups, which takes a while
        yield server


@pytest.fixture
def broker(server: KafkaServer) -> Broker:
    """It, with names that no other test has."""
    return Broker(server, f"n{uuid.uuid4().hex[:12]}")


def publish_twice(broker: Broker, transactional_id: str, slices: int = 1, *, create: bool = True) -> None:
    """Do as two runs that follow each other: topics are missing in the first, and there in the second."""
    for batch in (1, 2):
        positions = broker.positions
        positions.make(1)
        positions.make(slices)
        producers = Producers(positions, transactional_id, broker.builder if create else None)
        for number in range(slices):
            producer = producers.of_slice(number)
            try:
                stored = producer.take_over()
                assert (stored is None) == (batch == 1)
                after = PublishPosition(broker.name, batch, slice=number, slices=slices)
                producer.publish(records(broker.events), (), after)
            finally:
                producer.close()
    least = broker.positions.slowest()
    assert least is not None
    assert least.batch == 2


def publish(broker: Broker) -> None:
    publish_twice(broker, broker.name)


def publish_in_slices(broker: Broker) -> None:
    publish_twice(broker, broker.name, 2)


def publish_at_least_once(broker: Broker) -> None:
    publish_twice(broker, "")


def publish_to_topics_that_are_there(broker: Broker) -> None:
    broker.fill(broker.events)
    broker.store()
    broker.positions.make(1)
    producer = RecordProducer(broker.settings, broker.positions, transactional_id=f"{broker.name}.0")
    assert producer.take_over() is not None
    producer.publish(records(broker.events), (), PublishPosition(broker.name, 2))
    producer.close()


def send_a_heartbeat(broker: Broker) -> None:
    declared = Connector.from_dict({"name": "c", "source": {"type": "mongodb"}})
    producer = heartbeat_producer(declared, broker.settings, broker.positions)
    try:
        producer.send(records(broker.events))
    finally:
        producer.close()


def notify(broker: Broker) -> None:
    broker.fill(broker.events)
    producer = NotificationProducer(broker.settings, 5)
    producer.enqueue(records(broker.events)[0])
    producer.flush()
    producer.close()


def make_topics(broker: Broker, slices: int = 1) -> None:
    """Make what is missing, then nothing but partitions of slices that became more."""
    for missing in (True, False):
        kafka = {"connection": "k", "positions_topic": broker.positions.topic}
        publish = {"topic_prefix": broker.name, "kafka": {**kafka, "slices": 1 if missing else slices}}
        declared = Connector.from_dict({"name": "c", "source": {"type": "mongodb"}, "publish": publish})
        topics = create_topics(declared, ["shop.events"], broker.server.config_of(USER))
        assert bool(topics.created) == missing


def make_topics_for_more_slices(broker: Broker) -> None:
    make_topics(broker, slices=2)


def read_ranges(broker: Broker) -> None:
    broker.fill(broker.events)
    cluster = ClusterTopics(broker.settings)
    found = cluster.topics([broker.events])
    require_patterns([broker.events], found, "the broker")
    one = (broker.events, 0)
    wanted = MessageRange(*one, cluster.begins([one])[one], cluster.ends([one])[one])
    assert sum(len(some) for some in read_range(broker.settings, wanted)) == 3


def see_what_is_published(broker: Broker) -> None:
    broker.store()
    assert look_at_publishing(broker.positions, None).batch == 0


def see_what_is_consumed(broker: Broker) -> None:
    broker.fill(broker.events)
    consumed = look_at_group(
        broker.settings, f"{broker.name}.group", [broker.events], every_topic=True, without=()
    )
    assert consumed == GroupLag(None), "it has committed nothing"
    commit_one(broker)
    consumed = look_at_group(
        broker.settings, f"{broker.name}.group", [broker.events], every_topic=True, without=()
    )
    assert consumed == GroupLag(2, {broker.events: 2})


def commit_one(broker: Broker) -> None:
    """Commit as an application that has read one message."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.server.bootstrap, "group.id": f"{broker.name}.group"})
    consumer.commit(offsets=[TopicPartition(broker.events, 0, 1)], asynchronous=False)
    consumer.close()


def read_a_signal(broker: Broker) -> None:
    broker.fill(broker.events, 1, value='{"id": "a", "type": "log"}')
    wanted = SignalTopic(broker.settings, broker.events, "k", f"{broker.name}.group", 0.1)
    channel = TopicChannel(wanted)
    channel.resume(None)
    try:
        (signal,) = channel.receive()
        assert signal.id == "a"
        channel.done()
    finally:
        channel.close()  # waits for the group's commit


@dataclass(frozen=True)
class Use:
    """What is done with brokers, and the rights for it.

    Args:
        do: Does it; all that it needs is missing before, or made by somebody else.
        rights: Those that the documentation lists.
        left_out: Those of them that are proven to be needed here; None: all.
    """

    do: Callable[[Broker], None]
    rights: tuple[Right, ...]
    left_out: tuple[Right, ...] | None = None

    def __str__(self) -> str:
        return self.do.__name__


PUBLISH = (
    *on(TOPIC, ".events", "CREATE", "WRITE"),
    *on(TOPIC, ".positions", "CREATE", "DESCRIBE_CONFIGS", "READ", "WRITE"),
)
MAKE = (
    *on(TOPIC, ".shop.events", "CREATE", "DESCRIBE"),
    *on(TOPIC, ".positions", "CREATE", "DESCRIBE", "DESCRIBE_CONFIGS"),
)
ALTER = on(TOPIC, ".positions", "ALTER")
SLICES = (*ALTER, *on(ID, ".1", "WRITE"))
POSITIONS = on(TOPIC, ".positions", "READ")
USES = (
    Use(publish, (*PUBLISH, *on(ID, ".0", "WRITE"))),
    Use(publish_in_slices, (*PUBLISH, *on(ID, ".0", "WRITE"), *SLICES), SLICES),
    Use(publish_at_least_once, PUBLISH, ()),
    Use(
        publish_to_topics_that_are_there,
        tuple(one for one in (*PUBLISH, *on(ID, ".0", "WRITE")) if one.operation != "CREATE"),
        (),
    ),
    Use(send_a_heartbeat, on(TOPIC, ".events", "CREATE", "WRITE")),
    Use(notify, on(TOPIC, ".events", "WRITE")),
    Use(make_topics, MAKE),
    Use(make_topics_for_more_slices, (*MAKE, *ALTER), ALTER),
    Use(read_ranges, on(TOPIC, ".events", "READ")),
    Use(see_what_is_published, POSITIONS),
    Use(see_what_is_consumed, (*on(TOPIC, ".events", "READ"), *on(GROUP, ".group", "DESCRIBE"))),
    Use(read_a_signal, (*on(TOPIC, ".events", "READ"), *on(GROUP, ".group", "READ"))),
)


LEFT_OUT = [(use, right) for use in USES for right in (use.rights if use.left_out is None else use.left_out)]
IMPLYING = [
    (use, right) for use, right in LEFT_OUT if right.on == TOPIC and right.operation in ("READ", "WRITE")
]
"""Those without which the topic isn't seen either, unless it may be described."""


@pytest.mark.parametrize("use", USES, ids=str)
def test_the_rights_that_are_listed_are_enough(broker: Broker, use: Use) -> None:
    broker.grant(use.rights)
    use.do(broker)


@pytest.mark.parametrize(("use", "right"), LEFT_OUT, ids=str)
def test_without_a_right_an_error_names_what_it_is_on(broker: Broker, use: Use, right: Right) -> None:
    broker.grant([one for one in use.rights if one != right])
    with pytest.raises(CdcError) as raised:
        use.do(broker)
    assert broker.name + right.name in str(raised.value)
    # A topic of signals that may not be seen is waited for, as one that is missing.
    assert isinstance(raised.value, ConfigurationError) or use.do is read_a_signal


@pytest.mark.parametrize(("use", "right"), IMPLYING, ids=str)
def test_on_a_topic_that_is_seen_the_right_itself_is_named(broker: Broker, use: Use, right: Right) -> None:
    seen = replace(right, operation="DESCRIBE")
    broker.grant([seen if one == right else one for one in use.rights])
    with pytest.raises(
        ConfigurationError, match=rf"connection's user {right.operation} on (topic )?{broker.name}"
    ):
        use.do(broker)


def test_a_replay_needs_its_own_transactional_id(broker: Broker) -> None:
    other = PositionsTopic(broker.settings, f"{broker.name}.positions", f"{broker.name}.replay")
    broker.grant(PUBLISH)
    other.make(1)

    def replayed() -> None:
        producer = RecordProducer(
            broker.settings, other, transactional_id=f"{broker.name}.replay", topics=broker.builder
        )
        try:
            producer.take_over()
            producer.publish(records(broker.events), (), PublishPosition(other.connector, 1))
        finally:
            producer.close()

    with pytest.raises(
        ConfigurationError, match=rf"connection's user WRITE on transactional id {broker.name}\.replay"
    ):
        replayed()
    broker.grant((*PUBLISH, *on(ID, ".replay", "WRITE")))
    replayed()


@pytest.mark.parametrize("transactional", [False, True])
def test_a_topic_without_permission_to_write_is_distinguished_from_others(
    broker: Broker, transactional: bool
) -> None:
    broker.fill(broker.events)
    broker.fill(f"{broker.name}.closed")
    broker.store()
    rights = (*PUBLISH, *on(TOPIC, ".closed", "READ"), *on(ID, ".0", "WRITE"))
    broker.grant(rights)
    id_of_slice = f"{broker.name}.0" if transactional else ""
    producer = RecordProducer(broker.settings, broker.positions, transactional_id=id_of_slice)
    producer.take_over()
    both = [*records(broker.events), *records(f"{broker.name}.closed")]
    for _ in range(2):
        with pytest.raises(RecordsRejected) as raised:
            producer.publish(both, (), PublishPosition(broker.name, 2))
        assert raised.value.topic == f"{broker.name}.closed"
    producer.publish(records(broker.events), (), PublishPosition(broker.name, 3))
    producer.close()
    stored = broker.positions.read()
    assert stored is not None
    assert stored.batch == 3


def test_settings_are_compared_where_they_may_be_looked_at(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.server.create_topic(broker.events)
    maker = TopicCreator(broker.settings, [TopicRule("default", settings={"cleanup.policy": "compact"})])
    broker.grant(on(TOPIC, ".events", "WRITE"))
    maker.create_missing([broker.events])
    assert "is not changed" not in caplog.text
    broker.grant(on(TOPIC, ".events", "WRITE", "DESCRIBE_CONFIGS"))
    maker.create_missing([broker.events])
    assert f"topic {broker.events} is not changed: cleanup.policy delete" in caplog.text


def test_a_group_that_may_only_be_looked_at_does_not_show_how_far_signals_are_read(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.grant((*on(TOPIC, ".events", "READ"), *on(GROUP, ".group", "DESCRIBE")))
    read_a_signal(broker)
    assert f"can't be committed to group {broker.name}.group" in caplog.text


def test_a_gate_takes_topics_that_may_not_be_seen_for_missing(broker: Broker) -> None:
    broker.fill(broker.events)
    commit_one(broker)
    broker.grant(on(GROUP, ".group", "DESCRIBE"))
    group = f"{broker.name}.group"
    lag = look_at_group(
        broker.settings, group, [broker.events], every_topic=True, without=(), wait_for_first_commit=False
    )
    assert lag == GroupLag(0)


def test_a_check_reports_the_permissions_of_the_user(broker: Broker) -> None:
    broker.server.create_topic(broker.events)
    inspector = TopicInspector(broker.settings)
    broker.grant(())
    assert inspector.facts(broker.events).refusal.startswith("TOPIC_AUTHORIZATION_FAILED")
    broker.grant(on(TOPIC, ".events", "READ"))
    found = inspector.facts(broker.events)
    assert (found.may("READ"), found.may("WRITE"), found.policy) == (True, False, None)
    broker.grant(on(TOPIC, ".events", "WRITE", "DESCRIBE_CONFIGS"))
    found = inspector.facts(broker.events)
    assert (found.may("READ"), found.may("WRITE"), found.policy) == (False, True, "delete")
    missing = f"{broker.name}.missing"
    broker.grant(on(TOPIC, ".missing", "WRITE"))
    assert inspector.facts(missing).refusal.startswith("TOPIC_AUTHORIZATION_FAILED")
    broker.grant(on(TOPIC, ".missing", "WRITE", "CREATE"))
    assert inspector.facts(missing) == TopicFacts(missing), "it could be made"
