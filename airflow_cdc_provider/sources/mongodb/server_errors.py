"""The server's and the driver's errors, by what the caller must do about them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pymongo import errors

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, PositionLost, TransientError

UNAUTHORIZED: Final = 13
"""The server's code for a missing right."""
_AUTHENTICATION: Final = (18, 8000)
LOST: Final = (136, 260, 280, 286)
"""A cursor that the log has overtaken; a token that isn't taken, isn't found; a log that begins later."""
_BAD_TOKEN: Final = 50811
_OVERSIZE: Final = 10334
_TIMED_OUT: Final = (50, 89, 202, 262)
# The specification's list of errors after which a change stream may be resumed, and shutdown's.
_TRANSIENT: Final = frozenset(
    {
        6,
        7,
        43,
        50,
        63,
        89,
        91,
        133,
        134,
        150,
        189,
        202,
        234,
        237,
        239,
        246,
        262,
        9001,
        10107,
        11600,
        11602,
        13388,
        13435,
        13436,
    }
)


class ServerTimeout(TransientError):
    """The server, or the way to it, took longer than is allowed; less work at a time may do."""


class EventTooLarge(ConfigurationError):
    """A change event is above the server's limit of 16 MB; trying again meets the same one."""


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn PyMongo's errors into ours by what the caller must do.

    Args:
        doing: What was tried, as the beginning of the message.
    """
    try:
        yield
    except errors.OperationFailure as error:
        raise _by_code(doing, error) from error
    except (errors.ConfigurationError, errors.InvalidName) as error:
        raise ConfigurationError(
            doing, found=short_text(error), remedy="change the Airflow connection"
        ) from error
    except errors.PyMongoError as error:
        kind = ServerTimeout if isinstance(error, errors.NetworkTimeout) else TransientError
        raise kind(
            f"{doing}: the server doesn't answer",
            found=short_text(error),
            remedy="check host, port, TLS and that the server runs, then run again",
        ) from error


def _by_code(doing: str, error: errors.OperationFailure) -> CdcError:
    found = f"error {error.code}: {short_text(error)}"
    if error.code in LOST:
        return PositionLost(doing, found=found, remedy="take a new snapshot, or start from a later place")
    if error.code in _TIMED_OUT:
        return ServerTimeout(doing, found=found)
    if error.code == UNAUTHORIZED:
        return ConfigurationError(
            doing,
            expected="a user with find and changeStream on what the scope watches: role readAnyDatabase for "
            "scope deployment, role read on the database for scope database, both actions on the collection "
            "for scope collection",
            found=found,
        )
    if error.code in _AUTHENTICATION:
        return ConfigurationError(
            doing, found=found, remedy="check login, password, authSource and authMechanism"
        )
    if error.code == _OVERSIZE:
        return EventTooLarge(f"{doing}: a change event has more than 16 MB", found=found)
    if error.code == _BAD_TOKEN:
        return ConfigurationError(
            doing, found=found, remedy="the stored token isn't one of this server: set the offset"
        )
    transient = error.code in _TRANSIENT or error.has_error_label("ResumableChangeStreamError")
    kind = TransientError if transient else ConfigurationError
    return kind(doing, found=found)


def short_text(error: Exception) -> str:
    """Return an error's text without the command, the reply and the topology that may follow it."""
    text = str(error)
    for follows in (", full error:", ", Topology Description:", " to execute command {"):
        text = text.partition(follows)[0]
    return text[:400].rstrip(".")
