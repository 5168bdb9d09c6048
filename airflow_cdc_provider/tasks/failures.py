"""Maps our errors to Airflow's: permanent ones fail the task at once, all others may be retried.

No error text contains a secret: :func:`redact` removes a connection's secrets from the output of drivers and
Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_cdc_provider.exceptions import PERMANENT, CdcError, error_from_text, error_of_code

_IN_URI: Final = re.compile(r"://[^/@:]*:([^@/]+)@")
_SECRET_NAMES: Final = ("password", "secret", "token", "passphrase", "private_key", "api_key", "key.pem")


def for_airflow(error: CdcError) -> Exception:
    """Return what to raise: ``AirflowFailException`` if a retry can't help, else the error itself."""
    return AirflowFailException(str(error)) if isinstance(error, PERMANENT) else error


def error_of(code: str, text: str) -> CdcError:
    """Rebuild an error that another process reported.

    Args:
        code: The code of its class; empty if it had none.
        text: Its text, with or without the leading code.
    """
    line = " ".join(text.split())
    if code and code.isupper():
        return error_of_code(code, line.removeprefix(f"[CDC-{code}] "))
    found = None if code else error_from_text(line)
    return found or CdcError(f"{code}: {line}" if code else line or "no reason was reported")


def redact(text: str, values: Mapping[str, Any]) -> str:
    """Replace each secret of a connection by ``***``.

    Args:
        text: Output of a driver or a Spark application.
        values: The connection's values, as :meth:`CdcHook.connection_values` returns them.
    """
    for secret in sorted(set(_secrets(values)), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _secrets(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _secrets(value)
        elif isinstance(value, str) and value:
            if any(part in name.lower() for part in _SECRET_NAMES):
                yield value
            if found := _IN_URI.search(value):
                yield from (found.group(1), unquote(found.group(1)))
