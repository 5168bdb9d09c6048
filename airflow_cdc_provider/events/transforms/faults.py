"""Isolation of records that can't be transformed or encoded, for the dead-letter table.

A cast of non-numeric text, field names that collide in Avro, or an array with a null in Protobuf would fail
the whole batch, in each run. Such records are found by bisection; if even an empty batch of a table fails in
the same way (without transforms, which drop empty batches), none of its records can be built. They are kept
in JSON as after all transforms, each with its reason; if a transform fails, without value, which it might
have masked. The publisher stores them as dead letters and never sends them. Without dead letters the first
one is an error that names its topic and key. No error text quotes a value.

Records whose schema is rejected, or whose topic is another table's, are dead letters, too, in JSON as after
all transforms. No schema of the latter is registered: it could end the topic of the owner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.events.encoder import Converters, encode, in_order
from airflow_cdc_provider.events.framing import Registrar, TopicSchema
from airflow_cdc_provider.events.transforms.chain import some_rows
from airflow_cdc_provider.events.transforms.pieces import Piece
from airflow_cdc_provider.exceptions import (
    CdcError,
    ConfigurationError,
    CorruptInput,
    SchemaRejected,
    reworded,
    shortened,
    without_values,
)
from airflow_cdc_provider.logs import logger

log = logger("airflow_cdc_provider.jobs")

OF_RECORDS: Final = (ConfigurationError, CorruptInput, ValueError, ArithmeticError, pa.ArrowException)
"""Errors that the values of some record may cause."""
_LOGGED_EVERY: Final = 1000
"""Each record of a table that can't be built takes time: the log says so after this many."""

Encode = Callable[[Sequence[Piece], Converters], pa.RecordBatch]
"""Transforms and encodes pieces."""


def encode_with_faults(
    pieces: Sequence[Piece],
    encode_some: Encode,
    converters: Converters,
    *,
    dead_letters: bool,
    rejected_schemas: bool,
    keeps_keys: bool = False,
) -> pa.RecordBatch:
    """Encode records, with one faulty record for each row that can't be encoded.

    Args:
        pieces: The records; those with faults are faulty as a rejected schema's.
        encode_some: Transforms and encodes a subset of the records.
        converters: Converters of keys and values.
        dead_letters: Whether records may be faulty.
        rejected_schemas: Whether records are faulty, too, if their schema is rejected.
        keeps_keys: Whether no transform changes keys or drops records, so that bad records have their keys.

    Returns:
        Batch of ``converters.record_schema``, in row order.

    Raises:
        SchemaRejected: A schema is rejected, and that isn't a fault of records.
        ConfigurationError: The registry can't be used; or a record can't be encoded and none may be faulty.
    """
    registrar = None
    if converters.registrar is not None:
        registrar = _WatchedRegistrar(converters.registrar, rejected_schemas)
    using = replace(converters, registrar=registrar)
    batches: list[pa.RecordBatch] = []
    faults = 0
    for piece in pieces:
        for error in piece.faults.values():
            if not rejected_schemas:
                raise error
            batches.append(_faulty_records(piece, encode_some, converters, error, keeps_keys=keeps_keys))
            break
    pieces = [piece for piece in pieces if not piece.faults]

    def add(some: Sequence[Piece]) -> None:
        nonlocal faults
        try:
            found = encode_some(some, using)
        except OF_RECORDS as error:
            if registrar and registrar.failure is error:
                raise
            (first, *others) = some
            if not others and (len(first.rows) == 1 or _fails_empty(first, encode_some, using, error)):
                known = _without_values(error)
                bad = _faulty_records(first, encode_some, converters, known, keeps_keys=keeps_keys)
                if not dead_letters:
                    raise _error_of(bad, known) from None
                batches.append(bad)
                before, faults = faults, faults + bad.num_rows
                if faults // _LOGGED_EVERY > before // _LOGGED_EVERY:
                    log.warning("%d records of topic %s can't be built: %s", faults, bad["topic"][0], known)
                return
        else:
            topics = registrar.rejected if registrar else {}
            if topics:
                found = _with_rejected(found, encode_some(some, Converters()), topics)
            batches.append(found)
            return
        for part in _halves(some):
            add(part)

    if pieces:
        add(sorted(pieces, key=lambda piece: piece.turn))
    if not batches:
        return encode_some([], using)
    rows = np.concatenate([batch["row"].to_numpy() for batch in batches])
    return batches[0] if len(batches) == 1 else in_order(batches, rows)


@dataclass
class _WatchedRegistrar:
    """A registrar that records its errors.

    Args:
        registrar: The wrapped registrar.
        tolerates: Whether rejected schemas get the ID 0 instead of an error.
        rejected: By topic, the rejection of a schema of its records.
        failure: The last exception that it raised.
    """

    registrar: Registrar
    tolerates: bool
    rejected: dict[str, SchemaRejected] = field(default_factory=dict)
    failure: ConfigurationError | None = None

    def schema_id(self, schema: TopicSchema) -> int:
        """Return the ID of a schema."""
        try:
            return self.registrar.schema_id(schema)
        except ConfigurationError as error:
            if self.tolerates and isinstance(error, SchemaRejected):
                self.rejected[schema.topic] = error
                return 0
            self.failure = error
            raise


def _with_rejected(
    found: pa.RecordBatch, plain: pa.RecordBatch, topics: Mapping[str, SchemaRejected]
) -> pa.RecordBatch:
    """Replace the records of some topics by faulty ones in JSON.

    Args:
        found: The records.
        plain: The same records in JSON.
        topics: By topic, the fault of its records.
    """
    assert found.num_rows == plain.num_rows, "converters add and drop no records"
    faults = map(topics.get, found["topic"].to_pylist())
    reasons = pa.array([fault and str(fault) for fault in faults], pa.large_utf8())
    columns = dict(zip(found.schema.names, found.columns, strict=True)) | {"fault": reasons}
    for side in ("key", "value"):
        text = plain[side].cast(found[side].type)
        columns[side] = pc.if_else(reasons.is_valid(), text, found[side])
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=found.schema)


def _halves(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Split the pieces, or the rows of a single piece."""
    if len(pieces) > 1:
        return [[piece] for piece in pieces]
    (piece,) = pieces
    half = len(piece.rows) // 2
    numbers = np.arange(len(piece.rows))
    return [[some_rows(piece, numbers[:half])], [some_rows(piece, numbers[half:])]]


def _fails_empty(piece: Piece, encode_some: Encode, converters: Converters, error: Exception) -> bool:
    """Return whether a piece fails without rows, too, because of its types."""
    try:
        encode_some([some_rows(piece, np.arange(0))], converters)
    except OF_RECORDS as without:
        return str(without) == str(error)
    return False


def _without_values(error: Exception) -> CdcError:
    """Return an error of this package, whose text names no value of a record."""
    if isinstance(error, CdcError):
        return error
    return ConfigurationError("a value can't be converted", found=without_values(error))


def _error_of(bad: pa.RecordBatch, error: CdcError) -> ConfigurationError:
    """Return the error of the first faulty record with its topic and key."""
    where = ""
    if bad.num_rows:
        key = bad["key"].cast(pa.large_binary())[0].as_py()
        where = f", in the record of topic {bad['topic'][0]}" + (
            f" with key {shortened(key.decode())}" if key else ""
        )
    return reworded(error, f"{error.message}{where}")


def _faulty_records(
    piece: Piece, encode_some: Encode, converters: Converters, error: CdcError, *, keeps_keys: bool
) -> pa.RecordBatch:
    """Return a piece's records in JSON, without what a failed transform might hide.

    Only records with a fault of their own have tombstones: their number is the same as without it.
    """
    count = len(piece.rows)
    envelope = replace(piece.envelope, tombstone=np.zeros(count, np.bool_))
    topics = pa.array([d.topic for d in envelope.destinations], pa.large_utf8())
    values = {"row": pa.array(piece.rows), "topic": topics.take(pa.array(envelope.destination))}
    if keeps_keys:
        keys = replace(envelope, value=pa.nulls(count, envelope.value.type), nulls=False)
        values["key"] = encode(keys, Converters())["key"]
    with suppress(*OF_RECORDS):
        whole = piece if piece.faults else replace(piece, envelope=envelope)
        found = encode_some([whole], Converters())
        values = dict(zip(found.schema.names, found.columns, strict=True))
        count = found.num_rows
    schema = converters.record_schema
    values = {"bare": pa.repeat(False, count), "headers": pa.repeat("", count)} | values
    reasons = [str(piece.faults.get(row, error)) for row in values["row"].to_pylist()]
    values["fault"] = pa.array(reasons, pa.large_utf8())
    columns = [values.get(one.name, pa.nulls(count, one.type)).cast(one.type) for one in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
