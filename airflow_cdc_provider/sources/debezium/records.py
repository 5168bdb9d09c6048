"""Converts the messages of a partition to records of the changes table. Pure functions without I/O.

========================================  ============================================================
message                                   record
========================================  ============================================================
event with a row                          ``change``: the envelope, with the name of its schema
value null                                ``change`` without payload
``op: t``                                 ``truncate``; of a topic with several partitions ``quarantine``,
                                          because its order relative to events of the others is unknown
invalid JSON, or no envelope              ``quarantine``, with topic, partition and offset
heartbeat, transaction, schema change,    none: counted
logical message (``op: m``)
========================================  ============================================================

In addition, there is a record of kind ``schema`` for each topic, table and schema of a row that isn't
recorded yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.record import CHANGE_SCHEMA, LAST_MOMENT_US
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.arrow_bytes import span_column
from airflow_cdc_provider.formats.json_text import ABSENT, NULL, OBJECT
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Ints
from airflow_cdc_provider.sources.debezium import converters
from airflow_cdc_provider.sources.debezium.converters import Converter, JsonConverter, Values
from airflow_cdc_provider.sources.debezium.decode import OTHER_TOPIC, operations_of
from airflow_cdc_provider.sources.debezium.json_members import Members, members_of
from airflow_cdc_provider.sources.debezium.json_texts import strings
from airflow_cdc_provider.sources.debezium.position import (
    AFTER_MESSAGE,
    encode_position,
    encode_positions,
    origin_of,
)
from airflow_cdc_provider.sources.debezium.recorded_schemas import TOO_MANY_SCHEMAS, RecordedSchemas
from airflow_cdc_provider.sources.debezium.values import show_plain

_SOUND: Final = 0
_HEARTBEAT: Final = 1
_TRANSACTION: Final = 2
_SCHEMA_CHANGE: Final = 3
_MESSAGE: Final = 4
_TOMBSTONE: Final = 5
_OTHER_TABLE: Final = 6
SKIP_REASONS: Final[Mapping[int, str]] = {
    _HEARTBEAT: "heartbeat",
    _TRANSACTION: "transaction",
    _SCHEMA_CHANGE: "schema_change",
    _MESSAGE: "message",
    _TOMBSTONE: "tombstone",
    _OTHER_TABLE: "unselected",
}
"""Names of the reasons for skipped messages."""

_NO_ENVELOPE: Final = 11
_NO_TABLE: Final = 12
_TRUNCATE: Final = 13
_LATE_TRUNCATE: Final = 14
_ENVELOPE: Final = 15
_TOO_LARGE: Final = 16
_OTHER_TOPIC: Final = 17
_TOO_MANY_SCHEMAS: Final = 18
_FIRST_FAULT: Final = _NO_ENVELOPE
_OF_CONVERTERS: Final = 20
"""Offset of the faults of converters: this number plus the converter's fault."""
_REASONS: Final[Mapping[int, str]] = {
    **{_OF_CONVERTERS + fault: reason for fault, reason in converters.FAULTS.items()},
    _NO_ENVELOPE: "NO-ENVELOPE: the value has no op of Debezium's; source.envelope: unwrapped reads rows "
    "without envelopes",
    _NO_TABLE: "NO-TABLE: the event doesn't contain its table; see source.tables_from",
    _TRUNCATE: "TRUNCATE: the topic of a truncated table has several partitions, so the order of the "
    "TRUNCATE and their events is unknown; delete the rows, or use a topic with one partition",
    _LATE_TRUNCATE: "LATE-TRUNCATE: the schema of a truncate message was found too late: newer rows may "
    "only be in the mirror by now, so the mirror is not truncated; see docs/source-debezium.md",
    _ENVELOPE: "ENVELOPE: the value is a Debezium envelope, not a row; source.envelope: debezium reads "
    "envelopes",
    _TOO_LARGE: "TOO-LARGE: key and value exceed source.advanced.max_message_bytes; only the topic has them",
    _OTHER_TOPIC: OTHER_TOPIC,
    _TOO_MANY_SCHEMAS: TOO_MANY_SCHEMAS,
}


@dataclass(frozen=True)
class Messages:
    """Messages of one partition.

    Args:
        keys: Keys (binary).
        values: Values (binary).
        offsets: Offset of each message.
        times_ms: Timestamp of each message, by producer or broker, milliseconds since 1970; negative for
            none.
        too_large: Which ones are too large; their keys and values are null here.
    """

    keys: pa.Array
    values: pa.Array
    offsets: Ints
    times_ms: Ints
    too_large: Flags

    def slice(self, start: int, count: int | None = None) -> Messages:
        """Return ``count`` messages from ``start`` on."""
        end = None if count is None else start + count
        return Messages(
            self.keys.slice(start, count),
            self.values.slice(start, count),
            self.offsets[start:end],
            self.times_ms[start:end],
            self.too_large[start:end],
        )


@dataclass(frozen=True)
class Feed:
    """The partition of messages, and how they are converted.

    Args:
        topic: Its topic.
        partition: Its number.
        epoch: The epoch of the messages.
        captured_us: When they were read, µs since 1970.
        unwrapped: Values are rows, not envelopes.
        table: The table of all messages; empty if each event contains its own.
        is_only: Whether the topic has no other partition.
        strict: Whether to raise an error instead of quarantining a message.
        selects: Returns whether a table is captured.
        owners: The topic of each table that has recorded rows.
        key_converter: Reads keys.
        value_converter: Reads values.
        takes_envelopes: Whether unwrapped values may be envelopes, which the caller unwraps.
        is_late: Whether later messages may have been merged, and their records deleted, before these.
    """

    topic: str
    partition: int
    epoch: int
    captured_us: int
    unwrapped: bool
    table: str
    is_only: bool
    strict: bool
    selects: Callable[[str], bool]
    owners: Mapping[str, str] = field(default_factory=dict)
    key_converter: Converter = field(default_factory=JsonConverter)
    value_converter: Converter = field(default_factory=JsonConverter)
    takes_envelopes: bool = False
    is_late: bool = False

    @property
    def origin(self) -> str:
        """Name of the partition."""
        return origin_of(self.topic, self.partition)


def read_messages(
    messages: Messages, feed: Feed, seen: RecordedSchemas, skipped: Counter[tuple[str, str]]
) -> pa.RecordBatch:
    """Convert messages to records.

    Args:
        messages: In the order of their offsets.
        feed: The feed of the messages.
        seen: What is recorded; what is newly recorded is added.
        skipped: Skipped messages are counted here.

    Returns:
        Batch of ``CHANGE_SCHEMA``.

    Raises:
        CorruptInput: The source is strict, and a message would be quarantined.
        OverflowError: The messages are too large to be read together; nothing is counted.
    """
    values = feed.value_converter.values(messages.values, unwrapped=feed.unwrapped)
    data, bodies = values.data, values.spans
    members = members_of(data, bodies)
    keys, key_faults = feed.key_converter.keys(messages.keys)
    keys = pc.if_else(pa.array(key_faults != converters.SOUND), messages.keys, keys)
    tables = _tables(members, feed)
    letters = operations_of(members)
    tombstones = messages.values.is_null().to_numpy(zero_copy_only=False) | (bodies.kinds == NULL)
    outcome = _outcomes(values, members, tables, keys, key_faults, tombstones, feed)
    outcome[messages.too_large] = _TOO_LARGE
    truncates = (outcome == _SOUND) & (letters == ord("t"))
    rows = np.flatnonzero((outcome == _SOUND) & ~truncates & ~tombstones)
    schemas, refused = _schemas(feed, messages, tables, values, rows, seen)
    outcome[refused] = _TOO_MANY_SCHEMAS
    quarantined = outcome >= _FIRST_FAULT
    if feed.strict and quarantined.any():
        first = int(quarantined.argmax())
        raise CorruptInput(_reason(first, outcome, values, messages, feed))
    for number, why in SKIP_REASONS.items():
        if count := int(np.count_nonzero(outcome == number)):
            skipped[feed.origin, why] += count

    starts, ends = (np.where(tombstones, -1, side) for side in (bodies.starts, bodies.ends))
    payload = span_column(pa.binary(), data, starts, ends)
    kinds = np.select([quarantined, truncates], [record.QUARANTINE, record.TRUNCATE], record.CHANGE)
    records = _records(
        feed,
        tables=tables,
        kinds=pa.array(kinds, pa.string()),
        keys=keys,
        messages=messages,
        timestamps=_timestamps(members, messages, feed),
        transactions=_transactions(members, feed),
        schema_ids=pc.if_else(pa.array(quarantined), None, values.names),
        reasons=_reasons(values, outcome, messages, feed),
        payload=pc.if_else(pa.array(quarantined), messages.values, payload),
    ).take(pa.array(np.flatnonzero((outcome == _SOUND) | quarantined)))
    return _concat([records, *schemas])


def _outcomes(
    values: Values,
    members: Members,
    tables: pa.Array,
    keys: pa.Array,
    key_faults: Ints,
    tombstones: Flags,
    feed: Feed,
) -> Ints:
    """Return what becomes of each message."""
    letters = operations_of(members)
    nameless = tables.is_null().to_numpy(zero_copy_only=False)
    keyless = keys.is_null().to_numpy(zero_copy_only=False)
    bad_keys = key_faults != converters.SOUND
    outcome = _without_row(members, letters, keys, feed)
    outcome[tombstones & (nameless | keyless)] = _TOMBSTONE
    outcome[~tombstones & (values.spans.kinds != OBJECT)] = _OF_CONVERTERS + converters.NO_JSON
    has_fault = ~tombstones & (values.faults != converters.SOUND) & (values.faults != converters.BAD_SCHEMA)
    outcome[has_fault] = _OF_CONVERTERS + values.faults[has_fault]
    outcome[bad_keys] = _OF_CONVERTERS + key_faults[bad_keys]
    if not feed.unwrapped:
        outcome[(outcome == _SOUND) & ~tombstones & (letters == 0)] = _NO_ENVELOPE
    outcome[(outcome == _SOUND) & nameless] = _NO_TABLE
    outcome[(outcome == _SOUND) & ~_selected(tables, feed)] = _OTHER_TABLE
    of_no_row = ~tombstones & (values.faults == converters.BAD_SCHEMA)
    outcome[(outcome == _SOUND) & of_no_row] = _OF_CONVERTERS + converters.BAD_SCHEMA
    truncates = (outcome == _SOUND) & (letters == ord("t"))
    if not feed.is_only:
        outcome[truncates] = _TRUNCATE
    elif feed.is_late:
        # As the newest truncate it would delete newer rows that are only in the mirror by now.
        outcome[truncates] = _LATE_TRUNCATE
    outcome[(outcome == _SOUND) & _of_other_topics(tables, feed)] = _OTHER_TOPIC
    return outcome


def _without_row(members: Members, letters: Bytes, keys: pa.Array, feed: Feed) -> Ints:
    """Classify events without a row, and envelopes among unwrapped rows."""
    found = np.full(members.count, _SOUND, np.int64)
    names = ("ts_ms", "vgtid", "status", "event_count", "ddl", "databaseName")
    present = [spans.kinds != ABSENT for spans in members.find(*names)]
    time, vgtid, status, event_count, ddl, database = present
    sizes = np.bincount(members.owners, minlength=members.count) if len(members.owners) else found
    none = letters == 0
    heartbeats = none & time & (sizes == 1 + vgtid)
    transactions = none & status & event_count
    schema_changes = none & ddl & database
    logical = letters == ord("m")
    if feed.unwrapped:
        # A row may have columns with these names: require further members that only such events have.
        source, *rest = members.find("source", "id", "data_collections", "tableChanges", "before", "after")
        row_id, collections, changes, before, after = (spans.kinds != ABSENT for spans in rest)
        heartbeats &= pc.match_substring(keys, "serverName").fill_null(False).to_numpy(zero_copy_only=False)
        transactions &= row_id & collections & (sizes == 4 + time)
        schema_changes &= changes & (source.kinds == OBJECT)
        (message,) = members.find("message")
        logical &= (source.kinds == OBJECT) & (message.kinds == OBJECT)
        if not feed.takes_envelopes:
            found[~none & (source.kinds == OBJECT) & (before | after)] = _ENVELOPE
    found[heartbeats] = _HEARTBEAT
    found[transactions] = _TRANSACTION
    found[schema_changes] = _SCHEMA_CHANGE
    found[logical] = _MESSAGE
    return found


def _tables(members: Members, feed: Feed) -> pa.Array:
    """Return the table of each event; null if the event doesn't contain it."""
    if feed.table:
        return pa.repeat(pa.scalar(feed.table), members.count)
    (source,) = members.find("source")
    inside = members_of(members.data, source)
    names = ("connector", "db", "schema", "keyspace", "keyspace_name", "table", "table_name", "collection")
    found = [strings(members.data, spans) for spans in inside.find(*names)]
    connector, db, schema, keyspace, keyspace_name, *rest = (_filled(one) for one in found)
    table = pc.coalesce(*rest)
    above = pc.coalesce(schema, keyspace, keyspace_name, db)
    by_both = pc.is_in(connector, pa.array(["sqlserver", "informix"]))
    above = pc.if_else(by_both, pc.binary_join_element_wise(db, schema, "."), above)
    return pc.binary_join_element_wise(above, table, ".")


def _filled(texts: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def _selected(tables: pa.Array, feed: Feed) -> Flags:
    return _of_names(tables, feed.selects)


def _of_other_topics(tables: pa.Array, feed: Feed) -> Flags:
    return _of_names(tables, lambda table: feed.owners.get(table, feed.topic) != feed.topic)


def _of_names(tables: pa.Array, fits: Callable[[str], bool]) -> Flags:
    """Return whether each table fits; for null, any value."""
    distinct = pc.dictionary_encode(tables)
    fitting = np.array([fits(name) for name in distinct.dictionary.to_pylist()] or [False], np.bool_)
    found: Flags = fitting[distinct.indices.fill_null(0).to_numpy(zero_copy_only=False)]
    return found


def _timestamps(members: Members, messages: Messages, feed: Feed) -> pa.Array:
    """Return the commit time of each change, µs since 1970: from the event, else from the message."""
    (source,) = members.find("source")
    ts_us, ts_ms = members_of(members.data, source).find("ts_us", "ts_ms")
    times_ms = messages.times_ms
    of_message = pa.array(times_ms * 1000, mask=(times_ms < 0) | (times_ms > LAST_MOMENT_US // 1000))
    if feed.unwrapped:
        return of_message
    micros = show_plain(members.data, ts_us, "int64")[0]
    millis = show_plain(members.data, ts_ms, "int64")[0]
    sane = pc.less(pc.abs(millis.fill_null(0)), 1 << 50)
    millis = pc.multiply(pc.if_else(sane, millis, None), 1000)
    # Snapshot events of Vitess have 0.
    first = pc.coalesce(
        pc.if_else(pc.greater(micros, 0), micros, None), pc.if_else(pc.greater(millis, 0), millis, None)
    )
    return pc.coalesce(pc.if_else(pc.less(first, LAST_MOMENT_US), first, None), of_message)


def _transactions(members: Members, feed: Feed) -> pa.Array:
    if feed.unwrapped:
        return pa.nulls(members.count, pa.string())
    (transaction,) = members.find("transaction")
    (name,) = members_of(members.data, transaction).find("id")
    return strings(members.data, name)


def _reasons(values: Values, outcome: Ints, messages: Messages, feed: Feed) -> pa.Array:
    """Return why rows are quarantined; null for the others."""
    reasons = pa.nulls(len(outcome), pa.string())
    quarantined = outcome >= _FIRST_FAULT
    if not quarantined.any():
        return reasons
    found = [_reason(row, outcome, values, messages, feed) for row in np.flatnonzero(quarantined).tolist()]
    return pc.replace_with_mask(reasons, pa.array(quarantined), pa.array(found, pa.string()))


def _reason(row: int, outcome: Ints, values: Values, messages: Messages, feed: Feed) -> str:
    where = f"topic {feed.topic}, partition {feed.partition}, offset {messages.offsets[row]}"
    if values.ids is not None and values.ids[row] >= 0:
        where += f", schema {values.ids[row]}"
    return f"{_REASONS[int(outcome[row])]} ({where})"


def _records(
    feed: Feed,
    *,
    tables: pa.Array,
    kinds: pa.Array,
    keys: pa.Array,
    messages: Messages,
    timestamps: pa.Array,
    transactions: pa.Array,
    schema_ids: pa.Array,
    reasons: pa.Array,
    payload: pa.Array,
) -> pa.RecordBatch:
    position = encode_positions(feed.epoch, messages.offsets)
    return record.change_batch(
        len(messages.offsets),
        source_table=tables,
        kind=kinds,
        origin=feed.origin,
        position=position,
        key=keys,
        version=position,
        committed_at=timestamps.cast(pa.int64()),
        captured_at=feed.captured_us,
        transaction=transactions,
        schema_id=schema_ids,
        reason=reasons,
        payload=payload,
    )


def _schemas(
    feed: Feed,
    messages: Messages,
    tables: pa.Array,
    values: Values,
    rows: Ints,
    seen: RecordedSchemas,
) -> tuple[list[pa.RecordBatch], Ints]:
    """Build a record of each new schema, after the first message with it; return the rows beyond the most."""
    chosen = pa.array(rows)
    both = pa.table({"table": tables.take(chosen), "name": values.names.take(chosen), "row": chosen})
    first = both.group_by(["table", "name"]).aggregate([("row", "min")]).to_pylist()
    records, refused = [], []
    for one in sorted(first, key=lambda found: found["row_min"]):
        recorded = (feed.topic, one["table"], one["name"])
        if recorded in seen:
            continue
        row = one["row_min"]
        text = values.schemas.get(one["name"], b"")
        if not seen.add(recorded, len(text)):
            refused.append(f"{one['table']} {one['name']}")
            continue
        at = encode_position(feed.epoch, int(messages.offsets[row])) + AFTER_MESSAGE
        time_ms = int(messages.times_ms[row])
        records.append(_one(feed, one["table"], record.SCHEMA, feed.origin, at, time_ms, one["name"], text))
    if not refused:
        return records, rows[:0]
    named = pc.binary_join_element_wise(both["table"], both["name"], " ")
    beyond = pc.is_in(named, value_set=pa.array(refused)).to_numpy()
    return records, rows[beyond]


def _one(
    feed: Feed,
    table: str,
    kind: str,
    origin: str,
    at: bytes,
    time_ms: int,
    schema_id: str | None,
    payload: bytes | None,
) -> pa.RecordBatch:
    row = {
        "source_table": table,
        "kind": kind,
        "origin": origin,
        "position": at,
        "generation": 0,
        "key": None,
        "version": at,
        "committed_at": time_ms * 1000 if 0 <= time_ms <= LAST_MOMENT_US // 1000 else feed.captured_us,
        "captured_at": feed.captured_us,
        "transaction": None,
        "schema_id": schema_id,
        "payload": payload,
    }
    return pa.RecordBatch.from_pylist([row], schema=CHANGE_SCHEMA)


def _concat(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
