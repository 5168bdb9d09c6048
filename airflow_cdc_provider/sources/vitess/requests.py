"""Requests to VTGate: streams, and lists of shards and tables."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, TransientError
from airflow_cdc_provider.sources.prefetch import BufferLimit
from airflow_cdc_provider.sources.vitess.gtid import CURRENT, is_real
from airflow_cdc_provider.sources.vitess.options import VitessOptions, has_keyspace
from airflow_cdc_provider.sources.vitess.position import Position
from airflow_cdc_provider.sources.vitess.prefetch import StreamEnded, prefetch
from airflow_cdc_provider.sources.vitess.protocol import TABLET_TYPES, Filter, VGtid, VStreamRequest
from airflow_cdc_provider.sources.vitess.tablets import SERVING, keyless_tables, list_tablets
from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient
from airflow_cdc_provider.sources.vitess.wire import HEARTBEAT, VGTID, scan

_INTERNAL: Final = re.compile(
    r"_vt.*|_[0-9a-f]{8}(_[0-9a-f]{4}){3}_[0-9a-f]{12}_\d{14}_(gho|ghc|del|new|vrepl)|_.*_old"
)
"""Internal tables of Vitess and of online DDL, as defined by Vitess's package ``schema``."""
_NO_TABLE: Final = "_vt_no_table"
"""A table that can't exist: as a filter it excludes all row events."""


def quoted(name: str) -> str:
    """Quote an identifier."""
    return "`" + name.replace("`", "``") + "`"


def stream_request(vgtid: Any, filters: Any, options: VitessOptions, tablet_type: str = "") -> Any:
    """Build the request of a stream that starts at a VGTID."""
    flags = options.stream
    request = VStreamRequest(
        tablet_type=TABLET_TYPES[tablet_type or options.tablet_type], vgtid=vgtid, filter=filters
    )
    request.flags.heartbeat_interval = flags.heartbeat_seconds
    request.flags.minimize_skew = flags.minimize_skew
    request.flags.stop_on_reshard = flags.stop_on_reshard
    request.flags.include_reshard_journal_events = flags.journals and not flags.stop_on_reshard
    request.flags.stream_keyspace_heartbeats = flags.keyspace_heartbeats
    request.flags.exclude_keyspace_from_table_name = flags.exclude_keyspace_from_table_name
    request.flags.transaction_chunk_size = flags.transaction_chunk_bytes
    request.flags.cells = ",".join(flags.cells)
    request.flags.cell_preference = flags.cell_preference
    request.flags.tablet_order = flags.tablet_order
    return request


def buffer_limit(options: VitessOptions) -> BufferLimit:
    """Return the limit of the prefetch buffer of a stream."""
    return BufferLimit(options.advanced.read_ahead_bytes, options.advanced.read_ahead_events)


def filter_of(tables: Sequence[str] | None) -> Any:
    """Build a filter with a rule per table; for None with one rule for all tables.

    A rule for a plain name needs a SELECT: without one the copy works, but the first change fails.
    """
    filters = Filter()
    if tables is None:
        filters.rules.add(match="/.*")
    for table in tables or ():
        filters.rules.add(match=table, filter=f"select * from {quoted(table)}")
    return filters


def each_keyspace(client: VtgateClient, options: VitessOptions) -> list[VitessOptions]:
    """Return separate options for each selected keyspace, sorted by name.

    Raises:
        ConfigurationError: No keyspace matches the expression.
    """
    if not options.keyspace.startswith("/"):
        return [options]
    answer = client.execute(
        "SHOW VITESS_SHARDS", timeout_seconds=options.advanced.call_timeout_seconds
    ).texts()
    existing = sorted({name.partition("/")[0] for (name, *_) in answer})
    found = [keyspace for keyspace in existing if has_keyspace(options.keyspace, keyspace)]
    if not found:
        raise ConfigurationError(
            f"VTGate has no keyspace that matches {options.keyspace}",
            expected=", ".join(existing) or "any",
            found=options.keyspace,
            remedy="check source.keyspace",
        )
    return [replace(options, keyspace=keyspace, start_at=CURRENT) for keyspace in found]


def serving_shards(client: VtgateClient, options: VitessOptions) -> list[str]:
    """List the shards to read, ``keyspace/shard``, sorted; with empty shards, unless they are excluded.

    Raises:
        ConfigurationError: The keyspace or a selected shard doesn't exist, or no shard is serving.
    """
    return [shard for one in each_keyspace(client, options) for shard in _serving_shards(client, one)]


def _serving_shards(client: VtgateClient, options: VitessOptions) -> list[str]:
    seconds = options.advanced.call_timeout_seconds
    answer = client.execute("SHOW VITESS_SHARDS", timeout_seconds=seconds).texts()
    keyspace = options.keyspace
    found = sorted(name.partition("/")[2] for (name, *_) in answer if name.partition("/")[0] == keyspace)
    if not found:
        raise ConfigurationError(
            f"VTGate has no keyspace {keyspace}",
            expected=", ".join(sorted({name.partition("/")[0] for (name, *_) in answer})) or "any",
            found=keyspace,
            remedy="check source.keyspace",
        )
    if missing := sorted(set(options.shards) - set(found)):
        raise ConfigurationError(
            f"keyspace {keyspace} doesn't have the shards of source.shards",
            expected=", ".join(found),
            found=", ".join(missing),
        )
    chosen = [shard for shard in found if not options.shards or shard in options.shards]
    if options.exclude_empty_shards:
        tablets = list_tablets(client, keyspace, seconds)
        served = {t.shard for t in tablets if t.type == options.tablet_type and t.state == SERVING}
        if not served.intersection(chosen):
            raise ConfigurationError(
                f"no shard of keyspace {keyspace} has a serving tablet of type {options.tablet_type}",
                remedy="start one, or choose another source.tablet_type",
            )
        chosen = [shard for shard in chosen if shard in served]
    return [f"{keyspace}/{shard}" for shard in chosen]


def list_tables(client: VtgateClient, options: VitessOptions, selects: Callable[[str], bool]) -> list[str]:
    """List the selected tables, ``keyspace.table``, sorted, without views."""
    found = (
        f"{one.keyspace}.{table}"
        for one in each_keyspace(client, options)
        for table in _base_tables(client, one)
    )
    return sorted(filter(selects, found))


def list_keyless(client: VtgateClient, options: VitessOptions, selects: Callable[[str], bool]) -> list[str]:
    """List the selected tables of one keyspace that have no key, ``keyspace.table``."""
    keyspace, _, shard = _serving_shards(client, options)[0].partition("/")
    target = f"{keyspace}:{shard}@{options.tablet_type.lower()}"
    names = [table.partition(".")[2] for table in list_tables(client, options, selects)]
    found = keyless_tables(client, target, names, options.advanced.call_timeout_seconds)
    return [f"{keyspace}.{table}" for table in found]


def home_shards(client: VtgateClient, options: VitessOptions, tables: Iterable[str]) -> dict[str, str]:
    """Return the first shard of each reference table, as all shards have its rows; other tables are missing.

    Tables are ``keyspace.table``, shards ``keyspace/shard``.
    """
    shards = serving_shards(client, options)
    found = {}
    for table in tables:
        keyspace, _, name = table.partition(".")
        own = [shard for shard in shards if shard.partition("/")[0] == keyspace]
        if len(own) > 1 and _is_reference(client, options, f"{quoted(keyspace)}.{quoted(name)}"):
            found[table] = min(own)
    return found


def _is_reference(client: VtgateClient, options: VitessOptions, table: str) -> bool:
    seconds = options.advanced.call_timeout_seconds
    try:
        rows = client.execute(f"VEXPLAIN PLAN SELECT 1 FROM {table}", timeout_seconds=seconds).texts()
    except CdcError:  # the VSchema doesn't have the table
        client.execute("SHOW VITESS_SHARDS", timeout_seconds=seconds)  # fails if VTGate is the cause
        return False
    return bool(rows) and json.loads(rows[0][0]).get("Variant") == "Reference"


def tables_to_stream(
    client: VtgateClient, options: VitessOptions, selects: Callable[[str], bool]
) -> list[str] | None:
    """List the tables to request from a stream; None for all, if all tables are selected.

    VTGate filters by table name in all keyspaces, so with several keyspaces it may send more than is
    selected.
    """
    names: set[str] = set()
    all_selected = True
    for one in each_keyspace(client, options):
        found = _base_tables(client, one)
        selected = [table for table in found if selects(f"{one.keyspace}.{table}")]
        all_selected &= selected == found
        names.update(selected)
    return None if all_selected else sorted(names) or [_NO_TABLE]


def _base_tables(client: VtgateClient, options: VitessOptions) -> list[str]:
    seconds = options.advanced.call_timeout_seconds
    sql = f"SHOW FULL TABLES FROM {quoted(options.keyspace)}"
    answer = client.execute(sql, target=options.keyspace, timeout_seconds=seconds).texts()
    names = (name for name, kind, *_ in answer if kind == "BASE TABLE")
    return sorted(name for name in names if not _INTERNAL.fullmatch(name))


def current_position(
    client: VtgateClient, options: VitessOptions, shards: Sequence[str], tablet_type: str = ""
) -> Position:
    """Request the current position of shards (``keyspace/shard``) with a short stream from ``current``.

    Raises:
        TransientError: Not all shards answer in time, because they have no serving tablet of the type.
    """
    vgtid = VGtid()
    for full_name in shards:
        keyspace, _, shard = full_name.partition("/")
        vgtid.shard_gtids.add(keyspace=keyspace, shard=shard, gtid=CURRENT)
    request = stream_request(vgtid, filter_of((_NO_TABLE,)), options, tablet_type)
    responses = prefetch(client.vstream(request.SerializeToString()), buffer_limit(options))
    known: dict[str, Any] = {}
    seconds = options.advanced.call_timeout_seconds
    try:
        while len(known) < len(shards):
            response = responses.next(seconds)
            if response is None:
                break
            events = scan(response)
            for number in (events.types == VGTID).nonzero()[0]:
                reported = Position.of_vgtid(events.body(int(number)))
                known |= {s: p for s, p in reported.shards.items() if is_real(p.gtid) and s not in known}
    except StreamEnded as error:
        raise TransientError("VTGate ended a stream before it sent the positions of all shards") from error
    finally:
        responses.close()
    if missing := [shard for shard in shards if shard not in known]:
        raise TransientError(
            f"shards don't report their position: {', '.join(missing)}",
            expected=f"an answer within {seconds:g} s",
            remedy=f"make sure that tablets of type {tablet_type or options.tablet_type} serve, or choose "
            "another source.tablet_type",
        )
    return Position(known)


def oldest_after(
    client: VtgateClient, options: VitessOptions, position: Position, seconds: float
) -> int | None:
    """Return when the first transaction of any table after a position was committed.

    Args:
        client: The client.
        options: The source's options.
        position: The position.
        seconds: Timeout.

    Returns:
        Seconds since 1970 by the server's clock; None if no transaction with a time arrived.
    """
    request = stream_request(position.to_vgtid(), filter_of((_NO_TABLE,)), options)
    responses = prefetch(client.vstream(request.SerializeToString()), buffer_limit(options))
    until = time.monotonic() + seconds
    try:
        while (left := until - time.monotonic()) > 0:
            response = responses.next(left)
            if response is None:
                return None
            events = scan(response)
            times = events.timestamps[(events.timestamps > 0) & (events.types != HEARTBEAT)]
            if len(times):
                return int(times.min())
    except StreamEnded:
        return None
    finally:
        responses.close()
    return None
