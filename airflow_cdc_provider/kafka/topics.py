"""Creation of topics by rule before their first record, and warnings about existing topics that differ.

The first rule that matches a name decides, and the last one matches every name, like Kafka Connect's
``topic.creation`` groups. :func:`plan` is a pure function; :class:`TopicCreator` describes the existing
topics and creates the missing ones. An existing topic is never changed: differences are logged, once per
process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, RecordsRejected, listed
from airflow_cdc_provider.kafka import errors
from airflow_cdc_provider.kafka.settings import ClientSettings, Setting
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.patterns import matches

log = logger(__name__)

MOST_NAMED_BY_ROWS: Final = 1_000
"""Most topics with one beginning, if values of rows name topics."""
_CALL_SECONDS: Final = 30.0
_GRACE_SECONDS: Final = 5.0
"""Extra timeout on top of the client's own, so that the client's error with its reason comes first."""
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
    """Properties of new topics whose names match.

    Args:
        name: Its name in messages.
        include: Anchored regular expressions of topic names.
        exclude: Anchored regular expressions of names to exclude from these.
        partitions: Number of partitions; -1 for the brokers' default.
        replication: Replication factor; -1 for the brokers' default.
        settings: Settings of the topics.
    """

    name: str
    include: Sequence[str] = (".*",)
    exclude: Sequence[str] = ()
    partitions: int = -1
    replication: int = -1
    settings: Mapping[str, Setting] = field(default_factory=dict)

    def matches(self, topic: str) -> bool:
        """Return whether it applies to a topic."""
        return any(matches(pattern, topic) for pattern in self.include) and not any(
            matches(pattern, topic) for pattern in self.exclude
        )

    def texts(self) -> dict[str, str]:
        """Return the settings as brokers write them."""
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in self.settings.items()
        }


@dataclass(frozen=True)
class TopicFound:
    """An existing topic.

    Args:
        partitions: Number of partitions.
        replication: Number of replicas of the first.
        settings: Its settings, including those of the brokers; None without permission to read them.
    """

    partitions: int
    replication: int
    settings: Mapping[str, str] | None = None


@dataclass(frozen=True)
class TopicPlan:
    """Topics to create, and differences of existing ones.

    Args:
        missing: Topics to create, with their rules.
        differences: A message for each existing topic that differs from its rule.
    """

    missing: Mapping[str, TopicRule]
    differences: tuple[str, ...]


def rule_of(topic: str, rules: Sequence[TopicRule]) -> TopicRule:
    """Return the rule that decides: the first one that matches, else the last one."""
    return next((rule for rule in rules if rule.matches(topic)), rules[-1])


def plan(required: Iterable[str], found: Mapping[str, TopicFound], rules: Sequence[TopicRule]) -> TopicPlan:
    """Decide which topics to create.

    Args:
        required: Names of the records' topics.
        found: Those of them that exist.
        rules: In the order of their precedence; at least one.

    Returns:
        The plan.
    """
    missing: dict[str, TopicRule] = {}
    differences: list[str] = []
    for topic in sorted(set(required)):
        rule = rule_of(topic, rules)
        if topic not in found:
            missing[topic] = rule
        elif difference := _differences(found[topic], rule):
            differences.append(f"topic {topic} is not changed: {difference} ({rule.name})")
    return TopicPlan(missing, tuple(differences))


def _differences(found: TopicFound, rule: TopicRule) -> str:
    """Describe the differences of a topic from its rule; an empty text for none."""
    pairs = [
        (name, str(actual), str(declared))
        for name, actual, declared in (
            ("partitions", found.partitions, rule.partitions),
            ("replication", found.replication, rule.replication),
        )
        if declared != -1
    ]
    if found.settings is not None:
        pairs += [(name, found.settings.get(name, ""), declared) for name, declared in rule.texts().items()]
    return ", ".join(
        f"{name} {actual or 'unknown'} where the declaration says {declared}"
        for name, actual, declared in pairs
        if _parts(actual) != _parts(declared)
    )


def _parts(value: str) -> list[str]:
    """Split a setting that may be a list in any order, such as ``compact,delete``."""
    return sorted(part.strip() for part in value.split(","))


class TopicCreator:
    """Creates missing topics.

    Args:
        settings: Client settings.
        rules: In the order of their precedence; at least one.
        build: Builds the client; librdkafka's admin client by default.
        beginnings: If rows name topics: how names begin; at most :data:`MOST_NAMED_BY_ROWS` topics begin so.
            Topics of other names count together with all of the cluster. None if rows name no topics.
    """

    def __init__(
        self,
        settings: ClientSettings,
        rules: Sequence[TopicRule],
        build: Callable[[dict[str, Any]], Any] | None = None,
        beginnings: Sequence[str] | None = None,
    ) -> None:
        self._settings = settings
        self._rules = rules
        self._beginnings = beginnings
        self._build = build
        self._last = errors.LastError()
        self._seconds = max(1.0, min(_CALL_SECONDS, settings.retry_timeout_seconds))
        self._opened: Any = None

    def create_missing(self, required: Iterable[str]) -> tuple[str, ...]:
        """Create the missing topics, and log differences of existing ones.

        Returns:
            The names of the topics that were created.

        Raises:
            RecordsRejected: A topic is missing without permission to describe or create it, its name is
                invalid, or rows have named too many. Of several, after all others were created.
            ConfigurationError: Its rule or a login is invalid.
            BrokersUnavailable: The brokers don't answer.
        """
        names = sorted(set(required))
        if "" in names:  # which the client reports as a programming error
            raise RecordsRejected("", "a topic without a name", whole_topic=True, remedy=errors.NAMES)
        failures: list[CdcError] = []
        found = self._describe(names, failures)
        refused = {one.topic for one in failures if isinstance(one, RecordsRejected)}
        planned = plan([name for name in names if name not in refused], found, self._rules)
        for text in planned.differences:
            _warn_once(text)
        created = self._create(self._few_enough(planned.missing, failures), failures)
        if created:
            log.info("created topics: %s", listed(created))
        if failures:
            raise errors.rejection_of_all(failures)
        return created

    def _few_enough(
        self, missing: Mapping[str, TopicRule], failures: list[CdcError]
    ) -> Mapping[str, TopicRule]:
        """Return the missing topics that may be created if rows name topics."""
        if not missing or self._beginnings is None:
            return missing
        from confluent_kafka import KafkaException

        try:
            existing = self._client.list_topics(timeout=self._seconds).topics
        except KafkaException as error:
            raise errors.error_of(error.args[0], "listing topics", self._last.error) from None
        left = {
            start: MOST_NAMED_BY_ROWS - sum(name.startswith(start) for name in existing)
            for start in (*self._beginnings, "")
        }
        created = {}
        for topic, rule in missing.items():
            start = next((one for one in self._beginnings if topic.startswith(one)), "")
            left[start] -= 1
            if left[start] >= 0:
                created[topic] = rule
                continue
            failures.append(
                RecordsRejected(
                    topic,
                    f"a missing topic, and {MOST_NAMED_BY_ROWS:,} topics begin with {start!r}",
                    whole_topic=True,
                    remedy="create it, if rows of the outbox are to name further topics",
                )
            )
        return created

    @property
    def _client(self) -> Any:
        if self._opened is None:
            from confluent_kafka.admin import AdminClient

            self._opened = errors.client_of(self._build or AdminClient, self._settings.of_admin(), self._last)
        return self._opened

    def _describe(self, names: Sequence[str], failures: list[CdcError]) -> dict[str, TopicFound]:
        """Describe topics by name; unlike a producer's request, this one never creates them."""
        from confluent_kafka import TopicCollection

        if not names:
            return {}
        futures = self._client.describe_topics(TopicCollection(list(names)), request_timeout=self._seconds)
        found: dict[str, TopicFound] = {}
        for topic, future in futures.items():
            try:
                described = self._result(future, f"describing topic {topic}", topic, ignored=errors.NOT_THERE)
            except RecordsRejected as error:
                failures.append(error)
                continue
            if described is not None:
                partitions = described.partitions
                replicas = len(partitions[0].replicas) if partitions else 0
                found[topic] = TopicFound(len(partitions), replicas)
        with_settings = [topic for topic in found if rule_of(topic, self._rules).settings]
        for topic, values in self._settings_of(with_settings).items():
            found[topic] = TopicFound(found[topic].partitions, found[topic].replication, values)
        return found

    def _settings_of(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        from confluent_kafka.admin import ConfigResource, ResourceType

        if not names:
            return {}
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in names]
        settings: dict[str, dict[str, str]] = {}
        futures = self._client.describe_configs(resources, request_timeout=self._seconds)
        for resource, future in futures.items():
            doing = f"reading settings of topic {resource.name}"
            values = self._result(future, doing, resource.name, ignored=_NOT_ALLOWED)
            if values is not None:
                settings[resource.name] = {name: str(entry.value) for name, entry in values.items()}
        return settings

    def _create(self, missing: Mapping[str, TopicRule], failures: list[CdcError]) -> tuple[str, ...]:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import NewTopic

        if not missing:
            return ()
        new = [
            NewTopic(topic, rule.partitions, rule.replication, config=rule.texts())
            for topic, rule in missing.items()
        ]
        created: list[str] = []
        for topic, future in self._client.create_topics(new, request_timeout=self._seconds).items():
            try:
                future.result(self._seconds + _GRACE_SECONDS)
            except KafkaException as error:
                if error.args[0].name() != "TOPIC_ALREADY_EXISTS":  # another run was faster
                    failures.append(self._creation_error(topic, missing[topic], error.args[0]))
                continue
            created.append(topic)
        return tuple(created)

    def _creation_error(self, topic: str, rule: TopicRule, error: Any) -> CdcError:
        text = f"{error.name()}: {error.str()}"
        if error.name() in _WRONG_RULE:
            return ConfigurationError(
                f"topic {topic} can't be created",
                expected=f"partitions, replication and settings that the brokers accept ({rule.name})",
                found=text,
                remedy="correct publish.topics",
            )
        if error.name() == errors.WRONG_NAME:
            return RecordsRejected(topic, text, whole_topic=True, remedy=errors.NAMES)
        if error.name() in _NOT_ALLOWED:
            return RecordsRejected(
                topic,
                text,
                whole_topic=True,
                remedy="the topic is missing and can't be created: create it, or grant the connection's user "
                f"CREATE on topic {topic}; publish.topics.create: false leaves it to the brokers",
            )
        return errors.error_of(error, f"creating topic {topic}", self._last.error)

    def _result(self, future: Any, doing: str, topic: str, *, ignored: Sequence[str]) -> Any:
        """Return the result of a call, None for an ignored error."""
        from confluent_kafka import KafkaException

        try:
            return future.result(self._seconds + _GRACE_SECONDS)
        except KafkaException as error:
            name = error.args[0].name()
            if name in ignored:
                return None
            if name in _NOT_ALLOWED or name == errors.WRONG_NAME:
                grant = (
                    f"grant the connection's user DESCRIBE on topic {topic}, which WRITE implies; and CREATE "
                    "if it is missing"
                )
                raise RecordsRejected(
                    topic,
                    f"{name}: {error.args[0].str()}",
                    whole_topic=True,
                    remedy=errors.NAMES if name == errors.WRONG_NAME else grant,
                ) from None
            raise errors.error_of(error.args[0], doing, self._last.error) from None


@cache
def _warn_once(text: str) -> None:
    log.warning("%s", text)
