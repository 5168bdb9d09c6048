"""Whether shards of a Vitess keyspace have changes after an offset, and how old the oldest of them is.

One look asks where the shards stand. If the offset isn't there, it opens a stream after the offset, lets the
tablets skip what the connector does not select, and takes one change at most. It never reads bulk data.

gRPC's asyncio client belongs to one event loop of a process, and sensors and triggers have several, so a look
is made of blocking calls with time limits; callers on an event loop give it a thread.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.exceptions import PositionLost

if TYPE_CHECKING:
    from airflow_cdc_provider.sources.vitess.options import VitessOptions
    from airflow_cdc_provider.sources.vitess.position import Position
    from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient

_NEWS: Final = ("ROW", "DDL", "JOURNAL")
_CALL_SECONDS: Final = 10.0


@dataclass(frozen=True)
class Pending:
    """What one look saw.

    Args:
        news: Whether there are changes after the offset.
        lag_seconds: Age of the oldest of them by the tablet's clock, 0 for none; None before the first
            capture, or where the server needs longer to find the first change that is selected.
        table: Where the oldest is, empty for none.
        shards: How many transactions each shard has after the offset, those of other tables and of tablets'
            own heartbeats included.
        lost: Whether the source no longer has what follows the offset, and the next run is to make that good.
        resharding: Shards that are turning into others, and those that they turn into; None where nobody
            looked.
    """

    news: bool
    lag_seconds: float | None
    table: str = ""
    shards: Mapping[str, int] = field(default_factory=dict)
    lost: bool = False
    resharding: Sequence[str] | None = None


@dataclass(frozen=True)
class Shards:
    """The shards that there are, ``keyspace/shard``.

    Args:
        serving: Those that serve, of those that are read.
        resharding: Those that have tablets and share keys with others that do, sorted.
        missing: Those of the serving ones that the offset has no place of; none before the first capture.
    """

    serving: Sequence[str]
    resharding: Sequence[str]
    missing: Sequence[str]


@dataclass(frozen=True)
class Feed:
    """What to watch; a connector's options as JSON, so that a trigger can carry it.

    Args:
        keyspace: The keyspace, or behind a slash an expression on keyspaces.
        shards: Its shards; none: all.
        tablet_type: Type of the tablets that are read.
        exclude_empty_shards: Whether shards without such tablets are left out.
        cells: Cells whose tablets may be read.
        tables: Patterns of the tables that count.
        exclude_tables: Patterns of those that do not.
        mends_loss: Whether the run that is waited for goes on from a lost position by itself.
    """

    keyspace: str
    shards: tuple[str, ...] = ()
    tablet_type: str = "PRIMARY"
    exclude_empty_shards: bool = False
    cells: tuple[str, ...] = ()
    tables: tuple[str, ...] = (".*",)
    exclude_tables: tuple[str, ...] = ()
    mends_loss: bool = False

    @property
    def options(self) -> VitessOptions:
        """The source's options as far as they matter here."""
        from airflow_cdc_provider.sources.vitess.options import VitessAdvanced, VitessOptions, VitessStream

        return VitessOptions(
            keyspace=self.keyspace,
            shards=tuple(self.shards),
            tablet_type=self.tablet_type,  # type: ignore[arg-type]  # checked when the connector was read
            exclude_empty_shards=self.exclude_empty_shards,
            stream=VitessStream(heartbeat_seconds=1, cells=tuple(self.cells)),
            advanced=VitessAdvanced(call_seconds=_CALL_SECONDS),
        )

    def selects(self, table: str) -> bool:
        """Tell whether a table counts."""
        return any(re.fullmatch(p, table) for p in self.tables) and not any(
            re.fullmatch(p, table) for p in self.exclude_tables
        )


def look(
    client: VtgateClient, feed: Feed, offset: Mapping[str, Any] | None, *, patience_seconds: float = 20.0
) -> Pending:
    """Look once.

    Args:
        client: The cluster.
        feed: What to watch.
        offset: The Vitess source's offset, None before the first capture.
        patience_seconds: How long to let the tablets skip what is not selected.

    Raises:
        PositionLost: The source no longer has what follows the offset, and no run makes that good.
        ConfigurationError: The login is refused, or the keyspace isn't there.
        TransientError: The server does not answer.
    """
    from airflow_cdc_provider.sources.vitess.gtid import is_real
    from airflow_cdc_provider.sources.vitess.position import Position, require_known
    from airflow_cdc_provider.sources.vitess.requests import current_position, serving_shards
    from airflow_cdc_provider.sources.vitess.tablets import require_kept

    if offset is None:
        return Pending(news=True, lag_seconds=None)
    position = Position.from_offset(offset)
    options = feed.options
    try:
        head = current_position(client, options, serving_shards(client, options))
        if feed.tablet_type == "PRIMARY":  # a replica may be behind what was captured from another
            require_known(position, head)
        require_kept(
            client,
            {shard: place.gtid for shard, place in position.shards.items() if shard in head.shards},
            feed.tablet_type,
            _CALL_SECONDS,
        )
        ahead = {
            shard: max(place.set.count - position.shards[shard].set.count, 0)
            for shard, place in head.shards.items()
            if shard in position.shards and is_real(position.shards[shard].gtid)
        }
        turning = _turning(client, options)
        if position.is_real and position.has(head):
            return Pending(news=False, lag_seconds=0.0, shards=ahead, resharding=turning)
        found = _first_change(client, feed, position, head, ahead, patience_seconds)
        return replace(found, resharding=turning)
    except PositionLost:
        if not feed.mends_loss:
            raise
        return Pending(news=True, lag_seconds=None, lost=True)


def look_at_shards(client: VtgateClient, feed: Feed, offset: Mapping[str, Any] | None) -> Shards:
    """Look which shards there are.

    Args:
        client: The cluster.
        feed: What to watch.
        offset: The Vitess source's offset, None before the first capture.

    Raises:
        ConfigurationError: The login is refused, or the keyspace isn't there.
        TransientError: The server does not answer.
    """
    from airflow_cdc_provider.sources.vitess.position import Position
    from airflow_cdc_provider.sources.vitess.requests import serving_shards

    serving = serving_shards(client, feed.options)
    known = Position.from_offset(offset).shards if offset is not None else None
    missing = [] if known is None else [shard for shard in serving if shard not in known]
    return Shards(serving, _turning(client, feed.options), missing)


def _turning(client: VtgateClient, options: VitessOptions) -> list[str]:
    from airflow_cdc_provider.sources.vitess.requests import each_keyspace
    from airflow_cdc_provider.sources.vitess.tablets import list_tablets, shards_in_reshard

    keyspaces = (one.keyspace for one in each_keyspace(client, options))
    return shards_in_reshard([t for name in keyspaces for t in list_tablets(client, name, _CALL_SECONDS)])


def _first_change(
    client: VtgateClient,
    feed: Feed,
    position: Position,
    head: Position,
    ahead: Mapping[str, int],
    patience_seconds: float,
) -> Pending:
    from airflow_cdc_provider.sources.vitess.position import Position
    from airflow_cdc_provider.sources.vitess.protocol import EVENT_TYPES, VStreamResponse
    from airflow_cdc_provider.sources.vitess.requests import filter_of, stream_request, wanted_tables

    options = feed.options
    filters = filter_of(wanted_tables(client, options, feed.selects))
    request = stream_request(position.to_vgtid(), filters, options)
    stream = client.vstream(request.SerializeToString())
    kinds = {EVENT_TYPES[name] for name in _NEWS}
    timer = threading.Timer(patience_seconds, stream.cancel)
    timer.start()
    try:
        for response in stream:
            for event in VStreamResponse.FromString(response).events:
                if event.HasField("row_event") and not feed.selects(event.row_event.table_name):
                    continue  # of another keyspace, by the name of a table that is selected
                if event.type in kinds:
                    now = event.current_time / 1e9 or time.time()
                    age = max(now - event.timestamp, 0.0) if event.timestamp else None
                    return Pending(True, age, event.row_event.table_name, ahead)
                if event.HasField("vgtid"):
                    reached = Position.of_vgtid(event.vgtid.SerializeToString())
                    if reached.has(head):
                        return Pending(False, 0.0, "", ahead)
    finally:
        timer.cancel()
        stream.cancel()
    return Pending(False, None, "", ahead)
