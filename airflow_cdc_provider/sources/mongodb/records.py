"""Change records of a MongoDB source, built from change events and from snapshot documents.

One event results in one record, positioned by cluster time and index (:mod:`.position`). A rename results in
two more for its new name: a drop of the previous rows, and a signal that all of its rows arrived without
events. An event that is broken at its top level becomes a record of kind ``quarantine`` at its position in
the stream, with the reason as its ``reason``; other events are not affected. (Decoding detects documents
that are broken inside.) ``dropDatabase`` follows the drops of its collections, and ``invalidate`` the event
that caused it, so these two change nothing; they are stored with kind ``schema`` without a table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

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
    change_batch,
)
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.arrow_bytes import column_of, fixed_width_binary, span_column
from airflow_cdc_provider.formats.bson import FAULTS, Spans, find_in_all, validate_all
from airflow_cdc_provider.formats.kernels import Bytes, Ints
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.sources.mongodb.change_stream import change_event
from airflow_cdc_provider.sources.mongodb.change_stream.change_event import (
    Facts,
    number_namespaces,
    read_facts,
)
from airflow_cdc_provider.sources.mongodb.change_stream.event_counts import count_events
from airflow_cdc_provider.sources.mongodb.decoding.identity import canonical_keys
from airflow_cdc_provider.sources.mongodb.position import LAST_INDEX, ORIGIN
from airflow_cdc_provider.sources.mongodb.selection import is_captured

log = logger(__name__)

_OF_ROWS: Final = (change_event.INSERT, change_event.UPDATE, change_event.REPLACE, change_event.DELETE)
_OF_COLLECTIONS: Final = (change_event.DROP, change_event.RENAME)
_KINDS: Final = (CHANGE, DROP, SCHEMA, QUARANTINE)
_INCOMPLETE: Final = "the cluster time or the operation is missing"
_NO_ID: Final = "NO-KEY: the document has no _id"


def read_events(
    data: Bytes,
    spans: Spans,
    *,
    first_index: int,
    captured_us: int,
    selects: Callable[[str], bool],
    strict: bool = False,
    counts: Counter[str] | None = None,
) -> pa.RecordBatch:
    """Convert events to change records.

    Args:
        data: The buffer.
        spans: Spans of the events in it, in stream order.
        first_index: Index of the first event among those of its cluster time.
        captured_us: When they were read, in us since 1970.
        selects: Whether a namespace belongs to the capture; called once for each.
        strict: Fail on a broken event.
        counts: Counters of events by kind to add to (see :func:`.change_stream.event_counts.count_events`).

    Returns:
        Records of selected namespaces, in the same order.

    Raises:
        CorruptInput: With ``strict``: the first broken event, its offset and the fault.
    """
    facts = read_facts(data, spans, first_index)
    _report(data, spans, facts, strict)
    namespaces, codes = number_namespaces(data, facts.namespaces)
    captured = np.array([bool(name) and is_captured(name, selects) for name in namespaces], np.bool_)
    of_rows = facts.complete & np.isin(facts.operations, _OF_ROWS)
    if counts is not None:
        count_events(counts, data, facts, of_rows & captured[codes] if len(codes) else of_rows, of_rows)
    of_tables = facts.complete & np.isin(facts.operations, _OF_COLLECTIONS) | of_rows
    kinds = np.where(of_rows, 0, np.where(of_tables, 1, np.where(facts.complete, 2, 3))).astype(np.int8)
    rows = np.flatnonzero(~of_tables | captured[codes]) if len(codes) else codes
    position = fixed_width_binary(positions(facts.times[rows], facts.indexes[rows]))
    key_kinds = np.where(of_rows, facts.ids.kinds, 0)[rows]
    keys = canonical_keys(data, key_kinds, facts.ids.starts[rows], facts.ids.ends[rows])
    records = change_batch(
        len(rows),
        source_table=_named(codes[rows], namespaces, of_tables[rows]),
        kind=_named(kinds[rows], _KINDS, None),
        origin=ORIGIN,
        position=position,
        key=column_of(pa.binary(), *keys, key_kinds > 0),
        version=pc.if_else(pa.array(of_rows[rows]), position, pa.scalar(None, pa.binary())),
        committed_at=pa.array(facts.committed_us[rows], mask=~facts.complete[rows]),
        captured_at=captured_us,
        transaction=_transactions(data, facts, rows),
        reason=_reasons(data, spans, facts, rows),
        payload=span_column(pa.binary(), data, spans.starts[rows], spans.ends[rows]),
    )
    renames = np.flatnonzero(facts.complete & (facts.operations == change_event.RENAME))
    if not len(renames):
        return records
    return _with_targets(data, spans, facts, records, rows, renames, captured_us, selects)


def snapshot_records(
    data: Bytes, spans: Spans, *, table: str, time: int, number: int, first_row: int, captured_us: int
) -> pa.RecordBatch:
    """Convert snapshot documents to records.

    Args:
        data: The buffer.
        spans: Spans of the documents in it.
        table: Their namespace.
        time: Cluster time before their read began, seconds in the upper half.
        number: Number of the range in the snapshot.
        first_row: Number of the first document in the range.
        captured_us: When they were read, in us since 1970.
    """
    count = len(spans)
    kinds, starts, ends = find_in_all(data, spans.starts, spans.ends, b"_id")
    version = positions(np.full(count, time, np.int64), np.full(count, LAST_INDEX, np.int64))
    position = np.empty((count, 20), np.uint8)
    position[:, :12] = version
    position[:, 12:16] = np.frombuffer(number.to_bytes(4, "big"), np.uint8)
    ordinals = np.arange(first_row, first_row + count, dtype=np.int64)
    position[:, 16:] = ordinals.astype(">u4").view(np.uint8).reshape(-1, 4)
    whole = kinds > 0
    return change_batch(
        count,
        source_table=table,
        kind=pc.if_else(pa.array(whole), SNAPSHOT, QUARANTINE),
        origin=ORIGIN,
        position=fixed_width_binary(position),
        key=column_of(pa.binary(), *canonical_keys(data, kinds, starts, ends), whole),
        version=fixed_width_binary(version),
        captured_at=captured_us,
        reason=pc.if_else(pa.array(whole), pa.scalar(None, pa.string()), _NO_ID),
        payload=span_column(pa.binary(), data, spans.starts, spans.ends),
    )


def positions(times: Ints, indexes: Ints) -> npt.NDArray[np.uint8]:
    """Return positions, 12 bytes each: seconds, increment, index, big-endian."""
    out = np.empty((len(times), 12), np.uint8)
    out[:, :8] = times.astype(">u8").view(np.uint8).reshape(-1, 8)
    out[:, 8:] = indexes.astype(">u4").view(np.uint8).reshape(-1, 4)
    return out


def _named(
    codes: npt.NDArray[Any], names: Sequence[str], has: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Return a string column for indexes of names, null where ``has`` is false."""
    indexes = pa.array(codes, mask=None if has is None else ~has)
    return pa.DictionaryArray.from_arrays(indexes, pa.array(names, pa.string())).cast(pa.string())


def _report(data: Bytes, spans: Spans, facts: Facts, strict: bool) -> None:
    """Log broken events; with ``strict``, validate all events to their leaves and fail."""
    checked = np.arange(len(spans)) if strict else np.flatnonzero(~facts.complete)
    if not len(checked):
        return
    faults, offsets = np.zeros((2, len(checked)), np.int64)
    validate_all(data, spans.starts[checked], spans.ends[checked], faults, offsets)
    broken = np.flatnonzero((faults != 0) | ~facts.complete[checked])
    if not len(broken):
        return
    first = int(broken[0])
    event = int(checked[first])
    text = FAULTS[int(faults[first])] or _INCOMPLETE
    where = f"event {event} at byte {int(spans.starts[event])}, fault at byte {int(offsets[first])}: {text}"
    if strict:
        raise CorruptInput(
            "a change event is broken",
            found=where,
            remedy="without the option advanced.strict it is quarantined and capture continues",
        )
    log.warning("%d of %d change events are quarantined; the first: %s", len(broken), len(spans), where)


def _reasons(data: Bytes, spans: Spans, facts: Facts, rows: Ints) -> pa.Array:
    """Return why broken events are quarantined; each reason starts with its code."""
    broken = np.flatnonzero(~facts.complete[rows])
    if not len(broken):
        return pa.nulls(len(rows), pa.string())
    events = rows[broken]
    faults, offsets = np.zeros((2, len(events)), np.int64)
    validate_all(data, spans.starts[events], spans.ends[events], faults, offsets)
    texts: list[str | None] = [None] * len(rows)
    for row, event, fault, offset in zip(broken, events, faults, offsets, strict=True):
        at = f", at byte {int(offset) - int(spans.starts[event])}"
        texts[row] = f"BROKEN-EVENT: {FAULTS[int(fault)] + at if fault else _INCOMPLETE}"
    return pa.array(texts, pa.string())


def _with_targets(
    data: Bytes,
    spans: Spans,
    facts: Facts,
    records: pa.RecordBatch,
    rows: Ints,
    renames: Ints,
    captured_us: int,
    selects: Callable[[str], bool],
) -> pa.RecordBatch:
    """Add the records of rename targets, each right after its event, at its position plus one byte."""
    batches = []
    done = 0
    for event in renames:
        name = facts.renamed_to.name(data, int(event))
        if not name or not is_captured(name, selects):
            continue
        at = int(np.searchsorted(rows, event, side="right"))
        batches.append(records.slice(done, at - done))
        done = at
        position = positions(facts.times[event : event + 1], facts.indexes[event : event + 1]).tobytes()
        common = {
            "source_table": name,
            "origin": ORIGIN,
            "generation": 0,
            "committed_at": int(facts.committed_us[event]),
            "captured_at": captured_us,
            "payload": data[spans.starts[event] : spans.ends[event]].tobytes(),
        }
        drop = {**common, "kind": DROP, "position": position + b"\x01"}
        arrival = {**common, "kind": SIGNAL, "position": position + b"\x02"}
        batches.append(pa.RecordBatch.from_pylist([drop, arrival], schema=CHANGE_SCHEMA))
    batches.append(records.slice(done))
    return pa.concat_batches(batches)


def _transactions(data: Bytes, facts: Facts, rows: Ints) -> pa.Array:
    """Name transactions and retryable writes by session UUID and number: ``<32 hex digits>:<number>``."""
    has = np.flatnonzero(facts.sessions.kinds[rows])
    if not len(has):
        return pa.nulls(len(rows), pa.string())
    texts: list[str | None] = [None] * len(rows)
    last: tuple[bytes, int] | None = None
    name = ""
    for row in has:  # events of a transaction follow each other
        event = rows[row]
        session = data[facts.sessions.starts[event] : facts.sessions.ends[event]].tobytes()
        identity = (session, int(facts.txn_numbers[event]))
        if identity != last:
            last = identity
            name = f"{session.hex()}:{identity[1]}"
        texts[row] = name
    return pa.array(texts, pa.string())
