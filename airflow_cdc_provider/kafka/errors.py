"""Conversion of librdkafka's errors to this provider's errors, by code and never by text.

=======================  =================================================================================
``RecordsRejected``      the broker rejects a record, or all records of a topic; retries don't help
``ConfigurationError``   a login, a permission, a name or a setting is invalid
``CommitConflict``       another producer has the transactional id now: this one is fenced
:class:`BrokersUnavailable`     anything else: brokers that don't answer, coordinators that move
=======================  =================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.exceptions import (
    CdcError,
    CommitConflict,
    ConfigurationError,
    RecordsRejected,
    TransientError,
)
from airflow_cdc_provider.masking import remember

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

_FENCED: Final = ("_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "INVALID_PRODUCER_ID_MAPPING")
UNKNOWN_PARTITION: Final = "_UNKNOWN_PARTITION"
_OF_RECORD: Final = ("MSG_SIZE_TOO_LARGE", "INVALID_RECORD", "INVALID_TIMESTAMP", UNKNOWN_PARTITION)
_NO_PARTITION: Final = "write a partition that the topic has to the outbox, or add partitions to the topic"
WRONG_NAME: Final = "TOPIC_EXCEPTION"
NAMES: Final = (
    "topic names have letters, digits, . _ and -, at most 249, and must not differ from another name only in "
    ". and _: correct publish.topic_prefix, publish.topic_pattern, or the transform that names the topic"
)
"""Remedy for an invalid topic name."""
NOT_ALLOWED: Final = "TOPIC_AUTHORIZATION_FAILED"
"""The user has no permission for the operation on a topic; the broker doesn't report whether it exists."""
NO_GROUP: Final = "GROUP_AUTHORIZATION_FAILED"
"""Reported for the consumer group, whose coordinator librdkafka always looks up. Ignored for consumers that
are assigned their partitions and commit nothing: they need no group."""
_OF_TOPIC: Final = (
    "UNKNOWN_TOPIC_OR_PART",
    "_UNKNOWN_TOPIC",
    WRONG_NAME,
    NOT_ALLOWED,
)
NOT_THERE: Final = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC")
"""A topic doesn't exist, or was created so recently that not every broker knows it."""
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
"""Error of each further record after a fatal error of the client; polling returns the fatal error itself."""
ENDED: Final = (FATAL, "_STATE")
"""Errors of each further record of a transaction that an earlier error has ended, which polling returns."""
CAUSE_SECONDS: Final = 0.1
"""How long a client is polled for the earlier error."""
IDEMPOTENT_WRITE: Final = "brokers before 2.8 also require IDEMPOTENT_WRITE on the cluster"
"""Permission for producers without a transactional id; newer brokers require WRITE on any topic."""

TRANSIENT: Final = ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE", "LEADER_NOT_AVAILABLE")
"""Errors from which consumers recover by themselves, if possible."""


class BrokersUnavailable(TransientError):
    """The brokers don't answer, or are not available now."""


def rejection_of(error: KafkaError, topic: str) -> RecordsRejected | None:
    """Return the error if the broker rejected a record, None for other errors."""
    name = error.name()
    if name not in _OF_RECORD and name not in _OF_TOPIC:
        return None
    if name == WRONG_NAME:
        remedy = NAMES
    elif name in _OF_TOPIC:
        remedy = (
            "create the topic, or set publish.topics.create: true; or grant the connection's "
            f"user WRITE on topic {topic}"
        )
    elif name == UNKNOWN_PARTITION:
        remedy = _NO_PARTITION
    else:
        remedy = "increase max.message.bytes of the topic and message.max.bytes in publish.kafka.producer"
    return RecordsRejected(topic, f"{name}: {error.str()}", whole_topic=name in _OF_TOPIC, remedy=remedy)


def no_partition(topic: str, partition: int, partitions: int) -> RecordsRejected:
    """Return the error of records for partitions that a topic doesn't have."""
    found = f"{UNKNOWN_PARTITION}: partition {partition} of {partitions}"
    return RecordsRejected(topic, found, whole_topic=False, remedy=_NO_PARTITION, partitions=partitions)


def rejection_of_all(found: Sequence[CdcError]) -> CdcError:
    """Return one error for all topics that are rejected; another error takes precedence."""
    rejected = [one for one in found if isinstance(one, RecordsRejected)]
    if len(rejected) < len(found):
        return next(one for one in found if not isinstance(one, RecordsRejected))
    rejected[0].others = tuple(rejected[1:])
    return rejected[0]


def error_of(error: KafkaError, doing: str, last: KafkaError | None = None, *, right: str = "") -> CdcError:
    """Convert an error of librdkafka.

    Args:
        error: Librdkafka's error.
        doing: The operation that failed, for the message.
        last: The last error of a connection: it reports a failed login, while the call itself only times out.
        right: The permission that the operation requires, such as ``READ on topic shop``, for the remedy.

    Returns:
        The provider's error.
    """
    name = error.name()
    text = f"{name}: {error.str()}"
    if name in _FENCED:
        return CommitConflict(
            f"{doing} failed: another producer took over",
            found=text,
            remedy="run only one publisher at a time; the other one sends what this one had not committed",
        )
    if last is not None and last.name() in _OF_SETTINGS and name not in _OF_SETTINGS:
        name, text = last.name(), f"{last.name()}: {last.str()}"
    if name in _OF_SETTINGS or name in _OF_TOPIC or name == UNKNOWN_PARTITION:
        remedy = "correct the Kafka connection, its permissions or the setting"
        if right and name in _RIGHT_MISSING:
            remedy = f"grant the connection's user {right}"
        return ConfigurationError(f"{doing} failed", found=text, remedy=remedy)
    if last is not None:
        text += f" (last: {last.name()}: {last.str()})"
    return BrokersUnavailable(f"{doing} failed", found=text)


class LastError:
    """Keeps the last error that a client's connections reported; librdkafka's ``error_cb``."""

    def __init__(self) -> None:
        self.error: KafkaError | None = None
        self._accepted = False

    def accepted(self) -> None:
        """Record a successful login: from now on, a failed handshake is a broker that disconnects."""
        self.error = None
        self._accepted = True

    @property
    def is_lasting(self) -> bool:
        """Whether it is about a login, a permission or a certificate: retries don't help."""
        return self.error is not None and self.error.name() in _OF_SETTINGS

    def __call__(self, error: KafkaError) -> None:
        """Record an error; a later one doesn't replace a lasting one."""
        if not self.is_lasting and not (self._accepted and error.name() in _OF_SETTINGS):
            self.error = error


def serve_callbacks(
    function: Callable[[float], int], seconds: float, failed: Callable[[KafkaError], CdcError]
) -> int:
    """Serve a client's callbacks.

    A client with a fatal error raises it here; delivery reports serve_callbacks later fail too.

    Args:
        function: The client's ``poll`` or ``flush``.
        seconds: Maximum duration.
        failed: Converts librdkafka's error.

    Returns:
        The return value of ``function``.

    Raises:
        CdcError: The client's fatal error.
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
        ConfigurationError: Librdkafka rejects a setting, or two settings conflict.
    """
    from confluent_kafka import KafkaException

    try:
        return build({**settings, "error_cb": last, "log_level": 0})
    except (KafkaException, TypeError, ValueError) as error:
        # For an invalid value, librdkafka's message contains the value, which may be a password.
        remember(settings)
        text = str(error.args[0].str() if isinstance(error, KafkaException) else error)
        raise ConfigurationError(
            "librdkafka rejects the settings",
            found=text,
            remedy="correct the connection's extra, or publish.kafka.producer and publish.kafka.consumer",
        ) from None
