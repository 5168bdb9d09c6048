"""Masks the arguments of tasks as Airflow shows them; a digest of a declaration's secrets."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from airflow_cdc_provider.connections.secrets_masker import keep_secret
from airflow_cdc_provider.connector.declaration import Connector, ConnectorLike, to_connector
from airflow_cdc_provider.exceptions import CdcError
from airflow_cdc_provider.masking import known, masked, remember
from airflow_cdc_provider.options import value_of
from airflow_cdc_provider.secret_values import stated_secrets

_ROUNDS: Final = 100_000


class Shown(dict[str, Any]):
    """A mapping whose text is masked: ``airflow tasks render`` prints what a task's arguments are."""

    def __repr__(self) -> str:
        return masked(super().__repr__())


def mask_arguments(connector: ConnectorLike | None, *settings: Any) -> None:
    """Mask the secrets in a task's arguments from now on, before or after their templates are rendered.

    Args:
        connector: The declaration; an invalid one fails the task later.
        settings: Spark's settings and environment variables.
    """
    with contextlib.suppress(CdcError):
        if connector is not None:
            to_connector(connector)
    for given in (connector, *settings):
        plain = value_of(given) if isinstance(given, str) else given
        if isinstance(plain, str):  # no mapping: a template may break its notation
            remember(list(stated_secrets({"": plain})), secret=True)
        elif given is not connector and isinstance(plain, Mapping):
            remember(list(stated_secrets(plain)), secret=True)
    keep_secret(known().secrets, secret=True)


def digest(connector: Connector) -> str:
    """Return a digest of a declaration's literal secrets, slow to search; empty if it has none."""
    secrets = json.dumps(connector.split_secrets()[1]).encode()
    if secrets == b"[]":
        return ""
    return hashlib.pbkdf2_hmac("sha256", secrets, connector.name.encode(), _ROUNDS).hex()
