"""What a producer uses of librdkafka, and stored positions, which fail as no broker can be made to."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError

from airflow_cdc_provider.kafka.positions import PositionsTopic, PublishPosition


@dataclass
class Client:
    """Stands in for librdkafka: keeps its calls, and fails as its arguments say.

    Args:
        settings: Those it is built with.
        fails: By the name of a call, what its next calls raise.
        reports: Errors of records that the next flush reports.
    """

    settings: dict[str, Any]
    fails: dict[str, list[Exception]] = field(default_factory=dict)
    reports: list[tuple[str, KafkaError]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.fails.get(name):
            raise self.fails[name].pop(0)

    def init_transactions(self, seconds: float) -> None:
        self._called("init")

    def begin_transaction(self) -> None:
        self._called("begin")

    def produce(self, topic: str, value: bytes | None, *rest: Any, **more: Any) -> None:
        self._called("produce")
        self.calls[-1] = f"{topic}={(value or b'').decode()[:5]}"

    def commit_transaction(self, seconds: float) -> None:
        self._called("commit")

    def abort_transaction(self, seconds: float) -> None:
        self._called("abort")

    def list_topics(self, topic: str, seconds: float) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions=range(1))})

    def poll(self, seconds: float) -> int:
        if seconds:
            self.calls.append("poll")
        return 0

    def flush(self, seconds: float) -> int:
        if self.fails.get("flush"):
            raise self.fails["flush"].pop(0)
        for topic, error in self.reports:
            self.settings["on_delivery"](error, SimpleNamespace(topic=lambda topic=topic: topic))
        self.reports.clear()
        return 0

    def purge(self) -> None:
        self.calls.append("purge")


class Positions(PositionsTopic):
    """Keeps what the test says is stored."""

    stored: PublishPosition | bytes | None = None

    def read(self, number: int = 0, *, must_exist: bool = False) -> PublishPosition | None:
        assert must_exist, "a producer doesn't start over because a broker doesn't know the topic"
        return PublishPosition.from_json(self.stored) if isinstance(self.stored, bytes) else self.stored
