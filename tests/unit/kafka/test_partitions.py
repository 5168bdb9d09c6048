"""What a cluster returns of partitions, also of those whose leader doesn't know of it yet."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.kafka import partitions
from airflow_cdc_provider.kafka.errors import BrokersUnavailable
from airflow_cdc_provider.kafka.partitions import ClusterTopics
from airflow_cdc_provider.kafka.settings import ClientSettings

PARTITION = ("orders", 2)


class Leader:
    """An administrator's client that returns errors, then an offset."""

    def __init__(self, *errors: int) -> None:
        self._errors: Iterator[int] = iter(errors)
        self.calls = 0

    def list_offsets(self, request: dict[Any, Any], **_: Any) -> dict[Any, Future[Any]]:
        self.calls += 1
        found: Future[Any] = Future()
        if (code := next(self._errors, None)) is None:
            found.set_result(SimpleNamespace(offset=7))
        else:
            found.set_exception(KafkaException(KafkaError(code, "as the test wants")))
        return dict.fromkeys(request, found)


def cluster(leader: Leader, retry_timeout_seconds: float = 60) -> ClusterTopics:
    made = ClusterTopics(
        ClientSettings({"bootstrap.servers": "nowhere:1"}, retry_timeout_seconds=retry_timeout_seconds)
    )
    made._admin_client = leader
    return made


def test_offsets_of_a_new_partition_are_retried_until_its_leader_knows_it() -> None:
    leader = Leader(KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART)
    assert cluster(leader).ends([PARTITION]) == {PARTITION: 7}
    assert leader.calls == 3


def test_a_leader_is_waited_for_as_long_as_brokers_are() -> None:
    away = [
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError._NOENT,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
    ]
    with pytest.raises(BrokersUnavailable, match="listing offsets"):
        cluster(Leader(*away * 30), retry_timeout_seconds=0.5).ends([PARTITION])
    assert cluster(Leader(*away), retry_timeout_seconds=60).ends([PARTITION]) == {PARTITION: 7}


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.FENCED_LEADER_EPOCH])
def test_a_client_whose_epoch_a_restarted_broker_refuses_is_replaced(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    first, second = Leader(*[code] * 100), Leader()
    monkeypatch.setattr(partitions, "client_of", lambda *_: second)
    assert cluster(first).ends([PARTITION]) == {PARTITION: 7}
    assert (first.calls, second.calls) == (1, 1)


def test_a_partition_that_stays_unknown_is_reported_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "_NEW_SECONDS", 0.3)
    with pytest.raises(ConfigurationError, match="listing offsets"):
        cluster(Leader(*[KafkaError.UNKNOWN_TOPIC_OR_PART] * 100)).ends([PARTITION])


def test_lasting_errors_are_raised_at_once() -> None:
    leader = Leader(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(ConfigurationError):
        cluster(leader).ends([PARTITION])
    assert leader.calls == 1
