"""What brokers report, as our errors: by number, never by text.

``ConfigurationError``  a login, a right, a topic or its schema is wrong
``CommitConflict``      another producer has the name now
:class:`BrokersAway`    anything else: brokers that don't answer, topics that move
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
    4: "give the connection's role the right to produce in the namespace",
    10: "use a broker of Pulsar 2.10 or later",
    11: "make the topic, or allow its making (allowAutoTopicCreation)",
    15: "the topic was ended; publish to another namespace or prefix",
    17: "correct publish.pulsar.topic_prefix",
    18: "the topic's schema can't become the table's: alter the namespace's compatibility strategy, or "
    "publish to another prefix",
    22: "the broker's or namespace's policy forbids it",
}


class BrokersAway(TransientError):
    """The brokers don't answer, or not now."""


def error_of(number: int, text: str, doing: str) -> CdcError:
    """Return our error.

    Args:
        number: The broker's ``ServerError``.
        text: What it says.
        doing: What failed, in words.
    """
    found = f"{_NAMES.get(number, f'error {number}')}: {text}"
    if number in _LASTING:
        return ConfigurationError(f"{doing} failed", found=found, remedy=_LASTING[number])
    if number == 25:
        return CommitConflict(
            f"{doing} failed: another producer took over",
            found=found,
            remedy="let only one run publish at a time",
        )
    return BrokersAway(f"{doing} failed", found=found)
