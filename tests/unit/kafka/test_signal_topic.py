"""Signals from a topic: which messages are some, where reading resumes, and which troubles are reported."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaError

from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.kafka.signal_topic import SignalTopic, TopicChannel
from airflow_cdc_provider.signals.channels import Channel, ChannelRefused, ResumableChannel
from airflow_cdc_provider.signals.signal import LARGEST_BYTES, MalformedSignal, ReceivedSignal, Signal
from tests.unit.kafka.fake_signal_topic import FakeTopic

LOG = '{"type": "log", "data": {"message": "hello"}}'


def signal(identity: str) -> str:
    return json.dumps({"id": identity, "type": "log", "data": {"message": identity}})


@dataclass
class Listening:
    """A topic and consecutive jobs that listen to it, each with the last committed position."""

    topic: FakeTopic = field(default_factory=FakeTopic)
    consumer: dict[str, Any] = field(default_factory=dict)
    position: dict[str, Any] | None = None
    now: float = 0.0
    channel: TopicChannel = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin a new job."""
        client = ClientSettings({"bootstrap.servers": "localhost:1"}, consumer=self.consumer)
        wanted = SignalTopic(client, self.topic.name, "shop", "kafka-signal", 0.25)
        self.channel = TopicChannel(wanted, self.topic, self.topic.consumer, lambda: self.now)

    def look(self) -> list[ReceivedSignal]:
        """Take in what came and commit it."""
        found = self.seen()
        self.position = dict(self.channel.position) if self.channel.position is not None else None
        self.channel.done()
        return found

    def seen(self) -> list[ReceivedSignal]:
        """Take in what came, and commit nothing."""
        self.channel.resume(self.position)
        return list(self.channel.receive())

    def ids(self) -> list[str]:
        """Take in what came, commit it and return the ids."""
        return [one.id for one in self.look()]


@pytest.fixture
def listening() -> Listening:
    return Listening()


def test_it_is_a_channel_with_a_position(listening: Listening) -> None:
    assert isinstance(listening.channel, Channel)
    assert isinstance(listening.channel, ResumableChannel)


@pytest.mark.covers("MDB-SIG-05")
def test_messages_with_the_connectors_key_are_signals_and_others_are_counted(listening: Listening) -> None:
    topic = listening.topic
    topic.add(signal("mine"))
    topic.add(signal("another's"), key="other")
    topic.add(signal("nobody's"), key=None)
    topic.add(LOG)
    topic.add(None)
    found = listening.look()
    assert found == [
        Signal("mine", "log", {"message": "mine"}, "kafka"),
        Signal("shop-signal/0/3", "log", {"message": "hello"}, "kafka"),
    ]
    assert listening.position == {
        "topic": "shop-signal",
        "id": "one",
        "recreated": 0,
        "offset": 5,
        "skipped": 3,
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "it is not JSON"),
        (b"\xff\xfe", "it is not JSON"),
        ("[1]", "it is not a JSON object"),
        ('{"type": "dance"}', "its type is 'dance'"),
        ('{"type": "log", "data": "{"}', "its data is not JSON"),
        ('{"type": "log", "data": 7}', "its data is not a JSON object"),
        ("[" * 60_000, "it is not JSON"),
        (json.dumps({"type": "log", "data": "[" * 60_000}), "its data is not JSON"),
        (" " * LARGEST_BYTES + "x", "it is larger than 65536 bytes"),
    ],
)
def test_an_invalid_signal_is_reported_with_topic_and_offset_and_skipped(
    listening: Listening, text: str | bytes, reason: str
) -> None:
    listening.topic.add(text)
    listening.topic.add(signal("next"))
    wrong, right = listening.look()
    assert isinstance(wrong, MalformedSignal)
    assert wrong.reason.startswith(f"topic shop-signal, offset 0: {reason}")
    assert right.id == "next"
    assert listening.ids() == []


def test_an_id_that_is_no_text_of_unicode_becomes_some(listening: Listening) -> None:
    listening.topic.add('{"id": "half \\ud800", "type": "log"}')
    assert listening.ids() == ["half \\ud800"]


def test_the_first_look_of_a_job_reads_to_the_end_and_later_ones_poll_once(listening: Listening) -> None:
    for number in range(7):  # the fake gives two at a time
        listening.topic.add(signal(str(number)))
    assert listening.ids() == [str(number) for number in range(7)]
    for number in range(7, 10):
        listening.topic.add(signal(str(number)))
    assert listening.ids() == ["7", "8"]
    assert listening.ids() == ["9"]


def test_what_is_read_of_a_flood_is_kept_and_the_next_job_reads_on(listening: Listening) -> None:
    for _ in range(1_500):
        listening.topic.add("{}", key="other")
    listening.topic.add(signal("own"))
    jobs = 0
    while True:
        jobs += 1
        listening.restart()
        listening.channel._clock = partial(next, (call / 20 for call in range(100_000)))
        if listening.ids() == ["own"]:
            break
        assert listening.position is not None
        assert listening.position["offset"] == listening.channel.position["offset"]  # type: ignore[index]
    assert jobs > 1
    assert listening.position is not None
    assert listening.position["offset"] == 1_501


def test_signals_of_some_size_wait_until_those_before_them_are_committed(listening: Listening) -> None:
    large = json.dumps({"type": "log", "data": {"message": "x" * (LARGEST_BYTES - 100)}})
    for _ in range(200):
        listening.topic.add(large)
    rounds = []
    while found := listening.look():
        rounds.append(len(found))
    assert sum(rounds) == 200
    assert max(rounds) <= 128


@pytest.mark.covers("MDB-SIG-09")
def test_a_poll_waits_for_its_timeout(listening: Listening) -> None:
    listening.topic.add(LOG)
    listening.look()
    listening.look()
    consumer = listening.channel._consumer
    assert consumer.timeouts
    assert set(consumer.timeouts) == {0.25}


def test_marks_of_transactions_at_the_end_are_passed(listening: Listening) -> None:
    listening.topic.add(LOG)
    listening.topic.high += 1
    assert len(listening.look()) == 1
    assert listening.position is not None
    assert listening.position["offset"] == 2


def test_what_is_not_committed_comes_again_with_the_same_ids(listening: Listening) -> None:
    listening.topic.add(LOG)
    first = listening.seen()
    listening.topic.add(signal("second"))
    assert listening.seen() == [*first, Signal("second", "log", {"message": "second"}, "kafka")]
    listening.restart()
    assert [one.id for one in listening.seen()] == ["shop-signal/0/0", "second"]
    assert listening.ids() == ["shop-signal/0/0", "second"]
    listening.restart()
    assert listening.ids() == []


def test_a_position_that_another_job_committed_is_resumed(listening: Listening) -> None:
    for number in range(3):
        listening.topic.add(signal(str(number)))
    listening.seen()
    listening.position = {"topic": "shop-signal", "id": "one", "recreated": 0, "offset": 2, "skipped": 0}
    assert listening.ids() == ["2"]


@pytest.mark.covers("MDB-SIG-07")
def test_the_group_offset_is_committed_after_the_position_and_read_only_at_the_start(
    listening: Listening,
) -> None:
    topic = listening.topic
    topic.add(LOG)
    topic.add(LOG)
    listening.seen()
    assert topic.commits == []
    listening.look()
    assert listening.channel._consumer.settings["group.id"] == "kafka-signal"
    assert listening.channel._consumer.settings["enable.auto.commit"] is False
    assert topic.commits == [2]
    topic.group_offset = 0  # somebody reset it: what is kept in the lake counts
    listening.restart()
    assert listening.ids() == []
    moved = Listening(topic)  # a connector that Debezium ran before
    topic.group_offset = 1
    assert moved.ids() == ["shop-signal/0/1"]


def test_a_coordinator_that_moves_is_waited_for(listening: Listening) -> None:
    listening.topic.add(LOG)
    listening.topic.group_failures = [KafkaError(KafkaError.NOT_COORDINATOR)]
    assert len(listening.look()) == 1
    other = Listening(listening.topic)
    other.topic.group_failures = [KafkaError(KafkaError._TIMED_OUT)]
    assert other.look() == [], "the group's offset is the end"
    assert other.topic.group_failures == []


def test_a_group_without_permission_is_reported(listening: Listening) -> None:
    listening.topic.group_failures = [KafkaError(KafkaError._TIMED_OUT)]
    listening.topic.refused_group = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(ConfigurationError, match="connection's user READ on group kafka-signal"):
        listening.look()


def test_messages_for_others_alone_cost_a_commit_only_now_and_then(listening: Listening) -> None:
    topic = listening.topic
    topic.add(LOG)
    listening.look()
    kept = listening.position
    for _ in range(999):
        topic.add(LOG, key="other")
    listening.restart()
    assert listening.ids() == []
    assert listening.position == kept
    assert topic.group_offset == 1000, "but the lag is shown as it is"
    topic.add(LOG, key="other")
    listening.look()
    assert listening.position is not None
    assert (listening.position["offset"], listening.position["skipped"]) == (1001, 1000)


def test_a_commit_to_the_group_that_fails_costs_nothing_but_a_word(
    listening: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    listening.topic.refused_commits = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)
    listening.topic.add(LOG)
    with caplog.at_level(logging.WARNING):
        assert len(listening.look()) == 1
    assert "can't be committed to group kafka-signal" in caplog.text
    assert listening.ids() == []


@pytest.mark.covers("MDB-SIG-10")
@pytest.mark.parametrize(("reset", "found"), [("earliest", 2), ("latest", 0), ("", 2)])
def test_consumer_settings_apply_and_set_the_start_offset(reset: str, found: int) -> None:
    listening = Listening(
        consumer={"fetch.min.bytes": "7", **({"auto.offset.reset": reset} if reset else {})}
    )
    listening.topic.add(LOG)
    listening.topic.add(LOG)
    assert len(listening.look()) == found
    assert listening.channel._consumer.settings["fetch.min.bytes"] == "7"
    listening.topic.add(LOG)
    listening.restart()
    assert listening.ids() == ["shop-signal/0/2"], "what came between two jobs is not skipped"


def test_signals_that_retention_deleted_unread_are_reported(listening: Listening) -> None:
    topic = listening.topic
    topic.add(LOG)
    listening.look()
    for number in range(4):
        topic.add(signal(str(number)))
    topic.expire(3)
    listening.restart()
    missed, *found = listening.look()
    assert isinstance(missed, MalformedSignal)
    assert "messages 1 to 2 of topic shop-signal were deleted before they were read" in missed.reason
    assert [one.id for one in found] == ["2", "3"]


def test_retention_during_a_stream_is_reported_at_the_next_poll(listening: Listening) -> None:
    topic = listening.topic
    topic.add(LOG)
    listening.look()
    for _ in range(3):
        topic.add(LOG)
    topic.expire(4)
    with pytest.raises(TransientError):
        listening.look()
    (missed,) = listening.look()
    assert isinstance(missed, MalformedSignal)
    assert topic.opened == 2


def test_a_recreated_topic_is_read_from_its_start_with_distinct_ids(listening: Listening) -> None:
    topic = listening.topic
    for _ in range(2):
        topic.add(LOG)
    listening.look()
    topic.re_create()
    topic.add(LOG)
    topic.add(LOG)
    topic.add(LOG)
    listening.restart()
    missed, *found = listening.look()
    assert isinstance(missed, MalformedSignal)
    assert "was re-created" in missed.reason
    assert [one.id for one in found] == [f"shop-signal/0/{n}.1" for n in range(3)]


def test_a_truncated_topic_is_resumed_at_its_end(listening: Listening) -> None:
    topic = listening.topic
    for _ in range(3):
        topic.add(LOG)
    listening.look()
    topic.cut(1)
    listening.restart()
    (missed,) = listening.look()
    assert isinstance(missed, MalformedSignal)
    assert "its brokers lost it" in missed.reason
    topic.add(LOG)
    assert listening.ids() == ["shop-signal/0/1.1"], "another one than that of before"


@pytest.mark.covers("MDB-SIG-06")
def test_a_topic_of_several_partitions_is_refused_by_its_name() -> None:
    listening = Listening(FakeTopic(partitions=2))
    with pytest.raises(
        ChannelRefused, match=r"topic shop-signal can't keep the order of signals: expected one"
    ):
        listening.look()


def test_a_topic_that_is_not_there_yet_is_looked_for_again_after_a_while() -> None:
    listening = Listening(FakeTopic(partitions=0))
    with pytest.raises(TransientError, match="there is no topic shop-signal for signals"):
        listening.look()
    listening.topic.partitions = 1
    listening.topic.add(LOG)
    listening.now = 59
    with pytest.raises(TransientError, match="there is no topic"):
        listening.look()
    assert listening.topic.asked == 1
    listening.now = 61
    assert listening.ids() == ["shop-signal/0/0"]


def test_brokers_that_are_away_and_logins_that_are_refused_end_no_job(listening: Listening) -> None:
    for error in (TransientError("no broker answers"), ConfigurationError("the login is refused")):
        listening.topic.away = error
        with pytest.raises(type(error)) as raised:
            listening.look()
        assert not isinstance(raised.value, ChannelRefused)
        listening.now += 61
    listening.topic.away = None
    listening.topic.add(LOG)
    listening.topic.failures = [KafkaError(KafkaError._TRANSPORT)]
    assert listening.ids() == ["shop-signal/0/0"], "what passes by itself is waited for"
    before = listening.topic.opened
    listening.topic.failures = [KafkaError(KafkaError._ALL_BROKERS_DOWN)]
    assert listening.ids() == []
    assert listening.topic.opened == before + 1, "it was looked whether they are there"
    listening.topic.failures = [KafkaError(KafkaError._ALL_BROKERS_DOWN)]
    listening.topic.away = TransientError("no broker answers")
    for _ in range(2):
        asked = listening.topic.asked
        with pytest.raises(TransientError, match="no broker answers"):
            listening.look()
    assert listening.topic.asked == asked, "and then let alone"
    listening.topic.away = None
    listening.topic.add(signal("later"))
    listening.now += 61
    assert listening.ids() == ["later"]


def test_a_value_that_librdkafka_does_not_accept_is_refused() -> None:
    client = ClientSettings({"bootstrap.servers": "localhost:1"}, consumer={"fetch.min.bytes": "x"})
    channel = TopicChannel(SignalTopic(client, "t", "shop", "g", 0.1), FakeTopic())
    channel.resume(None)
    with pytest.raises(ChannelRefused, match="librdkafka rejects the settings"):
        channel.receive()


def test_nothing_is_read_before_resume(listening: Listening) -> None:
    listening.topic.add(LOG)
    assert listening.channel.receive() == ()
    assert listening.topic.opened == 0
