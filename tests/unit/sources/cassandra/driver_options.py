"""The driver's arguments for a connection, without connecting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cassandra.cluster
import pytest

from airflow_cdc_provider.sources.cql.connection import open_session


class Refused(Exception):
    """Ends the connecting once the driver has its options."""


def driver_arguments(connection: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the options with which a session of a connection would make its cluster."""
    arguments: dict[str, Any] = {}

    def cluster(**options: Any) -> None:
        arguments.update(options)
        raise Refused

    monkeypatch.setattr(cassandra.cluster, "Cluster", cluster)
    with pytest.raises(Refused):
        open_session(connection, timeout_seconds=3)
    return arguments
