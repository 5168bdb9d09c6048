"""A stream cut behind whole transactions.

A response is but a batch of events: a transaction may span several of them. What came last and isn't complete
stays here until its COMMIT comes, and is dropped with the stream. The stream's place moves with whole
transactions alone, so a stream that is opened there again gives what was dropped.

A transaction that VTGate begins again (it sends large ones in parts, and its own stream may break) counts
from its last BEGIN. One that the place has already, by its shard's GTID set, came before: it is left out.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

import numpy as np

from airflow_cdc_provider.changes.record import DROP, QUARANTINE, SCHEMA, TRUNCATE
from airflow_cdc_provider.changes.spans import Ints
from airflow_cdc_provider.sources.vitess import wire
from airflow_cdc_provider.sources.vitess.ddl import read_statement
from airflow_cdc_provider.sources.vitess.failures import SchemaBehind
from airflow_cdc_provider.sources.vitess.following import follow
from airflow_cdc_provider.sources.vitess.gtid import is_real
from airflow_cdc_provider.sources.vitess.pieces import FEW, NONE, Piece, last_before, of_types, read_bodies
from airflow_cdc_provider.sources.vitess.position import LAST_ROW, Position, ShardPlace, vgtid_shards
from airflow_cdc_provider.sources.vitess.records import (
    StreamSlice,
    Transactions,
    is_captured,
    schema_record,
)
from airflow_cdc_provider.sources.vitess.schema_ids import DDL, LINEAGE, schema_id
from airflow_cdc_provider.sources.vitess.wire import Events, ShardTable, scan

log = logging.getLogger(__name__)

_ENDS: Final = {"truncate": TRUNCATE, "drop": DROP}
_SHARDS: Final = 1
"""``migration_type`` of a journal that tells of a reshard."""
_SINGLES: Final = (wire.FIELD, wire.JOURNAL, wire.DDL, wire.OTHER)
"""Types of events that are taken one by one; they are few."""


class Cutter:
    """Takes responses of one stream and gives slices of whole transactions.

    Args:
        place: Where the stream was opened.
        selects: Tells whether ``keyspace.table`` is captured.
        knows: Tells whether the fields of a table, by name and ``schema_id``, are recorded already.
        slice_bytes: Where to cut, about.
        keep_empty: Whether slices without a row are kept.
        stops_at_journals: Whether the server ends the streams of shards that are resharded.
    """

    def __init__(
        self,
        place: Position,
        selects: Callable[[str], bool],
        knows: Callable[[str, str], bool],
        *,
        slice_bytes: int,
        keep_empty: bool,
        stops_at_journals: bool,
    ) -> None:
        self.place = place
        self.resharded: Position | None = None
        """Where the stream stands behind a reshard that ends it; :attr:`place` is before it."""
        self.repeated = 0
        """How many transactions came that the place had already."""
        self._bytes = 0
        self._changes = 0
        self._selects = selects
        self._knows = knows
        self._slice_bytes = slice_bytes
        self._keep_empty = keep_empty
        self._stops_at_journals = stops_at_journals
        self._data = bytearray()
        self._events = 0
        self._rows = 0
        self._whole_rows = 0
        self._end = 0  # of the last whole transaction, in the data
        self._last = NONE  # its last event
        self._known: dict[ShardTable, str] = {}
        self._seen: list[tuple[int, ShardTable, str]] = []
        self._shards: dict[str, int] = {}
        self._done: list[Ints] = []
        """Columns of transactions, as :class:`.records.Transactions` has them behind its names."""
        self._reached = place.to_vgtid().SerializeToString()
        """The VGTID message of the place, where it is one; else empty."""
        self._begin = 0
        self._vgtid = NONE
        self._told = b""
        self._told_shards: Mapping[str, str] | None = None
        self._told_at = 0
        self._journal: Any = None
        self._journals: dict[int, set[str]] = {}
        self._held: dict[str, ShardPlace] = {}
        self._ended: set[str] = set()
        self._slices: list[StreamSlice] = []
        self._records: list[dict[str, Any]] = []

    @property
    def size(self) -> int:
        """How many bytes of whole transactions wait to be given."""
        return self._bytes + self._end

    @property
    def changes(self) -> int:
        """How many row changes wait to be given, those of the transaction that isn't whole included."""
        return self._changes + self._rows

    def take(self, response: bytes, captured_us: int) -> Events:
        """Take a response (see :meth:`take_all`)."""
        return self.take_all((response,), captured_us)

    def take_all(self, responses: Sequence[bytes], captured_us: int) -> Events:
        """Take responses; those of many small transactions cost less together.

        Raises:
            BrokenMessage: One can't be read; nothing of them is taken.
            CorruptInput: Positions don't follow those before.
            SchemaBehind: A tablet doesn't know the names of a table's columns.
        """
        data = b"".join(responses)
        ends = np.cumsum([len(response) for response in responses], dtype=np.int64)
        events = scan(data, np.concatenate([[0], ends[:-1]]), ends)
        bodies = read_bodies(events)
        piece = Piece(events, bodies, self._events, len(self._data), self._rows, captured_us)
        self._data += data
        self._events += len(events)
        self._rows += len(events.changes)
        if len(events) <= FEW:
            self._take_few(piece)
        else:
            self._take_many(piece)
        if self.resharded is not None:
            self._drop_rest()
        if self._end >= self._slice_bytes:
            self._cut(captured_us)
        return events

    def set_apart(self, response: bytes, reason: str, captured_us: int) -> None:
        """Keep a response that can't be read as a record of kind ``quarantine``, and go on without it.

        Rows of it are missing, and if it had a VGTID, the other rows of that transaction too.
        """
        shard = next(iter(self.place.shards), "")
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

    def give(self, captured_us: int) -> tuple[list[StreamSlice], list[dict[str, Any]]]:
        """Return the slices of all whole transactions since the last call, and records beside them."""
        self._cut(captured_us)
        slices, self._slices = self._slices, []
        records, self._records = self._records, []
        self._bytes = self._changes = 0
        return slices, records

    def _take_few(self, piece: Piece) -> None:
        for number, kind in enumerate(piece.events.types.tolist()):
            if kind == wire.BEGIN:
                self._begin = piece.first_event + number
            elif kind == wire.VGTID:
                self._take_vgtid(piece, number)
            elif kind == wire.COMMIT:
                self._end_step(piece, number)
            elif kind in _SINGLES:
                self._take_single(piece, number)
            if self.resharded is not None:
                break

    def _take_many(self, piece: Piece) -> None:
        first = 0
        for number in [*of_types(piece.events, _SINGLES).tolist(), len(piece.events)]:
            self._take_plain(piece, first, number)
            if self.resharded is None and number < len(piece.events):
                self._take_single(piece, number)
            if self.resharded is not None:
                break
            first = number + 1

    def _take_plain(self, piece: Piece, first: int, last: int) -> None:
        """Take events none of which is of :data:`_SINGLES`."""
        types = piece.events.types[first:last]
        begins = first + np.flatnonzero(types == wire.BEGIN)
        vgtids = first + np.flatnonzero(types == wire.VGTID)
        commits = first + np.flatnonzero(types == wire.COMMIT)
        at = 0
        if len(commits):
            own = last_before(vgtids, commits)
            # A VGTID holds for what it stands before, and no longer.
            own[1:][own[1:] < commits[:-1]] = NONE
            whose = last_before(begins, commits)
            firsts = np.where(whose >= 0, piece.first_event + whose, self._begin)
        while at < len(commits):
            count = self._follow(piece, commits[at:], own[at:], firsts[at:])
            at += count
            if at < len(commits):
                if own[at] >= 0:
                    self._take_vgtid(piece, int(own[at]))
                self._begin = int(firsts[at])
                self._end_step(piece, int(commits[at]))
                at += 1
            if self.resharded is not None:
                return
        if len(begins):
            self._begin = piece.first_event + int(begins[-1])
        if len(vgtids) and (not len(commits) or vgtids[-1] > commits[-1]):
            self._take_vgtid(piece, int(vgtids[-1]))

    def _take_single(self, piece: Piece, number: int) -> None:
        kind = piece.events.types[number]
        if kind == wire.FIELD:
            self._take_fields(piece, number)
        elif kind == wire.JOURNAL:
            self._journal = piece.bodies[number]
        else:
            self._end_step(piece, number)

    def _take_vgtid(self, piece: Piece, number: int) -> None:
        self._vgtid = piece.first_event + number
        self._told = piece.events.body(number)
        self._told_shards = piece.bodies.get(number)
        self._told_at = piece.first_byte + int(piece.events.body_starts[number])

    def _follow(self, piece: Piece, commits: Ints, vgtids: Ints, firsts: Ints) -> int:
        """Take the transactions that come first and are usual ones (:mod:`.following`); return how many."""
        if not self._reached or self._held or self._journal is not None:
            return 0
        missing = np.flatnonzero(vgtids < 0)
        count = int(missing[0]) if len(missing) else len(vgtids)
        if not count:
            return 0
        events = piece.events
        starts, ends = events.body_starts[vgtids[:count]], events.body_ends[vgtids[:count]]
        tables = events.table_numbers[commits[:count]]
        names = [f"{table.keyspace}/{table.shard}" for table in events.tables]
        followed = follow(self._reached, events.data, starts, ends, tables, names)
        count = len(followed)
        if not count:
            return 0
        self._reached = events.body(int(vgtids[count - 1]))
        self.place, _ = self.place.after(vgtid_shards(self._reached))
        numbers, epochs = np.zeros((2, len(names)), np.int64)
        for table in np.unique(tables[:count]).tolist():
            numbers[table] = self._shards.setdefault(names[table], len(self._shards))
            epochs[table] = self.place.shards[names[table]].epoch
        columns = (
            numbers[tables[:count]],
            epochs[tables[:count]],
            followed.counts,
            piece.first_byte + followed.starts,
            piece.first_byte + followed.ends,
            firsts[:count],
            piece.first_event + vgtids[:count],
            piece.first_event + commits[:count],
        )
        self._done.append(np.stack(columns))
        self._vgtid = NONE
        self._end_at(piece, int(commits[count - 1]))
        return count

    def _end_at(self, piece: Piece, number: int) -> None:
        """Note that everything up to an event is whole."""
        self._end = piece.first_byte + int(piece.events.ends[number])
        self._last = piece.first_event + number
        self._whole_rows = piece.first_row + int(np.searchsorted(piece.events.changes.events, number))

    def _take_fields(self, piece: Piece, number: int) -> None:
        events, fields = piece.events, piece.bodies[number]
        table = events.table(number)
        if not is_captured(table, self._selects):
            return
        body = events.body(number)
        for field in fields.fields:
            if field.name.startswith("@"):
                raise SchemaBehind(
                    f"Illegal prefix '@' for column: {field.name}, from schema: {table.keyspace}, "
                    f"table: {table.table}",
                    remedy="if it stays, start vttablets with --track-schema-versions",
                )
        name = schema_id(fields)
        self._seen.append((piece.first_event + number, table, name))
        full_name = f"{table.keyspace}.{table.table}"
        if self._knows(full_name, name):
            return
        shard = f"{table.keyspace}/{table.shard}"
        place = self.place.shards.get(shard)
        # Behind all of the last transaction, before all of the next one.
        key = (place.key if place is not None and is_real(place.gtid) else bytes(12)) + LAST_ROW.to_bytes(
            4, "big"
        )
        self._records.append(
            schema_record(
                body,
                name,
                table=full_name,
                origin=shard,
                position=key + bytes.fromhex(name),
                committed_us=int(events.timestamps[number]) * 1_000_000,
                captured_us=piece.captured_us,
            )
        )

    def _end_step(self, piece: Piece, number: int) -> None:
        """Move the place to the VGTID that came, if one did, and note the transaction."""
        if self._vgtid < 0:
            return
        events, captured_us = piece.events, piece.captured_us
        table = events.table(number)
        shard = f"{table.keyspace}/{table.shard}"
        kind = int(events.types[number])
        first = self._begin if kind == wire.COMMIT else self._vgtid
        before, vgtid = self.place, self._vgtid
        self._vgtid = NONE
        self._end_at(piece, number)
        told = self._told_shards or vgtid_shards(self._told)
        late = not self._ended.isdisjoint(told)  # sent before VTGate had followed the journals
        if late:
            told = {name: told.get(name, place.gtid) for name, place in before.shards.items()}
        self.place, new = before.after(told)
        place = self.place.shards.get(shard)
        # What bears no time is a copy's, whose packets share a position.
        if place is not None and events.timestamps[number] and _repeats(before.shards.get(shard), place):
            self.place, self._journal = before, None
            self.repeated += 1
            return
        self._reached = b"" if late else self._told
        for child in new:
            self._tell_of_child(child, self.place.shards[child], captured_us)
        if place is not None:
            own = self._shards.setdefault(shard, len(self._shards))
            text = place.gtid.encode()
            start = self._told_at + self._told.index(text)
            step = (own, place.epoch, place.set.count, start, start + len(text), first, vgtid, self._last)
            self._done.append(np.array(step, np.int64)[:, None])
        if kind == wire.DDL and place is not None:
            self._take_statement(events, number, shard, place, captured_us)
        if self._journal is not None:
            journal, self._journal = self._journal, None
            self._take_journal(journal, shard, before, captured_us)
        if self._held:
            self.place = Position({**self.place.shards, **self._held})

    def _take_statement(
        self, events: Events, number: int, shard: str, place: ShardPlace, captured_us: int
    ) -> None:
        """Make records of a statement: its text, and what ends the life of a table's rows."""
        payload = events.body(number)
        position = place.key + bytes(4)
        # No record of kind transaction has the VGTID of a statement, which its event is to tell.
        vgtid = json.dumps(dict(self._told_shards or vgtid_shards(self._told)))

        def record(table: str | None, position: bytes, kind: str) -> dict[str, Any]:
            made = schema_record(
                payload,
                DDL,
                table=table,
                origin=shard,
                position=position,
                committed_us=int(events.timestamps[number]) * 1_000_000,
                captured_us=captured_us,
                kind=kind,
            )
            return {**made, "transaction": vgtid}

        self._records.append(record(None, position, SCHEMA))
        keyspace = shard.partition("/")[0]
        for one in read_statement(payload.decode(errors="replace")):
            kind = _ENDS.get(one.kind)
            table = ShardTable(keyspace, shard.partition("/")[2], one.table)
            if kind is None or not is_captured(table, self._selects):
                continue
            self._records.append(record(f"{keyspace}.{one.table}", position + b"\x01", kind))

    def _take_journal(self, journal: Any, shard: str, before: Position, captured_us: int) -> None:
        """Follow a reshard when the journals of all shards that took part came.

        VTGate sends a journal before it waits for the others: a stream that is opened again behind one of
        them would wait for ever. So until all came, their shards stand before theirs.
        """
        if journal.migration_type != _SHARDS:
            return
        participants = {f"{p.keyspace}/{p.shard}" for p in journal.participants}
        targets = {f"{s.keyspace}/{s.shard}": s.gtid for s in journal.shard_gtids}
        log.warning("%s turn into %s", ", ".join(sorted(participants)), ", ".join(targets))
        arrived = self._journals.setdefault(journal.id, set())
        arrived.add(shard)
        self._held[shard] = before.shards[shard]
        if not arrived >= participants & set(self.place.shards):
            return
        after = self.place.resharded(participants, targets)
        if self._stops_at_journals:
            self.resharded = after
        elif participants <= set(self.place.shards):  # else VTGate can't follow, and says so
            self.place, self._reached = after, b""
            self._ended |= participants
            self._held = {held: place for held, place in self._held.items() if held not in participants}
        else:
            return
        for child in targets:
            self._tell_of_child(child, after.shards[child], captured_us)

    def _tell_of_child(self, shard: str, place: ShardPlace, captured_us: int) -> None:
        log.warning("%s is read now; it was made of %s", shard, ", ".join(place.parents))
        self._records.append(
            schema_record(
                json.dumps({shard: list(place.parents)}).encode(),
                LINEAGE,
                table=None,
                origin=shard,
                position=place.epoch.to_bytes(4, "big") + bytes(12),
                committed_us=0,
                captured_us=captured_us,
            )
        )

    def _drop_rest(self) -> None:
        """Forget what came behind the last whole transaction."""
        del self._data[self._end :]
        self._events, self._rows = self._last + 1, self._whole_rows
        self._seen = [one for one in self._seen if one[0] < self._events]
        self._vgtid, self._journal = NONE, None

    def _cut(self, captured_us: int) -> None:
        if self._last < 0:
            return
        through = self._last
        if self._done and (self._whole_rows or self._keep_empty):
            data = bytes(self._data[: self._end])
            seen = tuple((event, name) for event, _, name in self._seen if event <= through)
            done = Transactions(tuple(self._shards), *np.concatenate(self._done, axis=1))
            self._slices.append(StreamSlice(data, done, dict(self._known), seen, captured_us))
            self._bytes += len(data)
            self._changes += self._whole_rows
        self._known |= {table: name for event, table, name in self._seen if event <= through}
        self._seen = [(e - through - 1, table, name) for e, table, name in self._seen if e > through]
        del self._data[: self._end]
        self._events -= through + 1
        self._begin = max(self._begin - through - 1, 0)
        self._told_at -= self._end
        self._vgtid = self._vgtid - through - 1 if self._vgtid >= 0 else NONE
        self._rows -= self._whole_rows
        self._whole_rows = 0
        self._end, self._last = 0, NONE
        self._done = []
        self._shards = {}


def _repeats(before: ShardPlace | None, place: ShardPlace) -> bool:
    """Tell whether a step leads nowhere: its shard has been there, in the same epoch."""
    if before is None or place.epoch != before.epoch or place.set.count > before.set.count:
        return False
    return before.set.contains(place.set)
