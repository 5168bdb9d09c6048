"""Decodes lines, and projects rows to the columns ``id`` and ``row``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, DELETE, ROW, UPSERT, generations
from airflow_cdc_provider.changes.fence import Fence
from airflow_cdc_provider.sources.contract import Codec, Decoded

_COLUMNS = pa.schema([pa.field("id", pa.string()), pa.field("row", pa.string())])


@dataclass(frozen=True)
class JsonLinesCodec(Codec):
    """Decodes one table. The row with the greatest version wins as a whole: the base class's model ``row``.

    Args:
        table: ``database.table``.
    """

    table: str

    def decode(self, changes: pa.RecordBatch, fences: Sequence[Fence]) -> Decoded:
        """Decode lines to rows and deletes."""
        count = changes.num_rows
        rows = [json.loads(line).get("row") for line in changes["payload"].to_pylist()]
        states = [None if row is None else json.dumps(row).encode() for row in rows]
        columns = {
            "key": changes["key"],
            "scope": pa.array([ROW] * count, pa.int8()),
            "clustering": pa.array([b""] * count, pa.binary()),
            "generation": generations(changes, fences),
            "version": changes["version"],
            "op": pa.array([DELETE if row is None else UPSERT for row in rows], pa.int8()),
            "state": pa.array(states, pa.binary()),
        }
        arrays = [columns.get(one.name, pa.nulls(count, one.type)) for one in CONTRIBUTION_SCHEMA]
        return Decoded(pa.RecordBatch.from_arrays(arrays, schema=CONTRIBUTION_SCHEMA))

    def mirror_schema(self) -> pa.Schema:
        """Return the mirror's columns."""
        return _COLUMNS

    def project(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Project live rows to the mirror's columns."""
        texts = [rows[name].cast(pa.string()) for name in ("key", "state")]
        return pa.RecordBatch.from_arrays(texts, schema=_COLUMNS)

    def to_json(self, rows: pa.RecordBatch) -> Iterator[str]:
        """Yield live rows as they are in the file."""
        yield from rows["state"].cast(pa.string()).to_pylist()
