"""What transforms take and give: rows of one schema, envelopes of some rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.events.connect import ConnectSchema, schema_of
from airflow_cdc_provider.events.encoder import Converters, Envelope, encode, in_order
from airflow_cdc_provider.events.names import Adjustment


class Rows(NamedTuple):
    """Rows whose values have one schema.

    Args:
        rows: Their numbers in the envelope.
        values: Their values; metadata of fields as :func:`.connect.schema_of` reads them.
    """

    rows: np.ndarray
    values: pa.StructArray


BEFORE: Final = 0
OWN: Final = 1
AFTER: Final = 2


@dataclass(frozen=True)
class Piece:
    """Records of some rows.

    Args:
        envelope: The records.
        rows: Per record, the row that it comes from.
        turn: Records of one row are sorted by it: :data:`BEFORE`, :data:`OWN`, :data:`AFTER`.
        field_names: How names of fields are made fit for Avro, if otherwise than those of all records.
    """

    envelope: Envelope
    rows: np.ndarray
    turn: int = OWN
    field_names: Literal["", "auto"] | Adjustment = ""


def encode_pieces(pieces: Sequence[Piece], converters: Converters) -> pa.RecordBatch:
    """Encode pieces; records come in the order of their rows, and ``row`` is the row's number."""
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
    """Return per row the number of its group, -1 for none; and its place in it is that of its number."""
    of_row = np.full(count, -1, np.int64)
    for number, group in enumerate(groups):
        of_row[group.rows] = number
    return of_row


def taken(group: Rows, rows: np.ndarray) -> pa.StructArray:
    """Take rows of a group, whose numbers rise."""
    if len(rows) == len(group.rows):
        return group.values
    return group.values.take(pa.array(np.searchsorted(group.rows, rows)))


def named_schema(fields: Sequence[pa.Field], name: str) -> ConnectSchema:
    """Return the schema of a struct; structs inside have names after their places.

    Args:
        fields: The struct's fields.
        name: Its name; empty for none, also for those inside.
    """
    members = tuple((f.name, named(schema_of(f), f"{name}.{f.name}" if name else "")) for f in fields)
    return ConnectSchema("struct", name=name, fields=members)


def named(schema: ConnectSchema, name: str) -> ConnectSchema:
    """Name structs without a name after their places; a list's elements have the list's."""
    if schema.type == "array" and schema.items:
        return replace(schema, items=named(schema.items, name))
    if schema.type != "struct" or schema.name:
        return schema
    inner = tuple((n, named(s, f"{name}.{n}" if name else "")) for n, s in schema.fields)
    return replace(schema, name=name, fields=inner)


def rows_of(groups: Sequence[Rows], numbers: np.ndarray) -> list[Rows]:
    """Keep rows of groups that are among some numbers, which rise."""
    kept = []
    for group in groups:
        rows = group.rows[np.isin(group.rows, numbers)]
        if len(rows):
            kept.append(Rows(rows, taken(group, rows)))
    return kept
