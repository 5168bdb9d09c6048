"""An administrator's client, which fails as no broker can be made to."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError, KafkaException


def future_of(value: Any) -> Future[Any]:
    """What a call of the client gives."""
    future: Future[Any] = Future()
    if isinstance(value, int):
        future.set_exception(KafkaException(KafkaError(value, "as the test wants")))
    else:
        future.set_result(value)
    return future


@dataclass
class Admin:
    """Stands in for an administrator's client: has topics, makes more, and fails as the test wants.

    Args:
        settings: Those it is built with.
        topics: Partitions of those that are there.
        fails: By the name of a call, a code of an error.
    """

    settings: dict[str, Any]
    topics: dict[str, int]
    fails: dict[str, int]
    made: dict[str, tuple[int, int, dict[str, str]]] = field(default_factory=dict)
    asked: list[Sequence[str]] = field(default_factory=list)

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Future[Any]]:
        names = list(topics.topic_names)
        self.asked.append(names)
        missing = self.fails.get("describe", KafkaError.UNKNOWN_TOPIC_OR_PART)
        return {
            name: future_of(
                SimpleNamespace(partitions=[SimpleNamespace(replicas=[1])] * self.topics[name])
                if name in self.topics
                else missing
            )
            for name in names
        }

    def describe_configs(self, resources: Any, request_timeout: float) -> dict[Any, Future[Any]]:
        values = {"retention.ms": SimpleNamespace(value="7"), "preallocate": SimpleNamespace(value="true")}
        return {resource: future_of(self.fails.get("configs", values)) for resource in resources}

    def create_topics(self, new: Any, request_timeout: float) -> dict[str, Future[Any]]:
        code = self.fails.get("create")
        if code is None:
            self.made |= {one.topic: (one.num_partitions, one.replication_factor, one.config) for one in new}
        return {one.topic: future_of(code) for one in new}
