"""Records that can't be made as the declaration asks, set apart from those that can.

A text that is no number where one is to be cast, fields whose names Avro would not tell apart, a list with a
null in Protobuf: one such record fails all that are made with it, and again in each run. Where such records
are to be set apart, those that can be made are found by halves. The others are kept as they were before all
transforms, in JSON, each with its reason: whoever publishes keeps them, and never sends them.
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
from airflow_cdc_provider.exceptions import ConfigurationError

MOST_FAULTS: Final = 1000
"""Of the records that are made at once. With more the declaration is wrong, not the records."""

Make = Callable[[Sequence[Piece]], pa.RecordBatch]
"""Transforms and encodes pieces."""


def made_with_faults(
    pieces: Sequence[Piece], make: Make, converters: Converters, registrar: Answering | None = None
) -> pa.RecordBatch:
    """Make records, one in place of each row that can't be made.

    Args:
        pieces: The records.
        make: Makes them, each time of some.
        converters: How they are written.
        registrar: Through which ``make`` asks for ids of schemas: what the registry refuses is no fault of
            a record.

    Returns:
        Batch of ``converters.record_schema``, by rows.

    Raises:
        ConfigurationError: The registry refuses a schema; or more than :data:`MOST_FAULTS` rows can't be
            made.
    """
    found: list[pa.RecordBatch] = []
    faults = 0

    def add(some: Sequence[Piece]) -> None:
        nonlocal faults
        try:
            found.append(make(some))
            return
        except ConfigurationError as error:
            if registrar is not None and registrar.refusal is error:
                raise
            if len(some) == 1 and len(some[0].rows) == 1:
                faults += 1
                if faults > MOST_FAULTS:
                    raise
                found.append(_shown(some[0], converters, error))
                return
        for part in _halves(some):
            add(part)

    if pieces:
        add(sorted(pieces, key=lambda piece: piece.turn))
    if not found:
        return make([])
    rows = np.concatenate([batch["row"].to_numpy() for batch in found])
    return found[0] if len(found) == 1 else in_order(found, rows)


@dataclass
class Answering:
    """A registrar that knows what it was refused.

    Args:
        registrar: The one that asks.
        refusal: The last error that it raised.
    """

    registrar: Registrar
    refusal: ConfigurationError | None = None

    def schema_id(self, schema: TopicSchema) -> int:
        """Return the id that readers find a schema by."""
        try:
            return self.registrar.schema_id(schema)
        except ConfigurationError as error:
            self.refusal = error
            raise


def _halves(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Part pieces, or the rows of the only one."""
    if len(pieces) > 1:
        return [[piece] for piece in pieces]
    (piece,) = pieces
    half = len(piece.rows) // 2
    numbers = np.arange(len(piece.rows))
    return [[some_rows(piece, numbers[:half])], [some_rows(piece, numbers[half:])]]


def _shown(piece: Piece, converters: Converters, error: ConfigurationError) -> pa.RecordBatch:
    """Return the only record of a piece as it was before transforms, in JSON, without its tombstone."""
    envelope = replace(piece.envelope, tombstone=np.zeros(1, np.bool_))
    shown = encode(envelope, Converters())
    schema = converters.record_schema
    values = {name: shown[name] for name in shown.schema.names} | {
        "row": pa.array(piece.rows, pa.int64()),
        "fault": pa.array([str(error)], pa.large_utf8()),
    }
    columns = [values.get(one.name, pa.nulls(1, one.type)).cast(one.type) for one in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
