"""Registers the secrets of connections, to be masked here and in the log of Airflow's task.

Airflow gets the values without their encodings, since each one costs time in each line of all logs. It
doesn't mask those of fewer than 5 characters (``[logging] min_length_masked_secret``).
"""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import mask_secret
from airflow.sdk.log import amask_secret

from airflow_cdc_provider.masking import remember


def keep_secret(values: Any, *, secret: bool = False) -> None:
    """Register the secrets in a connection's values; all of them, if they are secrets."""
    secrets: list[Any] = sorted(remember(values, secret=secret))
    mask_secret(secrets)


async def keep_secret_async(values: Any) -> None:
    """Do the same in a trigger."""
    secrets: list[Any] = sorted(remember(values))
    await amask_secret(secrets)
