"""Rows as a topic tells them, put together of all that its events tell, against those of a mirror.

All events of a partition's rows come together. Of each cell the last event counts that isn't older than a
deletion of the row or partition. A row is on the topic's side if an insert of it counts or a cell of it has
a value, both not expired.

What can't be known isn't taken for equal:

* What a topic doesn't tell of a row that both sides have (``untold``): it may have been written before.
* A row that was told before a deletion of a range of its partition (``not_compared``): it may be in it.
* A row of which all told values have expired and that the mirror has (``not_compared``).
* A row that lives by cells that the topic doesn't tell whole, if it lives (``not_compared``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.jobs.comparing.told import (
    DELETE,
    DELETE_PARTITION,
    DELETE_RANGE,
    INSERT,
    UPDATE,
    RowForm,
)
from airflow_cdc_provider.lake.compare import MOST_SAMPLES, Comparison
from airflow_cdc_provider.sources.debezium.json_members import OBJECT, members_of, read_values
from airflow_cdc_provider.sources.debezium.json_texts import compact
from airflow_cdc_provider.sources.debezium.values import show_plain

Ints = np.ndarray
Mask = np.ndarray

_NULL: Final = -1
_BOUNDS: Final = ("_range_start", "_range_end")
"""Members beside Cassandra's cells that are no columns."""


def compare_told(told: pa.Table, form: RowForm, now_us: int) -> Comparison:
    """Compare what a topic tells of some partitions with their rows in the mirror.

    Args:
        told: All of them; columns of ``TOLD_SCHEMA``, in any order.
        form: How events tell rows.
        now_us: When expiry is judged, us since 1970.
    """
    events = _Events.of(told)
    cells = _Cells.of(told, events, form, now_us)
    topic, mirror = cells.last(~events.of_mirror, events), cells.last(events.of_mirror, events)
    mirror = _Last(mirror.ids[mirror.codes != _NULL], mirror.codes[mirror.codes != _NULL])
    count, columns = len(events.keys), max(len(cells.names), 1)

    wrong = topic.ids[topic.codes != mirror.codes_at(topic.ids)]
    mismatch, untold = np.zeros((2, count), np.bool_)
    mismatch[wrong // columns] = True
    untold[np.setdiff1d(mirror.ids, topic.ids) // columns] = True

    in_topic, in_mirror = np.zeros((2, count), np.bool_)
    in_topic[topic.ids[topic.codes != _NULL] // columns] = True
    inserted = events.says & (events.what == INSERT) & ~events.static
    in_topic[events.key[inserted & ~cells.expired_inserts]] = True
    in_mirror[events.key[events.of_mirror]] = True
    perhaps = ~in_topic & np.isin(np.arange(count), events.key[cells.owners_left_out])
    lost_sight = events.ranged() | (perhaps & ~in_mirror)
    # A row all of whose columns are left out of events is told as one that is gone.
    lost_sight[events.key[events.of_mirror & (events.what == DELETE)]] = True
    in_topic |= perhaps & in_mirror
    # Whether such a row lives by itself, or has expired with its cells, isn't told.
    outlived = np.isin(np.arange(count), events.key[inserted & cells.expired_inserts])
    lost_sight |= outlived & in_mirror & ~in_topic

    known = ~lost_sight
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
        equal=int((both & ~mismatch & ~untold).sum()),
        only_left=int(only[0].sum()),
        only_right=int(only[1].sum()),
        different=int(different.sum()),
        samples=tuple(samples[:MOST_SAMPLES]),
        untold=int((both & ~mismatch & untold).sum()),
        not_compared=int(lost_sight.sum()),
    )


@dataclass(frozen=True, eq=False)
class _Events:
    """Events by number.

    Args:
        keys: The different keys.
        key: Number of each event's key.
        partition: Number of each event's partition.
        of_mirror: Whether it is made of the mirror.
        static: Whether it is of a partition itself.
        what: What it tells.
        time: When it was written.
        rank: The later it counts as written, the greater; from 1.
        says: Whether its cells count: no deletion of the topic came later.
    """

    keys: pa.Array
    key: Ints
    partition: Ints
    of_mirror: Mask
    static: Mask
    what: Ints
    time: Ints
    rank: Ints
    says: Mask

    @classmethod
    def of(cls, told: pa.Table) -> _Events:
        keys = _one(told["key"]).dictionary_encode()
        key = keys.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        partition = _one(told["partition"]).dictionary_encode().indices.to_numpy().astype(np.int64)
        of_mirror, static, what, time, wins, place = (
            _one(told[name]).to_numpy(zero_copy_only=False)
            for name in ("of_mirror", "static", "what", "time", "wins_ties", "place")
        )
        rank = np.zeros(len(key), np.int64)
        rank[np.lexsort((place, wins, time))] = np.arange(1, len(key) + 1)
        ended = np.zeros(len(keys.dictionary), np.int64)
        ended_partition = np.zeros(int(partition.max(initial=-1)) + 1, np.int64)
        gone, gone_partition = what == DELETE, what == DELETE_PARTITION
        np.maximum.at(ended, key[gone], rank[gone])
        np.maximum.at(ended_partition, partition[gone_partition], rank[gone_partition])
        last = np.maximum(ended[key], ended_partition[partition])
        says = ~of_mirror & np.isin(what, (INSERT, UPDATE)) & (rank > last)
        return cls(keys.dictionary, key, partition, of_mirror, static, what, time, rank, says)

    def ranged(self) -> Mask:
        """Tell which keys are of rows that a deletion of a range may have taken."""
        found = np.zeros(len(self.keys), np.bool_)
        ranges = self.what == DELETE_RANGE
        if ranges.any():
            ended = np.full(int(self.partition.max()) + 1, np.iinfo(np.int64).min)
            np.maximum.at(ended, self.partition[ranges], self.time[ranges])
            # Written at the same time it may have been taken, wherever the two events stand.
            taken = self.says & ~self.static & (self.time <= ended[self.partition])
            found[self.key[taken]] = True
        return found


@dataclass(frozen=True, eq=False)
class _Last:
    """The last values of cells.

    Args:
        ids: Ascending; a cell's is its key's number and its column's.
        codes: The value's number, equal for equal values, or ``_NULL``.
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
    """Cells that events tell, of the columns that are compared.

    Args:
        owners: Number of each cell's event.
        columns: Number of its column.
        codes: Its value, as in :class:`_Last`.
        names: The columns.
        expired_inserts: Per event, whether all that it tells has expired.
        owners_left_out: Events that tell a value of a column that isn't compared.
    """

    owners: Ints
    columns: Ints
    codes: Ints
    names: list[str]
    expired_inserts: Mask
    owners_left_out: Ints

    @classmethod
    def of(cls, told: pa.Table, events: _Events, form: RowForm, now_us: int) -> _Cells:
        chosen = np.flatnonzero(events.says | events.of_mirror)
        data, objects = read_values(_one(told["cells"]).take(pa.array(chosen)))
        members = members_of(data, objects)
        owners, values = chosen[members.owners], members.values
        expiry = np.zeros(len(owners), np.int64)
        is_told = np.ones(len(owners), np.bool_)
        if form.in_cells:
            is_told = values.kinds == OBJECT
            values, ends = members_of(data, values).find("value", "deletion_ts")
            expiry = show_plain(data, ends, "int64")[0].fill_null(0).to_numpy(zero_copy_only=False)
        codes = compact(data, values.only_present()).dictionary_encode().indices
        codes = codes.fill_null(_NULL).to_numpy(zero_copy_only=False).astype(np.int64)
        numbers, spelled = members.numbered if len(owners) else (np.zeros(0, np.int64), [])
        names = sorted(set(spelled))
        columns = np.array([names.index(name) for name in spelled] or [0], np.int64)[numbers]
        of_keys = _flags(names, (*form.partition, *form.clustering, *_BOUNDS))[columns]
        is_told &= ~of_keys
        expired = (expiry > 0) & (expiry <= now_us) & (codes != _NULL) & ~events.of_mirror[owners]

        some, lasting = np.zeros((2, len(events.key)), np.bool_)
        some[owners[is_told & expired]] = True
        lasting[owners[is_told & ~expired & (codes != _NULL)]] = True
        codes = np.where(expired, _NULL, codes)
        uncertain = _flags(names, form.left_out)[columns]
        left_out = is_told & uncertain & (codes != _NULL) & events.says[owners]
        is_told &= ~uncertain & (_flags(names, form.statics)[columns] == events.static[owners])
        return cls(
            owners[is_told],
            columns[is_told],
            codes[is_told],
            names,
            some & ~lasting,
            np.unique(owners[left_out]),
        )

    def last(self, wanted: Mask, events: _Events) -> _Last:
        """Return what the last of some events tell of each cell."""
        own = wanted[self.owners]
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
