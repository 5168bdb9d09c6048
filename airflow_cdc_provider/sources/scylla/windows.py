"""Which time of a table's log is read next: pure, without I/O.

A window is a time of one set of streams, ``begin`` to before ``end``, in which all its streams are read. It
never reaches over a change of streams, so one set is read to its end before the next one, nor beyond the
head, which is the confidence window behind the clocks.

How wide windows are follows from what they held (:class:`Pace`): over empty time each is twice the one
before, under load half of it. So a day in which nothing happened takes a dozen windows, not thousands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_cdc_provider.sources.scylla.generations import Timeline
from airflow_cdc_provider.sources.scylla.position import TablePosition


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
    """How wide the next window may be.

    Args:
        width_us: The width.
        narrowest_us: The least width.
        widest_us: The greatest.
    """

    width_us: int
    narrowest_us: int
    widest_us: int

    def after(self, read_us: int, share: float) -> Pace:
        """Return the pace after a batch.

        Args:
            read_us: The widest window that it read.
            share: What it held, as a part of what a batch may hold: above 1 it was too much.
        """
        if share > 1:
            return replace(self, width_us=max(self.narrowest_us, min(self.width_us, read_us) // 2))
        if share < 1 / 2 and read_us >= self.width_us:
            return replace(self, width_us=min(self.widest_us, 2 * self.width_us))
        return self


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
