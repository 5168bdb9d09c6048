"""Topics made by rule before their first record, and those that are there with something else.

Rules are asked in turn, the first one that matches a name decides, and the last one matches every name: what
Kafka Connect's ``topic.creation`` groups say. What is to be made is planned from values alone (:func:`plan`);
:class:`TopicMaker` asks the brokers what is there, and makes the rest. A topic that is there is never
changed: what it has otherwise is told in the log, once in a process.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError
from airflow_cdc_provider.kafka.errors import (
    NAMES,
    NOT_THERE,
    WRONG_NAME,
    LastError,
    RecordsRefused,
    client_of,
    error_of,
    require_library,
)
from airflow_cdc_provider.kafka.settings import ClientSettings, Setting

log = logging.getLogger(__name__)

_CALL_SECONDS: Final = 30.0
_GRACE_SECONDS: Final = 5.0
"""How much later than the client itself we give a call up: its error says why."""
_NOT_ALLOWED: Final = ("TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED")
_WRONG_RULE: Final = (
    "INVALID_PARTITIONS",
    "INVALID_REPLICATION_FACTOR",
    "INVALID_CONFIG",
    "POLICY_VIOLATION",
    "INVALID_REQUEST",
)


@dataclass(frozen=True)
class TopicRule:
    """What topics are made with, of some names.

    Args:
        name: What messages call it.
        include: Regular expressions of whole names.
        exclude: Likewise, of names that it isn't for all the same.
        partitions: How many; -1: as the brokers have it.
        replication: Copies of each; -1: as the brokers have it.
        settings: Settings of the topics.
    """

    name: str
    include: Sequence[str] = (".*",)
    exclude: Sequence[str] = ()
    partitions: int = -1
    replication: int = -1
    settings: Mapping[str, Setting] = field(default_factory=dict)

    def matches(self, topic: str) -> bool:
        """Tell whether it is for a topic."""
        return any(re.fullmatch(pattern, topic) for pattern in self.include) and not any(
            re.fullmatch(pattern, topic) for pattern in self.exclude
        )

    def texts(self) -> dict[str, str]:
        """Return the settings as brokers write them."""
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in self.settings.items()
        }


@dataclass(frozen=True)
class TopicFound:
    """A topic that is there.

    Args:
        partitions: How many it has.
        replication: Copies of the first.
        settings: Its settings, those of brokers among them; None where they may not be looked at.
    """

    partitions: int
    replication: int
    settings: Mapping[str, str] | None = None


@dataclass(frozen=True)
class TopicPlan:
    """What becomes of topics that are needed.

    Args:
        missing: Those to be made, and by which rule.
        differences: A sentence about each one that is there with something else than its rule says.
    """

    missing: Mapping[str, TopicRule]
    differences: tuple[str, ...]


def rule_of(topic: str, rules: Sequence[TopicRule]) -> TopicRule:
    """Return the rule that decides: the first one that matches, else the last one."""
    return next((rule for rule in rules if rule.matches(topic)), rules[-1])


def plan(wanted: Iterable[str], found: Mapping[str, TopicFound], rules: Sequence[TopicRule]) -> TopicPlan:
    """Decide what is to be made.

    Args:
        wanted: Names of topics that records are for.
        found: Those of them that are there.
        rules: In the order in which they are asked; at least one.
    """
    missing: dict[str, TopicRule] = {}
    differences: list[str] = []
    for topic in sorted(set(wanted)):
        rule = rule_of(topic, rules)
        if topic not in found:
            missing[topic] = rule
        elif told := _differences(found[topic], rule):
            differences.append(f"topic {topic} is left as it is: {told} ({rule.name})")
    return TopicPlan(missing, tuple(differences))


def _differences(found: TopicFound, rule: TopicRule) -> str:
    """Say what a topic has, and its rule otherwise; an empty text for nothing."""
    pairs = [
        (name, str(has), str(says))
        for name, has, says in (
            ("partitions", found.partitions, rule.partitions),
            ("replication", found.replication, rule.replication),
        )
        if says != -1
    ]
    if found.settings is not None:
        pairs += [(name, found.settings.get(name, ""), says) for name, says in rule.texts().items()]
    return ", ".join(
        f"{name} {has or 'unknown'} where the declaration says {says}"
        for name, has, says in pairs
        if _parts(has) != _parts(says)
    )


def _parts(value: str) -> list[str]:
    """Split a setting that may be a list, whose order says nothing: ``compact,delete``."""
    return sorted(part.strip() for part in value.split(","))


class TopicMaker:
    """Makes topics that are missing.

    Args:
        settings: Of the client.
        rules: In the order in which they are asked; at least one.
        build: Makes the client; by default librdkafka's.
    """

    def __init__(
        self,
        settings: ClientSettings,
        rules: Sequence[TopicRule],
        build: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        require_library()
        self._settings = settings
        self._rules = rules
        self._build = build
        self._last = LastError()
        self._seconds = max(1.0, min(_CALL_SECONDS, settings.retry_seconds))
        self._opened: Any = None

    def make_missing(self, wanted: Iterable[str]) -> tuple[str, ...]:
        """Make what is missing of some topics; what is there otherwise is told.

        Returns:
            The names of those that were made.

        Raises:
            RecordsRefused: A topic is missing, and may not be made or looked at; or it can have no such name.
            ConfigurationError: Its rule is wrong, or a login is.
            BrokersAway: The brokers don't answer.
        """
        names = sorted(set(wanted))
        if "" in names:  # which the client takes for a fault of ours
            raise RecordsRefused("", "a topic without a name", whole_topic=True, remedy=NAMES)
        found = self._look(names)
        planned = plan(names, found, self._rules)
        for text in planned.differences:
            _tell(text)
        made = self._make(planned.missing)
        if made:
            log.info("topics were made: %s", ", ".join(made))
        return made

    @property
    def _client(self) -> Any:
        if self._opened is None:
            from confluent_kafka.admin import AdminClient

            self._opened = client_of(self._build or AdminClient, self._settings.of_admin(), self._last)
        return self._opened

    def _look(self, names: Sequence[str]) -> dict[str, TopicFound]:
        """Ask for topics by name; unlike a producer's question this one makes none."""
        from confluent_kafka import TopicCollection

        if not names:
            return {}
        asked = self._client.describe_topics(TopicCollection(list(names)), request_timeout=self._seconds)
        found: dict[str, TopicFound] = {}
        for topic, told in asked.items():
            described = self._result(told, f"asking for topic {topic}", topic, passing=NOT_THERE)
            if described is not None:
                partitions = described.partitions
                copies = len(partitions[0].replicas) if partitions else 0
                found[topic] = TopicFound(len(partitions), copies)
        described_too = [topic for topic in found if rule_of(topic, self._rules).settings]
        for topic, values in self._settings_of(described_too).items():
            found[topic] = TopicFound(found[topic].partitions, found[topic].replication, values)
        return found

    def _settings_of(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        from confluent_kafka.admin import ConfigResource, ResourceType

        if not names:
            return {}
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in names]
        settings: dict[str, dict[str, str]] = {}
        told = self._client.describe_configs(resources, request_timeout=self._seconds)
        for resource, future in told.items():
            doing = f"asking for settings of topic {resource.name}"
            values = self._result(future, doing, resource.name, passing=_NOT_ALLOWED)
            if values is not None:
                settings[resource.name] = {name: str(entry.value) for name, entry in values.items()}
        return settings

    def _make(self, missing: Mapping[str, TopicRule]) -> tuple[str, ...]:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import NewTopic

        if not missing:
            return ()
        new = [
            NewTopic(topic, rule.partitions, rule.replication, config=rule.texts())
            for topic, rule in missing.items()
        ]
        made: list[str] = []
        failures: list[CdcError] = []
        for topic, told in self._client.create_topics(new, request_timeout=self._seconds).items():
            try:
                told.result(self._seconds + _GRACE_SECONDS)
            except KafkaException as error:
                if error.args[0].name() != "TOPIC_ALREADY_EXISTS":  # another run was faster
                    failures.append(self._not_made(topic, missing[topic], error.args[0]))
                continue
            made.append(topic)
        if failures:
            raise failures[0]
        return tuple(made)

    def _not_made(self, topic: str, rule: TopicRule, error: Any) -> CdcError:
        text = f"{error.name()}: {error.str()}"
        if error.name() in _WRONG_RULE:
            return ConfigurationError(
                f"topic {topic} can't be made",
                expected=f"partitions, replication and settings that the brokers accept ({rule.name})",
                found=text,
                remedy="correct publish.topics",
            )
        if error.name() == WRONG_NAME:
            return RecordsRefused(topic, text, whole_topic=True, remedy=NAMES)
        if error.name() in _NOT_ALLOWED:
            return RecordsRefused(
                topic,
                text,
                whole_topic=True,
                remedy="the topic is missing and can't be made: make it, or give the connection's user the "
                f"right CREATE on topic {topic}; publish.topics.create: false leaves it to the brokers",
            )
        return error_of(error, f"making topic {topic}", self._last.error)

    def _result(self, told: Any, doing: str, topic: str, *, passing: Sequence[str]) -> Any:
        """Return what a call gave, None where it failed by an error that may be passed over."""
        from confluent_kafka import KafkaException

        try:
            return told.result(self._seconds + _GRACE_SECONDS)
        except KafkaException as error:
            name = error.args[0].name()
            if name in passing:
                return None
            if name in _NOT_ALLOWED or name == WRONG_NAME:
                may = (
                    f"give the connection's user the right DESCRIBE on topic {topic}, which WRITE implies; "
                    "and CREATE where it is missing"
                )
                raise RecordsRefused(
                    topic,
                    f"{name}: {error.args[0].str()}",
                    whole_topic=True,
                    remedy=NAMES if name == WRONG_NAME else may,
                ) from None
            raise error_of(error.args[0], doing, self._last.error) from None


@cache
def _tell(text: str) -> None:
    log.warning("%s", text)
