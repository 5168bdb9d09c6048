"""Change records of a MongoDB source: made of change events, and of a snapshot's documents.

One event gives one record, positioned by cluster time and index (:mod:`.position`). A rename gives two more
for its new name: an end of what was there, and a signal that all of its rows came without events. An event
whose bytes are broken becomes a record of kind ``quarantine`` at its place in the stream; the events beside
it are not affected. ``dropDatabase`` follows the drops of its collections, and ``invalidate`` what caused it,
so these two change nothing; they are kept as kind ``schema`` without a table.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.record import (
    CHANGE,
    CHANGE_SCHEMA,
    DROP,
    QUARANTINE,
    SCHEMA,
    SIGNAL,
    SNAPSHOT,
)
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.mongodb.arrow import column_of, fixed_width_binary, span_column
from airflow_cdc_provider.sources.mongodb.bson import (
    FAULTS,
    Bytes,
    Ints,
    Spans,
    find_in_all,
    split_documents,
    validate_all,
)
from airflow_cdc_provider.sources.mongodb.change_event import (
    DELETE,
    DROP_OPERATION,
    INSERT,
    RENAME,
    RENAMED_TO,
    REPLACE,
    UPDATE_OPERATION,
    Facts,
    Located,
    locate,
    namespace_in,
    number_namespaces,
    read_facts,
)
from airflow_cdc_provider.sources.mongodb.identity import canonical_keys
from airflow_cdc_provider.sources.mongodb.position import LAST_INDEX, ORIGIN
from airflow_cdc_provider.sources.mongodb.selection import OWN_DATABASES

log = logging.getLogger(__name__)

_OF_ROWS: Final = (INSERT, UPDATE_OPERATION, REPLACE, DELETE)
_OF_COLLECTIONS: Final = (DROP_OPERATION, RENAME)
_TIMESTAMP: Final = CHANGE_SCHEMA.field("committed_at").type


@dataclass(frozen=True)
class EventSlice:
    """Change events in stream order, as a partition carries them: concatenated BSON and what positions need.

    Args:
        events: The documents.
        first_index: Number of the first event among those of its cluster time.
        captured_us: When they were read, in us since 1970.
    """

    events: bytes
    first_index: int
    captured_us: int


def slice_reader(
    selects: Callable[[str], bool], *, strict: bool
) -> Callable[[EventSlice], Iterator[pa.RecordBatch]]:
    """Return the picklable function that reads slices (see :func:`read_events`)."""
    return partial(_read_slice, selects=selects, strict=strict)


def _read_slice(
    part: EventSlice, *, selects: Callable[[str], bool], strict: bool
) -> Iterator[pa.RecordBatch]:
    data = np.frombuffer(part.events, np.uint8)
    spans = split_documents(data)
    if spans.stopped_at != len(data):  # what a length can't tell apart is one broken event
        spans = Spans(np.append(spans.starts, spans.stopped_at), np.append(spans.ends, len(data)), len(data))
    yield read_events(
        data,
        spans,
        first_index=part.first_index,
        captured_us=part.captured_us,
        selects=selects,
        strict=strict,
    )


def read_events(
    data: Bytes,
    spans: Spans,
    *,
    first_index: int,
    captured_us: int,
    selects: Callable[[str], bool],
    strict: bool = False,
) -> pa.RecordBatch:
    """Turn events into change records.

    Args:
        data: The buffer.
        spans: Where the events stand in it, in stream order.
        first_index: Number of the first event among those of its cluster time.
        captured_us: When they were read, in us since 1970.
        selects: Tells whether a namespace belongs to the capture; asked once for each.
        strict: Fail on a broken event.

    Returns:
        Records of selected namespaces, in the same order.

    Raises:
        CorruptInput: With ``strict``: the first broken event, its place and what is wrong.
    """
    faults = np.zeros(len(spans), np.int64)
    places = np.zeros(len(spans), np.int64)
    validate_all(data, spans.starts, spans.ends, faults, places)
    whole = faults == 0
    located = locate(data, np.where(whole, spans.starts, -1), np.where(whole, spans.ends, -1))
    facts = read_facts(data, located, first_index)
    if not facts.complete.all():
        _report(faults, places, spans, np.flatnonzero(~facts.complete), strict)
    namespaces, codes = number_namespaces(data, facts.databases, facts.collections)
    captured = np.array([bool(name) and is_captured(name, selects) for name in namespaces], np.bool_)
    of_rows = facts.complete & np.isin(facts.operations, _OF_ROWS)
    of_collections = facts.complete & np.isin(facts.operations, _OF_COLLECTIONS)
    kinds = np.select([~facts.complete, of_rows, of_collections], [QUARANTINE, CHANGE, DROP], default=SCHEMA)
    taken = np.where(of_rows | of_collections, captured[codes] if len(codes) else False, True)
    rows = np.flatnonzero(taken)
    tables = pa.DictionaryArray.from_arrays(
        pa.array(codes[rows].astype(np.int32), mask=~(of_rows | of_collections)[rows]),
        pa.array([name or None for name in namespaces], pa.string()),
    )
    key_kinds = np.where(of_rows, facts.id_kinds, 0)[rows]
    position = fixed_width_binary(positions(facts.times[rows], facts.indexes[rows]))
    records = pa.RecordBatch.from_arrays(
        [
            tables.cast(pa.string()),
            pa.array(kinds[rows].tolist(), pa.string()),
            pa.repeat(pa.scalar(ORIGIN), len(rows)),
            position,
            pa.repeat(pa.scalar(0, pa.int64()), len(rows)),
            column_of(pa.binary(), *canonical_keys(data, key_kinds, *facts.ids[rows].T), key_kinds > 0),
            pc.if_else(pa.array(of_rows[rows]), position, pa.scalar(None, pa.binary())),
            pa.array(facts.committed_us[rows], mask=~facts.complete[rows]).cast(_TIMESTAMP),
            pa.repeat(pa.scalar(captured_us, pa.int64()), len(rows)).cast(_TIMESTAMP),
            _transactions(data, facts, rows),
            pa.nulls(len(rows), pa.string()),
            span_column(pa.binary(), data, spans.starts[rows], spans.ends[rows]),
        ],
        schema=CHANGE_SCHEMA,
    )
    renames = np.flatnonzero(facts.complete & (facts.operations == RENAME))
    return (
        _with_targets(data, spans, located, facts, records, rows, renames, selects)
        if len(renames)
        else records
    )


def snapshot_records(
    data: Bytes, spans: Spans, *, table: str, time: int, number: int, first_row: int, captured_us: int
) -> pa.RecordBatch:
    """Turn documents of a snapshot into records.

    Args:
        data: The buffer.
        spans: Where the documents stand in it.
        table: Their namespace.
        time: Cluster time before their read began, seconds in the upper half.
        number: Of the range among those of the snapshot.
        first_row: Number of the first document in the range.
        captured_us: When they were read, in us since 1970.
    """
    count = len(spans)
    kinds, starts, ends = find_in_all(data, spans.starts, spans.ends, b"_id")
    version = positions(np.full(count, time, np.int64), np.full(count, LAST_INDEX, np.int64))
    place = np.empty((count, 20), np.uint8)
    place[:, :12] = version
    place[:, 12:16] = np.frombuffer(number.to_bytes(4, "big"), np.uint8)
    ordinals = np.arange(first_row, first_row + count, dtype=np.int64)
    place[:, 16:] = ordinals.astype(">u4").view(np.uint8).reshape(-1, 4)
    whole = kinds > 0
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(table), count),
            pc.if_else(pa.array(whole), SNAPSHOT, QUARANTINE),
            pa.repeat(pa.scalar(ORIGIN), count),
            fixed_width_binary(place),
            pa.repeat(pa.scalar(0, pa.int64()), count),
            column_of(pa.binary(), *canonical_keys(data, kinds, starts, ends), whole),
            fixed_width_binary(version),
            pa.nulls(count, _TIMESTAMP),
            pa.repeat(pa.scalar(captured_us, pa.int64()), count).cast(_TIMESTAMP),
            pa.nulls(count, pa.string()),
            pa.nulls(count, pa.string()),
            span_column(pa.binary(), data, spans.starts, spans.ends),
        ],
        schema=CHANGE_SCHEMA,
    )


def is_captured(namespace: str, selects: Callable[[str], bool]) -> bool:
    """Tell whether a namespace is selected and none of the server's own."""
    database, _, collection = namespace.partition(".")
    return (
        database not in OWN_DATABASES
        and not collection.startswith("system.")
        and bool(collection)
        and selects(namespace)
    )


def positions(times: Ints, indexes: Ints) -> npt.NDArray[np.uint8]:
    """Write positions, 12 bytes each: seconds, increment, index, big-endian."""
    out = np.empty((len(times), 12), np.uint8)
    out[:, :8] = times.astype(">u8").view(np.uint8).reshape(-1, 8)
    out[:, 8:] = indexes.astype(">u4").view(np.uint8).reshape(-1, 4)
    return out


def _report(faults: Ints, places: Ints, spans: Spans, broken: Ints, strict: bool) -> None:
    first = int(broken[0])
    text = FAULTS[int(faults[first])] or "it has no cluster time or operation"
    where = f"event {first} at byte {int(spans.starts[first])}, fault at byte {int(places[first])}: {text}"
    if strict:
        raise CorruptInput(
            "a change event is broken",
            found=where,
            remedy="without the option advanced.strict it is set apart and the rest goes on",
        )
    log.warning(
        "%d of %d change events are broken and set apart; the first: %s", len(broken), len(spans), where
    )


def _with_targets(
    data: Bytes,
    spans: Spans,
    located: Located,
    facts: Facts,
    records: pa.RecordBatch,
    rows: Ints,
    renames: Ints,
    selects: Callable[[str], bool],
) -> pa.RecordBatch:
    """Add what renames do to their targets, each right after its event, at its position and one byte more."""
    batches = []
    done = 0
    for row in renames:
        name = namespace_in(data, located.starts[row, RENAMED_TO], located.ends[row, RENAMED_TO])
        if not name or not is_captured(name, selects):
            continue
        at = int(np.searchsorted(rows, row, side="right"))
        batches.append(records.slice(done, at - done))
        done = at
        place = positions(facts.times[row : row + 1], facts.indexes[row : row + 1]).tobytes()
        common = {
            "source_table": name,
            "origin": ORIGIN,
            "generation": 0,
            "committed_at": int(facts.committed_us[row]),
            "captured_at": records.column("captured_at")[0].value if len(records) else None,
            "payload": data[spans.starts[row] : spans.ends[row]].tobytes(),
        }
        ended = {**common, "kind": DROP, "position": place + b"\x01"}
        arrived = {**common, "kind": SIGNAL, "position": place + b"\x02"}
        batches.append(pa.RecordBatch.from_pylist([ended, arrived], schema=CHANGE_SCHEMA))
    batches.append(records.slice(done))
    return pa.concat_batches(batches)


def _transactions(data: Bytes, facts: Facts, rows: Ints) -> pa.Array:
    """Name transactions and retryable writes by session UUID and number: ``<32 hex digits>:<number>``."""
    starts, ends = facts.sessions[rows].T
    has = np.flatnonzero(starts >= 0)
    if not len(has):
        return pa.nulls(len(rows), pa.string())
    numbers = facts.txn_numbers[rows]
    texts: list[str | None] = [None] * len(rows)
    last: tuple[bytes, int] | None = None
    name = ""
    for row in has:  # events of a transaction follow each other
        identity = (data[starts[row] : ends[row]].tobytes(), int(numbers[row]))
        if identity != last:
            last = identity
            name = f"{identity[0].hex()}:{identity[1]}"
        texts[row] = name
    return pa.array(texts, pa.string())
