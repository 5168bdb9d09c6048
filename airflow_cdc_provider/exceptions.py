"""Errors, one class per thing that the caller can do about it.

An error says what was expected, what was found and how to fix it. Its values stay attributes, and its code
leads the message, so that the class can be told again after Spark has turned the error into text
(see :func:`error_from_text`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar, Final

_CODE = re.compile(r"\[CDC-([A-Z-]+)\] ([^\n]*)")


class CdcError(Exception):
    """Base of all errors raised on purpose by this package.

    Args:
        message: What happened, in one sentence without a full stop.
        expected: What the code needed, if that helps.
        found: What was there instead.
        remedy: What the user can do; a command where there is one.
    """

    code: ClassVar[str] = "ERROR"

    def __init__(self, message: str, *, expected: str = "", found: str = "", remedy: str = "") -> None:
        """Build the one-line text from its parts."""
        self.message = message
        self.expected = expected
        self.found = found
        self.remedy = remedy
        parts = [message]
        if expected:
            parts.append(f"expected {expected}")
        if found:
            parts.append(f"found {found}")
        text = ": ".join([parts[0], ", ".join(parts[1:])]) if len(parts) > 1 else message
        if remedy:
            text += f". {remedy}"
        super().__init__(f"[CDC-{self.code}] {text}")

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by parts, so that an error crosses process borders unchanged."""
        return (_rebuild, (type(self), self.message, self.expected, self.found, self.remedy))


def _rebuild(cls: type[CdcError], message: str, expected: str, found: str, remedy: str) -> CdcError:
    return cls(message, expected=expected, found=found, remedy=remedy)


class ConfigurationError(CdcError):
    """The declaration, a connection or the source's set-up must be changed by a person."""

    code = "CONFIGURATION"


def joined(errors: Sequence[ConfigurationError]) -> ConfigurationError:
    """Return several problems of one declaration as one error that names each."""
    if len(errors) == 1:
        return errors[0]
    return ConfigurationError("; ".join(str(e).removeprefix(f"[CDC-{e.code}] ").rstrip(".") for e in errors))


class TransientError(CdcError):
    """The same call may succeed later: a server that does not answer, a lost connection."""

    code = "TRANSIENT"


class PositionLost(CdcError):
    """The source no longer has the data after the stored offset; a snapshot or a later start is needed."""

    code = "POSITION-LOST"


class ReshardStopped(CdcError):
    """The stream has ended at a reshard, as the declaration wants; a person gives a new start."""

    code = "RESHARD-STOPPED"


class SchemaUnknown(CdcError):
    """A change belongs to a table or column that no known schema describes."""

    code = "SCHEMA-UNKNOWN"


class CorruptInput(CdcError):
    """Bytes from the source break their format; the message locates them."""

    code = "CORRUPT-INPUT"


class CommitConflict(CdcError):
    """Another writer committed first; nothing of this commit is left behind."""

    code = "COMMIT-CONFLICT"


class CommitStateUnknown(CdcError):
    """It can't be told whether a commit took effect; read the table's head before going on."""

    code = "COMMIT-STATE-UNKNOWN"


class OffsetMissing(CdcError):
    """A changes table holds data but no offset; going on could lose or double changes."""

    code = "OFFSET-MISSING"


PERMANENT: Final = (ConfigurationError, PositionLost, OffsetMissing, ReshardStopped)
"""Errors that stay until a person changes something; another try may get over all others."""

_CLASSES: dict[str, type[CdcError]] = {
    cls.code: cls
    for cls in (
        ConfigurationError,
        TransientError,
        PositionLost,
        ReshardStopped,
        SchemaUnknown,
        CorruptInput,
        CommitConflict,
        CommitStateUnknown,
        OffsetMissing,
    )
}


def error_from_text(text: str) -> CdcError | None:
    """Find the first of our errors in a stack trace or log text.

    Args:
        text: What another process printed, for example Spark's rendering of a Python failure.

    Returns:
        An error of the right class whose message is the whole line, or None.
    """
    match = _CODE.search(text)
    if match is None:
        return None
    return _CLASSES.get(match.group(1), CdcError)(match.group(2))
