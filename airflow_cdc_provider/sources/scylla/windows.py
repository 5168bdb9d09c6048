"""Which time of a table's log is read next: pure, without I/O.

A window is a time of one set of streams, ``begin`` to before ``end``, in which all its streams are read. It
never reaches over a change of streams, so one set is read to its end before the next one, nor beyond the
head, which is the confidence window behind the clocks.

How wide windows are follows from what they held (:class:`Paces`): over empty time each of a table is twice
the one before, under load half of it. So a day in which nothing happened takes a dozen windows, not
thousands. Groups of a table share its width: keys spread over them by their hash, so all are about as busy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from airflow_cdc_provider.sources.scylla.generations import Timeline
from airflow_cdc_provider.sources.scylla.position import TablePosition

_SECOND_US: Final = 1_000_000


@dataclass(frozen=True)
class Window:
    """A time of one stream set.

    Args:
        generation_ms: The set, by the time from which it works.
        begin_us: The first microsecond.
        end_us: The first one after it.
    """

    generation_ms: int
    begin_us: int
    end_us: int


@dataclass(frozen=True)
class Pace:
    """How wide the next window of a table may be.

    Args:
        width_us: The width.
        narrowest_us: The least width.
        widest_us: The greatest.
    """

    width_us: int
    narrowest_us: int
    widest_us: int

    @classmethod
    def between(cls, width_us: int, widest_us: int) -> Pace:
        """Return the pace that begins with a width; fixed, if no greater one is allowed."""
        if width_us >= widest_us:
            return cls(width_us, width_us, width_us)
        return cls(width_us, min(width_us, _SECOND_US), widest_us)

    def wider(self, read_us: int) -> Pace:
        """Return the pace after a window that may be twice as wide.

        The last window before the head is narrower than the pace, and says nothing of wider ones.
        """
        if read_us < self.width_us:
            return self
        return replace(self, width_us=min(self.widest_us, 2 * self.width_us))

    def narrower(self, read_us: int) -> Pace:
        """Return the pace after a window that was too wide."""
        return replace(self, width_us=max(self.narrowest_us, min(self.width_us, read_us) // 2))


@dataclass(frozen=True)
class Paces:
    """How wide the next windows of all tables may be.

    Each table has its own width, but a batch is windows of all tables, and what it may hold is theirs
    together: if it held more, the windows that held the most are halved, until their sum would have fitted;
    if there is room, those that held the least are doubled first. So one busy table doesn't make the others
    crawl.

    Args:
        first: The pace of a table that wasn't read yet.
        tables: The paces of those that were.
    """

    first: Pace
    tables: Mapping[str, Pace] = field(default_factory=dict)

    def of(self, table: str) -> Pace:
        """Return the pace of a table."""
        return self.tables.get(table, self.first)

    def after(self, read_us: Mapping[str, int], held: Mapping[str, float], *, crowded: bool = False) -> Paces:
        """Return the paces after a batch.

        Args:
            read_us: The widths of its windows, by table.
            held: What each of them held, as a part of what a batch may hold.
            crowded: The cluster refused requests: no window gets wider.
        """
        changed = {}
        by_share = sorted(read_us, key=lambda table: (held.get(table, 0.0), table))
        total = sum(held.get(table, 0.0) for table in read_us)
        for table in reversed(by_share):
            if total <= 1:
                break
            changed[table] = self.of(table).narrower(read_us[table])
            total -= held.get(table, 0.0) / 2
        for table in by_share:
            total += held.get(table, 0.0)
            if crowded or total > 1 or table in changed:
                break
            changed[table] = self.of(table).wider(read_us[table])
        return replace(self, tables={**self.tables, **changed})


def next_window(position: TablePosition, timeline: Timeline, head_us: int, width_us: int) -> Window | None:
    """Return what is to be read next of a table, None if all up to the head is.

    A set of streams that was announced late, when what lies after its begin is read already, is read from its
    begin: nobody has looked into its streams. Changes that were read by then aren't in them.

    Args:
        position: Where the table stands.
        timeline: Its stream sets.
        head_us: Where to stop.
        width_us: How wide the window may be.
    """
    begin_us = position.read_to_us
    generation = position.generation_ms
    if generation not in timeline.begins_ms:
        found = timeline.at(begin_us)
        if found is None:
            if not timeline.begins_ms:
                return None
            found = timeline.begins_ms[0]
        generation = found
    following = timeline.after(generation)
    if following is not None and begin_us >= following * 1000:
        generation, begin_us = following, following * 1000
        following = timeline.after(generation)
    begin_us = max(begin_us, generation * 1000)
    end_us = min(head_us, begin_us + width_us)
    if following is not None:
        end_us = min(end_us, following * 1000)
    return Window(generation, begin_us, end_us) if end_us > begin_us else None
