"""Reads keys and values of messages of all converters as JSON, with the schemas of rows.

All later stages read JSON and Kafka Connect schemas. Messages with a schema id instead of a schema
(Confluent's framing) are converted here, by a program that is compiled once per id::

    u8 0 | id, i32 big-endian | the value's bytes; for Protobuf, after the message's path in its file
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.formats.arrow_bytes import binary_buffer, span_column
from airflow_cdc_provider.formats.json_text import NULL, OBJECT
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Ints, walker
from airflow_cdc_provider.sources.debezium.connect_schema import NO_SCHEMA, ConnectField, name_of, row_schema
from airflow_cdc_provider.sources.debezium.json_members import Members, ValueSpans, members_of, read_values
from airflow_cdc_provider.sources.debezium.json_texts import compact
from airflow_cdc_provider.sources.debezium.json_writing import MOST_BYTES
from airflow_cdc_provider.sources.debezium.protobuf_wire import read_paths

SOUND: Final = 0
NO_JSON: Final = 1
UNFRAMED: Final = 2
BROKEN: Final = 3
UNKNOWN_ID: Final = 4
BAD_SCHEMA: Final = 5
"""Only the schema of rows is invalid: a fault only if the message has a row."""
WRONG_SCHEMA: Final = 6
LARGE: Final = 7
DENIED_ID: Final = 8
UNREADABLE_ID: Final = 9
NOT_LOOKED_UP: Final = 10
FAULTS: Final[Mapping[int, str]] = {
    NO_JSON: "MALFORMED: the message is not a JSON object",
    UNFRAMED: "NOT-FRAMED: the message doesn't start with a zero byte and a schema id; see "
    "source.key_converter and value_converter",
    BROKEN: "MALFORMED: the message doesn't match its schema",
    UNKNOWN_ID: "UNKNOWN-SCHEMA: the registry has no schema with the message's id",
    DENIED_ID: "UNKNOWN-SCHEMA: the registry denies access to the schema with the message's id",
    UNREADABLE_ID: "UNKNOWN-SCHEMA: the registry answers for other schemas, but its answer for the message's "
    "id is an error, too large or malformed",
    NOT_LOOKED_UP: "UNKNOWN-SCHEMA: the message's id was not looked up, because messages of the topic have "
    "too many other ids",
    BAD_SCHEMA: "BAD-SCHEMA: the message's schema is not a Kafka Connect schema, or is larger than 1 MiB",
    WRONG_SCHEMA: "BAD-SCHEMA: the registry's schema is of another converter, or has no columns",
    LARGE: f"TOO-LARGE: the JSON of the message exceeds {MOST_BYTES >> 20} MiB, or is disproportionately "
    "larger than the message",
}

WRONG_SCHEMAS: Final = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""Exceptions that parsing an untrusted schema may raise; any other exception is a bug."""

_OF_WRITING: Final = np.array([SOUND, BROKEN, LARGE])
_HEAD_BYTES: Final = 5
_MOST_SCHEMA_BYTES: Final = 1 << 20
"""Largest schema of rows. In a message it is part of a larger one, once for each side of a change."""
_MOST_TEXT_BYTES: Final = 4 * _MOST_SCHEMA_BYTES


@dataclass(frozen=True, eq=False)
class Values:
    """Values of messages.

    Args:
        data: A buffer.
        spans: The position of each value in it, as JSON without its schema; kind 0 for none.
        faults: The fault of each value: one of the constants above.
        names: Name of each row's schema, :data:`NO_SCHEMA` for none.
        schemas: Texts of these schemas.
        ids: Registry id of each schema, -1 for none; None if no value has one.
    """

    data: Bytes
    spans: ValueSpans
    faults: Ints
    names: pa.Array
    schemas: Mapping[str, bytes]
    ids: Ints | None = None


class Converter(Protocol):
    """Reads the format of one of Kafka Connect's converters. Picklable."""

    def keys(self, written: pa.Array) -> tuple[pa.Array, Ints]:
        """Return keys in a canonical format: binary, null for none.

        Returns:
            The keys, and the fault of each.

        Raises:
            OverflowError: They are too large to be read together.
        """

    def values(self, written: pa.Array, *, unwrapped: bool) -> Values:
        """Read values.

        Args:
            written: Binary; null for a tombstone.
            unwrapped: They are rows, not envelopes.

        Raises:
            OverflowError: They are too large to be read together.
        """


class TextConverter:
    """Kafka's StringConverter, for keys, which are used unchanged."""

    def keys(self, written: pa.Array) -> tuple[pa.Array, Ints]:
        """Return keys unchanged."""
        return written, np.full(len(written), SOUND, np.int64)

    def values(self, written: pa.Array, *, unwrapped: bool) -> Values:
        """Read JSON text."""
        return JsonConverter().values(written, unwrapped=unwrapped)


class JsonConverter:
    """Kafka's JsonConverter, with or without schemas, detected per message."""

    def keys(self, written: pa.Array) -> tuple[pa.Array, Ints]:
        """Return keys in a canonical format, with or without a schema."""
        data, values = read_values(written)
        _, bodies = _split_schemas(members_of(data, values), values)
        broken = written.is_valid().to_numpy(zero_copy_only=False) & (values.kinds == 0)
        return compact(data, bodies.only_present()), np.where(broken, NO_JSON, SOUND)

    def values(self, written: pa.Array, *, unwrapped: bool) -> Values:
        """Split values into schemas and payloads."""
        data, values = read_values(written)
        schemas, bodies = _split_schemas(members_of(data, values), values)
        texts = pc.dictionary_encode(span_column(pa.binary(), data, schemas.starts, schemas.ends))
        named = _Named(unwrapped)
        names = [named.add(text) for text in texts.dictionary.to_pylist()]
        of_row = pa.array(names, pa.string()).take(texts.indices)
        bad = pc.and_(of_row.is_null(), texts.indices.is_valid()).to_numpy(zero_copy_only=False)
        faults = np.where(bad, BAD_SCHEMA, SOUND)
        return Values(data, bodies, faults, of_row.fill_null(NO_SCHEMA), named.texts)


@dataclass(frozen=True, eq=False)
class Compiled:
    """A reader of the messages of one schema.

    Args:
        write: Converts messages to JSON, given a buffer, their start after the header (-1 for none) and their
            end. Returns binary, null for a missing or faulty message, and the faults, constants of
            :mod:`.json_writing`.
        schema: The Connect schema.
    """

    write: Callable[[Bytes, Ints, Ints], tuple[pa.Array, Ints]]
    schema: Mapping[str, Any]


class Schemas(Protocol):
    """Compiled schemas by id."""

    @property
    def looked_up(self) -> Mapping[int, bool]:
        """By id that was looked up, whether the registry had a schema; empty if too many are known."""

    @property
    def have_paths(self) -> bool:
        """Whether messages contain the path of their type in the schema (Protobuf)."""

    def compiled(self, schema_id: int, path: tuple[int, ...] = ()) -> Compiled | int:
        """Return the reader of a schema's messages, or the fault of such messages.

        Args:
            schema_id: The schema's id.
            path: Path of the message type in the schema.

        Raises:
            TransientError: The registry doesn't answer.
            ConfigurationError: The registry rejects the request.
        """


@dataclass
class FramedConverter:
    """Converters with schemas in a registry: Confluent's converters for Avro, Protobuf and JSON Schema.

    Args:
        schemas: Returns the reader for an id.
        in_any_order: Whether ids are looked up in another order each time, not in theirs: if there are more
            than may be looked up, each has its turn.
    """

    schemas: Schemas
    in_any_order: bool = False

    def keys(self, written: pa.Array) -> tuple[pa.Array, Ints]:
        """Return keys as canonical JSON."""
        json_messages = self._to_json(written)
        data, values = read_values(json_messages.texts)
        faults = json_messages.faults
        faults[(values.kinds == 0) & (faults == SOUND) & _present(written)] = BROKEN
        return compact(data, values.only_present()), faults

    def values(self, written: pa.Array, *, unwrapped: bool) -> Values:
        """Read values with their schemas."""
        json_messages = self._to_json(written)
        data, values = read_values(json_messages.texts)
        faults = json_messages.faults
        faults[(values.kinds == 0) & (faults == SOUND) & _present(written)] = BROKEN
        named = _Named(unwrapped)
        names = [NO_SCHEMA, *(named.add_schema(schema) for schema in json_messages.schemas)]
        of_row = pa.array(names, pa.string()).take(pa.array(json_messages.numbers))
        faults[of_row.is_null().to_numpy(zero_copy_only=False) & (faults == SOUND)] = BAD_SCHEMA
        return Values(data, values, faults, of_row.fill_null(NO_SCHEMA), named.texts, json_messages.ids)

    def _to_json(self, written: pa.Array) -> _JsonMessages:
        """Convert messages to JSON, grouped by schema."""
        data, starts, ends = binary_buffer(written)
        ids = np.full(len(starts), -1, np.int64)
        faults = np.full(len(starts), SOUND, np.int64)
        _read_heads(data, starts, ends, ids, faults)
        bodies = np.where(ids >= 0, starts + _HEAD_BYTES, -1)
        parts: list[pa.Array] = [pa.nulls(1, pa.binary())]
        rows_of_parts, numbers = np.zeros((2, len(starts)), np.int64)
        schemas: list[Mapping[str, Any]] = []
        count, size = 1, 0
        for schema_id, path, rows in self._groups(data, bodies, ends, ids):
            compiled = self.schemas.compiled(schema_id, path)
            if isinstance(compiled, int):
                faults[rows] = compiled
                continue
            texts, wrong = compiled.write(data, bodies[rows], ends[rows])
            size += texts.nbytes
            if size > 2 * MOST_BYTES and len(starts) > 1:
                raise OverflowError(f"the JSON of {len(starts)} messages of several schemas is too large")
            faults[rows] = _OF_WRITING[wrong]
            schemas.append(compiled.schema)
            numbers[rows] = len(schemas)
            parts.append(texts)
            rows_of_parts[rows] = np.arange(count, count + len(rows))
            count += len(rows)
        is_single_part = len(parts) == 2 and count == len(starts) + 1
        texts = parts[1] if is_single_part else pa.concat_arrays(parts).take(pa.array(rows_of_parts))
        return _JsonMessages(texts, faults, ids, numbers, schemas)

    def _groups(
        self, data: Bytes, bodies: Ints, ends: Ints, ids: Ints
    ) -> Iterator[tuple[int, tuple[int, ...], Ints]]:
        """Yield id, path and messages of each schema; advances ``bodies`` past the paths."""
        distinct = np.unique(ids[ids >= 0])
        if self.in_any_order:
            distinct = np.random.default_rng().permutation(distinct)
        for schema_id in distinct.tolist():
            rows = np.flatnonzero(ids == schema_id)
            if not self.schemas.have_paths:
                yield schema_id, (), rows
                continue
            paths, bodies[rows] = read_paths(data, bodies[rows], ends[rows])
            distinct, inverse = np.unique(paths, axis=0, return_inverse=True)
            for number, path in enumerate(distinct.tolist()):
                yield schema_id, tuple(index for index in path if index >= 0), rows[inverse == number]


@dataclass(frozen=True, eq=False)
class _JsonMessages:
    """Messages as JSON.

    Args:
        texts: Binary, null for none.
        faults: The fault of each message.
        ids: Registry ids of their schemas, -1 for none.
        numbers: Number of each message's schema, 0 for none.
        schemas: The Connect schemas; the first one has number 1.
    """

    texts: pa.Array
    faults: Ints
    ids: Ints
    numbers: Ints
    schemas: Sequence[Mapping[str, Any]]


class _Named:
    """Assigns names to schemas of rows and collects their texts."""

    def __init__(self, unwrapped: bool) -> None:
        self._unwrapped = unwrapped
        self.texts: dict[str, bytes] = {}

    def add(self, text: bytes | None) -> str | None:
        """Return the name of the schema of a value's rows, None if it is invalid."""
        try:
            return None if text and len(text) > _MOST_TEXT_BYTES else self.add_schema(json.loads(text or b""))
        except WRONG_SCHEMAS:
            return None

    def add_schema(self, schema: Any) -> str | None:
        """Return the name of the schema of a value's rows, None if it is invalid."""
        try:
            row = row_schema(schema, unwrapped=self._unwrapped)
            if row is None:
                return NO_SCHEMA
            name, text = name_of(row)
            if len(text) > _MOST_SCHEMA_BYTES:
                return None
            ConnectField.of(row)
        except WRONG_SCHEMAS:
            return None
        self.texts[name] = text
        return name


def _split_schemas(outer: Members, values: ValueSpans) -> tuple[ValueSpans, ValueSpans]:
    """Split messages with schema and payload."""
    schema, payload = outer.find("schema", "payload")
    sizes = np.bincount(outer.owners, minlength=outer.count) if len(outer.owners) else np.zeros(outer.count)
    both = (sizes == 2) & (schema.kinds != 0) & (payload.kinds != 0)
    both &= (schema.kinds == OBJECT) | (schema.kinds == NULL)
    bodies = ValueSpans(
        np.where(both, payload.starts, values.starts),
        np.where(both, payload.ends, values.ends),
        np.where(both, payload.kinds, values.kinds),
    )
    nothing = np.full(len(both), -1, np.int64)
    schemas = ValueSpans(
        np.where(both, schema.starts, nothing),
        np.where(both, schema.ends, nothing),
        np.where(both, schema.kinds, 0),
    )
    return schemas.only(OBJECT), bodies


def _present(written: pa.Array) -> Flags:
    present: Flags = written.is_valid().to_numpy(zero_copy_only=False)
    return present


@walker
def _read_heads(data: Bytes, starts: Ints, ends: Ints, ids: Ints, faults: Ints) -> None:
    for row in range(len(starts)):
        at = starts[row]
        if at < 0:
            continue
        if ends[row] - at < _HEAD_BYTES or data[at] != 0:
            faults[row] = UNFRAMED
            continue
        found = np.int64(0)
        for i in range(1, _HEAD_BYTES):
            found = found << 8 | np.int64(data[at + i])
        if found > 0x7FFFFFFF:
            faults[row] = UNKNOWN_ID
        else:
            ids[row] = found
