"""Exceptions, one class per reaction of the caller.

A message states what was expected, what was found and how to fix it. These parts are also attributes. The
message starts with the error code, from which :func:`error_from_text` recovers the class in another process.
It is one line without control characters, whatever text of a source it quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import ClassVar, Final

from airflow_cdc_provider.masking import masked

_MAX_NAMES: Final = 10
_MAX_PROBLEMS: Final = 10
_MAX_CHARACTERS: Final = 1_000
_CODE = re.compile(r"\[CDC-([A-Z-]+)\] (.*)", re.DOTALL)


class CdcError(Exception):
    """Base class of the exceptions that this package raises. Its text has no secret that the process knows.

    Args:
        message: What failed, in one sentence without a full stop.
        expected: What was expected, if that helps.
        found: What was found instead.
        remedy: What the user can do; a command where there is one.
    """

    code: ClassVar[str] = "ERROR"

    def __init__(self, message: str, *, expected: str = "", found: str = "", remedy: str = "") -> None:
        """Compose the one-line text."""
        self.message = masked(message)
        self.expected = masked(expected)
        self.found = masked(found)
        self.remedy = masked(remedy)
        parts = [self.message]
        if expected:
            parts.append(f"expected {self.expected}")
        if found:
            parts.append(f"found {self.found}")
        text = ": ".join([parts[0], ", ".join(parts[1:])]) if len(parts) > 1 else self.message
        if remedy:
            text += f". {self.remedy}"
        super().__init__(printable(f"[CDC-{self.code}] {text}"))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the parts, so that the exception is unchanged in another process."""
        return (_rebuild, (type(self), self.message, self.expected, self.found, self.remedy))


def _rebuild(cls: type[CdcError], message: str, expected: str, found: str, remedy: str) -> CdcError:
    return cls(message, expected=expected, found=found, remedy=remedy)


class ConfigurationError(CdcError):
    """Requires a change of the declaration, a connection or the source's set-up."""

    code = "CONFIGURATION"


class SchemaRejected(ConfigurationError):
    """The schema of a topic's records is rejected, missing in the registry, or has another table's name."""

    code = "SCHEMA-REJECTED"


class RecordsRejected(ConfigurationError):
    """Brokers reject records; retries don't help.

    Args:
        topic: Their topic.
        reason: The broker's reason.
        whole_topic: Whether all records of that topic are rejected.
        remedy: What the user can do.
        partitions: The number of partitions of the topic, if it rejects all records to further ones.
        others: Errors of other topics, rejected for the same kind of reason.
    """

    def __init__(
        self,
        topic: str,
        reason: str,
        *,
        whole_topic: bool,
        remedy: str = "",
        partitions: int | None = None,
        others: Sequence[RecordsRejected] = (),
    ) -> None:
        """Build the message, without content of the records."""
        self.topic = topic
        self.reason = masked(reason)
        self.whole_topic = whole_topic
        self.partitions = partitions
        self.others = tuple(others)
        expected = "an existing topic with permission to write" if whole_topic else ""
        super().__init__(f"topic {topic} rejects records", expected=expected, found=reason, remedy=remedy)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by its arguments."""
        build = partial(
            RecordsRejected,
            whole_topic=self.whole_topic,
            remedy=self.remedy,
            partitions=self.partitions,
            others=self.others,
        )
        return build, (self.topic, self.reason)


def reworded(error: CdcError, message: str) -> ConfigurationError:
    """Return an error of the configuration with another message and the parts of an error."""
    return ConfigurationError(message, expected=error.expected, found=error.found, remedy=error.remedy)


def joined(errors: Sequence[ConfigurationError]) -> ConfigurationError:
    """Combine the problems of one declaration in one exception."""
    if len(errors) == 1:
        return errors[0]
    shown = [str(e).removeprefix(f"[CDC-{e.code}] ").rstrip(".") for e in errors[:_MAX_PROBLEMS]]
    more = [f"{len(errors) - len(shown)} more problems"] if len(errors) > len(shown) else []
    return ConfigurationError("; ".join([*shown, *more]))


def printable(text: str) -> str:
    r"""Return a text as one line of printable characters: ``\x1b``, ``\u202e`` in place of the others.

    Line ends and other spaces become spaces. So a source's text can neither begin a line of a log nor change
    how a terminal shows it.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else " " if one.isspace() else one.encode("unicode_escape").decode()
        for one in text
    )


_REASONS: Final = (
    "divide by zero",
    "overflow",
    "not in range",
    "out of bounds",
    "would lose data",
    "would result in data loss",
    "Invalid regular expression",
    "Failed to parse",
    "Could not convert",
    "can't decode",
    "can't encode",
)
"""What libraries say of a value that they can't convert."""


def without_values(error: BaseException) -> str:
    """Return an error's class and the reason in its text, if that is a known one.

    Arrow and Python quote the value, with and without quotes; masks and transforms may exist to hide it.
    """
    reason = next((one for one in _REASONS if one in str(error)), "")
    return f"{type(error).__name__}: {reason}" if reason else type(error).__name__


def shortened(text: str) -> str:
    """Return the beginning of a key or value for a message."""
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."


def listed(names: Sequence[str], separator: str = ", ") -> str:
    """Return the first names as text for a message, with the number of the others."""
    text = separator.join(names[:_MAX_NAMES])
    return text + (f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else "")


@contextmanager
def from_extra(extra: str) -> Iterator[None]:
    """Import libraries that an extra of this package installs.

    Raises:
        ConfigurationError: One is missing.
    """
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(
            f"{error.name or 'a library'} is not installed",
            remedy=f"pip install 'airflow-cdc-provider[{extra}]', also for Spark's driver and executors",
        ) from error


@contextmanager
def classified() -> Iterator[None]:
    """Give errors of a source's own code a class here, since their text may quote a filter of a signal.

    Errors of the system stay: their text is the system's.

    Raises:
        CdcError: The error, or one with its text.
    """
    try:
        yield
    except (CdcError, OSError, MemoryError):
        raise
    except Exception as error:
        raise CdcError(f"{type(error).__name__}: {error}") from error


class TransientError(CdcError):
    """The same call may succeed later: an unavailable server, a lost connection."""

    code = "TRANSIENT"


class PositionLost(CdcError):
    """The source no longer has the data after the stored offset; requires a snapshot or a later offset.

    Attributes:
        tables: The tables whose data are lost, if the source can continue with the others; empty for all.
    """

    code = "POSITION-LOST"
    tables: Sequence[str] = ()


class ReshardStopped(CdcError):
    """The stream stopped at a reshard, as configured; requires a new offset."""

    code = "RESHARD-STOPPED"


class SchemaUnknown(CdcError):
    """A change belongs to a table or column that no known schema describes."""

    code = "SCHEMA-UNKNOWN"


class CorruptInput(CdcError):
    """Data from the source violates its format; the message locates it."""

    code = "CORRUPT-INPUT"


class CommitConflict(CdcError):
    """Another writer committed first; this commit left nothing behind."""

    code = "COMMIT-CONFLICT"


class CommitStateUnknown(CdcError):
    """Unknown whether a commit took effect; read the table's head before continuing."""

    code = "COMMIT-STATE-UNKNOWN"


class OffsetMissing(CdcError):
    """A changes table has data but no offset; continuing could lose or duplicate changes."""

    code = "OFFSET-MISSING"


PERMANENT: Final = (ConfigurationError, PositionLost, OffsetMissing, ReshardStopped)
"""Exceptions that require manual action; all others may be retried."""

_CLASSES: dict[str, type[CdcError]] = {
    SchemaRejected.code: SchemaRejected,
    **{cls.code: cls for cls in CdcError.__subclasses__()},
}


def error_from_text(text: str) -> CdcError | None:
    """Rebuild an exception of this package from its text, which starts with its code.

    A code later in a text may be a source's own words and isn't read. What Spark's workers raise is found by
    :func:`~airflow_cdc_provider.changes.worker.error_of_worker`.

    Returns:
        An exception of the same class with the text as its message; None if the text isn't such a one's.
    """
    match = _CODE.match(text)
    return error_of_code(match.group(1), match.group(2)) if match else None


def error_of_code(code: str, text: str) -> CdcError:
    """Return an exception of the class that has a code, of the base class if none has it."""
    return _CLASSES.get(code, CdcError)(text)
