"""A cluster's topics: their ids, their partitions, and the start and end offsets of these."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError
from airflow_cdc_provider.kafka.errors import NOT_THERE, LastError, client_of, error_of
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.patterns import matches

Partition = tuple[str, int]

_CALL_SECONDS: Final = 30.0
_NEW_SECONDS: Final = 10.0
"""How long a new partition may be unknown to brokers."""
_OTHER_EPOCH: Final = ("FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH")
"""The client has another leader epoch than the broker, which restarted; an admin client keeps its own."""
_NO_LEADER: Final = ("LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "OFFSET_NOT_AVAILABLE", "_NOENT")
"""A partition has no leader, or its leader doesn't know it yet: brokers restart, or the partition is new."""


@dataclass(frozen=True)
class Topic:
    """A topic.

    Args:
        name: Its name.
        id: The broker's topic id; a re-created topic has another one. Empty if the broker reports none.
        partitions: Numbers of its partitions.
    """

    name: str
    id: str
    partitions: Sequence[int]


class ClusterTopics:
    """Metadata and offsets of a cluster's topics; connects on first use.

    Args:
        settings: Client settings.
        isolation: Isolation level of end offsets: ``read_committed`` or ``read_uncommitted``.
    """

    def __init__(self, settings: ClientSettings, isolation: str = "read_committed") -> None:
        self._settings = settings
        self._isolation = isolation
        self._admin_client: Any = None
        self._last = LastError()
        self._seconds = min(_CALL_SECONDS, max(1.0, settings.retry_timeout_seconds))

    @property
    def _admin(self) -> Any:
        if self._admin_client is None:
            from confluent_kafka.admin import AdminClient

            self._admin_client = client_of(AdminClient, self._settings.of_admin(), self._last)
        return self._admin_client

    def topics(self, patterns: Sequence[str]) -> dict[str, Topic]:
        """Find topics by anchored regular expressions.

        Returns:
            The topics by name.

        Raises:
            ConfigurationError: The login is invalid.
            TransientError: No broker answers.
        """
        from confluent_kafka import KafkaException, TopicCollection

        try:
            known = self._admin.list_topics(timeout=self._seconds).topics
            names = sorted(name for name in known if any(matches(one, name) for one in patterns))
            if not names:
                return {}
            futures = self._admin.describe_topics(TopicCollection(names), request_timeout=self._seconds)
            described = {name: future.result() for name, future in futures.items()}
        except KafkaException as error:
            raise self._error(error, "describing topics") from None
        return {
            name: Topic(name, str(one.topic_id or ""), tuple(sorted(part.id for part in one.partitions)))
            for name, one in sorted(described.items())
        }

    def begins(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the offset of the first available message of each partition."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(partitions, OffsetSpec.earliest())

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the offset after the last readable message of each partition."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(partitions, OffsetSpec.latest())

    def at(self, partitions: Iterable[Partition], time_ms: int) -> dict[Partition, int]:
        """Return the offset of the first message at or after a time, or the end offset if there is none.

        Args:
            partitions: The partitions.
            time_ms: Milliseconds since 1970.

        Returns:
            Offsets by partition.
        """
        from confluent_kafka.admin import OffsetSpec

        requested = list(partitions)
        ends = self.ends(requested)
        found = self._offsets(requested, OffsetSpec.for_timestamp(time_ms))
        return {one: offset if offset >= 0 else ends[one] for one, offset in found.items()}

    def _offsets(self, partitions: Iterable[Partition], spec: Any) -> dict[Partition, int]:
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition

        level = IsolationLevel[self._isolation.upper()]
        request = {TopicPartition(topic, number): spec for topic, number in partitions}
        if not request:
            return {}
        started = time.monotonic()
        while True:
            try:
                futures = self._admin.list_offsets(
                    request, isolation_level=level, request_timeout=self._seconds
                )
                return {(one.topic, one.partition): future.result().offset for one, future in futures.items()}
            except KafkaException as error:
                name = error.args[0].name()
                if time.monotonic() - started > self._retry_timeout(name):
                    raise self._error(error, "listing offsets") from None
                if name in _OTHER_EPOCH:
                    self._admin_client = None
            time.sleep(0.2)

    def _retry_timeout(self, name: str) -> float:
        """Return for how many seconds to retry after an error."""
        if name in (*_NO_LEADER, *_OTHER_EPOCH):
            return self._settings.retry_timeout_seconds
        return min(_NEW_SECONDS, self._settings.retry_timeout_seconds) if name in NOT_THERE else -1

    def _error(self, error: Any, doing: str) -> CdcError:
        return error_of(error.args[0], doing, self._last.error)


def require_patterns(patterns: Sequence[str], found: Mapping[str, Topic], servers: str) -> None:
    """Check that topic patterns select at least one topic.

    Raises:
        ConfigurationError: They select none.
    """
    if not found:
        raise ConfigurationError(
            "no topic is selected",
            expected=f"topics that match {', '.join(patterns)}",
            found=f"none on {servers}",
            remedy="check source.topics (anchored regular expressions) and tables, and the user's permission "
            "to describe topics",
        )
