"""What VTGate is asked for: requests of streams, and the shards and tables that there are."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.sources.vitess.gtid import CURRENT, is_real
from airflow_cdc_provider.sources.vitess.options import VitessOptions
from airflow_cdc_provider.sources.vitess.position import Position
from airflow_cdc_provider.sources.vitess.protocol import TABLET_TYPES, Filter, VGtid, VStreamRequest
from airflow_cdc_provider.sources.vitess.read_ahead import ReadAhead, Room, StreamEnded
from airflow_cdc_provider.sources.vitess.tablets import SERVING, list_tablets
from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient
from airflow_cdc_provider.sources.vitess.wire import VGTID, scan

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


def serving_shards(client: VtgateClient, options: VitessOptions) -> list[str]:
    """List the shards of the keyspace that are read, sorted; those without tablets too, unless left out.

    Raises:
        ConfigurationError: The keyspace isn't there, or a chosen shard, or no shard serves.
    """
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
    if not options.exclude_empty_shards:
        return chosen
    tablets = list_tablets(client, keyspace, seconds)
    served = {t.shard for t in tablets if t.type == options.tablet_type and t.state == SERVING}
    if not served.intersection(chosen):
        raise ConfigurationError(
            f"no shard of keyspace {keyspace} has a tablet of type {options.tablet_type} that serves",
            remedy="start one, or choose another source.tablet_type",
        )
    return [shard for shard in chosen if shard in served]


def list_tables(client: VtgateClient, options: VitessOptions, selects: Callable[[str], bool]) -> list[str]:
    """List the selected tables, without their keyspace, sorted; views are none."""
    found = _base_tables(client, options)
    return [table for table in found if selects(f"{options.keyspace}.{table}")]


def wanted_tables(
    client: VtgateClient, options: VitessOptions, selects: Callable[[str], bool]
) -> list[str] | None:
    """List the tables that a stream is asked for; None: all, as all that there are are selected."""
    found = _base_tables(client, options)
    wanted = [table for table in found if selects(f"{options.keyspace}.{table}")]
    return None if wanted == found else wanted


def _base_tables(client: VtgateClient, options: VitessOptions) -> list[str]:
    seconds = options.advanced.call_seconds
    sql = f"SHOW FULL TABLES FROM {quoted(options.keyspace)}"
    answer = client.execute(sql, target=options.keyspace, timeout_seconds=seconds).texts()
    names = (name for name, kind, *_ in answer if kind == "BASE TABLE")
    return sorted(name for name in names if not _INTERNAL.fullmatch(name))


def current_position(
    client: VtgateClient, options: VitessOptions, shards: Sequence[str], tablet_type: str = ""
) -> Position:
    """Ask where shards stand now, by a short stream from ``current``.

    Raises:
        TransientError: They don't all answer in time: no tablet of the type serves.
    """
    vgtid = VGtid()
    for shard in shards:
        vgtid.shard_gtids.add(keyspace=options.keyspace, shard=shard, gtid=CURRENT)
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
    if missing := [shard for shard in shards if f"{options.keyspace}/{shard}" not in known]:
        raise TransientError(
            f"shards of {options.keyspace} don't tell where they stand: {', '.join(missing)}",
            expected=f"an answer within {seconds:g} s",
            remedy=f"see that tablets of type {tablet_type or options.tablet_type} serve, or choose another "
            "source.tablet_type",
        )
    return Position(known)
