"""Input and output of transforms: rows of one schema, and envelopes of subsets of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.events.connect import ConnectSchema, schema_of
from airflow_cdc_provider.events.encoder import Converters, Envelope, encode, in_order
from airflow_cdc_provider.events.names import Adjustment
from airflow_cdc_provider.exceptions import SchemaRejected


class Rows(NamedTuple):
    """Rows whose values have one schema.

    Args:
        rows: Indexes of the rows in the envelope.
        values: Their values; with field metadata for :func:`.connect.schema_of`.
    """

    rows: np.ndarray
    values: pa.StructArray


BEFORE: Final = 0
OWN: Final = 1
AFTER: Final = 2


@dataclass(frozen=True)
class Piece:
    """Records of a subset of rows.

    Args:
        envelope: The records.
        rows: Per record, index of its row.
        turn: Sort key of records of the same row: :data:`BEFORE`, :data:`OWN`, :data:`AFTER`.
        field_names: Adjustment of field names for Avro, if different from the converters'.
        faults: By row, why its records can't be published though they can be built; empty if all can.
    """

    envelope: Envelope
    rows: np.ndarray
    turn: int = OWN
    field_names: Literal["", "auto"] | Adjustment = ""
    faults: Mapping[int, SchemaRejected] = field(default_factory=dict)


def encode_pieces(pieces: Sequence[Piece], converters: Converters) -> pa.RecordBatch:
    """Encode pieces; records are in row order, and ``row`` is the row's index."""
    batches, places = [], []
    for piece in pieces:
        own_names = replace(converters, field_names=piece.field_names) if piece.field_names else converters
        batch = encode(piece.envelope, own_names)
        own = piece.rows[batch["row"].to_numpy()]
        batches.append(batch.set_column(0, batch.schema.field(0), pa.array(own, pa.int64())))
        places.append(own * (AFTER + 1) + piece.turn)
    if not batches:
        return pa.RecordBatch.from_pylist([], schema=converters.record_schema)
    return in_order(batches, np.concatenate(places))


def group_of(groups: Sequence[Rows], count: int) -> np.ndarray:
    """Return the group of each row, -1 for none, and its index within the group."""
    of_row = np.full(count, -1, np.int64)
    for number, group in enumerate(groups):
        of_row[group.rows] = number
    return of_row


def taken(group: Rows, rows: np.ndarray) -> pa.StructArray:
    """Take rows of a group by ascending index."""
    if len(rows) == len(group.rows):
        return group.values
    return group.values.take(pa.array(np.searchsorted(group.rows, rows)))


def named_schema(fields: Sequence[pa.Field], name: str) -> ConnectSchema:
    """Return the schema of a struct; nested structs are named by path.

    Args:
        fields: The struct's fields.
        name: Its name; empty for unnamed structs, including nested ones.
    """
    members = tuple((f.name, named(schema_of(f), f"{name}.{f.name}" if name else "")) for f in fields)
    return ConnectSchema("struct", name=name, fields=members)


def named(schema: ConnectSchema, name: str) -> ConnectSchema:
    """Name unnamed structs by path; elements of arrays have the path of the array."""
    if schema.type == "array" and schema.items:
        return replace(schema, items=named(schema.items, name))
    if schema.type != "struct" or schema.name:
        return schema
    inner = tuple((n, named(s, f"{name}.{n}" if name else "")) for n, s in schema.fields)
    return replace(schema, name=name, fields=inner)


def rows_of(groups: Sequence[Rows], numbers: np.ndarray) -> list[Rows]:
    """Keep rows of groups by ascending index."""
    kept = []
    for group in groups:
        rows = group.rows[np.isin(group.rows, numbers)]
        if len(rows):
            kept.append(Rows(rows, taken(group, rows)))
    return kept
