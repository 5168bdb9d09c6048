"""Copies a connector's state to Airflow, where it is shown: offset, lag, counts. The lake has the original.

The copy is in the state store of the connector's changes asset, one JSON value per key. Each has ``"layout"``
too (:data:`STATE_LAYOUT`).

``offset``  ``{"connector", "source", "offset", "dag_id", "run_id", "at"}``; sensors start from it, and
            transfers remove what it counts as captured. A large offset is packed: Base64 of zlib of its JSON.
``status``  ``{"lag_seconds", "lag_bytes", "changes", "batches", "stage", "ok", "at", "committed_at"}`` of the
            last run; if it failed before a commit, ``{"ok", "error", "stage", "at"}`` and the other values of
            the run before it.
``tables``  per table, the numbers of the last run that touched it.
``snapshots``  ``{"tables": {table: {"done", "started_at"}}, "remaining", "at"}``: which tables have a
            complete snapshot, when it started, and how many tables remained after the last run.
``batches``  ``{"commits": [[batch, committed_at], ...]}``: the newest batch of the changes table after each
            of the last runs that committed one, oldest first.

If it is lost, the next run writes it again. It is never ahead of the lake: a run writes it after its commit,
and fails if it can't. A value of an older layout counts as lost; one of a newer layout is refused.
"""

from __future__ import annotations

import asyncio
import base64
import json
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.assets import changes_asset
from airflow_cdc_provider.connector.declaration import ConnectorLike
from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.tasks.parameters import known_name

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.jobs.spec import JobResult

log = logger(__name__)

STATE_LAYOUT: Final = 3
"""Layout of the values; see docs/design/stored-layout.md."""

_KEYS: Final = ("offset", "status", "tables", "snapshots", "batches")
_LARGE_CHARACTERS: Final = 50_000
"""Airflow warns of values above 64 KiB (``[state_store] max_value_storage_bytes``), and takes them."""
_LONGEST_ERROR: Final = 4_000
_MAX_TABLES: Final = 400
_MAX_COMMITS: Final = 200


def stored_offset(context: Context, connector: Connector) -> Mapping[str, Any] | None:
    """Return the copy of a connector's offset.

    Args:
        context: The task's context.
        connector: The connector.

    Returns:
        The source's offset; None if no run has stored one.

    Raises:
        ConfigurationError: The stored offset is another connector's, or has a newer layout.
    """
    value = stored(context, connector, "offset")
    if value is None:
        return None
    if value.get("source") != connector.type:
        raise ConfigurationError(
            f"the offset stored for connector {connector.name} belongs to another source",
            expected=connector.type,
            found=str(value.get("source")),
            remedy="give each connector a unique name",
        )
    return _unpacked(value.get("offset"))


async def stored_offset_async(connector: str) -> Mapping[str, Any] | None:
    """Return the same as :func:`stored_offset`, for triggers.

    Args:
        connector: The connector's name.

    Raises:
        ConfigurationError: The stored offset has a newer layout.
    """
    value = await stored_async(connector, "offset")
    return _unpacked(value.get("offset")) if value is not None else None


def stored(context: Context, connector: Connector, key: str) -> Mapping[str, Any] | None:
    """Return a value that a connector's runs stored.

    The connector's asset may not be the task's: that of a templated connector or of a mapped task isn't known
    when the DAG is parsed.

    Args:
        context: The task's context.
        connector: The connector.
        key: ``snapshots``, ``batches`` ...; see above.

    Returns:
        The value; None if no run has stored it.

    Raises:
        ConfigurationError: Airflow restricts the task to the state of its own assets, or the value has a
            newer layout.
    """
    store = _store(context, connector)
    if store is not None or context.get("asset_state_store") is None:
        return None if store is None else _get(store, connector, key)
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time.context import AssetStateStoreAccessors

    asset = changes_asset(connector)
    try:
        return _get(AssetStateStoreAccessors([asset]), connector, key)
    except AirflowRuntimeError as error:
        if error.error.error is not ErrorType.PERMISSION_DENIED:
            raise
        raise ConfigurationError(
            f"this task isn't allowed to read the state of connector {connector.name}",
            expected=f"asset {asset.name} among its inlets",
            found=str(error),
            remedy="add inlets=[Asset(...)] with that name, or name the connector without a template",
        ) from None


async def stored_async(connector: str, key: str) -> Mapping[str, Any] | None:
    """Return the same as :func:`stored`, for triggers.

    Args:
        connector: The connector's name.
        key: The value's key.

    Raises:
        ConfigurationError: The value has a newer layout.
    """
    from airflow.sdk.execution_time.context import AssetStateStoreAccessors

    store = AssetStateStoreAccessors([changes_asset(connector)])
    value: Any
    try:
        value = await store.aget(key)
    except AttributeError:  # dag.test() runs triggers without an asynchronous client
        value = await asyncio.to_thread(store.get, key)
    return require_layout(value, connector, key)


def require_layout(value: Any, connector: str, key: str) -> Mapping[str, Any] | None:
    """Return a value of the state store if this version can read it.

    Args:
        value: The value; None if nothing is stored.
        connector: The connector's name.
        key: The value's key.

    Returns:
        The value; None if its layout is older, so that the next run writes it again.

    Raises:
        ConfigurationError: Its layout is newer.
    """
    if not isinstance(value, dict):
        return None
    layout = value.get("layout", 1)
    if layout > STATE_LAYOUT:
        raise ConfigurationError(
            f"the {key} of connector {connector} in Airflow's state store has a newer layout",
            expected=f"layout {STATE_LAYOUT}",
            found=f"layout {layout}",
            remedy="upgrade the provider here to the release whose run stored it",
        )
    return value if layout == STATE_LAYOUT else None


def store_result(context: Context, connector: Connector, stage: str, result: JobResult) -> None:
    """Copy a job's result to the asset's state store.

    Raises:
        ConfigurationError: A stored value has a newer layout; nothing is stored.
        TransientError: Airflow doesn't store a value.
    """
    store = _store(context, connector)
    if store is None:
        return
    known = {key: _get(store, connector, key) for key in _KEYS}
    at = datetime.now(UTC).isoformat(timespec="seconds")
    run = context["dag_run"]
    if result.offset is not None or stage == "offsets":
        origin = {"connector": connector.name, "source": connector.type, "dag_id": run.dag_id}
        _set(store, "offset", {**origin, "offset": _packed(result.offset), "run_id": run.run_id, "at": at})
    counts = {"changes": result.changes, "batches": result.batches}
    lag = {"lag_seconds": result.lag_seconds, "lag_bytes": result.lag_bytes}
    committed = {"committed_at": result.committed_at}
    status = {**lag, **counts, **committed, "stage": stage, "ok": result.ok, "at": at}
    _set(store, "status", status if result.ok else {**status, "error": result.error[:_LONGEST_ERROR]})
    if result.table_snapshots is not None:
        _set(store, "snapshots", _snapshots(known["snapshots"], result, at))
    if result.newest_batch and result.committed_at is not None:
        commits = append_commit(known["batches"], result.newest_batch, result.committed_at)
        _set(store, "batches", {"commits": commits})
    if result.tables:
        tables = dict(known["tables"] or {})
        tables.pop("layout", None)
        for table in result.tables:
            tables.pop(table.table, None)
            tables[table.table] = {**table_numbers(table), "stage": stage, "at": at}
        _set(store, "tables", _newest(tables))


def append_commit(known: Mapping[str, Any] | None, batch: int, committed_at: float) -> list[list[float]]:
    """Append the newest batch to those of earlier runs; start over if the changes table was re-created.

    Args:
        known: ``batches`` of the state store; None before the first.
        batch: The newest batch.
        committed_at: When it was committed, epoch seconds.
    """
    before = known["commits"] if known is not None else []
    if before and before[-1][0] == batch:
        return list(before)
    kept = [one for one in before if one[0] < batch] if before and before[-1][0] < batch else []
    return [*kept, [batch, committed_at]][-_MAX_COMMITS:]


def _snapshots(known: Mapping[str, Any] | None, result: JobResult, at: str) -> dict[str, Any]:
    """Return the snapshots after a run; the number remaining stays if the run didn't count them."""
    remaining = known.get("remaining") if known is not None else None
    if result.snapshot is not None:
        remaining = result.snapshot.remaining
    elif result.snapshot_skipped:
        remaining = 0
    copies = {table: dict(copy) for table, copy in (result.table_snapshots or {}).items()}
    return {"tables": _newest(copies), "remaining": remaining, "at": at}


def store_failure(context: Context, connector: Connector, stage: str, error: Exception) -> None:
    """Store that a run failed; the values of earlier runs stay, and so does a status of a newer layout."""
    store = _store(context, connector)
    if store is None:
        return
    try:
        known = _get(store, connector, "status") or {}
        at = datetime.now(UTC).isoformat(timespec="seconds")
        failed = {"ok": False, "error": str(error)[:_LONGEST_ERROR], "stage": stage, "at": at}
        _set(store, "status", {**known, **failed})
    except Exception as refused:  # noqa: BLE001  # must not hide the run's own error
        log.warning("The failure isn't copied to Airflow's state store: %s", refused)


def last_run(context: Context, connector: Connector) -> Mapping[str, Any]:
    """Return the last run's status from the store, with its ``offset``; empty before the first run.

    Raises:
        ConfigurationError: A stored value has a newer layout, or the offset is another connector's.
    """
    store = _store(context, connector)
    status = None if store is None else _get(store, connector, "status")
    if status is None:
        return {}
    return {**status, "offset": stored_offset(context, connector)}


def table_numbers(table: Any) -> dict[str, Any]:
    """Return the numbers of a table's result that are neither zero nor unknown."""
    return {
        name: value for name, value in vars(table).items() if name != "table" and value not in (None, 0, "")
    }


def _store(context: Context, connector: Connector) -> Any:
    stores: Any = context.get("asset_state_store")
    if stores is None:
        return None
    try:
        return stores[changes_asset(connector)]
    except KeyError:  # a mapped task, whose assets aren't known when the DAG is parsed
        return None


def _get(store: Any, connector: Connector, key: str) -> Mapping[str, Any] | None:
    return require_layout(store.get(key), connector.name, key)


def _set(store: Any, key: str, value: dict[str, Any]) -> None:
    try:
        store.set(key, {**value, "layout": STATE_LAYOUT})
    except Exception as error:  # of any backend
        raise TransientError(
            f"Airflow's state store doesn't take the copy of the connector's {key}",
            found=str(error),
            remedy="retry; what the run captured is in the lake, the stored copy is that of an earlier run",
        ) from error


def _packed(offset: Mapping[str, Any] | None) -> Mapping[str, Any] | str | None:
    text = json.dumps(offset)
    if len(text) <= _LARGE_CHARACTERS:
        return offset
    return base64.b64encode(zlib.compress(text.encode())).decode()


def _unpacked(offset: Any) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = offset
    if isinstance(offset, str):
        found = json.loads(zlib.decompress(base64.b64decode(offset)))
    return found


def _newest(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the last tables that fit."""
    kept, left = [], _LARGE_CHARACTERS
    for table in reversed(list(tables.items())[-_MAX_TABLES:]):
        if (size := len(json.dumps(table))) <= left:
            kept.append(table)
            left -= size
    return dict(reversed(kept))


def with_state(connector: ConnectorLike, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Add the connector's changes asset to a task's inlets: its state store has the stored offset."""
    known = known_name(connector)
    if known is None:
        return kwargs
    return {**kwargs, "inlets": [*(kwargs.get("inlets") or ()), changes_asset(known)]}
