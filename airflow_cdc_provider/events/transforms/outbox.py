"""Outbox routing, like Debezium's EventRouter and MongoEventRouter.

Fields of a row determine topic, key and value of its event; header ``id`` is the event ID. Only inserts (and
snapshot rows) are events: deletes clean up the outbox, updates are not expected.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.events.connect import OPTIONAL_STRING, STRING, ConnectSchema, schema_of
from airflow_cdc_provider.events.encoder import Destination, Envelope
from airflow_cdc_provider.events.json_converter import to_json
from airflow_cdc_provider.events.topics import topic_name
from airflow_cdc_provider.events.transforms.java_patterns import replaced
from airflow_cdc_provider.events.transforms.pieces import Piece, Rows, named
from airflow_cdc_provider.events.transforms.row_options import OutboxOptions

_PAYLOAD: Final = "payload"
_ROW: Final = "io.debezium.data.Json"
"""Schema name of documents, from which event schema names are derived."""
_INTEGERS: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


@dataclass(frozen=True)
class Placed:
    """An additional field outside of key and payload.

    Args:
        field: Its name.
        place: ``header``, ``envelope`` or ``partition``.
        name: Name of the field there.
    """

    field: str
    place: str
    name: str

    @classmethod
    def of(cls, text: str) -> Placed:
        """Read ``field:place[:name]``."""
        field, place, *name = (part.strip() for part in text.split(":"))
        return cls(field, place, name[0] if name else field)


def placed_by(options: OutboxOptions) -> list[Placed]:
    """Return the additional fields."""
    return [Placed.of(text) for text in options.additional]


def fields_of(options: OutboxOptions) -> list[str]:
    """Return the names of all fields of outbox rows except the payload."""
    names = [options.event_id, options.event_key, options.event_timestamp]
    names += [options.schema_version, options.route_by, *(placed.field for placed in placed_by(options))]
    return [name for name in dict.fromkeys(names) if name]


def topic_of(options: OutboxOptions, value: str) -> str:
    """Return the topic of rows with a value to route by."""
    new = replaced(options.topic_regex, options.topic_replacement, value)
    return topic_name(value if new is None else new)


def topics_begin(options: OutboxOptions) -> str:
    """Return the beginning of all topics of rows whose value to route by matches."""
    return topic_name(re.split(r"[$\\]", options.topic_replacement)[0])


def route(
    rows: Sequence[Rows], options: OutboxOptions, headers: dict[str, pa.Array], now_ms: int
) -> tuple[list[Piece], dict[int, str]]:
    """Convert rows to events.

    Args:
        rows: Inserted rows by schema, with the fields of :func:`fields_of`.
        options: The options.
        headers: Headers of all rows by name, as JSON.
        now_ms: Current time, ms since 1970.

    Returns:
        The records, and the reasons for rows without a record.
    """
    pieces: list[Piece] = []
    reasons: dict[int, str] = {}
    for group in rows:
        columns = {f.name: (f, group.values.field(n)) for n, f in enumerate(group.values.type)}
        fault = _fault(columns, options)
        if fault:
            reasons |= dict.fromkeys(map(int, group.rows), fault)
            continue
        topics = columns[options.route_by][1].dictionary_encode()
        codes = np.array(topics.indices.fill_null(-1))
        for row in group.rows[codes < 0]:
            reasons[int(row)] = f"the outbox row has no {options.route_by}"
        for name in [p.field for p in placed_by(options) if p.place == "partition" and p.field in columns]:
            numbers = columns[name][1].cast(pa.int64()).fill_null(0).to_numpy()
            outside = (numbers < 0) | (numbers > np.iinfo(np.int32).max)
            reasons |= dict.fromkeys(
                map(int, group.rows[outside]), f"{name} of the outbox row is no partition"
            )
            codes[outside] = -1
        names = topics.dictionary.to_pylist()
        versions = _versions(columns, options, len(codes))
        for topic in range(len(names)):
            for version in np.unique(versions[codes == topic]):
                chosen = np.flatnonzero((codes == topic) & (versions == version))
                part = Rows(group.rows[chosen], group.values.take(pa.array(chosen)))
                pieces += _records(part, names[topic], int(version), options, headers, now_ms)
    return pieces, reasons


def _fault(columns: dict[str, tuple[pa.Field, pa.Array]], options: OutboxOptions) -> str:
    """Return the required fields that rows of a schema lack."""
    needed = [options.event_id, options.payload, options.route_by]
    needed += [name for name in (options.event_timestamp, options.schema_version) if name]
    if options.missing != "ignore":
        needed += [placed.field for placed in placed_by(options)]
    for name in needed:
        if name not in columns:
            return f"the outbox row has no {name}"
    texts = [options.route_by]
    numbers = [name for name in (options.event_timestamp, options.schema_version) if name]
    numbers += [p.field for p in placed_by(options) if p.place == "partition" and p.field in columns]
    for name in texts:
        if not pa.types.is_string(columns[name][0].type):
            return f"{name} of the outbox row is no text"
    for name in numbers:
        array = columns[name][1]
        if columns[name][0].type not in _INTEGERS and array.null_count < len(array):
            return f"{name} of the outbox row is no whole number or date"
    return ""


def _versions(
    columns: dict[str, tuple[pa.Field, pa.Array]], options: OutboxOptions, count: int
) -> np.ndarray:
    if not options.schema_version:
        return np.full(count, -1)
    array = columns[options.schema_version][1].cast(pa.int64())
    return array.fill_null(-1).to_numpy(zero_copy_only=False)


def _records(
    part: Rows,
    routed: str,
    version: int,
    options: OutboxOptions,
    headers: dict[str, pa.Array],
    now_ms: int,
) -> list[Piece]:
    """Build the records of rows with one schema and topic."""
    count = len(part.rows)
    columns = {f.name: (f, part.values.field(n)) for n, f in enumerate(part.values.type)}
    key_schema, key = STRING, pa.nulls(count, pa.utf8())
    if options.event_key in columns:
        key_schema, key = _column(columns, options.event_key)
    payload_schema, payload = _column(columns, options.payload)
    present = [p for p in placed_by(options) if p.field in columns]
    enveloped = [p for p in placed_by(options) if p.place == "envelope"]
    schema, value = payload_schema, payload
    if enveloped:
        prefix, _, last = _ROW.rpartition(".")
        inner = [(p.name, *_column(columns, p.field)) for p in present if p.place == "envelope"]
        schema = ConnectSchema(
            "struct",
            name=f"{prefix}.{routed}.{last}",
            version=version if version >= 0 else None,
            fields=((_PAYLOAD, payload_schema), *((name, of_field) for name, of_field, _ in inner)),
        )
        arrays = [payload, *(array for _, _, array in inner)]
        value = pa.StructArray.from_arrays(arrays, [name for name, _ in schema.fields])
    timestamp = pa.repeat(pa.scalar(now_ms, pa.int64()), count)
    if options.event_timestamp:
        timestamp = columns[options.event_timestamp][1].cast(pa.int64()).fill_null(now_ms)
    partition = pa.nulls(count, pa.int32())
    index = pa.array(part.rows)
    own = {name: texts.take(index) for name, texts in headers.items()}
    own["id"] = to_json(*_column(columns, options.event_id))
    for placed in present:
        if placed.place == "header":
            own[placed.name] = to_json(*_column(columns, placed.field))
        elif placed.place == "partition":
            partition = columns[placed.field][1].cast(pa.int32())
    destination = Destination(topic_of(options, routed), key_schema, schema)
    empty = _is_empty(payload) if options.tombstone_on_empty else np.zeros(count, np.bool_)
    pieces = []
    for rows, nulls in ((np.flatnonzero(~empty), True), (np.flatnonzero(empty), False)):
        if not len(rows):
            continue
        some = pa.array(rows)
        pieces.append(
            Piece(
                Envelope.of_topic(
                    destination,
                    key.take(some),
                    value.take(some) if nulls else pa.nulls(len(rows), value.type),
                    headers={name: texts.take(some) for name, texts in own.items()},
                    partition=partition.take(some),
                    timestamp=timestamp.take(some),
                    nulls=nulls,
                ),
                part.rows[rows],
            )
        )
    return pieces


def _column(columns: dict[str, tuple[pa.Field, pa.Array]], name: str) -> tuple[ConnectSchema, pa.Array]:
    """Return schema and values of a row's field."""
    field, array = columns[name]
    if pa.types.is_null(field.type):
        return OPTIONAL_STRING, array.cast(pa.utf8())
    return named(schema_of(field), f"{_ROW}.{name}"), array


def _is_empty(payload: pa.Array) -> np.ndarray:
    """Return which payloads are null or blank."""
    empty = payload.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_string(payload.type):
        blank = pc.equal(pc.utf8_trim_whitespace(payload), "").fill_null(True)
        empty = empty | blank.to_numpy(zero_copy_only=False)
    return empty
