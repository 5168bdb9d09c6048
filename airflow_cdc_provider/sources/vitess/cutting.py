"""A stream cut behind whole transactions.

A response is but a batch of events: a transaction may span several of them. What came last and isn't complete
stays here until its COMMIT comes, and is dropped with the stream. The stream's place moves with whole
transactions alone, so a stream that is opened there again gives what was dropped.

A transaction that VTGate begins again (it sends large ones in parts, and its own stream may break) counts
from its last BEGIN.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from airflow_cdc_provider.changes.record import DROP, SCHEMA, TRUNCATE
from airflow_cdc_provider.sources.vitess import wire
from airflow_cdc_provider.sources.vitess.ddl import read_statement
from airflow_cdc_provider.sources.vitess.failures import SchemaBehind
from airflow_cdc_provider.sources.vitess.gtid import is_real
from airflow_cdc_provider.sources.vitess.position import LAST_ROW, Position, ShardPlace, vgtid_shards
from airflow_cdc_provider.sources.vitess.protocol import FieldEvent, Journal
from airflow_cdc_provider.sources.vitess.records import (
    StreamSlice,
    Transaction,
    boundary,
    is_captured,
    schema_record,
)
from airflow_cdc_provider.sources.vitess.schema_ids import DDL, LINEAGE, schema_id
from airflow_cdc_provider.sources.vitess.wire import Events, ShardTable, scan

log = logging.getLogger(__name__)

_ENDS: Final = {"truncate": TRUNCATE, "drop": DROP}
_SHARDS: Final = 1
"""``migration_type`` of a journal that tells of a reshard."""


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
        self._end = 0  # of the last whole transaction, in the data
        self._known: dict[ShardTable, str] = {}
        self._seen: list[tuple[int, ShardTable, str]] = []
        self._done: list[Transaction] = []
        self._begin = 0
        self._vgtid = -1
        self._told: Mapping[str, str] = {}
        self._journal: Any = None
        self._journals: dict[int, set[str]] = {}
        self._held: dict[str, ShardPlace] = {}
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
        """Take a response.

        Raises:
            CorruptInput: It is broken.
            SchemaBehind: A tablet doesn't know the names of a table's columns.
        """
        events = scan(response)
        base, place = self._events, len(self._data)
        self._data += response
        self._events += len(events)
        self._rows += len(events.changes)
        others = np.flatnonzero(events.types != wire.ROW)
        for number, kind in zip(others.tolist(), events.types[others].tolist(), strict=True):
            if kind == wire.BEGIN:
                self._begin = base + number
            elif kind == wire.FIELD:
                self._take_fields(events, number, base, captured_us)
            elif kind == wire.VGTID:
                self._vgtid = base + number
                self._told = vgtid_shards(events.body(number))
            elif kind == wire.JOURNAL:
                self._journal = Journal.FromString(events.body(number))
            elif boundary(kind) and self._vgtid >= 0:
                self._end_step(events, number, base, captured_us)
                self._end = place + int(events.ends[number])
                if self.resharded is not None:
                    self._drop_rest()
                    break
        if self._end >= self._slice_bytes:
            self._cut(captured_us)
        return events

    def give(self, captured_us: int) -> tuple[list[StreamSlice], list[dict[str, Any]]]:
        """Return the slices of all whole transactions since the last call, and records beside them."""
        self._cut(captured_us)
        slices, self._slices = self._slices, []
        records, self._records = self._records, []
        self._bytes = self._changes = 0
        return slices, records

    def _take_fields(self, events: Events, number: int, base: int, captured_us: int) -> None:
        table = events.table(number)
        if not is_captured(table, self._selects):
            return
        body = events.body(number)
        fields = FieldEvent.FromString(body)
        for field in fields.fields:
            if field.name.startswith("@"):
                raise SchemaBehind(
                    f"Illegal prefix '@' for column: {field.name}, from schema: {table.keyspace}, "
                    f"table: {table.table}",
                    remedy="if it stays, start vttablets with --track-schema-versions",
                )
        name = schema_id(fields)
        self._seen.append((base + number, table, name))
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
                captured_us=captured_us,
            )
        )

    def _end_step(self, events: Events, number: int, base: int, captured_us: int) -> None:
        """Move the place to the VGTID that came, and note the transaction."""
        table = events.table(number)
        shard = f"{table.keyspace}/{table.shard}"
        last = base + number
        kind = int(events.types[number])
        first = self._begin if kind == wire.COMMIT else self._vgtid
        before = self.place
        self.place, new = before.after(self._told)
        for child in new:
            self._tell_of_child(child, self.place.shards[child], captured_us)
        place = self.place.shards.get(shard)
        if place is not None:
            count = place.set.count
            step = Transaction(shard, place.epoch, count, place.gtid, first, self._vgtid, last)
            self._done.append(step)
        if kind == wire.DDL and place is not None:
            self._take_statement(events, number, shard, place, captured_us)
        self._vgtid = -1
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

        def record(table: str | None, position: bytes, kind: str) -> dict[str, Any]:
            return schema_record(
                payload,
                DDL,
                table=table,
                origin=shard,
                position=position,
                committed_us=int(events.timestamps[number]) * 1_000_000,
                captured_us=captured_us,
                kind=kind,
            )

        self._records.append(record(None, position, SCHEMA))
        keyspace = shard.partition("/")[0]
        for one in read_statement(payload.decode(errors="replace")):
            kind = _ENDS.get(one.kind)
            table = ShardTable(keyspace, shard.partition("/")[2], one.table)
            if kind is None or not is_captured(table, self._selects):
                continue
            self._records.append(record(f"{keyspace}.{one.table}", position + b"\x01", kind))

    def _take_journal(self, journal: Any, shard: str, before: Position, captured_us: int) -> None:
        if journal.migration_type != _SHARDS:
            return
        participants = [f"{p.keyspace}/{p.shard}" for p in journal.participants]
        targets = {f"{s.keyspace}/{s.shard}": s.gtid for s in journal.shard_gtids}
        log.warning("%s turn into %s", ", ".join(participants), ", ".join(targets))
        if not self._stops_at_journals:
            return
        # The journal of each participant ends its stream. A stream that is opened again must give it again,
        # so its shard stands before it.
        arrived = self._journals.setdefault(journal.id, set())
        arrived.add(shard)
        self._held[shard] = before.shards[shard]
        if arrived >= set(participants) & set(self.place.shards):
            self.resharded = self.place.resharded(participants, targets)
            for child in targets:
                self._tell_of_child(child, self.resharded.shards[child], captured_us)

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
        self._events = self._done[-1].last + 1 if self._done else 0
        self._seen = [one for one in self._seen if one[0] < self._events]
        self._vgtid, self._journal = -1, None

    def _cut(self, captured_us: int) -> None:
        if not self._done:
            return
        through = self._done[-1].last
        part = StreamSlice(
            bytes(self._data[: self._end]),
            tuple(self._done),
            dict(self._known),
            tuple((event, name) for event, _, name in self._seen if event <= through),
            captured_us,
        )
        rest = scan(bytes(self._data[self._end :]))
        rows_left = len(rest.changes)
        rows = self._rows - rows_left
        if rows or self._keep_empty:
            self._slices.append(part)
            self._bytes += len(part.data)
            self._changes += rows
        self._known |= {table: name for event, table, name in self._seen if event <= through}
        self._seen = [(e - through - 1, table, name) for e, table, name in self._seen if e > through]
        del self._data[: self._end]
        self._events -= through + 1
        self._begin = max(self._begin - through - 1, 0)
        self._vgtid = self._vgtid - through - 1 if self._vgtid >= 0 else -1
        self._rows = rows_left
        self._end = 0
        self._done = []
