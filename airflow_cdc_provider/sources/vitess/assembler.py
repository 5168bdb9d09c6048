"""Assembles whole transactions from the responses of a VStream and splits them into slices.

A response is a batch of events, and a transaction may span several responses. The assembler buffers an
incomplete transaction until its COMMIT arrives, and discards it with the stream. The position advances by
whole transactions only, so a stream that is reopened at the position delivers the discarded events again.

A transaction that VTGate restarts (it sends large ones in chunks, and its own stream may break) starts at its
last BEGIN. A transaction that the position's GTID set already contains is a duplicate and is skipped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

import numpy as np

from airflow_cdc_provider.changes.record import DROP, QUARANTINE, SCHEMA, TRUNCATE
from airflow_cdc_provider.formats.kernels import Ints
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.sources.vitess import wire
from airflow_cdc_provider.sources.vitess.ddl import read_statement, recorded_text
from airflow_cdc_provider.sources.vitess.failures import TRACK_VERSIONS, StaleTabletSchema
from airflow_cdc_provider.sources.vitess.following import follow
from airflow_cdc_provider.sources.vitess.gtid import is_real
from airflow_cdc_provider.sources.vitess.position import LAST_ROW, Position, ShardPosition, vgtid_shards
from airflow_cdc_provider.sources.vitess.protocol import TYPES
from airflow_cdc_provider.sources.vitess.reader import is_captured
from airflow_cdc_provider.sources.vitess.records import StreamSlice, Transactions, schema_record
from airflow_cdc_provider.sources.vitess.response_batches import (
    FEW,
    NONE,
    ResponseBatch,
    last_before,
    of_types,
    read_bodies,
)
from airflow_cdc_provider.sources.vitess.schema_ids import DDL, LINEAGE, schema_id
from airflow_cdc_provider.sources.vitess.wire import Events, ShardTable, scan

log = logger(__name__)

_ENDS: Final = {"truncate": TRUNCATE, "drop": DROP}
_SHARDS: Final = 1
"""``migration_type`` of a journal that describes a reshard."""
_SINGLES: Final = (wire.FIELD, wire.JOURNAL, wire.DDL, wire.OTHER)
"""Event types that are processed one by one, because they are rare."""


class TransactionAssembler:
    """Assembles the responses of one stream into slices of whole transactions.

    Args:
        position: Position at which the stream was opened.
        selects: Returns whether ``keyspace.table`` is captured.
        is_recorded: Returns whether the fields of a table, by name and ``schema_id``, are recorded already.
        slice_bytes: Approximate size of a slice.
        keep_empty: Whether to keep slices without a row.
        stops_at_journals: Whether the server ends the streams of shards that are resharded.
    """

    def __init__(
        self,
        position: Position,
        selects: Callable[[str], bool],
        is_recorded: Callable[[str, str], bool],
        *,
        slice_bytes: int,
        keep_empty: bool,
        stops_at_journals: bool,
    ) -> None:
        self.position = position
        self.resharded: Position | None = None
        """Position after the reshard that ended the stream; :attr:`position` is the position before it."""
        self.repeated = 0
        """Number of transactions that were skipped because the position already contains them."""
        self._sliced_bytes = 0
        self._sliced_changes = 0
        self._selects = selects
        self._is_recorded = is_recorded
        self._target_slice_bytes = slice_bytes
        self._keep_empty = keep_empty
        self._stops_at_journals = stops_at_journals
        self._buffer = bytearray()
        self._event_count = 0
        self._row_count = 0
        self._complete_rows = 0
        self._complete_bytes = 0  # end of the last complete transaction in the buffer
        self._last_complete_event = NONE  # last event of that transaction
        self._schema_ids: dict[ShardTable, str] = {}
        self._field_events: list[tuple[int, ShardTable, str]] = []
        self._json_columns: dict[str, tuple[int, Sequence[int]]] = {}
        self._shard_numbers: dict[str, int] = {}
        self._transactions: list[Ints] = []
        """Columns of transactions, in the field order of :class:`.reader.Transactions` without ``names``."""
        self._last_vgtid = position.to_vgtid().SerializeToString()
        """The VGTID message of the position; empty if the position doesn't correspond to one."""
        self._begin_event = 0
        self._vgtid_event = NONE
        self._vgtid_message = b""
        self._vgtid_shards: Mapping[str, str] | None = None
        self._vgtid_start = 0
        self._pending_journal: Any = None
        self._journal_shards: dict[int, set[str]] = {}
        self._held_back: dict[str, ShardPosition] = {}
        self._ended_shards: set[str] = set()
        self._slices: list[StreamSlice] = []
        self._records: list[dict[str, Any]] = []

    @property
    def size(self) -> int:
        """Number of buffered bytes of complete transactions."""
        return self._sliced_bytes + self._complete_bytes

    @property
    def changes(self) -> int:
        """Number of buffered row changes, including those of the incomplete transaction."""
        return self._sliced_changes + self._row_count

    def add(self, response: bytes, captured_us: int) -> Events:
        """Add a response (see :meth:`add_all`)."""
        return self.add_all((response,), captured_us)

    def add_all(self, responses: Sequence[bytes], captured_us: int) -> Events:
        """Add responses. Adding many small transactions in one call is cheaper than one call each.

        Args:
            responses: ``VStreamResponse`` messages in the order of the stream.
            captured_us: When they were read, in µs since 1970.

        Returns:
            The events of the responses.

        Raises:
            BrokenMessage: A response can't be parsed; none of them is added.
            CorruptInput: A position doesn't follow the one before it.
            StaleTabletSchema: A tablet doesn't know the column names of a table.
        """
        data = b"".join(responses)
        ends = np.cumsum([len(response) for response in responses], dtype=np.int64)
        events = scan(data, np.concatenate([[0], ends[:-1]]), ends)
        bodies = read_bodies(events)
        batch = ResponseBatch(
            events, bodies, self._event_count, len(self._buffer), self._row_count, captured_us
        )
        self._buffer += data
        self._event_count += len(events)
        self._row_count += len(events.changes)
        if len(events) <= FEW:
            self._add_one_by_one(batch)
        else:
            self._add_batch(batch)
        if self.resharded is not None:
            self._drop_incomplete()
        if self._complete_bytes >= self._target_slice_bytes:
            self._close_slice(captured_us)
        return events

    def quarantine(self, response: bytes, reason: str, captured_us: int) -> None:
        """Store a response that can't be parsed as a record of kind ``quarantine``, and skip it.

        Its rows are missing. If it contained a VGTID, the other rows of that transaction are missing too.
        """
        shard = next(iter(self.position.shards), "")
        digest = blake2b(response, digest_size=16).digest()
        record = schema_record(
            response,
            None,
            table=None,
            origin=shard.partition("/")[0],
            position=digest,
            committed_us=0,
            captured_us=captured_us,
            kind=QUARANTINE,
            reason=f"BROKEN-MESSAGE: {reason}",
        )
        self._records.append(record)

    def drain(self, captured_us: int) -> tuple[list[StreamSlice], list[dict[str, Any]]]:
        """Return the slices of all transactions completed since the last call, and the schema records."""
        self._close_slice(captured_us)
        slices, self._slices = self._slices, []
        records, self._records = self._records, []
        self._sliced_bytes = self._sliced_changes = 0
        return slices, records

    def _add_one_by_one(self, batch: ResponseBatch) -> None:
        for number, kind in enumerate(batch.events.types.tolist()):
            if kind == wire.BEGIN:
                self._begin_event = batch.first_event + number
            elif kind == wire.VGTID:
                self._set_vgtid(batch, number)
            elif kind == wire.COMMIT:
                self._finish_transaction(batch, number)
            elif kind in _SINGLES:
                self._add_single_event(batch, number)
            if self.resharded is not None:
                break

    def _add_batch(self, batch: ResponseBatch) -> None:
        first = 0
        for number in [*of_types(batch.events, _SINGLES).tolist(), len(batch.events)]:
            self._add_plain_events(batch, first, number)
            if self.resharded is None and number < len(batch.events):
                self._add_single_event(batch, number)
            if self.resharded is not None:
                break
            first = number + 1

    def _add_plain_events(self, batch: ResponseBatch, first: int, last: int) -> None:
        """Add events, none of which has a type of :data:`_SINGLES`."""
        types = batch.events.types[first:last]
        begins = first + np.flatnonzero(types == wire.BEGIN)
        vgtids = first + np.flatnonzero(types == wire.VGTID)
        commits = first + np.flatnonzero(types == wire.COMMIT)
        at = 0
        if len(commits):
            vgtid_of_commit = last_before(vgtids, commits)
            # A VGTID applies only to the commit that follows it.
            vgtid_of_commit[1:][vgtid_of_commit[1:] < commits[:-1]] = NONE
            begin_of_commit = last_before(begins, commits)
            firsts = np.where(begin_of_commit >= 0, batch.first_event + begin_of_commit, self._begin_event)
        while at < len(commits):
            count = self._add_common_transactions(batch, commits[at:], vgtid_of_commit[at:], firsts[at:])
            at += count
            if at < len(commits):
                if vgtid_of_commit[at] >= 0:
                    self._set_vgtid(batch, int(vgtid_of_commit[at]))
                self._begin_event = int(firsts[at])
                self._finish_transaction(batch, int(commits[at]))
                at += 1
            if self.resharded is not None:
                return
        if len(begins):
            self._begin_event = batch.first_event + int(begins[-1])
        if len(vgtids) and (not len(commits) or vgtids[-1] > commits[-1]):
            self._set_vgtid(batch, int(vgtids[-1]))

    def _add_single_event(self, batch: ResponseBatch, number: int) -> None:
        kind = batch.events.types[number]
        if kind == wire.FIELD:
            self._add_fields(batch, number)
        elif kind == wire.JOURNAL:
            self._pending_journal = batch.bodies[number]
        else:
            self._finish_transaction(batch, number)

    def _set_vgtid(self, batch: ResponseBatch, number: int) -> None:
        self._vgtid_event = batch.first_event + number
        self._vgtid_message = batch.events.body(number)
        self._vgtid_shards = batch.bodies.get(number)
        self._vgtid_start = batch.first_byte + int(batch.events.body_starts[number])

    def _add_common_transactions(
        self, batch: ResponseBatch, commits: Ints, vgtids: Ints, firsts: Ints
    ) -> int:
        """Add the leading transactions that the fast path (:mod:`.following`) supports; return how many."""
        if not self._last_vgtid or self._held_back or self._pending_journal is not None:
            return 0
        missing = np.flatnonzero(vgtids < 0)
        count = int(missing[0]) if len(missing) else len(vgtids)
        if not count:
            return 0
        events = batch.events
        starts, ends = events.body_starts[vgtids[:count]], events.body_ends[vgtids[:count]]
        tables = events.table_numbers[commits[:count]]
        names = [f"{table.keyspace}/{table.shard}" for table in events.tables]
        followed = follow(self._last_vgtid, events.data, starts, ends, tables, names)
        count = len(followed)
        if not count:
            return 0
        self._last_vgtid = events.body(int(vgtids[count - 1]))
        self.position, _ = self.position.after(vgtid_shards(self._last_vgtid))
        numbers, epochs = np.zeros((2, len(names)), np.int64)
        for table in np.unique(tables[:count]).tolist():
            numbers[table] = self._shard_numbers.setdefault(names[table], len(self._shard_numbers))
            epochs[table] = self.position.shards[names[table]].epoch
        columns = (
            numbers[tables[:count]],
            epochs[tables[:count]],
            followed.counts,
            batch.first_byte + followed.starts,
            batch.first_byte + followed.ends,
            firsts[:count],
            batch.first_event + vgtids[:count],
            batch.first_event + commits[:count],
        )
        self._transactions.append(np.stack(columns))
        self._vgtid_event = NONE
        self._mark_complete(batch, int(commits[count - 1]))
        return count

    def _mark_complete(self, batch: ResponseBatch, number: int) -> None:
        """Mark everything up to and including an event as complete."""
        self._complete_bytes = batch.first_byte + int(batch.events.ends[number])
        self._last_complete_event = batch.first_event + number
        self._complete_rows = batch.first_row + int(np.searchsorted(batch.events.changes.events, number))

    def _add_fields(self, batch: ResponseBatch, number: int) -> None:
        events, fields = batch.events, batch.bodies[number]
        table = events.table(number)
        if not is_captured(table, self._selects):
            return
        body = events.body(number)
        for field in fields.fields:
            if field.name.startswith("@"):
                stale = StaleTabletSchema(
                    f"Illegal prefix '@' for column: {field.name}, from schema: {table.keyspace}, "
                    f"table: {table.table}",
                    remedy=TRACK_VERSIONS,
                )
                stale.table = table.table
                raise stale
        name = schema_id(fields)
        self._field_events.append((batch.first_event + number, table, name))
        if columns := [n for n, field in enumerate(fields.fields) if TYPES.get(field.type) == "JSON"]:
            self._json_columns[name] = len(fields.fields), columns
        full_name = f"{table.keyspace}.{table.table}"
        if self._is_recorded(full_name, name):
            return
        shard = f"{table.keyspace}/{table.shard}"
        known = self.position.shards.get(shard)
        # Sorts after the last transaction and before the next one.
        last_key = known.key if known is not None and is_real(known.gtid) else bytes(12)
        key = last_key + LAST_ROW.to_bytes(4, "big")
        self._records.append(
            schema_record(
                body,
                name,
                table=full_name,
                origin=shard,
                position=key + bytes.fromhex(name),
                committed_us=int(events.timestamps[number]) * 1_000_000,
                captured_us=batch.captured_us,
            )
        )

    def _finish_transaction(self, batch: ResponseBatch, number: int) -> None:
        """Advance the position to the pending VGTID, if there is one, and add the transaction."""
        if self._vgtid_event < 0:
            return
        events, captured_us = batch.events, batch.captured_us
        table = events.table(number)
        shard = f"{table.keyspace}/{table.shard}"
        kind = int(events.types[number])
        first = self._begin_event if kind == wire.COMMIT else self._vgtid_event
        before, vgtid = self.position, self._vgtid_event
        self._vgtid_event = NONE
        self._mark_complete(batch, number)
        reported = self._vgtid_shards or vgtid_shards(self._vgtid_message)
        late = not self._ended_shards.isdisjoint(reported)  # sent before VTGate switched to the new shards
        if late:
            reported = {name: reported.get(name, known.gtid) for name, known in before.shards.items()}
        self.position, new = before.after(reported)
        shard_position = self.position.shards.get(shard)
        # Transactions without a timestamp belong to a table copy, whose packets share a position.
        is_timed = bool(events.timestamps[number])
        if shard_position is not None and is_timed and _repeats(before.shards.get(shard), shard_position):
            self.position, self._pending_journal = before, None
            self.repeated += 1
            return
        self._last_vgtid = b"" if late else self._vgtid_message
        for child in new:
            self._record_lineage(child, self.position.shards[child], captured_us)
        if shard_position is not None:
            shard_number = self._shard_numbers.setdefault(shard, len(self._shard_numbers))
            epoch, count = shard_position.epoch, shard_position.set.count
            text = shard_position.gtid.encode()
            start = self._vgtid_start + self._vgtid_message.index(text)
            step = (
                shard_number,
                epoch,
                count,
                start,
                start + len(text),
                first,
                vgtid,
                self._last_complete_event,
            )
            self._transactions.append(np.array(step, np.int64)[:, None])
        if kind == wire.DDL and shard_position is not None:
            self._add_statement(events, number, shard, shard_position, captured_us)
        if self._pending_journal is not None:
            journal, self._pending_journal = self._pending_journal, None
            self._add_journal(journal, shard, before, captured_us)
        if self._held_back:
            self.position = Position({**self.position.shards, **self._held_back})

    def _add_statement(
        self, events: Events, number: int, shard: str, shard_position: ShardPosition, captured_us: int
    ) -> None:
        """Add the records of a DDL statement: its text, and the truncations and drops of captured tables."""
        payload = events.body(number)
        position = shard_position.key + bytes(4)
        # The event of a statement needs a VGTID, and no record of kind transaction holds it.
        vgtid = json.dumps(dict(self._vgtid_shards or vgtid_shards(self._vgtid_message)))

        def record(table: str | None, position: bytes, kind: str) -> dict[str, Any]:
            built = schema_record(
                recorded_text(payload),
                DDL,
                table=table,
                origin=shard,
                position=position,
                committed_us=int(events.timestamps[number]) * 1_000_000,
                captured_us=captured_us,
                kind=kind,
            )
            return {**built, "transaction": vgtid}

        self._records.append(record(None, position, SCHEMA))
        keyspace = shard.partition("/")[0]
        for one in read_statement(payload.decode(errors="replace")):
            kind = _ENDS.get(one.kind)
            table = ShardTable(keyspace, shard.partition("/")[2], one.table)
            if kind is None or not is_captured(table, self._selects):
                continue
            self._records.append(record(f"{keyspace}.{one.table}", position + b"\x01", kind))

    def _add_journal(self, journal: Any, shard: str, before: Position, captured_us: int) -> None:
        """Apply a reshard once the journals of all participants have arrived.

        VTGate sends a journal before it waits for the others. A stream that is reopened after one of them
        would block forever, so until all have arrived, the position keeps each participant before its
        journal.
        """
        if journal.migration_type != _SHARDS or shard not in before.shards:
            return
        participants = {f"{p.keyspace}/{p.shard}" for p in journal.participants}
        targets = {f"{s.keyspace}/{s.shard}": s.gtid for s in journal.shard_gtids}
        log.warning("Reshard of %s into %s", ", ".join(sorted(participants)), ", ".join(targets))
        arrived = self._journal_shards.setdefault(journal.id, set())
        arrived.add(shard)
        self._held_back[shard] = before.shards[shard]
        if not arrived >= participants & set(self.position.shards):
            return
        after = self.position.resharded(participants, targets)
        if self._stops_at_journals:
            self.resharded = after
        elif participants <= set(
            self.position.shards
        ):  # else VTGate can't follow the reshard, and returns an error
            self.position, self._last_vgtid = after, b""
            self._ended_shards |= participants
            self._held_back = {
                held: before for held, before in self._held_back.items() if held not in participants
            }
        else:
            return
        for child in targets:
            self._record_lineage(child, after.shards[child], captured_us)

    def _record_lineage(self, shard: str, shard_position: ShardPosition, captured_us: int) -> None:
        log.warning("Reading shard %s, created by a reshard of %s", shard, ", ".join(shard_position.parents))
        self._records.append(
            schema_record(
                json.dumps({shard: list(shard_position.parents)}).encode(),
                LINEAGE,
                table=None,
                origin=shard,
                position=shard_position.epoch.to_bytes(4, "big") + bytes(12),
                committed_us=0,
                captured_us=captured_us,
            )
        )

    def _drop_incomplete(self) -> None:
        """Discard the events after the last complete transaction."""
        del self._buffer[self._complete_bytes :]
        self._event_count, self._row_count = self._last_complete_event + 1, self._complete_rows
        self._field_events = [one for one in self._field_events if one[0] < self._event_count]
        self._vgtid_event, self._pending_journal = NONE, None

    def _close_slice(self, captured_us: int) -> None:
        if self._last_complete_event < 0:
            return
        through = self._last_complete_event
        if self._transactions and (self._complete_rows or self._keep_empty):
            data = bytes(self._buffer[: self._complete_bytes])
            fields_in_slice = tuple(
                (event, name) for event, _, name in self._field_events if event <= through
            )
            transactions = Transactions(
                tuple(self._shard_numbers), *np.concatenate(self._transactions, axis=1)
            )
            json_columns = dict(self._json_columns)
            self._slices.append(
                StreamSlice(
                    data, transactions, dict(self._schema_ids), fields_in_slice, captured_us, json_columns
                )
            )
            self._sliced_bytes += len(data)
            self._sliced_changes += self._complete_rows
        self._schema_ids |= {table: name for event, table, name in self._field_events if event <= through}
        self._field_events = [
            (e - through - 1, table, name) for e, table, name in self._field_events if e > through
        ]
        del self._buffer[: self._complete_bytes]
        self._event_count -= through + 1
        self._begin_event = max(self._begin_event - through - 1, 0)
        self._vgtid_start -= self._complete_bytes
        self._vgtid_event = self._vgtid_event - through - 1 if self._vgtid_event >= 0 else NONE
        self._row_count -= self._complete_rows
        self._complete_rows = 0
        self._complete_bytes, self._last_complete_event = 0, NONE
        self._transactions = []
        self._shard_numbers = {}


def _repeats(before: ShardPosition | None, after: ShardPosition) -> bool:
    """Return whether the shard already contains the transactions of a step, in the same epoch."""
    if before is None or after.epoch != before.epoch or after.set.count > before.set.count:
        return False
    return before.set.contains(after.set)
