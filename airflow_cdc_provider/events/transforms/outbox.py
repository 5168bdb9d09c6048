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
from airflow_cdc_provider.events.transforms.pieces import Piece, Rows, named

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


@dataclass(frozen=True)
class Routing:
    """Fields of outbox rows.

    Args:
        event_id: Field of the event ID.
        event_key: Field of the record key.
        event_timestamp: Field of the record timestamp; empty: current time.
        payload: Field of the record value.
        schema_version: Field of the value's schema version; empty: none.
        route_by: Field that determines the topic.
        placed: Additional fields.
        ignore_missing: Whether rows may lack additional fields.
        topic_regex: Anchored regular expression on ``route_by``, with Java's group names.
        topic_replacement: The topic, with ``${group}``.
        tombstone_on_empty: Whether an event without payload is written as a tombstone.
    """

    event_id: str = "_id"
    event_key: str = "aggregateid"
    event_timestamp: str = ""
    payload: str = _PAYLOAD
    schema_version: str = ""
    route_by: str = "aggregatetype"
    placed: Sequence[Placed] = ()
    ignore_missing: bool = False
    topic_regex: str = "(?<routedByValue>.*)"
    topic_replacement: str = "outbox.event.${routedByValue}"
    tombstone_on_empty: bool = False

    @property
    def fields(self) -> list[str]:
        """Names of all fields except the payload."""
        names = [self.event_id, self.event_key, self.event_timestamp, self.schema_version, self.route_by]
        return [name for name in dict.fromkeys([*names, *(p.field for p in self.placed)]) if name]

    def topic(self, value: str) -> str:
        """Return the topic of rows with a value to route by."""
        pattern = re.sub(r"\(\?<(?![=!])", "(?P<", self.topic_regex)
        match = re.fullmatch(pattern, value)
        if match is None:
            return topic_name(value)
        groups = match.groupdict("")

        def group(found: re.Match[str]) -> str:
            if found["name"]:
                return groups.get(found["name"], "")
            return (
                (match.group(int(found["number"])) or "") if int(found["number"]) <= match.re.groups else ""
            )

        return topic_name(re.sub(r"\$(?:\{(?P<name>\w+)\}|(?P<number>\d))", group, self.topic_replacement))


def route(
    rows: Sequence[Rows], routing: Routing, headers: dict[str, pa.Array], now_ms: int
) -> tuple[list[Piece], dict[int, str]]:
    """Convert rows to events.

    Args:
        rows: Inserted rows by schema, with the fields in ``routing``.
        routing: Fields of outbox rows.
        headers: Headers of all rows by name, as JSON.
        now_ms: Current time, ms since 1970.

    Returns:
        The records, and the reasons for rows without a record.
    """
    pieces: list[Piece] = []
    reasons: dict[int, str] = {}
    for group in rows:
        columns = {f.name: (f, group.values.field(n)) for n, f in enumerate(group.values.type)}
        fault = _fault(columns, routing)
        if fault:
            reasons |= dict.fromkeys(map(int, group.rows), fault)
            continue
        topics = columns[routing.route_by][1].dictionary_encode()
        codes = topics.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        for row in group.rows[codes < 0]:
            reasons[int(row)] = f"the outbox row has no {routing.route_by}"
        names = topics.dictionary.to_pylist()
        versions = _versions(columns, routing, len(codes))
        for topic in range(len(names)):
            for version in np.unique(versions[codes == topic]):
                chosen = np.flatnonzero((codes == topic) & (versions == version))
                part = Rows(group.rows[chosen], group.values.take(pa.array(chosen)))
                pieces += _records(part, names[topic], int(version), routing, headers, now_ms)
    return pieces, reasons


def _fault(columns: dict[str, tuple[pa.Field, pa.Array]], routing: Routing) -> str:
    """Return the required fields that rows of a schema lack."""
    needed = [routing.event_id, routing.payload, routing.route_by]
    needed += [name for name in (routing.event_timestamp, routing.schema_version) if name]
    if not routing.ignore_missing:
        needed += [placed.field for placed in routing.placed]
    for name in needed:
        if name not in columns:
            return f"the outbox row has no {name}"
    texts = [routing.route_by]
    numbers = [name for name in (routing.event_timestamp, routing.schema_version) if name]
    numbers += [p.field for p in routing.placed if p.place == "partition" and p.field in columns]
    for name in texts:
        if not pa.types.is_string(columns[name][0].type):
            return f"{name} of the outbox row is no text"
    for name in numbers:
        array = columns[name][1]
        if columns[name][0].type not in _INTEGERS and array.null_count < len(array):
            return f"{name} of the outbox row is no whole number or date"
    return ""


def _versions(columns: dict[str, tuple[pa.Field, pa.Array]], routing: Routing, count: int) -> np.ndarray:
    if not routing.schema_version:
        return np.full(count, -1)
    array = columns[routing.schema_version][1].cast(pa.int64())
    return array.fill_null(-1).to_numpy(zero_copy_only=False)


def _records(
    part: Rows,
    routed: str,
    version: int,
    routing: Routing,
    headers: dict[str, pa.Array],
    now_ms: int,
) -> list[Piece]:
    """Build the records of rows with one schema and topic."""
    count = len(part.rows)
    columns = {f.name: (f, part.values.field(n)) for n, f in enumerate(part.values.type)}
    key_schema, key = STRING, pa.nulls(count, pa.utf8())
    if routing.event_key in columns:
        key_schema, key = _column(columns, routing.event_key)
    payload_schema, payload = _column(columns, routing.payload)
    present = [p for p in routing.placed if p.field in columns]
    enveloped = [p for p in routing.placed if p.place == "envelope"]
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
    if routing.event_timestamp:
        timestamp = columns[routing.event_timestamp][1].cast(pa.int64()).fill_null(now_ms)
    partition = pa.nulls(count, pa.int32())
    index = pa.array(part.rows)
    own = {name: texts.take(index) for name, texts in headers.items()}
    own["id"] = to_json(*_column(columns, routing.event_id))
    for placed in present:
        if placed.place == "header":
            own[placed.name] = to_json(*_column(columns, placed.field))
        elif placed.place == "partition":
            partition = columns[placed.field][1].cast(pa.int32())
    destination = Destination(routing.topic(routed), key_schema, schema)
    empty = _is_empty(payload) if routing.tombstone_on_empty else np.zeros(count, np.bool_)
    pieces = []
    for rows, nulls in ((np.flatnonzero(~empty), True), (np.flatnonzero(empty), False)):
        if not len(rows):
            continue
        some = pa.array(rows)
        pieces.append(
            Piece(
                Envelope(
                    [destination],
                    np.zeros(len(rows), np.int64),
                    key.take(some),
                    value.take(some) if nulls else pa.nulls(len(rows), value.type),
                    np.zeros(len(rows), np.bool_),
                    {name: texts.take(some) for name, texts in own.items()},
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
