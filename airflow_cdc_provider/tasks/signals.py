"""Stores a signal in the work folder, where a connector's jobs read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_cdc_provider.connector.declaration import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.signals import names
from airflow_cdc_provider.signals.files import send
from airflow_cdc_provider.signals.payloads import InvalidSignal, Matching, read_execute, read_stop
from airflow_cdc_provider.signals.signal import EXECUTE, STOP, TYPES
from airflow_cdc_provider.tasks.parameters import one_of
from airflow_cdc_provider.tasks.work_folder import signals_folder


def send_signal(
    connector: Connector,
    work_folder: str | None,
    signal: str,
    data: Mapping[str, Any],
    *,
    tables: Sequence[str] = (),
    identity: str = "",
) -> str:
    """Store a signal for the connector's jobs.

    Args:
        connector: The declaration.
        work_folder: The work folder; None for the configured one.
        signal: Its type.
        data: Its data.
        tables: ``data-collections``, instead of those in ``data``.
        identity: Its id; by default a generated one.

    Returns:
        Its id.

    Raises:
        ConfigurationError: The signal is invalid, or the folder isn't writable.
    """
    one_of("signal", signal, TYPES)
    if names.AIRFLOW not in connector.signals.channels:
        raise ConfigurationError(
            f"connector {connector.name} doesn't accept signals from Airflow",
            expected=f"{names.AIRFLOW} among signals.channels",
            found=", ".join(connector.signals.channels) or "none",
        )
    if tables:
        data = {**data, "data-collections": list(tables)}
    if signal == STOP:
        data = {"type": "incremental", **data}
    try:
        if signal == EXECUTE:
            read_execute(data, Matching())
        elif signal == STOP:
            read_stop(data, Matching())
    except InvalidSignal as error:
        raise ConfigurationError(f"invalid signal {signal}", found=str(error)) from error
    return send(signals_folder(work_folder, connector.name, create=True), signal, data, identity)
