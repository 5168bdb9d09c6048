"""Description of a topic for checks of a declaration: whether it exists, and the user's permissions.

Nothing is created or changed: a request that the brokers only validate shows whether a missing topic could be
created.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from airflow_cdc_provider.kafka.errors import NOT_THERE, LastError, client_of, error_of
from airflow_cdc_provider.kafka.settings import ClientSettings

_CALL_SECONDS: Final = 10.0
_GRACE_SECONDS: Final = 5.0
"""Extra timeout on top of the client's own, so that the client's error with its reason comes first."""
_NOT_ALLOWED: Final = ("TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED")
_REFUSALS: Final = (
    *_NOT_ALLOWED,
    "TOPIC_EXCEPTION",
    "POLICY_VIOLATION",
    "INVALID_PARTITIONS",
    "INVALID_REPLICATION_FACTOR",
    "INVALID_CONFIG",
    "INVALID_REQUEST",
)
"""Reasons why a topic can't be created; other errors are failures of the brokers, not of the topic."""
_POLICY: Final = "cleanup.policy"


@dataclass(frozen=True)
class TopicFacts:
    """Description of a topic.

    Args:
        topic: Its name.
        partitions: Number of partitions; None if it doesn't exist, or without permission to describe it.
        policy: Its ``cleanup.policy``; None without permission to read settings.
        operations: Operations that the user may perform, by Kafka's names; None if brokers don't report them.
        refusal: Why a missing topic can't be created, or a topic can't be described; empty if it can.
    """

    topic: str
    partitions: int | None = None
    policy: str | None = None
    operations: frozenset[str] | None = None
    refusal: str = ""

    @property
    def compacts(self) -> bool:
        """Whether the topic is compacted: older records of a key are deleted."""
        return self.policy is not None and "compact" in self.policy

    def may(self, operation: str) -> bool | None:
        """Return whether the user may perform an operation; None if unknown."""
        return None if self.operations is None else operation in self.operations


class TopicInspector:
    """Describes topics.

    Args:
        settings: Client settings.
        build: Builds the client; librdkafka's admin client by default.
    """

    def __init__(
        self, settings: ClientSettings, build: Callable[[dict[str, Any]], Any] | None = None
    ) -> None:
        from confluent_kafka.admin import AdminClient

        self._last = LastError()
        self._client = client_of(build or AdminClient, settings.of_admin(), self._last)

    def facts(self, topic: str, partitions: int = -1) -> TopicFacts:
        """Describe a topic.

        Args:
            topic: Its name.
            partitions: Number of partitions if it were created; -1 for the brokers' default.

        Returns:
            The description.

        Raises:
            ConfigurationError: The login is invalid.
            BrokersUnavailable: The brokers don't answer.
        """
        from confluent_kafka import TopicCollection

        futures = self._client.describe_topics(
            TopicCollection([topic]), include_authorized_operations=True, request_timeout=_CALL_SECONDS
        )
        described, failure = self._result(
            futures[topic], f"describing topic {topic}", (*NOT_THERE, *_NOT_ALLOWED)
        )
        if described is None:
            refusal = failure if not failure.startswith(NOT_THERE) else self._refusal(topic, partitions)
            return TopicFacts(topic, refusal=refusal)
        operations = described.authorized_operations
        return TopicFacts(
            topic,
            len(described.partitions),
            self._policy(topic),
            frozenset(one.name for one in operations) if operations else None,
        )

    def _policy(self, topic: str) -> str | None:
        from confluent_kafka.admin import ConfigResource, ResourceType

        resource = ConfigResource(ResourceType.TOPIC, topic)
        (future,) = self._client.describe_configs([resource], request_timeout=_CALL_SECONDS).values()
        settings, _ = self._result(future, f"reading settings of topic {topic}", _NOT_ALLOWED)
        return None if settings is None else str(settings[_POLICY].value)

    def _refusal(self, topic: str, partitions: int) -> str:
        """Return why a topic can't be created; only validates the request."""
        from confluent_kafka.admin import NewTopic

        futures = self._client.create_topics(
            [NewTopic(topic, partitions, -1)], validate_only=True, request_timeout=_CALL_SECONDS
        )
        _, refusal = self._result(futures[topic], f"validating the creation of topic {topic}", _REFUSALS)
        return refusal

    def _result(self, future: Any, doing: str, accepted: tuple[str, ...]) -> tuple[Any, str]:
        """Return the result of a call and an empty text; or None and the reason for an accepted error."""
        from confluent_kafka import KafkaException

        try:
            return future.result(_CALL_SECONDS + _GRACE_SECONDS), ""
        except KafkaException as error:
            name = error.args[0].name()
            if name in accepted:
                return None, f"{name}: {error.args[0].str()}"
            raise error_of(error.args[0], doing, self._last.error) from None
