"""Decoding pending changes: one pass over the batches for all tables, on executors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA
from airflow_cdc_provider.changes.contribution import SPARK_DDL as CONTRIBUTION_DDL
from airflow_cdc_provider.changes.fence import Fence
from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.changes.record import SPARK_DDL as RECORD_DDL
from airflow_cdc_provider.changes.worker import map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_cdc_provider.sources.contract import Codec

FAULT_TYPE = pa.struct(list(CHANGE_SCHEMA))
DECODED_SCHEMA = pa.schema(
    [pa.field("source_table", pa.string()), *CONTRIBUTION_SCHEMA, pa.field("fault", FAULT_TYPE)]
)
"""A contribution with its table; or, with ``fault`` set, an undecodable change."""

_DDL = f"source_table string, {CONTRIBUTION_DDL}, fault struct<{RECORD_DDL}>"


def decode(
    pending: DataFrame, codecs: Mapping[str, Codec], fences: Mapping[str, Sequence[Fence]]
) -> DataFrame:
    """Decode the changes of several tables in one pass.

    Args:
        pending: Changes of these tables, kinds ``change`` and ``snapshot``.
        codecs: Codecs by table.
        fences: Fences by table; they determine the generation of contributions.

    Returns:
        Frame of :data:`DECODED_SCHEMA`.
    """
    work = _Decode(dict(codecs), {t: tuple(f) for t, f in fences.items()})
    return map_in_arrow(pending.select(*CHANGE_SCHEMA.names), work, _DDL)


@dataclass(frozen=True)
class _Decode:
    codecs: Mapping[str, Codec]
    fences: Mapping[str, Sequence[Fence]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for table, part in split_by_table(batch):
                decoded = self.codecs[table].decode(part, self.fences.get(table, ()))
                contributions = decoded.contributions
                if contributions.num_rows:
                    yield _rows(table, contributions)
                if len(decoded.undecodable):
                    yield _faults(table, part, decoded.undecodable, decoded.reasons)


def split_by_table(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Split a batch by ``source_table``; rows without a table are dropped."""
    names = batch.column("source_table")
    found = pc.unique(names).to_pylist()
    for table in found:
        if table is None:
            continue
        yield table, batch if len(found) == 1 else batch.filter(pc.equal(names, table))


def _rows(table: str, contributions: pa.RecordBatch) -> pa.RecordBatch:
    count = contributions.num_rows
    return pa.RecordBatch.from_arrays(
        [_repeat(table, count), *contributions.columns, pa.nulls(count, FAULT_TYPE)], schema=DECODED_SCHEMA
    )


def _faults(
    table: str, part: pa.RecordBatch, undecodable: Sequence[int], reasons: Sequence[str]
) -> pa.RecordBatch:
    rows = part.take(pa.array(np.asarray(undecodable, np.int64)))
    count = rows.num_rows
    columns = {name: rows.column(name) for name in CHANGE_SCHEMA.names}
    columns["reason"] = pa.array(list(reasons), pa.string())
    fault = pa.StructArray.from_arrays(list(columns.values()), fields=list(FAULT_TYPE))
    empty = [pa.nulls(count, f.type) for f in CONTRIBUTION_SCHEMA]
    return pa.RecordBatch.from_arrays([_repeat(table, count), *empty, fault], schema=DECODED_SCHEMA)


def _repeat(text: str, count: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(count, np.int32)), pa.array([text], pa.string())
    ).cast(pa.string())
