"""What the changes table's offset holds: the source's own offset and the state of each table's snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from airflow_cdc_provider.exceptions import OffsetMissing
from airflow_cdc_provider.jobs.resuming.snapshot_requests import SignalState

OFFSET_LAYOUT: Final = 2
"""Layout of the JSON that :meth:`Progress.to_offset` returns; see docs/design/stored-layout.md."""


@dataclass(frozen=True)
class SnapshotProgress:
    """A snapshot of one table.

    Args:
        done: Whether all ranges are committed.
        position: The feed's position at its plan, in hexadecimal.
        origin: That feed.
        replace: Whether rows that it doesn't see are to go.
        ranges: The planned ranges that are not committed, as
            :class:`~airflow_cdc_provider.sources.planned_ranges.PlannedRanges` stores them.
        committed: How many ranges are committed.
        started_us: When it was planned, µs since 1970.
        read_after_us: What it reads is read after this, by the source's clock, and the rest of the mirror is
            to be read again; 0 if not.
        lost_us: When it was last found that the source has lost changes unread, µs since 1970; a snapshot
            that began later has them.
        lost: What was lost, in words.
        resume_at: What the next reading of a table in batches goes on from, by its source; empty to read all.
        tolerated: Whether the mirror is to go on without what was lost, until somebody asks for a snapshot.
        other_positions: Further feeds' positions at its plan, in hexadecimal.
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

    @property
    def outdated(self) -> bool:
        """Whether the source has lost changes since it was planned, which only another one shows."""
        return self.lost_us > self.started_us

    @property
    def due(self) -> bool:
        """Whether it is to be taken, or taken to its end, for the mirror's sake."""
        unread = not self.started_us
        return not self.done or (self.outdated and (unread or not self.tolerated))

    def to_plain(self) -> dict[str, Any]:
        """Return its values; ``other_positions`` only where there are some."""
        plain = {name: value for name, value in vars(self).items() if value or name != "other_positions"}
        return {**plain, "ranges": list(self.ranges)}

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> SnapshotProgress:
        """Read what :meth:`to_plain` returned."""
        return cls(**{**values, "ranges": tuple(values["ranges"])})


@dataclass(frozen=True)
class Progress:
    """Where a connector stands.

    Args:
        source: The source's offset, None before the first batch.
        snapshots: By table.
        signals: What is asked of the connector by signals.
        identity: Who the connector is (:mod:`.identity`); None while nobody has said.
        arrivals: The newest batch that was looked through for tables that got rows without events, or are
            gone (:mod:`.capturing.arrivals`); -1 before the first capture.
        ended: Tables whose mirrors hadn't merged their end when it was found, and the batch that has it.
    """

    source: Mapping[str, Any] | None = None
    snapshots: Mapping[str, SnapshotProgress] = field(default_factory=dict)
    signals: SignalState = field(default_factory=SignalState)
    identity: Mapping[str, str] | None = None
    arrivals: int = -1
    ended: Mapping[str, int] = field(default_factory=dict)

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
        return offset

    @classmethod
    def from_offset(cls, offset: Mapping[str, Any] | None) -> Progress:
        """Read what :meth:`to_offset` wrote.

        Raises:
            OffsetMissing: It was written by something else.
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
        )

    def with_snapshot(self, table: str, progress: SnapshotProgress) -> Progress:
        """Return a copy with one table's snapshot set."""
        return replace(self, snapshots={**self.snapshots, table: progress})

    def with_loss(self, tables: Iterable[str], at_us: int, lost: str, *, tolerated: bool = False) -> Progress:
        """Return a copy in which a snapshot of some tables is due, because changes were lost.

        Args:
            tables: Which ones.
            at_us: When it was found, µs since 1970.
            lost: What was lost, in words.
            tolerated: Whether mirrors are to go on without it; then the snapshot isn't due.
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

    def with_signals(self, signals: SignalState) -> Progress:
        """Return a copy with what is asked for set."""
        return replace(self, signals=signals)

    def with_identity(self, identity: Mapping[str, str]) -> Progress:
        """Return a copy with who the connector is set."""
        return replace(self, identity=identity)

    def with_arrivals(self, batch: int) -> Progress:
        """Return a copy in which the batches up to this one were looked through."""
        return replace(self, arrivals=batch)

    def with_ended(self, ended: Mapping[str, int]) -> Progress:
        """Return a copy with the tables that are gone set."""
        return replace(self, ended=ended)

    def with_source(self, offset: Mapping[str, Any] | None) -> Progress:
        """Return a copy with the source's offset set."""
        return replace(self, source=offset)
