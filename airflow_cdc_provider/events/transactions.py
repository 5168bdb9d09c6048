"""Transaction metadata: the field ``transaction`` of events, and BEGIN and END records.

Without bounds from the source, a transaction starts with its first event and ends with the first event of
another transaction or of none. The last transaction of a run stays open: its counts are stored as an
:class:`OpenTransaction`, and the next run continues counting without a second BEGIN. The format is
Debezium's: ``docs/formats/mongodb-events.md``, section 8.

If the source reports the bounds (Vitess), :func:`bound` uses them; then transactions without events also have
BEGIN and END records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.events.connect import (
    INT64,
    OPTIONAL_INT64,
    STRING,
    TRANSACTION,
    ConnectSchema,
    struct,
    struct_values,
)
from airflow_cdc_provider.events.encoder import Destination, Envelope
from airflow_cdc_provider.events.java_hashes import bucket_count, spread_hash

_COLLECTIONS: Final = ConnectSchema(
    "array",
    optional=True,
    items=struct(
        "event.collection", ("data_collection", STRING), ("event_count", INT64), optional=True, version=1
    ),
)
_VALUE: Final = struct(
    "io.debezium.connector.common.TransactionMetadataValue",
    ("status", STRING),
    ("id", STRING),
    ("event_count", OPTIONAL_INT64),
    ("data_collections", _COLLECTIONS),
    ("ts_ms", INT64),
    version=1,
)
_BLOCK: Final = [name for name, _ in TRANSACTION.fields]


@dataclass(frozen=True)
class OpenTransaction:
    """The transaction of the last event.

    Args:
        id: Its id; empty for none.
        counts: Number of its events so far by collection, in the order of their first events.
    """

    id: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> str:
        """Serialize as JSON."""
        return json.dumps({"id": self.id, "counts": dict(self.counts)}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> OpenTransaction:
        """Parse the output of :meth:`to_json`."""
        stored: Any = json.loads(text)
        return cls(stored["id"], stored["counts"])


@dataclass(frozen=True)
class Tracked:
    """Events with their transactions.

    Args:
        blocks: Per event its field ``transaction`` (struct of id, total_order, data_collection_order), null
            outside of transactions.
        records: BEGIN and END, in order.
        before: Per record, index of the event that it precedes.
        open: The open transaction.
    """

    blocks: pa.StructArray
    records: pa.StructArray
    before: np.ndarray
    open: OpenTransaction


def track(ids: pa.Array, collections: pa.Array, times: pa.Array, opened: OpenTransaction) -> Tracked:
    """Derive transaction metadata from events.

    Args:
        ids: Per event the id of its transaction, null for none.
        collections: Per event its collection's full name.
        times: Per event ``source.ts_ms``; BEGIN and END have the time of the event that they precede.
        opened: The transaction left open by earlier events.
    """
    count = len(ids)
    if not count:
        nothing = pa.array([], pa.struct([("id", pa.utf8()), *((n, pa.int64()) for n in _BLOCK[1:])]))
        return Tracked(nothing, pa.array([], _RECORD), np.empty(0, np.int64), opened)
    codes, known = _coded(pc.fill_null(ids.cast(pa.utf8()), ""), ["", opened.id])
    which, names = _coded(collections.cast(pa.utf8()), list(opened.counts))
    outside, before_first = known.index("").as_py(), known.index(opened.id).as_py()
    previous = np.concatenate([[before_first], codes[:-1]])
    changed = codes != previous
    inside = codes != outside
    runs = np.cumsum(changed)  # 0: continues the open transaction
    firsts = np.flatnonzero(changed)

    run_start = np.concatenate([[0], firsts])[runs]
    total = np.arange(count) - run_start + 1 + np.where(runs == 0, sum(opened.counts.values()), 0)
    carried = np.zeros(len(names), np.int64)
    carried[[names.index(name).as_py() for name in opened.counts]] = list(opened.counts.values())
    order, pairs = _count_pairs(runs, which, inside, carried)
    order += np.where(runs == 0, carried[which], 0)
    blocks = pa.StructArray.from_arrays(
        [known.take(pa.array(codes)), pa.array(total), pa.array(order)], _BLOCK, mask=pa.array(~inside)
    )

    ends, begins = previous[firsts] != outside, inside[firsts]
    change = np.repeat(np.arange(len(firsts)), ends.astype(np.int64) + begins)
    last_of_change = np.concatenate([change[1:] != change[:-1], [True]])[: len(change)]
    begin = last_of_change & begins[change]
    before = firsts[change]
    # The n-th run precedes the n-th change.
    of_run = np.bincount(pairs.runs, minlength=len(firsts) + 1)
    events = np.bincount(pairs.runs, weights=pairs.counts, minlength=len(firsts) + 1).astype(np.int64)
    ended = np.isin(pairs.runs, change[~begin])
    offsets = np.concatenate([[0], np.cumsum(np.where(begin, 0, of_run[change]))]).astype(np.int32)
    counted = pa.StructArray.from_arrays(
        [names.take(pa.array(pairs.collections[ended])), pa.array(pairs.counts[ended])],
        ["data_collection", "event_count"],
    )
    records = pa.StructArray.from_arrays(
        [
            pa.array(np.where(begin, "BEGIN", "END"), pa.utf8()),
            known.take(pa.array(np.where(begin, codes[before], previous[before]))),
            pa.array(events[change], mask=begin),
            pa.ListArray.from_arrays(pa.array(offsets), counted, mask=pa.array(begin)),
            times.cast(pa.int64()).take(pa.array(before)),
        ],
        fields=list(_RECORD),
    )
    still = pairs.runs == runs[-1]
    counts = zip(
        names.take(pa.array(pairs.collections[still])).to_pylist(), pairs.counts[still].tolist(), strict=True
    )
    open_id = known[codes[-1]].as_py()
    return Tracked(blocks, records, before, OpenTransaction(open_id, dict(counts) if open_id else {}))


@dataclass(frozen=True)
class Bounded:
    """Events with transactions whose bounds the source reports.

    Args:
        blocks: Per event its field ``transaction``.
        records: All BEGIN, then all END, in the order of the transactions.
    """

    blocks: pa.StructArray
    records: pa.StructArray


def bound(
    ids: pa.Array, begin_ms: np.ndarray, end_ms: np.ndarray, numbers: np.ndarray, collections: pa.Array
) -> Bounded:
    """Count the events of transactions with known bounds, including transactions without events.

    Args:
        ids: Id of each transaction.
        begin_ms: When each begins, ms since 1970.
        end_ms: When it ends.
        numbers: Per event, in order, index of its transaction.
        collections: Per event its collection's full name.
    """
    count = len(ids)
    which, names = _coded(collections.cast(pa.utf8()), [])
    inside = np.ones(len(numbers), np.bool_)
    order, pairs = _count_pairs(numbers, which, inside, np.zeros(len(names), np.int64))
    pairs = _in_hash_order(pairs, names)
    sizes = np.bincount(numbers, minlength=count)
    total = np.arange(len(numbers)) - (np.cumsum(sizes) - sizes)[numbers] + 1
    texts = ids.cast(pa.utf8())
    blocks = pa.StructArray.from_arrays(
        [texts.take(pa.array(numbers)), pa.array(total), pa.array(order)], _BLOCK
    )
    counted = pa.StructArray.from_arrays(
        [names.take(pa.array(pairs.collections)), pa.array(pairs.counts)], ["data_collection", "event_count"]
    )
    lists = np.concatenate([[0], np.cumsum(np.bincount(pairs.runs, minlength=count))])
    begins = np.repeat([True, False], count)
    records = pa.StructArray.from_arrays(
        [
            pa.array(np.where(begins, "BEGIN", "END"), pa.utf8()),
            pa.concat_arrays([texts, texts]),
            pa.array(np.concatenate([sizes, sizes]), pa.int64(), mask=begins),
            pa.ListArray.from_arrays(
                pa.array(np.concatenate([np.zeros(count, np.int64), lists]), pa.int32()),
                counted,
                mask=pa.array(begins),
            ),
            pa.array(np.concatenate([begin_ms, end_ms]), pa.int64()),
        ],
        fields=list(_RECORD),
    )
    return Bounded(blocks, records)


def _in_hash_order(pairs: _Pairs, names: pa.Array) -> _Pairs:
    """Sort the collections of each transaction in the iteration order of Debezium's map."""
    hashes = np.array([spread_hash(name) for name in names.to_pylist()], np.int64)[pairs.collections]
    sizes = np.bincount(pairs.runs)[pairs.runs] if len(pairs.runs) else pairs.runs
    buckets = np.array([bucket_count(size) for size in sizes.tolist()], np.int64)
    order = np.lexsort((hashes & (buckets - 1), pairs.runs))
    return _Pairs(pairs.runs[order], pairs.collections[order], pairs.counts[order])


def build(tracked: Tracked | Bounded, topic: str) -> Envelope:
    """Build the envelope of BEGIN and END records, without headers.

    Args:
        tracked: Result of :func:`track` or :func:`bound`.
        topic: Topic of the records.
    """
    key_schema, key = struct_values(
        "io.debezium.connector.common.TransactionMetadataKey",
        ("id", STRING, tracked.records.field(1)),
        version=1,
    )
    return Envelope.of_topic(Destination(topic, key_schema, _VALUE), key, tracked.records, bare=True)


_RECORD: Final = pa.struct(
    [
        pa.field("status", pa.utf8()),
        pa.field("id", pa.utf8()),
        pa.field("event_count", pa.int64()),
        pa.field(
            "data_collections",
            pa.list_(pa.struct([("data_collection", pa.utf8()), ("event_count", pa.int64())])),
        ),
        pa.field("ts_ms", pa.int64()),
    ]
)


@dataclass(frozen=True)
class _Pairs:
    """Pairs of run and collection with event counts, in the order of their first events."""

    runs: np.ndarray
    collections: np.ndarray
    counts: np.ndarray


def _coded(texts: pa.Array, more: list[str]) -> tuple[np.ndarray, pa.Array]:
    """Dictionary-encode texts; return the codes and the dictionary, which includes ``more``."""
    encoded = pa.concat_arrays([texts, pa.array(more, pa.utf8())]).dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes[: len(texts)], encoded.dictionary


def _count_pairs(
    runs: np.ndarray, which: np.ndarray, inside: np.ndarray, carried: np.ndarray
) -> tuple[np.ndarray, _Pairs]:
    """Number the events of each pair of run and collection, from 1.

    Args:
        runs: Run of each event.
        which: Its collection.
        inside: Whether it is part of a transaction.
        carried: Per collection, the earlier events of run 0.

    Returns:
        The numbers and the pairs; those of run 0 include earlier events.
    """
    numbers = np.zeros(len(runs), np.int64)
    rows = np.flatnonzero(inside)
    group = runs[rows] * len(carried) + which[rows]
    _, first, inverse, sizes = np.unique(group, return_index=True, return_inverse=True, return_counts=True)
    by_group = np.argsort(inverse, kind="stable")
    numbers[rows[by_group]] = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + 1
    in_order = np.argsort(first, kind="stable")
    at = rows[first[in_order]]
    found = _Pairs(runs[at], which[at], sizes[in_order].astype(np.int64))
    before = np.flatnonzero(carried)
    if not len(before):
        return numbers, found
    of_zero = found.runs == 0
    totals = carried.copy()
    totals[found.collections[of_zero]] += found.counts[of_zero]
    new = found.collections[of_zero]
    merged = np.concatenate([before, new[carried[new] == 0]])
    return numbers, _Pairs(
        np.concatenate([np.zeros(len(merged), np.int64), found.runs[~of_zero]]),
        np.concatenate([merged, found.collections[~of_zero]]),
        np.concatenate([totals[merged], found.counts[~of_zero]]),
    )
