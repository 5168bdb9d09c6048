"""A consumer that gives what a script says, and keeps what it was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError


@dataclass
class FakeMessage:
    """A message, an error, or the end of a partition."""

    place: int
    content: bytes | None = b"{}"
    name: bytes | None = b"{}"
    failure: KafkaError | None = None

    def __len__(self) -> int:
        """Return the bytes of the value, as confluent-kafka's messages do: those without any are false."""
        return len(self.content or b"")

    def offset(self) -> int:
        return self.place

    def value(self) -> bytes | None:
        return self.content

    def key(self) -> bytes | None:
        return self.name

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_700_000_000_000

    def error(self) -> KafkaError | None:
        return self.failure


def end_at(offset: int) -> FakeMessage:
    return FakeMessage(offset, failure=KafkaError(KafkaError._PARTITION_EOF))


@dataclass
class FakeConsumer:
    """Gives one portion of the script per call, then nothing."""

    script: Sequence[Sequence[FakeMessage]]
    settings: dict[str, Any] = field(default_factory=dict)
    assigned: list[Any] = field(default_factory=list)
    closed: bool = False
    calls: int = 0

    def __call__(self, settings: dict[str, Any]) -> FakeConsumer:
        self.settings = settings
        return self

    def assign(self, partitions: list[Any]) -> None:
        self.assigned = partitions

    def consume(self, count: int, timeout: float) -> Sequence[FakeMessage]:
        assert count > 0
        assert timeout > 0
        self.calls += 1
        return self.script[self.calls - 1] if self.calls <= len(self.script) else ()

    def close(self) -> None:
        self.closed = True
