"""Decode live rows to native values, one Python object per value: for display and tests, not for data paths.

A value is the bytes that a SELECT returns for it (with multi-cell collections assembled), or None.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

import pyarrow as pa

from airflow_cdc_provider.changes.cells import (
    CELL_COMPLEX_DELETION,
    CELL_HEADER_BYTES,
    CELL_TOMBSTONE,
    ROW_HEADER_BYTES,
)
from airflow_cdc_provider.sources.cql.comparable import comparable_bytes
from airflow_cdc_provider.sources.cql.programs import compile_types
from airflow_cdc_provider.sources.cql.schema import Column, CqlType, TableSchema

Native = bytes | None


def native_rows(table: TableSchema, rows: pa.RecordBatch) -> Iterator[Mapping[str, Native]]:
    """Yield live rows (``LIVE_ROW_SCHEMA``) as native values by column name, in the order of ``SELECT *``."""
    columns = (rows.column(name).to_pylist() for name in ("key", "state", "static_state"))
    for key, state, static_state in zip(*columns, strict=True):
        values: dict[str, Native] = dict.fromkeys(c.name for c in table.columns)
        parts = [key] if len(table.partition_key) == 1 else _split_key(key)
        values.update(zip((c.name for c in table.partition_key), parts, strict=True))
        if state is not None:
            clustering, _ = _clustering(state)
            values.update(zip((c.name for c in table.clustering), clustering, strict=True))
            values.update(_values(table.regular, state))
        if static_state is not None:
            values.update(_values(table.static, static_state))
        yield values


def _split_key(key: bytes) -> list[bytes]:
    parts, at = [], 0
    while at < len(key):
        (length,) = struct.unpack_from(">H", key, at)
        parts.append(key[at + 2 : at + 2 + length])
        at += 3 + length
    return parts


def _clustering(state: bytes) -> tuple[list[Native], int]:
    (size,) = struct.unpack_from("<I", state, 40)
    at, end = ROW_HEADER_BYTES, ROW_HEADER_BYTES + size
    parts: list[Native] = []
    while at < end:
        (length,) = struct.unpack_from("<i", state, at)
        at += 4
        parts.append(None if length < 0 else state[at : at + length])
        at += max(length, 0)
    return parts, end


def _values(columns: tuple[Column, ...], state: bytes) -> dict[str, Native]:
    by_id = {c.id: c for c in columns}
    elements: dict[str, list[tuple[bytes, bytes]]] = {}
    values: dict[str, Native] = {}
    _, at = _clustering(state)
    (count,) = struct.unpack_from("<I", state, 44)
    for _ in range(count):
        number, flags = struct.unpack_from("<HB", state, at)
        path_length, length = struct.unpack_from("<II", state, at + 24)
        begin = at + CELL_HEADER_BYTES
        at = begin + path_length + length
        path, value = state[begin : begin + path_length], state[begin + path_length : at]
        column = by_id.get(number)
        if column is None or flags & (CELL_TOMBSTONE | CELL_COMPLEX_DELETION):
            continue
        if column.type.multi_cell:
            elements.setdefault(column.name, []).append((path, value))
        else:
            values[column.name] = value
    types = {c.name: c.type for c in columns}
    values.update((name, _join(types[name], found)) for name, found in elements.items())
    return values


def _join(cql_type: CqlType, elements: list[tuple[bytes, bytes]]) -> bytes:
    """Join the elements of a multi-cell column to its frozen form."""
    if cql_type.name == "udt":
        fields = {int.from_bytes(path, "big"): value for path, value in elements}
        return b"".join(_part(fields.get(i)) for i in range(len(cql_type.fields)))
    order = compile_types([CqlType("timeuuid") if cql_type.name == "list" else cql_type.parameters[0]])
    elements = sorted(elements, key=lambda element: comparable_bytes(order, 0, element[0]))
    parts: list[bytes] = []
    for path, value in elements:
        parts += {"set": [path], "list": [value], "map": [path, value]}[cql_type.name]
    return struct.pack(">i", len(elements)) + b"".join(_part(p) for p in parts)


def _part(value: Native) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
