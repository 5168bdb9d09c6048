"""The producer with a client that keeps a record and fails as no broker can be made to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from airflow_cdc_provider.events.encoder import Converters
from airflow_cdc_provider.exceptions import CommitConflict, ConfigurationError, OffsetMissing, RecordsRejected
from airflow_cdc_provider.kafka import producer as producer_module
from airflow_cdc_provider.kafka.errors import BrokersUnavailable
from airflow_cdc_provider.kafka.positions import PublishPosition
from airflow_cdc_provider.kafka.producer import RecordProducer
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.kafka.topics import TopicCreator, TopicRule
from tests.unit.kafka.fake_producer import Client, Positions

SETTINGS = ClientSettings({"bootstrap.servers": "b:1"}, retry_timeout_seconds=2)
AT = PublishPosition("shop", 1, 2)


def failure(code: int, **kind: bool) -> KafkaException:
    return KafkaException(KafkaError(code, "as the test wants", **kind))


@dataclass
class Setting:
    """A producer and the clients that it has built."""

    positions: Positions
    clients: list[Client]
    producer: RecordProducer

    @property
    def client(self) -> Client:
        return self.clients[-1]


@pytest.fixture
def setting() -> Setting:
    """One that has taken over; what was called for it is forgotten."""
    clients: list[Client] = []

    def build(values: dict[str, Any]) -> Client:
        clients.append(Client(values))
        return clients[-1]

    positions = Positions(SETTINGS, "positions", "shop")
    producer = RecordProducer(SETTINGS, positions, transactional_id="shop.0", build=build)
    producer.take_over()
    clients[-1].calls.clear()
    return Setting(positions, clients, producer)


def publish(setting: Setting) -> None:
    rows = [{"topic": "t", "bare": False, "headers": "", "value": value} for value in "ab"]
    setting.producer.publish([pa.RecordBatch.from_pylist(rows, schema=Converters().record_schema)], (), AT)


SENT = ["begin", "t=a", "t=b", 'positions={"bat', "commit"]


def test_a_full_queue_is_waited_for(setting: Setting) -> None:
    setting.client.fails["produce"] = [BufferError("full"), BufferError("full")]
    publish(setting)
    calls = setting.client.calls
    assert [call for call in calls if call not in ("poll", "produce")] == SENT
    assert calls.count("poll") == 2


def test_a_commit_that_may_be_resumed_is(setting: Setting) -> None:
    setting.client.fails["commit"] = [failure(KafkaError._TIMED_OUT, retriable=True)] * 2
    publish(setting)
    assert setting.client.calls == [*SENT, "commit", "commit"]


@pytest.mark.parametrize(
    ("error", "raised", "aborts"),
    [
        (failure(KafkaError._TIMED_OUT), BrokersUnavailable, False),
        (failure(KafkaError.COORDINATOR_NOT_AVAILABLE, txn_requires_abort=True), BrokersUnavailable, True),
        (failure(KafkaError._FENCED, fatal=True), CommitConflict, False),
        (failure(KafkaError.INVALID_PRODUCER_EPOCH, txn_requires_abort=True), CommitConflict, True),
    ],
)
def test_a_commit_that_fails_is_an_error_by_its_kind(
    setting: Setting, error: KafkaException, raised: type[Exception], aborts: bool
) -> None:
    setting.client.fails["commit"] = [error]
    with pytest.raises(raised):
        publish(setting)
    assert ("abort" in setting.client.calls) == aborts


def test_a_refusal_outweighs_what_it_brings_about(setting: Setting) -> None:
    setting.client.reports = [
        ("t", KafkaError(KafkaError._PURGE_QUEUE)),
        ("t", KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)),
        ("t", KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)),
    ]
    with pytest.raises(RecordsRejected) as refused:
        publish(setting)
    assert (refused.value.topic, refused.value.whole_topic) == ("t", False)
    assert setting.client.calls[-1] == "abort"


def refuse(setting: Setting) -> None:
    setting.client.reports = [("t", KafkaError(KafkaError.INVALID_RECORD))]
    with pytest.raises(RecordsRejected):
        publish(setting)


def test_after_a_rejection_a_new_client_continues_from_the_same_position(setting: Setting) -> None:
    refuse(setting)
    publish(setting)
    assert len(setting.clients) == 2
    assert setting.client.calls == ["init", *SENT]


def test_a_zombie_whose_record_was_refused_does_not_come_back_to_life(setting: Setting) -> None:
    refuse(setting)
    setting.positions.stored = PublishPosition("shop", 5)
    with pytest.raises(CommitConflict, match="another producer published in between"):
        publish(setting)
    assert setting.client.calls == ["init"]


def test_a_fatal_error_that_callbacks_wrap_is_found(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flush(seconds: float) -> int:
        try:
            raise failure(KafkaError._FENCED, fatal=True)
        except KafkaException as error:
            raise SystemError("returned a result with an exception set") from error

    raising: Callable[[float], int] = flush
    monkeypatch.setattr(setting.client, "flush", raising)
    with pytest.raises(CommitConflict):
        publish(setting)


@pytest.mark.parametrize("ended", [False, True])
def test_records_of_a_transaction_that_has_ended_are_not_waited_for(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    left = [1, 0]

    def flush(seconds: float) -> int:
        if len(left) == 2:
            code = KafkaError.COORDINATOR_NOT_AVAILABLE if ended else KafkaError._STATE
            setting.client.fails["begin"] = [failure(code, txn_requires_abort=ended)]
        return left.pop(0)

    monkeypatch.setattr(setting.client, "flush", flush)
    if ended:
        with pytest.raises(BrokersUnavailable, match="COORDINATOR_NOT_AVAILABLE"):
            publish(setting)
        assert (setting.client.calls[-1], left) == ("abort", [0])
    else:
        publish(setting)
        assert (setting.client.calls[-1], left) == ("commit", [])


def test_a_producer_with_a_fatal_error_reports_it_at_the_next_record(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poll(seconds: float) -> int:
        raise failure(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, fatal=True)

    setting.client.fails["produce"] = [failure(KafkaError._FATAL)]
    monkeypatch.setattr(setting.client, "poll", poll)
    with pytest.raises(ConfigurationError, match="connection's user WRITE on transactional id shop"):
        publish(setting)


@pytest.mark.parametrize("reported", [False, True])
def test_a_record_after_one_that_ended_the_transaction_fails_as_that_one(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, reported: bool
) -> None:
    def poll(seconds: float) -> int:
        return setting.client.flush(seconds)

    monkeypatch.setattr(setting.client, "poll", poll)
    setting.client.fails["produce"] = [failure(KafkaError._STATE)]
    if reported:
        setting.client.reports = [("t", KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))]
        with pytest.raises(RecordsRejected, match="topic t rejects records"):
            publish(setting)
    else:
        start = setting.client.begin_transaction

        def begin_transaction() -> None:
            start()
            setting.client.fails["begin"] = [
                failure(KafkaError.COORDINATOR_NOT_AVAILABLE, txn_requires_abort=True)
            ]

        monkeypatch.setattr(setting.client, "begin_transaction", begin_transaction)
        with pytest.raises(BrokersUnavailable, match="COORDINATOR_NOT_AVAILABLE"):
            publish(setting)
    assert setting.client.calls[-1] == "abort"


def test_a_producer_that_was_fenced_can_be_closed(setting: Setting) -> None:
    setting.client.fails["flush"] = [failure(KafkaError._FENCED, fatal=True)]
    setting.producer.close()
    assert setting.client.calls == ["purge"]
    assert not setting.client.fails["flush"], "it was asked"


def test_topics_are_created_once_before_a_transaction_begins() -> None:
    calls: list[str] = []
    clients: list[Client] = []

    def build(values: dict[str, Any]) -> Client:
        clients.append(Client(values, calls=calls))
        return clients[-1]

    class Maker(TopicCreator):
        def create_missing(self, wanted: Iterable[str]) -> tuple[str, ...]:
            calls.append(f"make {','.join(wanted)}")
            return ()

    positions = Positions(SETTINGS, "positions", "shop")
    topics = Maker(SETTINGS, (TopicRule("default"),))
    producer = RecordProducer(SETTINGS, positions, transactional_id="shop.0", build=build, topics=topics)
    producer.take_over()
    for _ in range(2):
        publish(Setting(positions, clients, producer))
    assert calls == ["init", "make t", *SENT, *SENT]


def test_a_topic_that_the_broker_creates_automatically_is_waited_for(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [
        KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART),
        KafkaError(KafkaError.LEADER_NOT_AVAILABLE),
        None,
    ]
    errors = iter(answers)

    def list_topics(topic: str, seconds: float) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=next(errors), partitions=range(1))})

    monkeypatch.setattr(setting.client, "list_topics", list_topics)
    publish(setting)
    assert setting.client.calls == SENT
    assert next(errors, "all asked") == "all asked"


def test_a_topic_that_stays_missing_is_waited_for_once(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def list_topics(topic: str, seconds: float) -> Any:
        asked.append(topic)
        missing = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return SimpleNamespace(topics={topic: SimpleNamespace(error=missing)})

    monkeypatch.setattr(setting.client, "list_topics", list_topics)
    monkeypatch.setattr(producer_module, "_TOPIC_SECONDS", 0.3)
    for _ in range(2):
        with pytest.raises(RecordsRejected) as refused:
            publish(setting)
        assert (refused.value.topic, refused.value.whole_topic) == ("t", True)
        times, asked[:] = len(asked), []
    assert times == 1
    assert setting.client.calls == []


def test_a_position_that_can_not_be_read_can_be_replaced(setting: Setting) -> None:
    setting.positions.stored = b'{"v": 2}'
    with pytest.raises(OffsetMissing, match="can't be read"):
        setting.producer.take_over()
    assert setting.producer.take_over(read=False) is None
    setting.producer.publish((), (), AT)
    assert setting.client.calls == ["init", "init", "begin", 'positions={"bat', "commit"]


def test_records_can_be_sent_without_a_position() -> None:
    clients: list[Client] = []

    def build(values: dict[str, Any]) -> Client:
        clients.append(Client(values))
        return clients[-1]

    producer = RecordProducer(SETTINGS, Positions(SETTINGS, "positions", "shop"), build=build)
    rows = [{"topic": "t", "bare": True, "headers": "", "value": "a"}]
    batch = pa.RecordBatch.from_pylist(rows, schema=Converters().record_schema)
    producer.send([batch])
    assert clients[0].calls == ["t=a"]
    clients[0].reports = [("t", KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))]
    with pytest.raises(RecordsRejected):
        producer.send([batch])


def test_without_transactions_the_position_follows_the_records() -> None:
    clients: list[Client] = []

    def build(values: dict[str, Any]) -> Client:
        clients.append(Client(values))
        return clients[-1]

    producer = RecordProducer(SETTINGS, Positions(SETTINGS, "positions", "shop"), build=build)
    producer.take_over()
    publish(Setting(Positions(SETTINGS, "positions", "shop"), clients, producer))
    assert clients[0].calls == ["t=a", "t=b", 'positions={"bat']
    assert "transactional.id" not in clients[0].settings
    assert clients[0].settings["enable.idempotence"] is True
    clients[0].reports = [("t", KafkaError(KafkaError._MSG_TIMED_OUT))]
    with pytest.raises(BrokersUnavailable):
        publish(Setting(Positions(SETTINGS, "positions", "shop"), clients, producer))
    assert not [call for call in clients[0].calls[3:] if call.startswith("positions")]
