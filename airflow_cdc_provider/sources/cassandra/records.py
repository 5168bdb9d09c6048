"""Build batches of ``CHANGE_SCHEMA`` from the contents of a segment.

Most entries have one update, which becomes a change without any schema: its bytes are copied verbatim. Only
a mutation of several updates must be parsed to find the end of each. Records, by table:

* selected: a change per update;
* former (dropped, perhaps re-created under another id): likewise, under its name;
* ``system.local``: a record of kind ``truncate`` per truncation of a selected table
  (:mod:`.commit_log.truncation`);
* ``system_schema``: a record of kind ``schema`` per update, its bytes as in a change; together they are the
  schema history (:mod:`.schema_history`). Of a keyspace with too many, one that says so;
* unknown: the whole mutation in quarantine, with the table id in its reason, so that :mod:`.quarantine` can
  read it when the schema is known;
* all others (not selected, views, counters, system tables): none; they are counted.

Unreadable bytes become a record of kind ``quarantine`` with their position and the reason; reading continues
after them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any, Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.changes.record import (
    CHANGE,
    CHANGE_SCHEMA,
    LAST_MOMENT_US,
    QUARANTINE,
    SCHEMA,
    TRUNCATE,
    change_batch,
)
from airflow_cdc_provider.exceptions import CdcError, CorruptInput, SchemaUnknown
from airflow_cdc_provider.formats.arrow_bytes import column_of, fixed_width_binary
from airflow_cdc_provider.formats.byte_kernels import copy
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, walker
from airflow_cdc_provider.sources.cassandra.commit_log import tables as roles
from airflow_cdc_provider.sources.cassandra.commit_log.framing import (
    DAMAGE_AT,
    DAMAGE_LENGTH,
    DAMAGE_POSITION,
    DAMAGE_REASON,
    END,
    LENGTH,
    START,
    find_entries,
)
from airflow_cdc_provider.sources.cassandra.commit_log.sections import CorruptRange
from airflow_cdc_provider.sources.cassandra.commit_log.tables import LogTables
from airflow_cdc_provider.sources.cassandra.commit_log.truncation import read_local_updates
from airflow_cdc_provider.sources.cassandra.commit_log.updates import (
    BEGIN,
    ENTRY,
    ERROR_OFFSET,
    KEY_BEGIN,
    KEY_STOP,
    ORDINAL,
    REASON,
    STOP,
    TABLE,
    find_updates,
)
from airflow_cdc_provider.sources.cassandra.decoding.mutation import EPOCH_US
from airflow_cdc_provider.sources.cassandra.payload import (
    DAMAGED,
    SKIPPED_TAG,
    Position,
    damage_payload,
    mutation_payload,
)
from airflow_cdc_provider.sources.cql.reasons import UNKNOWN_COLUMN, UNKNOWN_TABLE, describe
from airflow_cdc_provider.sources.cql.system_schema import SYSTEM_KEYSPACES
from airflow_cdc_provider.sources.cql.wire import read_uvint

_SAMPLE_BYTES: Final = 64 * 1024
_ROWS_AT_ONCE: Final = 4096
_POSITION_BYTES: Final = 16
_TABLE_ID_BYTES: Final = 16
_EMPTY: Final = 0x01


@dataclass
class ReadCounts:
    """Counts of a reader: updates by outcome, and what it could not read.

    Args:
        entries: Valid entries.
        changes: Updates of selected tables, including dropped ones.
        skipped: Skipped updates, by reason: ``unselected``, ``view``, ``counter``, ``system``, ``schema``.
        truncations: Truncations of selected tables.
        schema_changes: Updates of ``system_schema`` that concern users' keyspaces.
        quarantined: Quarantined mutations.
        damaged: Quarantined ranges of segments.
    """

    entries: int = 0
    changes: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    truncations: int = 0
    schema_changes: int = 0
    quarantined: int = 0
    damaged: int = 0


_MOST_SCHEMA_BYTES: Final = 1 << 20
"""Recorded updates of the schema of a keyspace, of one slice of a segment."""
_SKIPPED: Final = {
    roles.UNSELECTED: "unselected",
    roles.VIEW: "view",
    roles.COUNTER: "counter",
    roles.SYSTEM: "system",
}


@dataclass
class SegmentRecords:
    """Builds records from the contents of one segment.

    Where schema updates of a keyspace are skipped, the first one's position is recorded, and all later ones
    of the segment are skipped, too: the keyspace's history is unknown from there on.

    Args:
        full: Keyspaces whose schema updates are skipped, and those of a keyspace above 1 MiB of one segment;
            None for no limit.
        schema_bytes: Size of the schema updates by keyspace, with those that were skipped.
        skipping: Keyspaces of which updates were skipped.
    """

    origin: str
    segment: int
    tables: LogTables
    strict: bool
    counts: ReadCounts
    full: frozenset[bytes] | None = None
    schema_bytes: Counter[bytes] = field(default_factory=Counter)
    skipping: set[bytes] = field(default_factory=set)

    def read(
        self, plain: Sequence[bytes], positions: Sequence[int], version: int, after: int
    ) -> Iterator[pa.RecordBatch]:
        """Read the plain bytes of sections."""
        data = np.frombuffer(b"".join(plain) or b"\0", np.uint8)
        ends = np.cumsum([len(part) for part in plain])
        starts = ends - [len(part) for part in plain]
        entries, damage = find_entries(data, starts, ends, np.array(positions, np.int64))
        yield from self.damage(
            CorruptRange(
                position=int(line[DAMAGE_POSITION]),
                length=int(line[DAMAGE_LENGTH]),
                reason=int(line[DAMAGE_REASON]),
                sample=data[line[DAMAGE_AT] :][: min(line[DAMAGE_LENGTH], _SAMPLE_BYTES)].tobytes(),
            )
            for line in damage
            if line[DAMAGE_POSITION] >= after
        )
        if after:
            entries = entries[entries[:, END] > after]
        self.counts.entries += len(entries)
        yield from self.split(
            data, entries, np.full(len(entries), version, np.int64), np.zeros(len(entries), np.int64)
        )

    def split(
        self, data: Bytes, entries: Ints, versions: Ints, first_ordinals: Ints
    ) -> Iterator[pa.RecordBatch]:
        """Build records from mutations."""
        updates = find_updates(data, entries, versions, first_ordinals, self.tables)
        for role, name in _SKIPPED.items():
            if count := int(updates.by_role[role]):
                self.counts.skipped[name] = self.counts.skipped.get(name, 0) + count
        found = self.tables.roles[updates.found[:, TABLE]]
        captured = updates.found[(found == roles.SELECTED) | (found == roles.FORMER)]
        if len(captured):
            self.counts.changes += len(captured)
            yield self._changes(data, entries, versions, captured)
        rows = (self._quarantined(data, entries, versions, line) for line in updates.failed)
        local = self._local(data, entries, versions, updates.found[found == roles.LOCAL])
        schema = self._schema(data, entries, versions, updates.found[found == roles.SCHEMA])
        yield from self._few(chain(rows, local, schema))

    def damage(self, damage: Iterable[CorruptRange]) -> Iterator[pa.RecordBatch]:
        """Build quarantine records of corrupt ranges."""
        yield from self._few(map(self._damaged, damage))

    def _damaged(self, found: CorruptRange) -> dict[str, Any]:
        reason = describe(found.reason, f"{found.length} bytes from position {found.position}")
        self._raise_if_strict(CorruptInput, reason)
        self.counts.damaged += 1
        return {
            "kind": QUARANTINE,
            "position": Position(self.segment, found.position, DAMAGED).pack(),
            "reason": reason,
            "payload": damage_payload(found.length, found.sample[:_SAMPLE_BYTES]),
        }

    def _changes(self, data: Bytes, entries: Ints, versions: Ints, found: Ints) -> pa.RecordBatch:
        count = len(found)
        numbers, tables = np.unique(found[:, TABLE], return_inverse=True)
        names = pa.array([self.tables.names[number] for number in numbers])
        key_ends = np.concatenate(([0], np.cumsum(found[:, KEY_STOP] - found[:, KEY_BEGIN])))
        payload_ends = np.concatenate(([0], np.cumsum(found[:, STOP] - found[:, BEGIN] + 1)))
        keys = np.empty(int(key_ends[-1]), np.uint8)
        payloads = np.empty(int(payload_ends[-1]), np.uint8)
        positions = np.empty(count * _POSITION_BYTES, np.uint8)
        written_us = np.empty(count, np.int64)
        _copy_updates(
            data,
            entries,
            versions,
            found,
            self.segment,
            key_ends,
            keys,
            payload_ends,
            payloads,
            positions,
            written_us,
        )
        out_of_range = (written_us <= 0) | (written_us > LAST_MOMENT_US)
        return change_batch(
            count,
            source_table=pa.DictionaryArray.from_arrays(tables.astype(np.int32), names),
            kind=CHANGE,
            origin=self.origin,
            position=fixed_width_binary(positions.reshape(count, _POSITION_BYTES)),
            key=column_of(pa.binary(), keys, key_ends),
            committed_at=pa.array(written_us, mask=out_of_range),
            captured_at=datetime.now(UTC),
            payload=column_of(pa.binary(), payloads, payload_ends),
        )

    def _quarantined(self, data: Bytes, entries: Ints, versions: Ints, line: Ints) -> dict[str, Any]:
        entry, ordinal, reason, error_at = (int(line[c]) for c in (ENTRY, ORDINAL, REASON, ERROR_OFFSET))
        begin, length, end = (int(entries[entry, c]) for c in (START, LENGTH, END))
        mutation = data[begin : begin + length].tobytes()
        where = f"byte {error_at} of {length}, update {ordinal} of the entry that ends at {end}"
        if reason == UNKNOWN_TABLE:
            where = f"{mutation[error_at : error_at + _TABLE_ID_BYTES].hex()} at {where}"
        text = describe(reason, where)
        self._raise_if_strict(
            SchemaUnknown if reason in (UNKNOWN_TABLE, UNKNOWN_COLUMN) else CorruptInput, text
        )
        self.counts.quarantined += 1
        return {
            "kind": QUARANTINE,
            "position": Position(self.segment, end, ordinal).pack(),
            "reason": text,
            "payload": mutation_payload(int(versions[entry]), ordinal, mutation),
        }

    def _local(self, data: Bytes, entries: Ints, versions: Ints, found: Ints) -> Iterator[dict[str, Any]]:
        payloads = [
            bytes([versions[line[ENTRY]]]) + data[line[BEGIN] : line[STOP]].tobytes() for line in found
        ]
        if len(found):
            self.counts.skipped["system"] = self.counts.skipped.get("system", 0) + len(found)
        for line, update in zip(found, read_local_updates(payloads), strict=True):
            if update.problem:
                end = int(entries[line[ENTRY], END])
                self._raise_if_strict(CorruptInput, update.problem)
                self.counts.quarantined += 1
                mutation = b"\x01" + data[line[BEGIN] : line[STOP]].tobytes()
                yield {
                    "source_table": "system.local",
                    "kind": QUARANTINE,
                    "position": Position(self.segment, end).pack(),
                    "reason": update.problem,
                    "payload": mutation_payload(int(versions[line[ENTRY]]), 0, mutation),
                }
            for table_id, truncation in update.truncations:
                table = self.tables.number_by_id.get(table_id)
                if table is None or self.tables.roles[table] != roles.SELECTED:
                    continue
                self.counts.truncations += 1
                yield {
                    "source_table": self.tables.names[table],
                    "kind": TRUNCATE,
                    "position": truncation.fence,
                    "committed_at": truncation.truncated_at_ms * 1000,
                    "schema_id": table_id,
                    "payload": truncation.pack(),
                }

    def _schema(self, data: Bytes, entries: Ints, versions: Ints, found: Ints) -> Iterator[dict[str, Any]]:
        for line in found:
            keyspace = data[line[KEY_BEGIN] : line[KEY_STOP]].tobytes()
            if keyspace.decode(errors="replace") in SYSTEM_KEYSPACES:
                self.counts.skipped["system"] = self.counts.skipped.get("system", 0) + 1
                continue
            position = Position(self.segment, int(entries[line[ENTRY], END]), int(line[ORDINAL]))
            self.schema_bytes[keyspace] += int(line[STOP] - line[BEGIN])
            if self.full is not None and (
                keyspace in self.full or self.schema_bytes[keyspace] > _MOST_SCHEMA_BYTES
            ):
                self.counts.skipped["schema"] = self.counts.skipped.get("schema", 0) + 1
                if keyspace not in self.skipping:
                    self.skipping.add(keyspace)
                    yield {
                        "kind": SCHEMA,
                        "position": position.pack(),
                        "key": keyspace,
                        "payload": bytes([SKIPPED_TAG]),
                    }
                continue
            self.counts.schema_changes += 1
            yield {
                "source_table": self.tables.names[line[TABLE]],
                "kind": SCHEMA,
                "position": position.pack(),
                "key": keyspace,
                "payload": bytes([versions[line[ENTRY]]]) + data[line[BEGIN] : line[STOP]].tobytes(),
            }

    def _few(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
        """Build batches of rows: a sound segment has few, a hostile one any number."""
        common = {"origin": self.origin, "generation": 0, "captured_at": datetime.now(UTC)}
        left = iter(rows)
        while some := [{**common, **row} for row in islice(left, _ROWS_AT_ONCE)]:
            yield pa.RecordBatch.from_pylist(some, schema=CHANGE_SCHEMA)

    def _raise_if_strict(self, error: type[CdcError], reason: str) -> None:
        if self.strict:
            raise error(
                f"segment {self.segment} of node {self.origin} can't be read: {reason}",
                remedy="turn the option strict off to quarantine it instead",
            )


@walker
def _copy_updates(
    data: Bytes,
    entries: Ints,
    versions: Ints,
    found: Ints,
    segment: Int,
    key_ends: Ints,
    keys: Bytes,
    payload_ends: Ints,
    payloads: Bytes,
    positions: Bytes,
    written_us: Ints,
) -> None:
    """Write keys, payloads and positions of updates (``payload``) in sequence, and their write times.

    The write time is the lowest in an update, from its header: all parts of one statement have the same,
    except deletions in a batch. 0 if the header has none.
    """
    for row in range(len(found)):
        line = found[row]
        entry = line[ENTRY]
        written_us[row] = 0
        flags_at = line[KEY_STOP]
        if flags_at < line[STOP] and data[flags_at] & _EMPTY == 0:
            delta, after = read_uvint(data, flags_at + 1, line[STOP])
            if after >= 0 and delta != 0:
                written_us[row] = delta + EPOCH_US
        copy(data, line[KEY_BEGIN], line[KEY_STOP] - line[KEY_BEGIN], keys, key_ends[row])
        payloads[payload_ends[row]] = np.uint8(versions[entry])
        copy(data, line[BEGIN], line[STOP] - line[BEGIN], payloads, payload_ends[row] + 1)
        at = row * _POSITION_BYTES
        end = entries[entry, END]
        for i in range(8):
            positions[at + i] = np.uint8((segment >> (56 - 8 * i)) & 0xFF)
        for i in range(4):
            positions[at + 8 + i] = np.uint8((end >> (24 - 8 * i)) & 0xFF)
            positions[at + 12 + i] = np.uint8((line[ORDINAL] >> (24 - 8 * i)) & 0xFF)
