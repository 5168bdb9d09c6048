"""Keys and values out of messages, whatever converter wrote them: JSON, and the schemas of rows beside it.

Everything behind this place reads JSON and schemas of Kafka Connect. What brings a schema's id instead of a
schema (Confluent's framing) is turned into them here, by a program that is compiled once per id::

    u8 0 | id, i32 big-endian | the value's bytes; of Protobuf led by the message's place in its file
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.kernels import walker
from airflow_cdc_provider.changes.spans import Bytes, Ints, binary_buffer, span_column
from airflow_cdc_provider.sources.debezium.connect_schema import NO_SCHEMA, ConnectField, name_of, row_schema
from airflow_cdc_provider.sources.debezium.json_members import (
    NULL,
    OBJECT,
    Members,
    Places,
    members_of,
    read_values,
)
from airflow_cdc_provider.sources.debezium.json_texts import compact
from airflow_cdc_provider.sources.debezium.json_writing import MOST_BYTES
from airflow_cdc_provider.sources.debezium.protobuf_wire import read_paths

SOUND: Final = 0
NO_JSON: Final = 1
UNFRAMED: Final = 2
BROKEN: Final = 3
UNKNOWN_ID: Final = 4
BAD_SCHEMA: Final = 5
"""Only what is said of rows is wrong: it counts where there is one."""
WRONG_SCHEMA: Final = 6
LARGE: Final = 7
FAULTS: Final[Mapping[int, str]] = {
    NO_JSON: "MALFORMED: the message is no JSON object",
    UNFRAMED: "NOT-FRAMED: the message doesn't begin with a zero and a schema's id; see source.key_converter "
    "and value_converter",
    BROKEN: "MALFORMED: the message's bytes aren't what its schema says",
    UNKNOWN_ID: "UNKNOWN-SCHEMA: the registry has no schema of the message's id",
    BAD_SCHEMA: "BAD-SCHEMA: the message's schema is none of Kafka Connect's",
    WRONG_SCHEMA: "BAD-SCHEMA: the registry's schema is of another converter, or none that has columns",
    LARGE: f"TOO-LARGE: the message becomes more than {MOST_BYTES >> 20} MiB of JSON, or very much more "
    "than it is itself",
}

WRONG_SCHEMAS: Final = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    OverflowError,
    RecursionError,
)
"""What the text of a schema from elsewhere may fail with when it is read; all else is a fault of ours."""

_OF_WRITING: Final = np.array([SOUND, BROKEN, LARGE])
_HEAD_BYTES: Final = 5


@dataclass(frozen=True, eq=False)
class Values:
    """Values of messages.

    Args:
        data: A buffer.
        places: Where in it each stands as JSON, without its schema; kind 0 where there is none.
        faults: What is wrong with each: one of the constants above.
        names: Name of each row's schema, :data:`NO_SCHEMA` for none.
        schemas: Text of each of these schemas.
        ids: By which a registry knows the schema of each, -1 for none; None where none has one.
    """

    data: Bytes
    places: Places
    faults: Ints
    names: pa.Array
    schemas: Mapping[str, bytes]
    ids: Ints | None = None


class Converter(Protocol):
    """Reads what one of Kafka Connect's converters wrote. Picklable."""

    def keys(self, written: pa.Array) -> tuple[pa.Array, Ints]:
        """Write keys in one way, whoever wrote them: binary, null where there is none.

        Returns:
            The keys, and what is wrong with each.

        Raises:
            OverflowError: They are too much to be read together.
        """

    def values(self, written: pa.Array, *, unwrapped: bool) -> Values:
        """Read values.

        Args:
            written: Binary; null for a tombstone.
            unwrapped: They are rows, not envelopes.

        Raises:
            OverflowError: They are too much to be read together.
        """


class TextConverter:
    """Kafka's StringConverter, for keys: they are taken as they are."""

    def keys(self, written: pa.Array) -> tuple[pa.Array, Ints]:
        """Take keys as they are."""
        return written, np.full(len(written), SOUND, np.int64)

    def values(self, written: pa.Array, *, unwrapped: bool) -> Values:
        """Read text that is JSON."""
        return JsonConverter().values(written, unwrapped=unwrapped)


class JsonConverter:
    """Kafka's JsonConverter, with schemas or without, told by each message."""

    def keys(self, written: pa.Array) -> tuple[pa.Array, Ints]:
        """Write keys in one way, with a schema or without."""
        data, values = read_values(written)
        _, bodies = _apart(members_of(data, values), values)
        broken = written.is_valid().to_numpy(zero_copy_only=False) & (values.kinds == 0)
        return compact(data, bodies.only_present()), np.where(broken, NO_JSON, SOUND)

    def values(self, written: pa.Array, *, unwrapped: bool) -> Values:
        """Tell schemas and payloads apart."""
        data, values = read_values(written)
        schemas, bodies = _apart(members_of(data, values), values)
        texts = pc.dictionary_encode(span_column(pa.binary(), data, schemas.starts, schemas.ends))
        named = _Named(unwrapped)
        names = [named.add(text) for text in texts.dictionary.to_pylist()]
        of_row = pa.array(names, pa.string()).take(texts.indices)
        bad = pc.and_(of_row.is_null(), texts.indices.is_valid()).to_numpy(zero_copy_only=False)
        faults = np.where(bad, BAD_SCHEMA, SOUND)
        return Values(data, bodies, faults, of_row.fill_null(NO_SCHEMA), named.texts)


@dataclass(frozen=True, eq=False)
class Compiled:
    """What reads the messages of one schema.

    Args:
        write: Given a buffer, where messages begin behind their head (-1 for none) and where they end, writes
            JSON: binary, null where there is none or something is wrong with it; and tells what is, by
            :mod:`.json_writing`'s constants.
        schema: Connect's schema.
    """

    write: Callable[[Bytes, Ints, Ints], tuple[pa.Array, Ints]]
    schema: Mapping[str, Any]


class Schemas(Protocol):
    """Compiled schemas by their ids."""

    @property
    def have_paths(self) -> bool:
        """Whether messages tell which of a schema's messages they are (Protobuf)."""

    def compiled(self, schema_id: int, path: tuple[int, ...] = ()) -> Compiled | int:
        """Return what reads messages of a schema, or the fault that such messages have.

        Args:
            schema_id: The schema's id.
            path: Which of its messages they are.

        Raises:
            TransientError: The registry doesn't answer.
            ConfigurationError: It refuses us.
        """


@dataclass
class FramedConverter:
    """Converters that keep schemas in a registry: Confluent's of Avro, Protobuf and JSON Schema.

    Args:
        schemas: Gives what reads messages of an id.
    """

    schemas: Schemas

    def keys(self, written: pa.Array) -> tuple[pa.Array, Ints]:
        """Write keys as JSON in one way."""
        made = self._made(written)
        data, values = read_values(made.texts)
        faults = made.faults
        faults[(values.kinds == 0) & (faults == SOUND) & _present(written)] = BROKEN
        return compact(data, values.only_present()), faults

    def values(self, written: pa.Array, *, unwrapped: bool) -> Values:
        """Read values by their schemas."""
        made = self._made(written)
        data, values = read_values(made.texts)
        faults = made.faults
        faults[(values.kinds == 0) & (faults == SOUND) & _present(written)] = BROKEN
        named = _Named(unwrapped)
        names = [NO_SCHEMA, *(named.add_schema(schema) for schema in made.schemas)]
        of_row = pa.array(names, pa.string()).take(pa.array(made.numbers))
        faults[of_row.is_null().to_numpy(zero_copy_only=False) & (faults == SOUND)] = BAD_SCHEMA
        return Values(data, values, faults, of_row.fill_null(NO_SCHEMA), named.texts, made.ids)

    def _made(self, written: pa.Array) -> _Made:
        """Write messages as JSON, those of each schema together."""
        data, starts, ends = binary_buffer(written)
        ids = np.full(len(starts), -1, np.int64)
        faults = np.full(len(starts), SOUND, np.int64)
        _read_heads(data, starts, ends, ids, faults)
        bodies = np.where(ids >= 0, starts + _HEAD_BYTES, -1)
        parts: list[pa.Array] = [pa.nulls(1, pa.binary())]
        taken, numbers = np.zeros((2, len(starts)), np.int64)
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
                raise OverflowError(f"{len(starts)} messages of several schemas are too much JSON together")
            faults[rows] = _OF_WRITING[wrong]
            schemas.append(compiled.schema)
            numbers[rows] = len(schemas)
            parts.append(texts)
            taken[rows] = np.arange(count, count + len(rows))
            count += len(rows)
        whole = len(parts) == 2 and count == len(starts) + 1
        texts = parts[1] if whole else pa.concat_arrays(parts).take(pa.array(taken))
        return _Made(texts, faults, ids, numbers, schemas)

    def _groups(
        self, data: Bytes, bodies: Ints, ends: Ints, ids: Ints
    ) -> Iterator[tuple[int, tuple[int, ...], Ints]]:
        """Yield the messages of each schema, with its id; moves their beginnings behind their paths."""
        for schema_id in np.unique(ids[ids >= 0]).tolist():
            rows = np.flatnonzero(ids == schema_id)
            if not self.schemas.have_paths:
                yield schema_id, (), rows
                continue
            paths, bodies[rows] = read_paths(data, bodies[rows], ends[rows])
            distinct, inverse = np.unique(paths, axis=0, return_inverse=True)
            for number, path in enumerate(distinct.tolist()):
                yield schema_id, tuple(place for place in path if place >= 0), rows[inverse == number]


@dataclass(frozen=True, eq=False)
class _Made:
    """Messages as JSON.

    Args:
        texts: Binary, null where there is none.
        faults: What is wrong with each.
        ids: Of their schemas, -1 for none.
        numbers: Of the schema of each, 0 for none.
        schemas: Connect's schemas, the first of number 1.
    """

    texts: pa.Array
    faults: Ints
    ids: Ints
    numbers: Ints
    schemas: Sequence[Mapping[str, Any]]


class _Named:
    """Names schemas of rows and keeps their texts."""

    def __init__(self, unwrapped: bool) -> None:
        self._unwrapped = unwrapped
        self.texts: dict[str, bytes] = {}

    def add(self, text: bytes | None) -> str | None:
        """Name the schema of a value's rows, None where it is no schema."""
        try:
            return self.add_schema(json.loads(text or b""))
        except WRONG_SCHEMAS:
            return None

    def add_schema(self, schema: Any) -> str | None:
        """Name the schema of a value's rows, None where it is no schema."""
        try:
            row = row_schema(schema, unwrapped=self._unwrapped)
            if row is None:
                return NO_SCHEMA
            ConnectField.of(row)
            name, text = name_of(row)
        except WRONG_SCHEMAS:
            return None
        self.texts[name] = text
        return name


def _apart(outer: Members, values: Places) -> tuple[Places, Places]:
    """Tell schema and payload, where the converter writes both."""
    schema, payload = outer.find("schema", "payload")
    sizes = np.bincount(outer.owners, minlength=outer.count) if len(outer.owners) else np.zeros(outer.count)
    both = (sizes == 2) & (schema.kinds != 0) & (payload.kinds != 0)
    both &= (schema.kinds == OBJECT) | (schema.kinds == NULL)
    bodies = Places(
        np.where(both, payload.starts, values.starts),
        np.where(both, payload.ends, values.ends),
        np.where(both, payload.kinds, values.kinds),
    )
    nothing = np.full(len(both), -1, np.int64)
    schemas = Places(
        np.where(both, schema.starts, nothing),
        np.where(both, schema.ends, nothing),
        np.where(both, schema.kinds, 0),
    )
    return schemas.only(OBJECT), bodies


def _present(written: pa.Array) -> npt.NDArray[np.bool_]:
    present: npt.NDArray[np.bool_] = written.is_valid().to_numpy(zero_copy_only=False)
    return present


@walker
def _read_heads(data: Any, starts: Any, ends: Any, ids: Any, faults: Any) -> None:
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
