"""Reading one slice of a segment: bytes in, ``CHANGE_SCHEMA`` batches out.

Most entries hold one update, which becomes a change without any schema: its bytes are copied as they are.
Only a mutation of several updates must be walked to find where each ends. What comes out, by table:

* selected: a change per update;
* former (dropped, perhaps made anew under another id): likewise, under its name;
* ``system.local``: a record of kind ``truncate`` per truncation of a selected table (:mod:`.truncation`);
* ``system_schema``: a record of kind ``schema`` per update, its bytes as of a change; they add up to the
  schema's history (:mod:`.schema_history`);
* unknown: the whole mutation in quarantine, with the table id in its reason, so that
  :func:`retry_quarantined` can read it when the schema is known;
* all others (not selected, views, counters, Cassandra's own): nothing, but counted.

What can't be read becomes a record of kind ``quarantine`` that says where it is and why; the rest lands.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from airflow_cdc_provider.changes.byte_kernels import Bytes, Int, copy
from airflow_cdc_provider.changes.kernels import walker
from airflow_cdc_provider.changes.record import CHANGE, CHANGE_SCHEMA, QUARANTINE, SCHEMA, TRUNCATE
from airflow_cdc_provider.exceptions import CdcError, CorruptInput, SchemaUnknown
from airflow_cdc_provider.sources.abilities import PassedOver
from airflow_cdc_provider.sources.cassandra.commit_log import tables as roles
from airflow_cdc_provider.sources.cassandra.commit_log.capture import SegmentSlice
from airflow_cdc_provider.sources.cassandra.commit_log.encryption import Keys
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
from airflow_cdc_provider.sources.cassandra.commit_log.sections import Damage, plain_sections
from airflow_cdc_provider.sources.cassandra.commit_log.segments import SegmentBytes
from airflow_cdc_provider.sources.cassandra.commit_log.tables import LogTables
from airflow_cdc_provider.sources.cassandra.commit_log.truncation import read_local_updates
from airflow_cdc_provider.sources.cassandra.commit_log.updates import (
    BEGIN,
    ENTRY,
    KEY_BEGIN,
    KEY_STOP,
    ORDINAL,
    PLACE,
    REASON,
    STOP,
    TABLE,
    find_updates,
)
from airflow_cdc_provider.sources.cassandra.decoding.mutation import EPOCH_US
from airflow_cdc_provider.sources.cassandra.payload import (
    DAMAGED,
    MUTATION_HEADER_BYTES,
    MUTATION_TAG,
    Position,
    damage_payload,
    mutation_header,
    mutation_payload,
)
from airflow_cdc_provider.sources.cql.buffers import binary_array, binary_parts
from airflow_cdc_provider.sources.cql.reasons import UNKNOWN_COLUMN, UNKNOWN_TABLE, describe
from airflow_cdc_provider.sources.cql.system_schema import SYSTEM_KEYSPACES
from airflow_cdc_provider.sources.cql.wire import read_uvint

log = logging.getLogger(__name__)

_BATCH_BYTES: Final = 8 * 1024 * 1024
_SAMPLE_BYTES: Final = 64 * 1024
_POSITION_BYTES: Final = 16
_TABLE_ID_BYTES: Final = 16
_EMPTY: Final = 0x01
_LAST_MOMENT_US: Final = 253_402_300_799_999_999
"""The end of the year 9999: clients may send any write time, Python and Spark know none after it."""


@dataclass
class ReadCounts:
    """What a reader met: updates by what became of them, and what could not be read.

    Args:
        entries: Sound entries.
        changes: Updates of selected tables, also of such as were dropped.
        passed_over: Updates of others, by why: ``unselected``, ``view``, ``counter``, ``system``.
        truncations: Truncations of selected tables.
        schema_changes: Updates of ``system_schema`` that concern users' keyspaces.
        quarantined: Mutations set apart.
        damaged: Stretches of segments set apart.
    """

    entries: int = 0
    changes: int = 0
    passed_over: dict[str, int] = field(default_factory=dict)
    truncations: int = 0
    schema_changes: int = 0
    quarantined: int = 0
    damaged: int = 0


_PASSED_OVER: Final = {
    roles.UNSELECTED: "unselected",
    roles.VIEW: "view",
    roles.COUNTER: "counter",
    roles.SYSTEM: "system",
}


def read_segments(
    part: SegmentSlice, counts: ReadCounts | None = None, *, keys: Keys | None = None
) -> Iterator[pa.RecordBatch]:
    """Read one partition of a plan.

    Args:
        part: From :func:`~.capture.plan_segments`.
        counts: What was met is added to it, if given; it is logged in any case.
        keys: What opens encrypted segments.

    Yields:
        Batches of ``CHANGE_SCHEMA``; rows of one kind are in the order of the log.

    Raises:
        PositionLost: The segment is gone.
        CorruptInput: Something can't be read and the slice is strict; the message locates it.
        SchemaUnknown: A table or column is unknown and the slice is strict.
        ConfigurationError: The key of the segment is missing, or its compression is unknown.
    """
    reader = _Reader(part.origin, part.descriptor.segment, part.tables, part.strict, counts or ReadCounts())
    yield from reader.damage(part.damage)
    with SegmentBytes(part.path) as source:
        plain: list[bytes] = []
        positions: list[int] = []
        size = 0
        for section, content in plain_sections(source, part.descriptor, part.sections, keys):
            if isinstance(content, Damage):
                yield from reader.damage([content])
                continue
            plain.append(content)
            positions.append(section.position)
            size += len(content)
            if size >= _BATCH_BYTES:
                yield from reader.read(plain, positions, part.descriptor.version, part.after)
                plain, positions, size = [], [], 0
        if plain:
            yield from reader.read(plain, positions, part.descriptor.version, part.after)
    log.info("read %s, %d sections: %s", part.path, len(part.sections), reader.counts)


@dataclass(frozen=True)
class SegmentReader:
    """Reads partitions of a plan: what executors get. Picklable.

    Args:
        keys: What opens encrypted segments.
    """

    keys: Keys | None = None

    def __call__(self, part: SegmentSlice) -> Iterator[pa.RecordBatch]:
        """Do what :func:`read_segments` does."""
        return read_segments(part, keys=self.keys)

    def read_counting(self, part: SegmentSlice, passed_over: PassedOver) -> Iterator[pa.RecordBatch]:
        """Do the same, and count the updates that are of no captured table: see :class:`ReadCounts`."""
        counts = ReadCounts()
        yield from read_segments(part, counts, keys=self.keys)
        passed_over.update({(part.origin, why): count for why, count in counts.passed_over.items()})


def retry_quarantined(rows: pa.RecordBatch, tables: LogTables) -> Iterator[pa.RecordBatch]:
    """Read mutations again that were set apart, with what is known of tables now.

    Args:
        rows: Records of kind ``quarantine``.
        tables: What is known now.

    Yields:
        Batches of ``CHANGE_SCHEMA`` as :func:`read_segments` would have yielded, with the same positions:
        changes, and what still can't be read. Records that hold no mutation come out as they are.
    """
    holds = pc.equal(pc.binary_slice(rows.column("payload"), 0, 1), bytes([MUTATION_TAG]))
    if not pc.all(holds).as_py():
        yield rows.filter(pc.invert(holds))
    mutations = [
        (origin, Position.unpack(position), payload)
        for origin, position, payload in zip(
            *(rows.column(name).to_pylist() for name in ("origin", "position", "payload")), strict=True
        )
        if payload[0] == MUTATION_TAG
    ]
    for origin, segment in sorted({(origin, position.segment) for origin, position, _ in mutations}):
        chosen = [(p, payload) for o, p, payload in mutations if (o, p.segment) == (origin, segment)]
        data, offsets, _ = binary_parts(pa.array([payload for _, payload in chosen], pa.binary()))
        headers = np.array([mutation_header(payload) for _, payload in chosen], np.int64)
        entries = np.empty((len(chosen), 3), np.int64)
        entries[:, START] = offsets[:-1] + MUTATION_HEADER_BYTES
        entries[:, LENGTH] = offsets[1:] - entries[:, START]
        entries[:, END] = [position.end for position, _ in chosen]
        reader = _Reader(origin, segment, tables, strict=False, counts=ReadCounts())
        yield from reader.split(data, entries, headers[:, 0], headers[:, 1])


@dataclass
class _Reader:
    """Makes records of what one segment holds."""

    origin: str
    segment: int
    tables: LogTables
    strict: bool
    counts: ReadCounts

    def read(
        self, plain: Sequence[bytes], positions: Sequence[int], version: int, after: int
    ) -> Iterator[pa.RecordBatch]:
        """Read the plain bytes of sections."""
        data = np.frombuffer(b"".join(plain) or b"\0", np.uint8)
        ends = np.cumsum([len(part) for part in plain])
        starts = ends - [len(part) for part in plain]
        entries, damage = find_entries(data, starts, ends, np.array(positions, np.int64))
        yield from self.damage(
            Damage(
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
        self,
        data: Bytes,
        entries: NDArray[np.int64],
        versions: NDArray[np.int64],
        first_ordinals: NDArray[np.int64],
    ) -> Iterator[pa.RecordBatch]:
        """Make records of mutations."""
        updates = find_updates(data, entries, versions, first_ordinals, self.tables)
        for role, name in _PASSED_OVER.items():
            if count := int(updates.by_role[role]):
                self.counts.passed_over[name] = self.counts.passed_over.get(name, 0) + count
        found = self.tables.roles[updates.found[:, TABLE]]
        captured = updates.found[(found == roles.SELECTED) | (found == roles.FORMER)]
        if len(captured):
            self.counts.changes += len(captured)
            yield self._changes(data, entries, versions, captured)
        rows = [self._quarantined(data, entries, versions, line) for line in updates.failed]
        rows += self._local(data, entries, versions, updates.found[found == roles.LOCAL])
        rows += self._schema(data, entries, versions, updates.found[found == roles.SCHEMA])
        if rows:
            yield self._few(rows)

    def damage(self, damage: Iterator[Damage] | Sequence[Damage]) -> Iterator[pa.RecordBatch]:
        """Make records of what can't be read."""
        rows = []
        for found in damage:
            reason = describe(found.reason, f"{found.length} bytes from position {found.position} on")
            self._refuse(CorruptInput, reason)
            self.counts.damaged += 1
            rows.append(
                {
                    "kind": QUARANTINE,
                    "position": Position(self.segment, found.position, DAMAGED).pack(),
                    "reason": reason,
                    "payload": damage_payload(found.length, found.sample[:_SAMPLE_BYTES]),
                }
            )
        if rows:
            yield self._few(rows)

    def _changes(
        self,
        data: Bytes,
        entries: NDArray[np.int64],
        versions: NDArray[np.int64],
        found: NDArray[np.int64],
    ) -> pa.RecordBatch:
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
        columns = {
            "source_table": pa.DictionaryArray.from_arrays(
                tables.astype(np.int32), names
            ).dictionary_decode(),
            "kind": pa.repeat(CHANGE, count),
            "origin": pa.repeat(self.origin, count),
            "position": binary_array(positions, np.arange(count + 1, dtype=np.int64) * _POSITION_BYTES),
            "generation": pa.array(np.zeros(count, np.int64)),
            "key": binary_array(keys, key_ends),
            "committed_at": pa.array(
                written_us,
                CHANGE_SCHEMA.field("committed_at").type,
                mask=(written_us <= 0) | (written_us > _LAST_MOMENT_US),
            ),
            "captured_at": pa.repeat(_now(), count),
            "payload": binary_array(payloads, payload_ends),
        }
        return pa.RecordBatch.from_arrays(
            [
                columns[name] if name in columns else pa.nulls(count, CHANGE_SCHEMA.field(name).type)
                for name in CHANGE_SCHEMA.names
            ],
            schema=CHANGE_SCHEMA,
        )

    def _quarantined(
        self,
        data: Bytes,
        entries: NDArray[np.int64],
        versions: NDArray[np.int64],
        line: NDArray[np.int64],
    ) -> dict[str, Any]:
        entry, ordinal, reason, place = (int(line[c]) for c in (ENTRY, ORDINAL, REASON, PLACE))
        begin, length, end = (int(entries[entry, c]) for c in (START, LENGTH, END))
        mutation = data[begin : begin + length].tobytes()
        where = f"byte {place} of {length}, update {ordinal} of the entry that ends at {end}"
        if reason == UNKNOWN_TABLE:
            where = f"{mutation[place : place + _TABLE_ID_BYTES].hex()} at {where}"
        text = describe(reason, where)
        self._refuse(SchemaUnknown if reason in (UNKNOWN_TABLE, UNKNOWN_COLUMN) else CorruptInput, text)
        self.counts.quarantined += 1
        return {
            "kind": QUARANTINE,
            "position": Position(self.segment, end, ordinal).pack(),
            "reason": text,
            "payload": mutation_payload(int(versions[entry]), ordinal, mutation),
        }

    def _local(
        self,
        data: Bytes,
        entries: NDArray[np.int64],
        versions: NDArray[np.int64],
        found: NDArray[np.int64],
    ) -> Iterator[dict[str, Any]]:
        payloads = [
            bytes([versions[line[ENTRY]]]) + data[line[BEGIN] : line[STOP]].tobytes() for line in found
        ]
        if len(found):
            self.counts.passed_over["system"] = self.counts.passed_over.get("system", 0) + len(found)
        for line, update in zip(found, read_local_updates(payloads), strict=True):
            if update.problem:
                end = int(entries[line[ENTRY], END])
                self._refuse(CorruptInput, update.problem)
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

    def _schema(
        self,
        data: Bytes,
        entries: NDArray[np.int64],
        versions: NDArray[np.int64],
        found: NDArray[np.int64],
    ) -> Iterator[dict[str, Any]]:
        for line in found:
            keyspace = data[line[KEY_BEGIN] : line[KEY_STOP]].tobytes()
            if keyspace.decode(errors="replace") in SYSTEM_KEYSPACES:
                self.counts.passed_over["system"] = self.counts.passed_over.get("system", 0) + 1
                continue
            self.counts.schema_changes += 1
            place = Position(self.segment, int(entries[line[ENTRY], END]), int(line[ORDINAL]))
            yield {
                "source_table": self.tables.names[line[TABLE]],
                "kind": SCHEMA,
                "position": place.pack(),
                "key": keyspace,
                "payload": bytes([versions[line[ENTRY]]]) + data[line[BEGIN] : line[STOP]].tobytes(),
            }

    def _few(self, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        common = {"origin": self.origin, "generation": 0, "captured_at": _now()}
        return pa.RecordBatch.from_pylist([{**common, **row} for row in rows], schema=CHANGE_SCHEMA)

    def _refuse(self, error: type[CdcError], reason: str) -> None:
        if self.strict:
            raise error(
                f"segment {self.segment} of node {self.origin} can't be read: {reason}",
                remedy="without the option strict it would be set apart in quarantine",
            )


def _now() -> pa.Scalar:
    return pa.scalar(datetime.now(UTC), CHANGE_SCHEMA.field("captured_at").type)


@walker
def _copy_updates(
    data: Bytes,
    entries: NDArray[np.int64],
    versions: NDArray[np.int64],
    found: NDArray[np.int64],
    segment: Int,
    key_ends: NDArray[np.int64],
    keys: Bytes,
    payload_ends: NDArray[np.int64],
    payloads: Bytes,
    positions: Bytes,
    written_us: NDArray[np.int64],
) -> None:
    """Write keys, payloads and positions of updates (``payload``) one after the other, and their write times.

    That is the least write time in an update, which its header tells: all parts of one statement have the
    same, but for what a batch itself has deleted. 0 where it tells none.
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
