"""The offset in the changes table: the source's own offset and the state of each table's snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from airflow_cdc_provider.exceptions import OffsetMissing
from airflow_cdc_provider.jobs.resuming.snapshot_requests import SignalState, SnapshotRequest
from airflow_cdc_provider.lake.changes_table import ChangesTable

OFFSET_LAYOUT: Final = 2
"""Layout of the JSON that :meth:`Progress.to_offset` returns; see docs/design/stored-layout.md."""


@dataclass(frozen=True)
class SnapshotProgress:
    """A snapshot of one table.

    Args:
        done: Whether all ranges are committed.
        position: The feed's position when it was planned, in hexadecimal.
        origin: The feed.
        replace: Whether rows that it doesn't return are deleted from the mirror.
        ranges: The planned ranges that are not committed, as
            :class:`~airflow_cdc_provider.sources.planned_ranges.PlannedRanges` stores them.
        committed: Number of committed ranges.
        started_us: When it was planned, µs since 1970.
        read_after_us: If its rows are read after this time, by the source's clock, and all other rows of the
            mirror must be reread; otherwise 0.
        lost_us: When the last loss of uncaptured changes was found, µs since 1970; a snapshot that started
            later includes them.
        lost: Description of the lost changes.
        resume_at: Where the next read of a polled table resumes, in the source's format; empty to read all.
        tolerated: Whether the mirror continues without the lost changes until a snapshot is requested.
        other_positions: Positions of further feeds when it was planned, in hexadecimal.
        in_batches: Whether the table was read in batches then, so that no feed has its later changes.
    """

    done: bool
    position: str = ""
    origin: str = ""
    replace: bool = False
    ranges: tuple[Mapping[str, Any], ...] = ()
    committed: int = 0
    started_us: int = 0
    read_after_us: int = 0
    lost_us: int = 0
    lost: str = ""
    tolerated: bool = False
    resume_at: str = ""
    other_positions: Mapping[str, str] = field(default_factory=dict)
    in_batches: bool = False

    @property
    def outdated(self) -> bool:
        """Whether changes were lost since it was planned, so that only another snapshot includes them."""
        return self.lost_us > self.started_us

    @property
    def due(self) -> bool:
        """Whether the mirror needs it to be taken or completed."""
        unread = not self.started_us
        return not self.done or (self.outdated and (unread or not self.tolerated))

    def to_plain(self) -> dict[str, Any]:
        """Return its values; ``other_positions`` and ``in_batches`` only if they are set."""
        rare = ("other_positions", "in_batches")
        plain = {name: value for name, value in vars(self).items() if value or name not in rare}
        return {**plain, "ranges": list(self.ranges)}

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> SnapshotProgress:
        """Read what :meth:`to_plain` returned."""
        return cls(**{**values, "ranges": tuple(values["ranges"])})


@dataclass(frozen=True)
class Progress:
    """The progress of a connector.

    Args:
        source: The source's offset, None before the first batch.
        snapshots: By table.
        signals: The state of the connector's signals.
        identity: The connector's identity (:mod:`.identity`); None if it isn't stored yet.
        arrivals: The newest batch that was searched for tables that received rows without events, or were
            dropped (:mod:`.capturing.arrivals`); -1 before the first capture.
        ended: Dropped tables whose mirrors hadn't merged the drop when it was found, and the batch with it.
        selection: The patterns that selected the tables of the newest capture, and its time
            (:mod:`~airflow_cdc_provider.jobs.capturing.reselected`); None before the first.
    """

    source: Mapping[str, Any] | None = None
    snapshots: Mapping[str, SnapshotProgress] = field(default_factory=dict)
    signals: SignalState = field(default_factory=SignalState)
    identity: Mapping[str, str] | None = None
    arrivals: int = -1
    ended: Mapping[str, int] = field(default_factory=dict)
    selection: Mapping[str, Any] | None = None

    def to_offset(self) -> dict[str, Any]:
        """Return the JSON that the changes table stores."""
        offset = {
            "layout": OFFSET_LAYOUT,
            "source": self.source,
            "snapshots": {table: progress.to_plain() for table, progress in sorted(self.snapshots.items())},
        }
        if self.signals != SignalState():
            offset["signals"] = self.signals.to_plain()
        if self.identity is not None:
            offset["connector"] = dict(self.identity)
        if self.arrivals >= 0:
            offset["arrivals"] = self.arrivals
        if self.ended:
            offset["ended"] = dict(self.ended)
        if self.selection is not None:
            offset["selection"] = dict(self.selection)
        return offset

    @classmethod
    def from_offset(cls, offset: Mapping[str, Any] | None) -> Progress:
        """Read what :meth:`to_offset` wrote.

        Raises:
            OffsetMissing: It has another layout.
        """
        if offset is None:
            return cls()
        found = offset.get("layout", 1)
        if found != OFFSET_LAYOUT:
            newer = isinstance(found, int) and found > OFFSET_LAYOUT
            release = "upgrade the provider" if newer else "use the release that wrote it"
            raise OffsetMissing(
                f"the stored offset has {'a newer' if newer else 'another'} layout",
                expected=f"layout {OFFSET_LAYOUT}",
                found=f"layout {found}",
                remedy=f"{release}, or set an offset with: airflow cdc offsets set",
            )
        snapshots = {
            table: SnapshotProgress.from_plain(values) for table, values in offset["snapshots"].items()
        }
        signals = SignalState.from_plain(offset.get("signals"))
        return cls(
            offset["source"],
            snapshots,
            signals,
            offset.get("connector"),
            int(offset.get("arrivals", -1)),
            offset.get("ended", {}),
            offset.get("selection"),
        )

    def with_snapshot(self, table: str, progress: SnapshotProgress) -> Progress:
        """Return a copy with one table's snapshot set."""
        return replace(self, snapshots={**self.snapshots, table: progress})

    def with_loss(self, tables: Iterable[str], at_us: int, lost: str, *, tolerated: bool = False) -> Progress:
        """Return a copy in which a snapshot of some tables is due, because changes were lost.

        Args:
            tables: The tables.
            at_us: When the loss was found, µs since 1970.
            lost: Description of the lost changes.
            tolerated: Whether mirrors continue without them; then the snapshot isn't due.
        """
        marked = {
            table: replace(
                self.snapshots.get(table, SnapshotProgress(done=True)),
                lost_us=at_us,
                lost=lost,
                tolerated=tolerated,
            )
            for table in tables
        }
        return replace(self, snapshots={**self.snapshots, **marked})

    def without_loss(self, table: str) -> Progress:
        """Return a copy in which no changes of a table are lost: all of its rows ended after them."""
        snapshot = self.snapshots.get(table)
        if snapshot is None or not snapshot.lost_us:
            return self
        return self.with_snapshot(table, replace(snapshot, lost_us=0, lost="", tolerated=False))

    def without_unfinished(self, request: SnapshotRequest, tables: Iterable[str]) -> Progress:
        """Return a copy as before a blocking request, for tables that it has not read to the end."""
        snapshots = dict(self.snapshots)
        for table in tables:
            taken = snapshots.get(table)
            if taken is None or taken.done:
                continue
            del snapshots[table]
            if table in request.before:
                before = SnapshotProgress.from_plain(request.before[table])
                lost = taken if taken.lost_us else before
                snapshots[table] = replace(
                    before, lost_us=lost.lost_us, lost=lost.lost, tolerated=lost.tolerated
                )
        return replace(self, snapshots=snapshots)

    def with_signals(self, signals: SignalState) -> Progress:
        """Return a copy with the state of signals set."""
        return replace(self, signals=signals)

    def with_source(self, offset: Mapping[str, Any] | None) -> Progress:
        """Return a copy with the source's offset set."""
        return replace(self, source=offset)


def stored_offset(changes: ChangesTable, published: int | None = None) -> Mapping[str, Any] | None:
    """Return the source's stored offset.

    Args:
        changes: The changes table.
        published: The batch through which events are published; None for all.

    Returns:
        None if there is no offset, or its batch isn't published.
    """
    state = changes.state()
    if published is not None and published < state.batch:
        return None
    return Progress.from_offset(state.offset).source
