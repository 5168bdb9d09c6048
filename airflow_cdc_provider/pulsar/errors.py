"""Conversion of brokers' errors to this provider's errors, by number and never by text.

:class:`TopicRejected`  a permission, a topic or its schema is invalid
``ConfigurationError``  a login or the broker's version is invalid
``CommitConflict``      another producer uses the name now
:class:`BrokersUnavailable`    anything else: brokers that don't answer, topics that move
"""

from __future__ import annotations

from typing import Final

from airflow_cdc_provider.exceptions import CdcError, CommitConflict, ConfigurationError, TransientError

_NAMES: Final = {
    0: "UnknownError",
    1: "MetadataError",
    2: "PersistenceError",
    3: "AuthenticationError",
    4: "AuthorizationError",
    6: "ServiceNotReady",
    7: "ProducerBlockedQuotaExceededError",
    8: "ProducerBlockedQuotaExceededException",
    9: "ChecksumError",
    10: "UnsupportedVersionError",
    11: "TopicNotFound",
    14: "TooManyRequests",
    15: "TopicTerminatedError",
    16: "ProducerBusy",
    17: "InvalidTopicName",
    18: "IncompatibleSchema",
    22: "NotAllowedError",
    25: "ProducerFenced",
}
_LASTING: Final = {
    3: "correct the token in the connection's password, or its TLS",
    4: "grant the connection's role permission to produce in the namespace",
    10: "use a broker of Pulsar 2.10 or later",
    11: "create the topic, or allow its creation (allowAutoTopicCreation)",
    15: "the topic was terminated; publish to another namespace or prefix",
    17: "correct publish.pulsar.topic_prefix",
    18: "the table's schema is incompatible with the topic's: change the namespace's compatibility strategy, "
    "or publish to another prefix",
    22: "a policy of the broker or the namespace forbids it",
}


_OF_TOPIC: Final = (4, 11, 15, 17, 18, 22)


class TopicRejected(ConfigurationError):
    """The broker rejects a topic's producer or its messages; the topics of other tables may be accepted."""


class BrokersUnavailable(TransientError):
    """The brokers don't answer, or are not available now."""


def error_of(number: int, text: str, doing: str) -> CdcError:
    """Convert a broker's error.

    Args:
        number: The ``ServerError`` code.
        text: Its message.
        doing: The operation that failed, for the message.

    Returns:
        The provider's error.
    """
    found = f"{_NAMES.get(number, f'error {number}')}: {text}"
    if number in _LASTING:
        kind = TopicRejected if number in _OF_TOPIC else ConfigurationError
        return kind(f"{doing} failed", found=found, remedy=_LASTING[number])
    if number == 25:
        return CommitConflict(
            f"{doing} failed: another producer took over",
            found=found,
            remedy="run only one publisher at a time",
        )
    return BrokersUnavailable(f"{doing} failed", found=found)
