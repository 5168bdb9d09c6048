"""Isolation of records that can't be transformed or encoded, for the dead-letter table.

A cast of non-numeric text, field names that collide in Avro, or an array with a null in Protobuf would fail
the whole batch, in each run. Such records are found by bisection. They are kept in JSON as before all
transforms, each with its reason; the publisher stores them as dead letters and never sends them. Without dead
letters the first one is an error that names its topic and key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.events.encoder import Converters, encode, in_order
from airflow_cdc_provider.events.framing import Registrar, TopicSchema
from airflow_cdc_provider.events.transforms.chain import some_rows
from airflow_cdc_provider.events.transforms.pieces import Piece
from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput

MAX_FAULTS: Final = 1000
"""Maximum per batch; more faults indicate an error in the declaration, not in records."""
OF_RECORDS: Final = (ConfigurationError, CorruptInput, ValueError, ArithmeticError, pa.ArrowException)
"""Errors that the values of some record may cause."""

Encode = Callable[[Sequence[Piece]], pa.RecordBatch]
"""Transforms and encodes pieces."""


def encode_with_faults(
    pieces: Sequence[Piece],
    encode_some: Encode,
    converters: Converters,
    registrar: RecordingRegistrar | None = None,
    *,
    most: int = MAX_FAULTS,
) -> pa.RecordBatch:
    """Encode records, with one faulty record for each row that can't be encoded.

    Args:
        pieces: The records.
        encode_some: Transforms and encodes a subset of the records.
        converters: Converters of keys and values.
        registrar: Registrar of ``encode_some``; a rejection by the registry is not a fault of a record.
        most: Maximum number of faulty records.

    Returns:
        Batch of ``converters.record_schema``, in row order.

    Raises:
        ConfigurationError: The registry rejects a schema; or more rows can't be encoded.
    """
    batches: list[pa.RecordBatch] = []
    faults = 0

    def add(some: Sequence[Piece]) -> None:
        nonlocal faults
        try:
            batches.append(encode_some(some))
            return
        except OF_RECORDS as error:
            if registrar is not None and registrar.refusal is error:
                raise
            if len(some) == 1 and len(some[0].rows) == 1:
                faults += 1
                bad = _faulty_record(some[0], converters, error)
                if faults > most:
                    raise _error_of(bad, error) from error
                batches.append(bad)
                return
        for part in _halves(some):
            add(part)

    if pieces:
        add(sorted(pieces, key=lambda piece: piece.turn))
    if not batches:
        return encode_some([])
    rows = np.concatenate([batch["row"].to_numpy() for batch in batches])
    return batches[0] if len(batches) == 1 else in_order(batches, rows)


@dataclass
class RecordingRegistrar:
    """A registrar that records its last error.

    Args:
        registrar: The wrapped registrar.
        refusal: The last exception that it raised.
    """

    registrar: Registrar
    refusal: ConfigurationError | None = None

    def schema_id(self, schema: TopicSchema) -> int:
        """Return the ID of a schema."""
        try:
            return self.registrar.schema_id(schema)
        except ConfigurationError as error:
            self.refusal = error
            raise


def _halves(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Split the pieces, or the rows of a single piece."""
    if len(pieces) > 1:
        return [[piece] for piece in pieces]
    (piece,) = pieces
    half = len(piece.rows) // 2
    numbers = np.arange(len(piece.rows))
    return [[some_rows(piece, numbers[:half])], [some_rows(piece, numbers[half:])]]


def _error_of(bad: pa.RecordBatch, error: Exception) -> ConfigurationError:
    """Return the error of a record with its topic and key."""
    known = error if isinstance(error, ConfigurationError) else ConfigurationError(str(error))
    key = bad["key"].cast(pa.large_binary())[0].as_py() or b""
    return ConfigurationError(
        f"{known.message}, in the record of topic {bad['topic'][0]} with key {key.decode()}",
        expected=known.expected,
        found=known.found,
        remedy=known.remedy,
    )


def _faulty_record(piece: Piece, converters: Converters, error: Exception) -> pa.RecordBatch:
    """Return the single record of a piece in JSON, as before transforms and without its tombstone."""
    envelope = replace(piece.envelope, tombstone=np.zeros(1, np.bool_))
    encoded = encode(envelope, Converters())
    schema = converters.record_schema
    values = {name: encoded[name] for name in encoded.schema.names} | {
        "row": pa.array(piece.rows, pa.int64()),
        "fault": pa.array([str(error)], pa.large_utf8()),
    }
    columns = [values.get(one.name, pa.nulls(1, one.type)).cast(one.type) for one in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
