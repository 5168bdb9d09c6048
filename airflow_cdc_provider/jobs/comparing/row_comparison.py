"""Comparison of rows combined from a topic's events with rows of a mirror.

All events of a partition are compared together. For each cell the last event counts that isn't older than a
deletion of the row or partition. A row is in the topic if an insert of it counts or one of its cells has a
value, both not expired.

What can't be decided doesn't count as equal:

* Cells that a topic lacks of a row that both sides have (``unreported``): they may have been written earlier.
* A row with events before a range deletion in its partition (``not_compared``): the range may include it.
* A row whose values in the topic have all expired, and that the mirror has (``not_compared``).
* A row that exists only by cells that the topic contains incompletely (``not_compared``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.formats.json_text import OBJECT
from airflow_cdc_provider.jobs.comparing.reported_rows import (
    DELETE,
    DELETE_PARTITION,
    DELETE_RANGE,
    INSERT,
    UPDATE,
    RowForm,
)
from airflow_cdc_provider.lake.compare import MOST_SAMPLES, Comparison
from airflow_cdc_provider.sources.debezium.json_members import members_of, read_values
from airflow_cdc_provider.sources.debezium.json_texts import compact
from airflow_cdc_provider.sources.debezium.values import show_plain

Ints = np.ndarray
Mask = np.ndarray

_NULL: Final = -1
_BOUNDS: Final = ("_range_start", "_range_end")
"""Members next to Cassandra's cells that are not columns."""


def compare_reported(reported: pa.Table, form: RowForm, now_us: int) -> Comparison:
    """Compare the events of some partitions with their rows in the mirror.

    Args:
        reported: All events of the partitions; columns of ``REPORTED_SCHEMA``, in any order.
        form: The form of rows in events.
        now_us: The time at which expiry is evaluated, us since 1970.
    """
    events = _Events.of(reported)
    cells = _Cells.of(reported, events, form, now_us)
    topic, mirror = cells.last(~events.of_mirror, events), cells.last(events.of_mirror, events)
    mirror = _Last(mirror.ids[mirror.codes != _NULL], mirror.codes[mirror.codes != _NULL])
    count, columns = len(events.keys), max(len(cells.names), 1)

    wrong = topic.ids[topic.codes != mirror.codes_at(topic.ids)]
    mismatch, not_in_topic = np.zeros((2, count), np.bool_)
    mismatch[wrong // columns] = True
    not_in_topic[np.setdiff1d(mirror.ids, topic.ids) // columns] = True

    in_topic, in_mirror = np.zeros((2, count), np.bool_)
    in_topic[topic.ids[topic.codes != _NULL] // columns] = True
    inserted = events.effective & (events.what == INSERT) & ~events.static
    in_topic[events.key[inserted & ~cells.expired_inserts]] = True
    in_mirror[events.key[events.of_mirror]] = True
    possible = ~in_topic & np.isin(np.arange(count), events.key[cells.owners_left_out])
    undecided = events.ranged() | (possible & ~in_mirror)
    # A row whose columns are all left out of events looks like a deleted row.
    undecided[events.key[events.of_mirror & (events.what == DELETE)]] = True
    in_topic |= possible & in_mirror
    # Events don't show whether such a row was inserted, or has expired with its cells.
    outlived = np.isin(np.arange(count), events.key[inserted & cells.expired_inserts])
    undecided |= outlived & in_mirror & ~in_topic

    known = ~undecided
    both = known & in_topic & in_mirror
    different, only = both & mismatch, [known & in_topic & ~in_mirror, known & in_mirror & ~in_topic]
    samples: list[dict[str, Any]] = [
        {"key": _text(events.keys[int(row)]), "only": side}
        for side, rows in zip(("left", "right"), only, strict=True)
        for row in np.flatnonzero(rows)[:MOST_SAMPLES]
    ]
    for row in np.flatnonzero(different)[: MOST_SAMPLES - len(samples)]:
        own = wrong[wrong // columns == row] % columns
        samples.append({"key": _text(events.keys[int(row)]), "columns": [cells.names[i] for i in own]})
    return Comparison(
        equal=int((both & ~mismatch & ~not_in_topic).sum()),
        only_left=int(only[0].sum()),
        only_right=int(only[1].sum()),
        different=int(different.sum()),
        samples=tuple(samples[:MOST_SAMPLES]),
        unreported=int((both & ~mismatch & not_in_topic).sum()),
        not_compared=int(undecided.sum()),
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class _Events:
    """Events as arrays, one element each.

    Args:
        keys: The distinct keys.
        key: Index of each event's key.
        partition: Index of each event's partition.
        of_mirror: Whether the event is of the mirror.
        static: Whether it is of a whole partition.
        what: The kind of change.
        time: The write time.
        rank: The position in the order of write times, from 1.
        effective: Whether its cells count: no deletion of the topic came later.
    """

    keys: pa.Array
    key: Ints
    partition: Ints
    of_mirror: Mask
    static: Mask
    what: Ints
    time: Ints
    rank: Ints
    effective: Mask

    @classmethod
    def of(cls, reported: pa.Table) -> _Events:
        keys = _one(reported["key"]).dictionary_encode()
        key = keys.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        partition = _one(reported["partition"]).dictionary_encode().indices.to_numpy().astype(np.int64)
        of_mirror, static, what, time, wins, place = (
            _one(reported[name]).to_numpy(zero_copy_only=False)
            for name in ("of_mirror", "static", "what", "time", "wins_ties", "place")
        )
        rank = np.zeros(len(key), np.int64)
        rank[np.lexsort((place, wins, time))] = np.arange(1, len(key) + 1)
        ended = np.zeros(len(keys.dictionary), np.int64)
        ended_partition = np.zeros(int(partition.max(initial=-1)) + 1, np.int64)
        deletes, partition_deletes = what == DELETE, what == DELETE_PARTITION
        np.maximum.at(ended, key[deletes], rank[deletes])
        np.maximum.at(ended_partition, partition[partition_deletes], rank[partition_deletes])
        last = np.maximum(ended[key], ended_partition[partition])
        effective = ~of_mirror & np.isin(what, (INSERT, UPDATE)) & (rank > last)
        return cls(
            keys=keys.dictionary,
            key=key,
            partition=partition,
            of_mirror=of_mirror,
            static=static,
            what=what,
            time=time,
            rank=rank,
            effective=effective,
        )

    def ranged(self) -> Mask:
        """Return which keys are of rows that a range deletion may have removed."""
        found = np.zeros(len(self.keys), np.bool_)
        ranges = self.what == DELETE_RANGE
        if ranges.any():
            ended = np.full(int(self.partition.max()) + 1, np.iinfo(np.int64).min)
            np.maximum.at(ended, self.partition[ranges], self.time[ranges])
            # A row written at the same time may have been removed, whatever the order of the two events.
            taken = self.effective & ~self.static & (self.time <= ended[self.partition])
            found[self.key[taken]] = True
        return found


@dataclass(frozen=True, eq=False)
class _Last:
    """The last values of cells.

    Args:
        ids: Ascending; the id of a cell combines the indexes of its key and its column.
        codes: The index of the value, equal for equal values, or ``_NULL``.
    """

    ids: Ints
    codes: Ints

    def codes_at(self, ids: Ints) -> Ints:
        """Return the values of some cells; ``_NULL`` where there is none."""
        if not len(self.ids):
            return np.full(len(ids), _NULL, np.int64)
        at = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[at] == ids, self.codes[at], _NULL)


@dataclass(frozen=True, eq=False)
class _Cells:
    """Cells of events, of the columns that are compared.

    Args:
        owners: Index of each cell's event.
        columns: Index of its column.
        codes: Its value, as in :class:`_Last`.
        names: The columns.
        expired_inserts: Per event, whether all its cells have expired.
        owners_left_out: Events with a value of a column that isn't compared.
    """

    owners: Ints
    columns: Ints
    codes: Ints
    names: list[str]
    expired_inserts: Mask
    owners_left_out: Ints

    @classmethod
    def of(cls, reported: pa.Table, events: _Events, form: RowForm, now_us: int) -> _Cells:
        chosen = np.flatnonzero(events.effective | events.of_mirror)
        data, objects = read_values(_one(reported["cells"]).take(pa.array(chosen)))
        members = members_of(data, objects)
        owners, values = chosen[members.owners], members.values
        expiry = np.zeros(len(owners), np.int64)
        has_value = np.ones(len(owners), np.bool_)
        if form.in_cells:
            has_value = values.kinds == OBJECT
            values, ends = members_of(data, values).find("value", "deletion_ts")
            expiry = show_plain(data, ends, "int64")[0].fill_null(0).to_numpy(zero_copy_only=False)
        codes = compact(data, values.only_present()).dictionary_encode().indices
        codes = codes.fill_null(_NULL).to_numpy(zero_copy_only=False).astype(np.int64)
        numbers, spelled = members.numbered if len(owners) else (np.zeros(0, np.int64), [])
        names = sorted(set(spelled))
        columns = np.array([names.index(name) for name in spelled] or [0], np.int64)[numbers]
        of_keys = _flags(names, (*form.partition, *form.clustering, *_BOUNDS))[columns]
        has_value &= ~of_keys
        expiry = expiry * form.deletion_unit_us
        expired = (expiry > 0) & (expiry <= now_us) & (codes != _NULL) & ~events.of_mirror[owners]

        some, lasting = np.zeros((2, len(events.key)), np.bool_)
        some[owners[has_value & expired]] = True
        lasting[owners[has_value & ~expired & (codes != _NULL)]] = True
        codes = np.where(expired, _NULL, codes)
        uncertain = _flags(names, form.left_out)[columns]
        left_out = has_value & uncertain & (codes != _NULL) & events.effective[owners]
        has_value &= ~uncertain & (_flags(names, form.static_columns)[columns] == events.static[owners])
        return cls(
            owners[has_value],
            columns[has_value],
            codes[has_value],
            names,
            some & ~lasting,
            np.unique(owners[left_out]),
        )

    def last(self, selected: Mask, events: _Events) -> _Last:
        """Return the last value of each cell in the selected events."""
        own = selected[self.owners]
        owners = self.owners[own]
        ids = events.key[owners] * max(len(self.names), 1) + self.columns[own]
        order = np.lexsort((events.rank[owners], ids))
        ids, codes = ids[order], self.codes[own][order]
        is_last = np.append(ids[1:] != ids[:-1], True)[: len(ids)]
        return _Last(ids[is_last], codes[is_last])


def _flags(names: list[str], chosen: tuple[str, ...]) -> Mask:
    return np.array([name in chosen for name in names] or [False], np.bool_)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _text(key: pa.Scalar) -> str:
    return str(key.as_py(), "utf-8", "replace")
