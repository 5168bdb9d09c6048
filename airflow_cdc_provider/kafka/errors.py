"""What librdkafka reports, as our errors: by code, never by text.

=======================  =================================================================================
:class:`RecordsRefused`  the broker won't take a record, or a topic's records, however often it is asked
``ConfigurationError``   a login, a right, a name or a setting is wrong
``CommitConflict``       another producer has the transactional id now: this one is fenced
:class:`BrokersAway`     anything else: brokers that don't answer, coordinators that move
=======================  =================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.exceptions import CdcError, CommitConflict, ConfigurationError, TransientError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

_FENCED: Final = ("_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "INVALID_PRODUCER_ID_MAPPING")
_OF_RECORD: Final = ("MSG_SIZE_TOO_LARGE", "INVALID_RECORD", "INVALID_TIMESTAMP")
WRONG_NAME: Final = "TOPIC_EXCEPTION"
NAMES: Final = (
    "brokers take names of letters, digits, . _ and -, at most 249, none that differs from another in . and "
    "_ alone: correct publish.topic_prefix, publish.topic_pattern, or the transform that names the topic"
)
"""What to do about a name that brokers take for none."""
NOT_ALLOWED: Final = "TOPIC_AUTHORIZATION_FAILED"
"""A topic may not be seen, or not used as was asked; whether it is there is not told."""
NO_GROUP: Final = "GROUP_AUTHORIZATION_FAILED"
"""What librdkafka reports of the group whose name a consumer must have, and whose coordinator it looks for. A
reader that is given its partitions and commits nothing needs none."""
_OF_TOPIC: Final = (
    "UNKNOWN_TOPIC_OR_PART",
    "_UNKNOWN_TOPIC",
    "_UNKNOWN_PARTITION",
    WRONG_NAME,
    NOT_ALLOWED,
)
NOT_THERE: Final = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC")
"""A topic is not there, or was made so recently that not every broker knows it."""
_OF_SETTINGS: Final = (
    "_INVALID_ARG",
    "_AUTHENTICATION",
    "_SSL",
    "SASL_AUTHENTICATION_FAILED",
    "UNSUPPORTED_SASL_MECHANISM",
    "ILLEGAL_SASL_STATE",
    "CLUSTER_AUTHORIZATION_FAILED",
    NO_GROUP,
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "INVALID_TRANSACTION_TIMEOUT",
    "INVALID_REPLICATION_FACTOR",
    "INVALID_CONFIG",
    "POLICY_VIOLATION",
    "UNSUPPORTED_VERSION",
)
_RIGHT_MISSING: Final = (
    NOT_ALLOWED,
    NO_GROUP,
    "CLUSTER_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
)
FATAL: Final = "_FATAL"
"""What a client whose error is fatal says of each further record; polling it tells which error it was."""
FATAL_SECONDS: Final = 0.1
"""How long a client is polled for that."""
IDEMPOTENT_WRITE: Final = "brokers before 2.8 want IDEMPOTENT_WRITE on the cluster, too"
"""What producers without a transactional id need; newer brokers ask for the right to write to any topic."""

PASSING: Final = ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE", "LEADER_NOT_AVAILABLE")
"""What consumers report and get over by themselves, if they can."""


class BrokersAway(TransientError):
    """The brokers don't answer, or not now."""


class RecordsRefused(ConfigurationError):
    """The broker refuses records for good.

    Args:
        topic: Where they were to go.
        reason: The broker's.
        whole_topic: Whether it would refuse any record of that topic.
        remedy: What to do, if that is something of its own.
    """

    def __init__(self, topic: str, reason: str, *, whole_topic: bool, remedy: str = "") -> None:
        """Build the text; it tells nothing of the records' content."""
        self.topic = topic
        self.reason = reason
        self.whole_topic = whole_topic
        expected = "a topic that is there and may be written to" if whole_topic else ""
        if remedy:
            pass
        elif whole_topic:
            remedy = (
                "make the topic, or have it made by publish.topics.create: true; or give the connection's "
                f"user the right WRITE on topic {topic}"
            )
        else:
            remedy = (
                "raise max.message.bytes of the topic and message.max.bytes in publish.kafka.producer, or "
                "set such records apart with publish.kafka.refused: quarantine"
            )
        super().__init__(f"topic {topic} refuses records", expected=expected, found=reason, remedy=remedy)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by what it was made of."""
        return _refused, (self.topic, self.reason, self.whole_topic, self.remedy)


def _refused(topic: str, reason: str, whole_topic: bool, remedy: str) -> RecordsRefused:
    return RecordsRefused(topic, reason, whole_topic=whole_topic, remedy=remedy)


def refused_by(error: KafkaError, topic: str) -> RecordsRefused | None:
    """Return the refusal that an error of a record is, None if it is something else."""
    name = error.name()
    if name in _OF_RECORD or name in _OF_TOPIC:
        remedy = NAMES if name == WRONG_NAME else ""
        return RecordsRefused(topic, f"{name}: {error.str()}", whole_topic=name in _OF_TOPIC, remedy=remedy)
    return None


def error_of(error: KafkaError, doing: str, last: KafkaError | None = None, *, right: str = "") -> CdcError:
    """Return our error.

    Args:
        error: Librdkafka's.
        doing: What failed, in words.
        last: What a connection reported last: a refused login shows there, the call itself only times out.
        right: What the connection's user needs for it, as ``READ on topic shop``; told where it is missing.
    """
    name = error.name()
    text = f"{name}: {error.str()}"
    if name in _FENCED:
        return CommitConflict(
            f"{doing} failed: another producer took over",
            found=text,
            remedy="let only one run publish at a time; what this one had not committed the other one sends",
        )
    if last is not None and last.name() in _OF_SETTINGS and name not in _OF_SETTINGS:
        name, text = last.name(), f"{last.name()}: {last.str()}"
    if name in _OF_SETTINGS or name in _OF_TOPIC:
        remedy = "correct the Kafka connection, its rights or the setting"
        if right and name in _RIGHT_MISSING:
            remedy = f"give the connection's user the right {right}"
        return ConfigurationError(f"{doing} failed", found=text, remedy=remedy)
    if last is not None:
        text += f" (last: {last.name()}: {last.str()})"
    return BrokersAway(f"{doing} failed", found=text)


class LastError:
    """Keeps what a client's connections reported last; librdkafka's ``error_cb``."""

    def __init__(self) -> None:
        self.error: KafkaError | None = None
        self._accepted = False

    def accepted(self) -> None:
        """Note that brokers took us in: from now on a failed handshake is a broker that goes away."""
        self.error = None
        self._accepted = True

    @property
    def is_lasting(self) -> bool:
        """Whether it is about a login, a right or a certificate: waiting won't help."""
        return self.error is not None and self.error.name() in _OF_SETTINGS

    def __call__(self, error: KafkaError) -> None:
        """Note an error; a lasting one is not forgotten for a later one."""
        if not self.is_lasting and not (self._accepted and error.name() in _OF_SETTINGS):
            self.error = error


def served(function: Callable[[float], int], seconds: float, failed: Callable[[KafkaError], CdcError]) -> int:
    """Let a client call back, and return what it has left to do.

    A client whose error is fatal raises it here; delivery reports that it serves then fail in their turn.

    Args:
        function: The client's ``poll`` or ``flush``.
        seconds: How long it may take.
        failed: Makes our error of librdkafka's.
    """
    from confluent_kafka import KafkaException

    try:
        return function(seconds)
    except (KafkaException, SystemError) as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, KafkaException):
            cause = cause.__cause__
        if cause is None:
            raise
        raise failed(cause.args[0]) from None


def client_of(build: Callable[[dict[str, Any]], Any], settings: dict[str, Any], last: LastError) -> Any:
    """Build a client.

    Raises:
        ConfigurationError: Librdkafka doesn't know a setting, or two don't go together.
    """
    from confluent_kafka import KafkaException

    try:
        return build({**settings, "error_cb": last, "log_level": 0})
    except (KafkaException, TypeError, ValueError) as error:
        # Of an argument of the wrong value librdkafka shows the value: a password may be meant.
        text = str(error.args[0].str() if isinstance(error, KafkaException) else error)
        for name, value in settings.items():
            if isinstance(value, str) and ("password" in name or "secret" in name or "key.pem" in name):
                text = text.replace(value, "***") if value else text
        raise ConfigurationError(
            "librdkafka refuses the settings",
            found=text,
            remedy="correct the connection's extra, or publish.kafka.producer and publish.kafka.consumer",
        ) from None


def require_library() -> None:
    """Refuse to go on without the library.

    Raises:
        ConfigurationError: It isn't installed.
    """
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            "confluent-kafka is missing", remedy="pip install 'airflow-cdc-provider[kafka]'"
        ) from error
