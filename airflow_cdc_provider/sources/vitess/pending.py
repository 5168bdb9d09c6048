"""Checks whether shards of a Vitess keyspace have changes after an offset, and how old the oldest one is.

Each check queries the shards' current positions. If the offset is behind them, it opens a stream after the
offset, lets the tablets filter out unselected tables, and reads one change at most. It never reads bulk data.

gRPC's asyncio client is bound to one event loop per process, but sensors and triggers have several. So a
check uses blocking calls with timeouts; callers on an event loop run it in a thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.exceptions import PositionLost
from airflow_cdc_provider.patterns import selects

if TYPE_CHECKING:
    from airflow_cdc_provider.sources.vitess.options import VitessOptions
    from airflow_cdc_provider.sources.vitess.position import Position
    from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient

_NEWS: Final = ("ROW", "DDL", "JOURNAL")
_CALL_SECONDS: Final = 10.0


@dataclass(frozen=True)
class Pending:
    """Result of one check.

    Args:
        news: Whether there are changes after the offset.
        lag_seconds: Age of the oldest one by the tablet's clock, 0 for none; None before the first capture,
            or if the server didn't find the first selected change in time.
        table: Table of the oldest one; empty for none.
        shards: The number of transactions of each shard after the offset, including those of other tables and
            of the tablets' heartbeats.
        lost: Whether the source no longer has the changes after the offset, and the next run recovers from
            that.
        resharding: The source and target shards of a reshard in progress; None if not checked.
    """

    news: bool
    lag_seconds: float | None
    table: str = ""
    shards: Mapping[str, int] = field(default_factory=dict)
    lost: bool = False
    resharding: Sequence[str] | None = None


@dataclass(frozen=True)
class Shards:
    """The existing shards, as ``keyspace/shard``.

    Args:
        serving: The serving shards, of those that are read.
        resharding: Shards that have tablets and share keys with others that do, sorted.
        missing: Serving shards without a position in the offset; empty before the first capture.
    """

    serving: Sequence[str]
    resharding: Sequence[str]
    missing: Sequence[str]


@dataclass(frozen=True)
class Feed:
    """The feed to check: a connector's options as JSON, so that a trigger can be serialized.

    Args:
        keyspace: The keyspace, or a regular expression of keyspaces after a slash.
        shards: Its shards; empty for all.
        tablet_type: Type of the tablets that are read.
        exclude_empty_shards: Whether to skip shards without such tablets.
        cells: Cells whose tablets may be read.
        tables: Patterns of the selected tables.
        exclude_tables: Patterns of the excluded tables.
        recovers_from_loss: Whether the next run recovers from a lost position automatically.
    """

    keyspace: str
    shards: tuple[str, ...] = ()
    tablet_type: str = "PRIMARY"
    exclude_empty_shards: bool = False
    cells: tuple[str, ...] = ()
    tables: tuple[str, ...] = (".*",)
    exclude_tables: tuple[str, ...] = ()
    recovers_from_loss: bool = False

    @property
    def options(self) -> VitessOptions:
        """The source's options that a check needs."""
        from airflow_cdc_provider.sources.vitess.options import VitessAdvanced, VitessOptions, VitessStream

        return VitessOptions(
            keyspace=self.keyspace,
            shards=tuple(self.shards),
            tablet_type=self.tablet_type,  # type: ignore[arg-type]  # checked when the connector was read
            exclude_empty_shards=self.exclude_empty_shards,
            stream=VitessStream(cells=tuple(self.cells)),
            advanced=VitessAdvanced(call_timeout_seconds=_CALL_SECONDS),
        )

    def selects(self, table: str) -> bool:
        """Return whether a table is selected."""
        return selects(self.tables, self.exclude_tables, table)


def client_of(values: dict[str, Any]) -> VtgateClient:
    """Build a client.

    Args:
        values: The connection's values, as its hook returns them.
    """
    from airflow_cdc_provider.sources.vitess.connection import ConnectionValues
    from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient

    return VtgateClient(ConnectionValues.read(values))


def look(
    client: VtgateClient, feed: Feed, offset: Mapping[str, Any] | None, *, patience_seconds: float = 20.0
) -> Pending:
    """Check once.

    Args:
        client: The cluster.
        feed: The feed to check.
        offset: The Vitess source's offset; None before the first capture.
        patience_seconds: How long the tablets may search for a selected change.

    Raises:
        PositionLost: The source no longer has the changes after the offset, and no run recovers from that.
        ConfigurationError: The login is refused, or the keyspace doesn't exist.
        TransientError: The server doesn't answer.
    """
    from airflow_cdc_provider.sources.vitess.gtid import is_real
    from airflow_cdc_provider.sources.vitess.position import Position, require_known
    from airflow_cdc_provider.sources.vitess.requests import current_position, serving_shards
    from airflow_cdc_provider.sources.vitess.tablets import require_binlogs_retained

    if offset is None:
        return Pending(news=True, lag_seconds=None)
    position = Position.from_offset(offset)
    options = feed.options
    try:
        head = current_position(client, options, serving_shards(client, options))
        if feed.tablet_type == "PRIMARY":  # a replica may be behind what was captured from another
            require_known(position, head)
        require_binlogs_retained(
            client,
            {shard: at.gtid for shard, at in position.shards.items() if shard in head.shards},
            feed.tablet_type,
            _CALL_SECONDS,
        )
        ahead = {
            shard: max(at.set.count - position.shards[shard].set.count, 0)
            for shard, at in head.shards.items()
            if shard in position.shards and is_real(position.shards[shard].gtid)
        }
        resharding = _resharding(client, options)
        if position.is_real and position.has(head):
            return Pending(news=False, lag_seconds=0.0, shards=ahead, resharding=resharding)
        found = oldest(client, options, feed.selects, position, head, patience_seconds)
        return replace(found, shards=ahead, resharding=resharding)
    except PositionLost:
        if not feed.recovers_from_loss:
            raise
        return Pending(news=True, lag_seconds=None, lost=True)


def look_at_shards(client: VtgateClient, feed: Feed, offset: Mapping[str, Any] | None) -> Shards:
    """List the existing shards.

    Args:
        client: The cluster.
        feed: The feed to check.
        offset: The Vitess source's offset; None before the first capture.

    Raises:
        ConfigurationError: The login is refused, or the keyspace doesn't exist.
        TransientError: The server doesn't answer.
    """
    from airflow_cdc_provider.sources.vitess.position import Position
    from airflow_cdc_provider.sources.vitess.requests import serving_shards

    serving = serving_shards(client, feed.options)
    known = Position.from_offset(offset).shards if offset is not None else None
    missing = [] if known is None else [shard for shard in serving if shard not in known]
    return Shards(serving, _resharding(client, feed.options), missing)


def _resharding(client: VtgateClient, options: VitessOptions) -> list[str]:
    from airflow_cdc_provider.sources.vitess.requests import each_keyspace
    from airflow_cdc_provider.sources.vitess.tablets import list_tablets, shards_in_reshard

    keyspaces = (one.keyspace for one in each_keyspace(client, options))
    return shards_in_reshard([t for name in keyspaces for t in list_tablets(client, name, _CALL_SECONDS)])


def oldest(
    client: VtgateClient,
    options: VitessOptions,
    selects: Callable[[str], bool],
    position: Position,
    head: Position,
    patience_seconds: float,
) -> Pending:
    """Find the oldest change after a position. This is the lag of a connector, wherever it is reported.

    Args:
        client: The cluster.
        options: The source's options.
        selects: Returns whether ``keyspace.table`` is selected.
        position: The position.
        head: A position after it.
        patience_seconds: How long the tablets may search for a selected change.

    Raises:
        PositionLost: The source no longer has the changes after the position.
        TransientError: The server doesn't answer.
    """
    from airflow_cdc_provider.sources.vitess.options import VitessStream
    from airflow_cdc_provider.sources.vitess.position import Position
    from airflow_cdc_provider.sources.vitess.protocol import EVENT_TYPES, VStreamResponse, parse
    from airflow_cdc_provider.sources.vitess.requests import filter_of, stream_request, tables_to_stream

    filters = filter_of(tables_to_stream(client, options, selects))
    quick = VitessStream(heartbeat_seconds=1, cells=options.stream.cells)
    request = stream_request(position.to_vgtid(), filters, replace(options, stream=quick))
    stream = client.vstream(request.SerializeToString())
    kinds = {EVENT_TYPES[name] for name in _NEWS}
    timer = threading.Timer(patience_seconds, stream.cancel)
    timer.start()
    try:
        for response in stream:
            for event in parse(VStreamResponse, response).events:
                if event.HasField("row_event") and not selects(event.row_event.table_name):
                    continue  # of another keyspace, by the name of a table that is selected
                if event.type in kinds:
                    now = event.current_time / 1e9 or time.time()
                    age = max(now - event.timestamp, 0.0) if event.timestamp else None
                    return Pending(True, age, event.row_event.table_name)
                if event.HasField("vgtid"):
                    read_to = Position.of_vgtid(event.vgtid.SerializeToString())
                    if read_to.has(head):
                        return Pending(False, 0.0)
    finally:
        timer.cancel()
        stream.cancel()
    return Pending(False, None)
