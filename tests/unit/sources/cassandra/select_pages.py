"""Pages of a SELECT as a server writes them, and what a snapshot makes of them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA, SNAPSHOT
from airflow_cdc_provider.sources.cql.schema import TableSchema
from airflow_cdc_provider.sources.cql.snapshot import compile_select, page_records, select_list
from tests.unit.sources.cql.cql_values import Native, parts

NOW = 1_795_247_456
NOW_US = NOW * 1_000_000 + 123


def _number(value: int | None, size: int) -> Native:
    return None if value is None else value.to_bytes(size, "big", signed=True)


def _numbers(values: Sequence[int | None] | int | None, size: int) -> Native:
    if isinstance(values, int) or values is None:
        return _number(values, size)
    return struct.pack(">i", len(values)) + parts([_number(v, size) for v in values])


def select_page(
    table: TableSchema, rows: Sequence[Mapping[str, Any]], *, elements_have_times: bool = True
) -> bytes:
    """Write rows of ``raw``, ``writetime`` and ``ttl`` as a server does."""
    program = compile_select(table, elements_have_times=elements_have_times)
    values: list[Native] = []
    for row in rows:
        for text in select_list(table, program):
            kind, _, name = text.rpartition("(")
            name = name.rstrip(")")
            name = name[1:-1].replace('""', '"') if name.startswith('"') else name
            if not kind:
                values.append(row["raw"][name])
            else:
                found = row["writetime" if kind == "WRITETIME" else "ttl"][name]
                values.append(_numbers(found, 8 if kind == "WRITETIME" else 4))
    return parts(values)


def snapshot_records(
    table: TableSchema, rows: Sequence[Mapping[str, Any]], *, elements_have_times: bool = True
) -> pa.RecordBatch:
    program = compile_select(table, elements_have_times=elements_have_times)
    page = select_page(table, rows, elements_have_times=elements_have_times)
    keys, payloads = page_records(program, page, len(rows), NOW_US, table.full_name)
    columns = {
        "source_table": pa.array([table.full_name] * len(keys)),
        "kind": pa.array([SNAPSHOT] * len(keys)),
        "key": keys,
        "payload": payloads,
    }
    arrays = [columns.get(f.name, pa.nulls(len(keys), f.type)) for f in CHANGE_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=CHANGE_SCHEMA)


def select_row(
    table: TableSchema, raw: Mapping[str, Native], times: Mapping[str, Any], ttls: Mapping[str, Any]
) -> Any:
    names = [c.name for c in table.columns]
    return {
        "raw": {n: raw.get(n) for n in names},
        "writetime": {n: times.get(n) for n in names},
        "ttl": {n: ttls.get(n) for n in names},
    }
