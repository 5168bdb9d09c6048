"""From stretches of a VStream to change records, as columns; no object per row.

A :class:`StreamSlice` holds whole transactions as they came, and what was known before them: which fields
each table's rows come with. The driver numbers its transactions and looks at FIELD events, which are few;
rows are walked by executors.

Positions, 16 bytes that sort (docs/design/vitess.md)::

    epoch u32 | transactions in the shard's GTID set u64 | number of the row in its transaction u32    change
    epoch u32 | transactions in the shard's GTID set u64 | FFFFFFFF                     end of the transaction

Rows of a snapshot stand behind the end of the transaction up to which they were read, with the time at which
the snapshot was planned (u64) and the row's number (u32). That is their version, too: a fence compares both.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_cdc_provider.changes.record import CHANGE, CHANGE_SCHEMA, SCHEMA, SNAPSHOT, TRANSACTION
from airflow_cdc_provider.changes.spans import Bytes, Ints, fixed_width_binary, span_column
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.abilities import ReadingCounts
from airflow_cdc_provider.sources.vitess.position import LAST_ROW, copy_key
from airflow_cdc_provider.sources.vitess.rows import FAULTS, Changes, read_changes, read_rows
from airflow_cdc_provider.sources.vitess.wire import Events, ShardTable, scan

log = logging.getLogger(__name__)

_TIMESTAMP: Final = CHANGE_SCHEMA.field("committed_at").type
_SECOND_US: Final = 1_000_000
_NO_FIELDS: Final = -1


@dataclass(frozen=True, eq=False)
class Transactions:
    """Transactions, DDL statements and other steps of shards, in stream order; an item each.

    Args:
        names: Shards, ``keyspace/shard``.
        shards: The number of its shard.
        epochs: The shard's epoch with it.
        counts: How many transactions the shard's GTID set has with it.
        gtid_starts: First byte of that set's text in the slice.
        gtid_ends: Byte after it.
        firsts: Number of its first event in the slice.
        vgtids: Number of its VGTID event.
        lasts: Number of its last event.
    """

    names: Sequence[str]
    shards: Ints
    epochs: Ints
    counts: Ints
    gtid_starts: Ints
    gtid_ends: Ints
    firsts: Ints
    vgtids: Ints
    lasts: Ints

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.lasts)


@dataclass(frozen=True)
class StreamSlice:
    """Whole transactions of a stream.

    Args:
        data: Their events, a ``VStreamResponse`` message.
        transactions: Those that count; what stands between them was broken off or came again.
        known: Per table of a shard, the name of its fields before the first event.
        seen: Per FIELD event, its number and the name of its fields.
        captured_us: When they were read, in us since 1970.
    """

    data: bytes
    transactions: Transactions
    known: Mapping[ShardTable, str]
    seen: tuple[tuple[int, str], ...]
    captured_us: int


@dataclass(frozen=True)
class SliceReader:
    """Turns slices into records. Picklable.

    Args:
        selects: Tells whether ``keyspace.table`` belongs to the capture.
        empty_transactions: Whether transactions without a captured row leave a record too.
        strict: Whether the first row that can't be read ends the reading. Without, it is a record as others,
            which a merge sets apart.
        warns: Whether the log tells where such rows stand.
    """

    selects: Callable[[str], bool]
    empty_transactions: bool = False
    strict: bool = False
    warns: bool = True

    def __call__(self, part: StreamSlice) -> Iterator[pa.RecordBatch]:
        """Read a slice (see :meth:`read_telling`)."""
        return self.read_telling(part, Counter())

    def read_telling(self, part: StreamSlice, counts: ReadingCounts) -> Iterator[pa.RecordBatch]:
        """Read a slice.

        Args:
            part: The slice.
            counts: To add what was met in it.

        Raises:
            CorruptInput: Rows don't belong to the transaction that they stand in; or one can't be read, with
                ``strict``.
        """
        events = scan(part.data)
        captured = np.array([is_captured(table, self.selects) for table in events.tables], np.bool_)
        owners = _owners(events, part.transactions)
        changes = events.changes
        inside = owners >= 0
        wanted = np.flatnonzero(inside & captured[events.table_numbers[changes.events]])
        _require_own_shard(events, part.transactions, owners, wanted)
        if len(wanted):
            records = _rows(events, part, owners, wanted)
            found = read_changes(events.data, changes.starts[wanted], changes.ends[wanted])
            broken = _reasons(found, records)
            if self.strict:
                broken |= _reasons_inside(events.data, found)
            self._tell(broken, records)
            _count(counts, found, broken)
            yield records
        with_rows = np.unique(owners[wanted])
        counts["filtered"] += int(np.count_nonzero(inside)) - len(wanted)
        counts["transactions"] += len(with_rows)
        kept = np.arange(len(part.transactions)) if self.empty_transactions else with_rows
        if len(kept):
            yield _ends(events, part, kept)

    def _tell(self, broken: Mapping[int, str], records: pa.RecordBatch) -> None:
        if not broken:
            return
        first = min(broken)
        table, shard, gtid, position = (
            records.column(name)[first].as_py()
            for name in ("source_table", "origin", "transaction", "position")
        )
        place = f"{table} in {shard} at {gtid}, row {int.from_bytes(position[-4:], 'big')}"
        if self.strict:
            raise CorruptInput(
                f"a change of {place} can't be read",
                found=broken[first],
                remedy="without the option source.advanced.strict it is set apart and the rest goes on",
            )
        if self.warns:
            log.warning(
                "%d of %d changes can't be read and will be set apart; the first: %s: %s",
                len(broken),
                records.num_rows,
                place,
                broken[first],
            )


def _reasons(found: Changes, records: pa.RecordBatch) -> dict[int, str]:
    """Say which row changes can't be read, and why."""
    reasons = {row: FAULTS[int(found.faults[row])] for row in np.flatnonzero(found.faults).tolist()}
    empty = (found.before.starts < 0) & (found.after.starts < 0)
    for row in np.flatnonzero(empty).tolist():
        reasons.setdefault(row, "it has neither a row before nor one after")
    if records.column("schema_id").null_count:
        unnamed = records.column("schema_id").is_null().to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(unnamed).tolist():
            reasons.setdefault(row, "its fields didn't come before it")
    return reasons


def _reasons_inside(data: Bytes, found: Changes) -> dict[int, str]:
    """Say which rows can't be read, and why: a merge finds these by itself."""
    reasons: dict[int, str] = {}
    for image in (found.before, found.after):
        faults = read_rows(data, image.starts, image.ends, 0).faults
        reasons |= {row: FAULTS[int(faults[row])] for row in np.flatnonzero(faults).tolist()}
    return reasons


def _count(counts: ReadingCounts, found: Changes, broken: Mapping[int, str]) -> None:
    """Add captured row changes, by what they did."""
    before, after = found.before.starts >= 0, found.after.starts >= 0
    sound = np.ones(len(found.faults), np.bool_)
    sound[list(broken)] = False
    counts["creates"] += int(np.count_nonzero(sound & after & ~before))
    counts["updates"] += int(np.count_nonzero(sound & after & before))
    counts["deletes"] += int(np.count_nonzero(sound & before & ~after))
    counts["broken"] += int(np.count_nonzero(~sound))


def is_captured(table: ShardTable, selects: Callable[[str], bool]) -> bool:
    """Tell whether a table of a shard belongs to the capture."""
    return bool(table.table) and selects(f"{table.keyspace}.{table.table}")


def schema_record(
    payload: bytes,
    schema_id: str | None,
    *,
    table: str | None,
    origin: str,
    position: bytes,
    committed_us: int,
    captured_us: int,
    kind: str = SCHEMA,
    reason: str | None = None,
) -> dict[str, Any]:
    """Make a record of a ``FieldEvent``, a statement, or of what became of shards."""
    return {
        "source_table": table,
        "kind": kind,
        "origin": origin,
        "position": position,
        "generation": 0,
        "version": position,
        "committed_at": pa.scalar(committed_us, _TIMESTAMP).as_py() if committed_us else None,
        "captured_at": pa.scalar(captured_us, _TIMESTAMP).as_py(),
        "schema_id": schema_id,
        "reason": reason,
        "payload": payload,
    }


def snapshot_records(
    events: Events,
    rows: Ints,
    *,
    table: str,
    origin: str,
    key: bytes,
    schema_id: str,
    planned_us: int,
    first_row: int,
    captured_us: int,
) -> pa.RecordBatch:
    """Turn rows of a copy into records.

    Args:
        events: The events that they are of.
        rows: Numbers of their row changes.
        table: ``keyspace.table``.
        origin: ``keyspace/shard``.
        key: Epoch and count of the position up to which they were read.
        schema_id: Of their fields.
        planned_us: When the snapshot was planned, in us since 1970.
        first_row: Number of the first row in the range.
        captured_us: When they were read, in us since 1970.
    """
    count = len(rows)
    place = np.empty((count, 28), np.uint8)
    place[:, :24] = np.frombuffer(copy_key(key, planned_us), np.uint8)
    ordinals = np.arange(first_row, first_row + count, dtype=np.int64)
    place[:, 24:] = ordinals.astype(">u4").view(np.uint8).reshape(-1, 4)
    position = fixed_width_binary(place)
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(table), count),
            pa.repeat(pa.scalar(SNAPSHOT), count),
            pa.repeat(pa.scalar(origin), count),
            position,
            pa.repeat(pa.scalar(0, pa.int64()), count),
            pa.nulls(count, pa.binary()),
            position,
            pa.nulls(count, _TIMESTAMP),
            pa.repeat(pa.scalar(captured_us, pa.int64()), count).cast(_TIMESTAMP),
            pa.nulls(count, pa.string()),
            pa.repeat(pa.scalar(schema_id), count),
            pa.nulls(count, pa.string()),
            pa.nulls(count, pa.string()),
            span_column(pa.binary(), events.data, events.changes.starts[rows], events.changes.ends[rows]),
        ],
        schema=CHANGE_SCHEMA,
    )


def _owners(events: Events, transactions: Transactions) -> Ints:
    """Return the number of each row change's transaction; -1 for none: one broken off, which came again."""
    owners = np.searchsorted(transactions.lasts, events.changes.events, side="left").astype(np.int64)
    outside = owners == len(transactions)
    owners[outside] = 0
    if len(transactions):
        outside |= events.changes.events < transactions.firsts[owners]
    owners[outside] = -1
    return owners


def _require_own_shard(events: Events, transactions: Transactions, owners: Ints, rows: Ints) -> None:
    numbers = {shard: number for number, shard in enumerate(transactions.names)}
    of_table = np.array([numbers.get(f"{t.keyspace}/{t.shard}", -1) for t in events.tables], np.int64)
    tables = events.table_numbers[events.changes.events[rows]]
    wrong = np.flatnonzero(of_table[tables] != transactions.shards[owners[rows]]) if len(rows) else rows
    if len(wrong):
        own = int(transactions.shards[owners[rows[wrong[0]]]])
        raise CorruptInput(
            "a transaction holds a row of another shard",
            expected=transactions.names[own],
            found=str(events.tables[tables[wrong[0]]]),
        )


def _rows(events: Events, part: StreamSlice, owners: Ints, rows: Ints) -> pa.RecordBatch:
    transactions = part.transactions
    count = len(rows)
    owner = owners[rows]
    of_event = events.changes.events[rows]
    tables = events.table_numbers[of_event]
    position = fixed_width_binary(_positions(transactions, owner, _numbers_inside(owners)[rows]))
    ids, schema_numbers = _schema_ids(events, part, of_event, tables)
    # Of the COMMIT: a long transaction's rows bear the times of their statements.
    seconds = events.timestamps[transactions.lasts[owner]]
    return pa.RecordBatch.from_arrays(
        [
            _named(tables, [f"{t.keyspace}.{t.table}" for t in events.tables]),
            pa.repeat(pa.scalar(CHANGE), count),
            _named(transactions.shards[owner], transactions.names),
            position,
            pa.repeat(pa.scalar(0, pa.int64()), count),
            pa.nulls(count, pa.binary()),
            position,
            pa.array(seconds * _SECOND_US, mask=seconds == 0).cast(_TIMESTAMP),
            pa.repeat(pa.scalar(part.captured_us, pa.int64()), count).cast(_TIMESTAMP),
            _gtids(events, transactions, owner),
            _named(schema_numbers, ids),
            pa.nulls(count, pa.string()),
            pa.nulls(count, pa.string()),
            span_column(pa.binary(), events.data, events.changes.starts[rows], events.changes.ends[rows]),
        ],
        schema=CHANGE_SCHEMA,
    )


def _ends(events: Events, part: StreamSlice, kept: Ints) -> pa.RecordBatch:
    """Make the records of kind ``transaction``: each has the VGTID of all shards."""
    transactions = part.transactions
    count = len(kept)
    vgtids = transactions.vgtids[kept]
    # VGTID tells no time; what follows it does.
    seconds = events.timestamps[transactions.lasts[kept]]
    position = fixed_width_binary(_positions(transactions, kept, np.full(count, LAST_ROW, np.int64)))
    return pa.RecordBatch.from_arrays(
        [
            pa.nulls(count, pa.string()),
            pa.repeat(pa.scalar(TRANSACTION), count),
            _named(transactions.shards[kept], transactions.names),
            position,
            pa.repeat(pa.scalar(0, pa.int64()), count),
            pa.nulls(count, pa.binary()),
            position,
            pa.array(seconds * _SECOND_US, mask=seconds == 0).cast(_TIMESTAMP),
            pa.repeat(pa.scalar(part.captured_us, pa.int64()), count).cast(_TIMESTAMP),
            _gtids(events, transactions, kept),
            pa.nulls(count, pa.string()),
            pa.nulls(count, pa.string()),
            pa.nulls(count, pa.string()),
            span_column(pa.binary(), events.data, events.body_starts[vgtids], events.body_ends[vgtids]),
        ],
        schema=CHANGE_SCHEMA,
    )


def _numbers_inside(owners: Ints) -> Ints:
    """Number rows in their transaction, from 0; those of a transaction follow each other."""
    rows = np.arange(len(owners))
    begins = np.r_[True, owners[1:] != owners[:-1]] if len(owners) else np.zeros(0, np.bool_)
    return rows - np.maximum.accumulate(np.where(begins, rows, 0)) if len(owners) else rows


def _gtids(events: Events, transactions: Transactions, which: Ints) -> pa.Array:
    """Return the GTID sets of transactions as text."""
    starts, ends = transactions.gtid_starts[which], transactions.gtid_ends[which]
    return span_column(pa.string(), events.data, starts, ends)


def _positions(transactions: Transactions, owner: Ints, numbers: Ints) -> npt.NDArray[np.uint8]:
    keys = np.empty((len(transactions), 12), np.uint8)
    keys[:, :4] = transactions.epochs.astype(">u4").view(np.uint8).reshape(-1, 4)
    keys[:, 4:] = transactions.counts.astype(">u8").view(np.uint8).reshape(-1, 8)
    out = np.empty((len(owner), 16), np.uint8)
    out[:, :12] = keys[owner]
    out[:, 12:] = numbers.astype(">u4").view(np.uint8).reshape(-1, 4)
    return out


def _schema_ids(
    events: Events, part: StreamSlice, of_event: Ints, tables: Ints
) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Number the names of the fields that rows came with: those of the table's last FIELD before them.

    Rows without have the number -1.
    """
    ids = [name for _, name in part.seen]
    numbers = np.full(len(of_event), _NO_FIELDS, np.int64)
    places = np.array([event for event, _ in part.seen], np.int64)
    of_table = events.table_numbers[places] if len(places) else places
    for table in np.unique(tables):
        rows = np.flatnonzero(tables == table)
        own = np.flatnonzero(of_table == table)
        before = np.searchsorted(places[own], of_event[rows], side="left") - 1
        known = part.known.get(events.tables[table])
        initial = _NO_FIELDS
        if known is not None:
            initial = len(ids)
            ids.append(known)
        numbers[rows] = np.where(before >= 0, own[before], initial) if len(own) else initial
    return ids, numbers


def _named(numbers: npt.NDArray[Any], names: Sequence[str]) -> pa.Array:
    indices = pa.array(numbers, mask=numbers < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(names, pa.string())).cast(pa.string())
