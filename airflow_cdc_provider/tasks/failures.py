"""Maps our errors to Airflow's: permanent ones fail the task at once, all others may be retried."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_cdc_provider.exceptions import PERMANENT, CdcError, error_from_text, error_of_code


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
