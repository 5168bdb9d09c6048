"""What VTGate is asked for: requests of streams, and the shards and tables that there are."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.sources.vitess.gtid import CURRENT, is_real
from airflow_cdc_provider.sources.vitess.options import VitessOptions, has_keyspace
from airflow_cdc_provider.sources.vitess.position import Position
from airflow_cdc_provider.sources.vitess.protocol import TABLET_TYPES, Filter, VGtid, VStreamRequest
from airflow_cdc_provider.sources.vitess.read_ahead import ReadAhead, Room, StreamEnded
from airflow_cdc_provider.sources.vitess.tablets import SERVING, keyless_tables, list_tablets
from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient
from airflow_cdc_provider.sources.vitess.wire import HEARTBEAT, VGTID, scan

_INTERNAL: Final = re.compile(
    r"_vt.*|_[0-9a-f]{8}(_[0-9a-f]{4}){3}_[0-9a-f]{12}_\d{14}_(gho|ghc|del|new|vrepl)|_.*_old"
)
"""Tables of Vitess's own and those of online DDL, as Vitess's package ``schema`` tells them from others."""


def quoted(name: str) -> str:
    """Quote an identifier."""
    return "`" + name.replace("`", "``") + "`"


def stream_request(vgtid: Any, filters: Any, options: VitessOptions, tablet_type: str = "") -> Any:
    """Build the request of a stream from a VGTID on."""
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


def room_of(options: VitessOptions) -> Room:
    """Return how much of a stream may wait to be worked on."""
    return Room(options.advanced.read_ahead_bytes, options.advanced.read_ahead_events)


def filter_of(tables: Sequence[str] | None) -> Any:
    """Build a filter: a rule per table, for None one that takes all.

    A rule by a plain name needs its own SELECT: with an empty one the copy works and the first change fails.
    """
    filters = Filter()
    if tables is None:
        filters.rules.add(match="/.*")
    for table in tables or ():
        filters.rules.add(match=table, filter=f"select * from {quoted(table)}")
    return filters


def each_keyspace(client: VtgateClient, options: VitessOptions) -> list[VitessOptions]:
    """Return the options of each keyspace that is read by itself, sorted by its name.

    Raises:
        ConfigurationError: No keyspace fits the expression.
    """
    if not options.keyspace.startswith("/"):
        return [options]
    answer = client.execute("SHOW VITESS_SHARDS", timeout_seconds=options.advanced.call_seconds).texts()
    there = sorted({name.partition("/")[0] for (name, *_) in answer})
    found = [keyspace for keyspace in there if has_keyspace(options.keyspace, keyspace)]
    if not found:
        raise ConfigurationError(
            f"VTGate has no keyspace in which {options.keyspace} is found",
            expected=", ".join(there) or "any",
            found=options.keyspace,
            remedy="check source.keyspace",
        )
    return [replace(options, keyspace=keyspace, start_at=CURRENT) for keyspace in found]


def serving_shards(client: VtgateClient, options: VitessOptions) -> list[str]:
    """List the shards that are read, ``keyspace/shard``, sorted; those without tablets too, unless left out.

    Raises:
        ConfigurationError: The keyspace isn't there, or a chosen shard, or no shard serves.
    """
    return [shard for one in each_keyspace(client, options) for shard in _serving_shards(client, one)]


def _serving_shards(client: VtgateClient, options: VitessOptions) -> list[str]:
    seconds = options.advanced.call_seconds
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
                f"no shard of keyspace {keyspace} has a tablet of type {options.tablet_type} that serves",
                remedy="start one, or choose another source.tablet_type",
            )
        chosen = [shard for shard in chosen if shard in served]
    return [f"{keyspace}/{shard}" for shard in chosen]


def list_tables(client: VtgateClient, options: VitessOptions, selects: Callable[[str], bool]) -> list[str]:
    """List the selected tables, ``keyspace.table``, sorted; views are none."""
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
    found = keyless_tables(client, target, names, options.advanced.call_seconds)
    return [f"{keyspace}.{table}" for table in found]


def wanted_tables(
    client: VtgateClient, options: VitessOptions, selects: Callable[[str], bool]
) -> list[str] | None:
    """List the tables that a stream is asked for; None: all, as all that there are are selected.

    VTGate knows them by name alone, whatever their keyspace: of several, more may come than is selected.
    """
    names: set[str] = set()
    all_wanted = True
    for one in each_keyspace(client, options):
        found = _base_tables(client, one)
        wanted = [table for table in found if selects(f"{one.keyspace}.{table}")]
        all_wanted &= wanted == found
        names.update(wanted)
    return None if all_wanted else sorted(names)


def _base_tables(client: VtgateClient, options: VitessOptions) -> list[str]:
    seconds = options.advanced.call_seconds
    sql = f"SHOW FULL TABLES FROM {quoted(options.keyspace)}"
    answer = client.execute(sql, target=options.keyspace, timeout_seconds=seconds).texts()
    names = (name for name, kind, *_ in answer if kind == "BASE TABLE")
    return sorted(name for name in names if not _INTERNAL.fullmatch(name))


def current_position(
    client: VtgateClient, options: VitessOptions, shards: Sequence[str], tablet_type: str = ""
) -> Position:
    """Ask where shards (``keyspace/shard``) stand now, by a short stream from ``current``.

    Raises:
        TransientError: They don't all answer in time: no tablet of the type serves.
    """
    vgtid = VGtid()
    for full_name in shards:
        keyspace, _, shard = full_name.partition("/")
        vgtid.shard_gtids.add(keyspace=keyspace, shard=shard, gtid=CURRENT)
    # A table that can't be keeps other events away.
    request = stream_request(vgtid, filter_of(("_vt_no_table",)), options, tablet_type)
    ahead = ReadAhead(client.vstream(request.SerializeToString()), room_of(options))
    known: dict[str, Any] = {}
    seconds = options.advanced.call_seconds
    try:
        while len(known) < len(shards):
            response = ahead.next(seconds)
            if response is None:
                break
            events = scan(response)
            for number in (events.types == VGTID).nonzero()[0]:
                told = Position.of_vgtid(events.body(int(number)))
                known |= {s: p for s, p in told.shards.items() if is_real(p.gtid) and s not in known}
    except StreamEnded as error:
        raise TransientError("VTGate ended a stream before it told where its shards stand") from error
    finally:
        ahead.close()
    if missing := [shard for shard in shards if shard not in known]:
        raise TransientError(
            f"shards don't tell where they stand: {', '.join(missing)}",
            expected=f"an answer within {seconds:g} s",
            remedy=f"see that tablets of type {tablet_type or options.tablet_type} serve, or choose another "
            "source.tablet_type",
        )
    return Position(known)


def oldest_after(
    client: VtgateClient, options: VitessOptions, position: Position, seconds: float
) -> int | None:
    """Tell when the first transaction after a position was committed, of whatever table.

    Args:
        client: The client.
        options: The source's options.
        position: The position.
        seconds: When to give up.

    Returns:
        Seconds since 1970 by the server's clock; None if none came, or none that tells its time.
    """
    request = stream_request(position.to_vgtid(), filter_of(("_vt_no_table",)), options)
    ahead = ReadAhead(client.vstream(request.SerializeToString()), room_of(options))
    until = time.monotonic() + seconds
    try:
        while (left := until - time.monotonic()) > 0:
            response = ahead.next(left)
            if response is None:
                return None
            events = scan(response)
            told = events.timestamps[(events.timestamps > 0) & (events.types != HEARTBEAT)]
            if len(told):
                return int(told.min())
    except StreamEnded:
        return None
    finally:
        ahead.close()
    return None
