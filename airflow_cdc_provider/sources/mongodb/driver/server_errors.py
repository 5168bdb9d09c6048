"""Translates the server's and the driver's errors to the provider's exceptions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pymongo import errors

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, PositionLost, TransientError

UNAUTHORIZED: Final = 13
"""The server's error code for a missing privilege."""
_AUTHENTICATION: Final = (18, 8000)
LOST: Final = (136, 260, 280, 286)
"""Error codes: capped position lost, invalid resume token, change stream fatal error, history lost."""
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
    """The server or the network exceeded a timeout; a smaller batch size may help."""


class EventTooLarge(ConfigurationError):
    """A change event is above the server's limit of 16 MB; a retry fails at the same event."""


@contextmanager
def translated(message: str) -> Iterator[None]:
    """Translate PyMongo's errors to the provider's exceptions.

    Args:
        message: Start of the error message.

    Raises:
        CdcError: The translated error.
    """
    try:
        yield
    except errors.OperationFailure as error:
        raise _by_code(message, error) from error
    except (errors.ConfigurationError, errors.InvalidName) as error:
        raise ConfigurationError(
            message, found=short_text(error), remedy="change the Airflow connection"
        ) from error
    except errors.PyMongoError as error:
        text = short_text(error)
        if "CERTIFICATE_VERIFY_FAILED" in text:
            raise ConfigurationError(
                message,
                found=text,
                remedy="renew the server's certificate, or correct the host, or tlsCAFile in the extra of "
                "the Airflow connection",
            ) from error
        kind = ServerTimeout if isinstance(error, errors.NetworkTimeout) else TransientError
        raise kind(
            f"{message}: the server doesn't respond",
            found=text,
            remedy="check host, port, TLS, replicaSet and that the server is running, then run again",
        ) from error


def _by_code(message: str, error: errors.OperationFailure) -> CdcError:
    found = f"error {error.code}: {short_text(error)}"
    if error.code in LOST:
        return PositionLost(message, found=found, remedy="take a new snapshot, or set a later offset")
    if error.code in _TIMED_OUT:
        return ServerTimeout(message, found=found)
    if error.code == UNAUTHORIZED:
        return ConfigurationError(
            message,
            expected="a user with find and changeStream on the scope: role readAnyDatabase for "
            "scope deployment, role read on the database for scope database, both actions on the collection "
            "for scope collection",
            found=found,
            remedy="set the login of the Airflow connection, or grant it the role",
        )
    if error.code in _AUTHENTICATION:
        return ConfigurationError(
            message, found=found, remedy="check login, password, authSource and authMechanism"
        )
    if error.code == _OVERSIZE:
        return EventTooLarge(f"{message}: a change event exceeds 16 MB", found=found)
    if error.code == _BAD_TOKEN:
        return ConfigurationError(
            message, found=found, remedy="the stored token is not valid on this server: set the offset"
        )
    transient = error.code in _TRANSIENT or error.has_error_label("ResumableChangeStreamError")
    kind = TransientError if transient else ConfigurationError
    return kind(message, found=found)


def short_text(error: Exception) -> str:
    """Return an error's text without the command, the reply and the topology that may follow it."""
    text = str(error)
    for follows in (", full error:", ", Topology Description:", " to execute command {"):
        text = text.partition(follows)[0]
    return text[:400].rstrip(".")
