"""Masks secrets also in what Airflow itself shows: the whole log of a task, and rendered templates.

Airflow gets the values without their encodings, since each one costs time in each line of all logs. It
doesn't mask those of fewer than 5 characters (``[logging] min_length_masked_secret``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from airflow.providers.common.compat.sdk import mask_secret
from airflow.sdk.log import amask_secret

from airflow_cdc_provider.connector.declaration import Connector, ConnectorLike, to_connector
from airflow_cdc_provider.exceptions import CdcError
from airflow_cdc_provider.masking import by_name, known, masked, remember

_ROUNDS: Final = 100_000


def keep_secret(values: Any) -> None:
    """Register the secrets in a connection's values."""
    mask_secret(_listed(remember(values)))


async def keep_secret_async(values: Any) -> None:
    """Do the same in a trigger."""
    await amask_secret(_listed(remember(values)))


def _listed(secrets: frozenset[str]) -> list[Any]:
    return sorted(secrets)


class Shown(dict[str, Any]):
    """A mapping whose text is masked: ``airflow tasks render`` prints what a task's arguments are."""

    def __repr__(self) -> str:
        return masked(super().__repr__())


def keep_rendered(connector: ConnectorLike | None, *settings: Any) -> None:
    """Register the secrets in a task's rendered arguments.

    Args:
        connector: The declaration; an invalid one fails the task later.
        settings: Spark's settings and environment variables, if they are mappings.
    """
    with contextlib.suppress(CdcError):
        if connector is not None:
            to_connector(connector)
    for given in settings:
        remember(by_name(given) if isinstance(given, Mapping) else {})
    mask_secret(_listed(known()))


def digest(connector: Connector) -> str:
    """Return a digest of a declaration's literal secrets, slow to search; empty if it has none."""
    secrets = json.dumps(connector.split_secrets()[1]).encode()
    if secrets == b"[]":
        return ""
    return hashlib.pbkdf2_hmac("sha256", secrets, connector.name.encode(), _ROUNDS).hex()
