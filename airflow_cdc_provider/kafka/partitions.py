"""What a cluster's topics are: their partitions, where those begin and end, and which topic is which."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError
from airflow_cdc_provider.kafka.errors import NOT_THERE, LastError, client_of, error_of, require_library
from airflow_cdc_provider.kafka.settings import ClientSettings

Partition = tuple[str, int]

_CALL_SECONDS: Final = 30.0
_NEW_SECONDS: Final = 10.0
"""How long brokers may not know of a partition that was added just now."""
_NO_LEADER: Final = ("LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "_NOENT")
"""A partition has no leader, or one that doesn't know of it: brokers restart, or it was added just now."""


@dataclass(frozen=True)
class Topic:
    """A topic.

    Args:
        name: Its name.
        id: What the broker calls it, another one when it is made anew; empty where it tells none.
        partitions: Their numbers.
    """

    name: str
    id: str
    partitions: Sequence[int]


class ClusterTopics:
    """Asks a cluster about its topics; connects when it is first asked.

    Args:
        settings: Of the client.
        isolation: Whose end of a partition counts: ``read_committed`` or ``read_uncommitted``.
    """

    def __init__(self, settings: ClientSettings, isolation: str = "read_committed") -> None:
        self._settings = settings
        self._isolation = isolation
        self._admin_made: Any = None
        self._last = LastError()
        self._seconds = min(_CALL_SECONDS, max(1.0, settings.retry_seconds))

    @property
    def _admin(self) -> Any:
        if self._admin_made is None:
            require_library()
            from confluent_kafka.admin import AdminClient

            self._admin_made = client_of(AdminClient, self._settings.of_admin(), self._last)
        return self._admin_made

    def topics(self, patterns: Sequence[str]) -> dict[str, Topic]:
        """Find topics by anchored regular expressions.

        Raises:
            ConfigurationError: The login is wrong.
            TransientError: No broker answers.
        """
        from confluent_kafka import KafkaException, TopicCollection

        try:
            known = self._admin.list_topics(timeout=self._seconds).topics
            names = sorted(name for name in known if any(re.fullmatch(one, name) for one in patterns))
            if not names:
                return {}
            asked = self._admin.describe_topics(TopicCollection(names), request_timeout=self._seconds)
            told = {name: found.result() for name, found in asked.items()}
        except KafkaException as error:
            raise self._error(error, "asking for topics") from None
        return {
            name: Topic(name, str(one.topic_id or ""), tuple(sorted(part.id for part in one.partitions)))
            for name, one in sorted(told.items())
        }

    def begins(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the offset of the first message that each partition still has."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(partitions, OffsetSpec.earliest())

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the offset behind the last message of each that may be read now."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(partitions, OffsetSpec.latest())

    def at(self, partitions: Iterable[Partition], time_ms: int) -> dict[Partition, int]:
        """Return the offset of the first message that isn't older than a time; the end where all are.

        Args:
            partitions: Which ones.
            time_ms: Milliseconds since 1970.
        """
        from confluent_kafka.admin import OffsetSpec

        asked = list(partitions)
        ends = self.ends(asked)
        found = self._offsets(asked, OffsetSpec.for_timestamp(time_ms))
        return {one: offset if offset >= 0 else ends[one] for one, offset in found.items()}

    def _offsets(self, partitions: Iterable[Partition], spec: Any) -> dict[Partition, int]:
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition

        committed = self._isolation == "read_committed"
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        request = {TopicPartition(topic, number): spec for topic, number in partitions}
        if not request:
            return {}
        began = time.monotonic()
        while True:
            try:
                asked = self._admin.list_offsets(
                    request, isolation_level=level, request_timeout=self._seconds
                )
                return {(one.topic, one.partition): found.result().offset for one, found in asked.items()}
            except KafkaException as error:
                if time.monotonic() - began > self._patience(error.args[0].name()):
                    raise self._error(error, "asking for offsets") from None
            time.sleep(0.2)

    def _patience(self, name: str) -> float:
        """Return for how many seconds it is worth to ask again after an error."""
        if name in _NO_LEADER:
            return self._settings.retry_seconds
        return min(_NEW_SECONDS, self._settings.retry_seconds) if name in NOT_THERE else -1

    def _error(self, error: Any, doing: str) -> CdcError:
        return error_of(error.args[0], doing, self._last.error)


def require_patterns(patterns: Sequence[str], found: Mapping[str, Topic], servers: str) -> None:
    """Refuse patterns of topics that select none.

    Raises:
        ConfigurationError: With them.
    """
    if not found:
        raise ConfigurationError(
            "no topic is selected",
            expected=f"topics that match {', '.join(patterns)}",
            found=f"none on {servers}",
            remedy="check source.topics (anchored regular expressions) and tables, and the user's right to "
            "describe topics",
        )
