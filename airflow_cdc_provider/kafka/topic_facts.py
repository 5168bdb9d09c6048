"""What a cluster tells of a topic to who checks a declaration: whether it is there, and what may be done.

Nothing is made or changed: whether a topic that is missing could be made is asked by a request that the
brokers validate and don't carry out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from airflow_cdc_provider.kafka.errors import NOT_THERE, LastError, client_of, error_of, require_library
from airflow_cdc_provider.kafka.settings import ClientSettings

_CALL_SECONDS: Final = 10.0
_GRACE_SECONDS: Final = 5.0
"""How much later than the client itself we give a call up: its error says why."""
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
"""Why a topic can't be made; anything else is trouble of the brokers, which says nothing of the topic."""
_POLICY: Final = "cleanup.policy"


@dataclass(frozen=True)
class TopicFacts:
    """What is known of a topic.

    Args:
        topic: Its name.
        partitions: How many it has; None if it isn't there, or may not be seen.
        policy: Its ``cleanup.policy``; None where settings may not be looked at.
        operations: What the user may do with it, by Kafka's names; None where brokers don't say.
        refusal: Why a topic that isn't there can't be made, or one can't be looked at; empty if it can.
    """

    topic: str
    partitions: int | None = None
    policy: str | None = None
    operations: frozenset[str] | None = None
    refusal: str = ""

    @property
    def compacts(self) -> bool:
        """Whether older records of a key are let go."""
        return self.policy is not None and "compact" in self.policy

    def may(self, operation: str) -> bool | None:
        """Tell whether the user may do something with it; None where that isn't known."""
        return None if self.operations is None else operation in self.operations


class TopicInspector:
    """Asks brokers about topics.

    Args:
        settings: Of the client.
        build: Makes the client; by default librdkafka's.
    """

    def __init__(
        self, settings: ClientSettings, build: Callable[[dict[str, Any]], Any] | None = None
    ) -> None:
        require_library()
        from confluent_kafka.admin import AdminClient

        self._last = LastError()
        self._client = client_of(build or AdminClient, settings.of_admin(), self._last)

    def facts(self, topic: str, partitions: int = -1) -> TopicFacts:
        """Return what is known of a topic.

        Args:
            topic: Its name.
            partitions: How many it would be made with; -1: as the brokers have it.

        Raises:
            ConfigurationError: The login is wrong.
            BrokersAway: The brokers don't answer.
        """
        from confluent_kafka import TopicCollection

        asked = self._client.describe_topics(
            TopicCollection([topic]), include_authorized_operations=True, request_timeout=_CALL_SECONDS
        )
        told, failure = self._result(asked[topic], f"asking for topic {topic}", (*NOT_THERE, *_NOT_ALLOWED))
        if told is None:
            refusal = failure if not failure.startswith(NOT_THERE) else self._refusal(topic, partitions)
            return TopicFacts(topic, refusal=refusal)
        operations = told.authorized_operations
        return TopicFacts(
            topic,
            len(told.partitions),
            self._policy(topic),
            frozenset(one.name for one in operations) if operations else None,
        )

    def _policy(self, topic: str) -> str | None:
        from confluent_kafka.admin import ConfigResource, ResourceType

        resource = ConfigResource(ResourceType.TOPIC, topic)
        (asked,) = self._client.describe_configs([resource], request_timeout=_CALL_SECONDS).values()
        told, _ = self._result(asked, f"asking for settings of topic {topic}", _NOT_ALLOWED)
        return None if told is None else str(told[_POLICY].value)

    def _refusal(self, topic: str, partitions: int) -> str:
        """Return why a topic couldn't be made; nothing is made."""
        from confluent_kafka.admin import NewTopic

        asked = self._client.create_topics(
            [NewTopic(topic, partitions, -1)], validate_only=True, request_timeout=_CALL_SECONDS
        )
        _, refusal = self._result(asked[topic], f"asking whether topic {topic} can be made", _REFUSALS)
        return refusal

    def _result(self, told: Any, doing: str, passing: tuple[str, ...]) -> tuple[Any, str]:
        """Return what a call gave; or None and why, where it failed by an error that is an answer."""
        from confluent_kafka import KafkaException

        try:
            return told.result(_CALL_SECONDS + _GRACE_SECONDS), ""
        except KafkaException as error:
            name = error.args[0].name()
            if name in passing:
                return None, f"{name}: {error.args[0].str()}"
            raise error_of(error.args[0], doing, self._last.error) from None
