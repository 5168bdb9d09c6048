from __future__ import annotations

import math
import pickle
import random
import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_cdc_provider.changes.cells import CELL_PATH, FORMAT
from airflow_cdc_provider.changes.contribution import LIVE_ROW_SCHEMA
from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput
from airflow_cdc_provider.sources.cql.describe import parse_cql
from airflow_cdc_provider.sources.cql.lake_types import LakeTypes
from airflow_cdc_provider.sources.cql.projection import Projection
from airflow_cdc_provider.sources.cql.schema import Column, CqlType, TableSchema, number_columns
from tests.chance import examples
from tests.unit.sources.cql.cell_rows import cell_row, live_rows
from tests.unit.sources.cql.cql_values import Native, types, values
from tests.unit.sources.cql.lake_values import comparable_pylist, expected_value
from tests.unit.sources.cql.recordings import VARIANTS, recorded_rows, recorded_schemas, recording


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or struct.pack(">d", a) == struct.pack(">d", b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    return type(a) is type(b) and a == b


def _check(table: TableSchema, rows: Sequence[dict[str, Native]], noise: random.Random | None = None) -> None:
    projected = Projection(table).project(live_rows(table, rows, noise=noise))
    projected.validate(full=True)
    assert projected.num_rows == len(rows)
    for column, array in zip(table.columns, projected.columns, strict=True):
        expected = [expected_value(column.type, row[column.name]) for row in rows]
        found = comparable_pylist(array)
        for w, f in zip(expected, found, strict=True):
            assert _same(w, f), (column, w, f)


def _table(columns: Sequence[Column]) -> TableSchema:
    return number_columns(TableSchema("k", "t", "00" * 16, tuple(columns)))


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_of_a_real_server_are_projected_to_their_values(variant: str) -> None:
    folder = recording(variant)
    schemas = recorded_schemas(folder)
    checked = 0
    for name, table in schemas.tables.items():
        rows = [
            {k: None if v is None else bytes.fromhex(v) for k, v in row["raw"].items()}
            for row in recorded_rows(folder, name)
        ]
        _check(table, rows, random.Random(7))
        checked += len(rows)
    assert checked > 100


@settings(max_examples=examples(150))
@given(st.data())
def test_any_value_of_any_type_is_decoded(data: st.DataObject) -> None:
    drawn = [data.draw(types(depth=3)) for _ in range(2)]
    inner = data.draw(types(depth=1))
    multi = [
        CqlType("list", (inner,)),
        CqlType("udt", (inner, inner), fields=("a", "b"), udt="k.u"),
        CqlType("set", (CqlType("int"),)),
        CqlType("map", (CqlType("varint"), inner)),
    ]
    columns = [
        Column("p", "partition_key", 0, CqlType("int")),
        Column("c", "clustering", 0, drawn[0]),
        Column("s", "static", -1, inner),
        Column("v", "regular", -1, drawn[1]),
        *(Column(f"m{i}", "regular", -1, t) for i, t in enumerate(multi)),
    ]
    table = _table(columns)
    rows = []
    for _ in range(data.draw(st.integers(0, 3))):
        row: dict[str, Native] = {"p": b"\0\0\0\1", "c": data.draw(values(drawn[0]))}
        for column in columns[2:4]:
            row[column.name] = data.draw(st.none() | values(column.type))
        for column in columns[4:]:
            # A collection without live elements is null; a map's key that is empty has no lake value.
            kind = CqlType(
                column.type.name, column.type.parameters, True, column.type.fields, column.type.udt
            )
            row[column.name] = data.draw(
                st.none() | values(kind).filter(lambda v: v[:4] != b"\0\0\0\0" and v.strip(b"\xff") != b"")
            )
        rows.append(row)
    try:
        _check(table, rows, random.Random(1))
    except ConfigurationError as error:
        text = str(error)
        assert "timestamp" in text or "empty key" in text  # both are legal outcomes


def test_a_partition_with_only_static_columns_is_one_row_of_nulls() -> None:
    table = parse_cql("CREATE TABLE k.t (p int, c int, s text static, v set<int>, PRIMARY KEY (p, c))").tables
    rows = live_rows(table["k.t"], [{"p": b"\0\0\0\5", "c": None, "s": b"x", "v": None}])
    assert Projection(table["k.t"]).project(rows).to_pylist() == [{"p": 5, "c": None, "s": "x", "v": None}]


def test_sets_and_map_keys_are_in_their_types_order_and_lists_in_time_order() -> None:
    table = parse_cql(
        "CREATE TABLE k.t (p int PRIMARY KEY, l list<text>, m map<int, text>, s set<int>)"
    ).tables["k.t"]
    numbers = [-5, 3, 0, -(1 << 31), (1 << 31) - 1]
    cells = []
    ids = {c.name: c.id for c in table.regular}
    for n in numbers:
        path = struct.pack(">i", n)
        cells.append((ids["s"], CELL_PATH, path, b""))
        cells.append((ids["m"], CELL_PATH, path, str(n).encode()))
    for high, low, value in ((2, 0, b"c"), (1, 9, b"b"), (1, 2, b"a")):
        path = struct.pack(">IHH", low, 0, 0x1000 | high) + b"\0" * 8
        cells.append((ids["l"], CELL_PATH, path, value))
    batch = pa.RecordBatch.from_pylist([{"key": b"\0\0\0\1", "state": cell_row([], cells)}], LIVE_ROW_SCHEMA)
    (row,) = Projection(table).project(batch).to_pylist()
    assert row["s"] == sorted(numbers)
    assert row["m"] == [(n, str(n)) for n in sorted(numbers)]
    assert row["l"] == ["a", "b", "c"]


def test_an_empty_value_is_null_where_its_type_has_none() -> None:
    table = parse_cql("CREATE TABLE k.t (p text PRIMARY KEY, i int, t text, b blob, d decimal)").tables["k.t"]
    rows = live_rows(table, [{"p": b"", "i": b"", "t": b"", "b": b"", "d": b""}])
    assert Projection(table).project(rows).to_pylist() == [{"p": "", "i": None, "t": "", "b": b"", "d": None}]


def test_a_counter_decodes_to_its_total() -> None:
    table = parse_cql("CREATE TABLE k.t (p int PRIMARY KEY, c counter, d counter)").tables["k.t"]
    context = struct.pack(">hh", 1, 0) + b"".join(b"\7" * 16 + struct.pack(">qq", 3, n) for n in (40, -2))
    rows = live_rows(table, [{"p": b"\0\0\0\1", "c": context, "d": struct.pack(">q", -7)}])
    assert Projection(table).project(rows).to_pylist() == [{"p": 1, "c": 38, "d": -7}]


@pytest.mark.covers("CAS-TYPE-19")
def test_a_timestamp_out_of_range_is_rejected_never_rounded() -> None:
    table = parse_cql("CREATE TABLE k.t (p int PRIMARY KEY, t timestamp, l list<timestamp>)").tables["k.t"]
    largest = struct.pack(">q", (1 << 63) - 1)
    rows = live_rows(table, [{"p": b"\0\0\0\1", "t": largest, "l": struct.pack(">ii", 1, 8) + largest}])
    with pytest.raises(ConfigurationError, match="milliseconds"):
        Projection(table).project(rows)
    exact = Projection(table, LakeTypes("milliseconds")).project(rows)
    assert exact.to_pylist() == [{"p": 1, "t": (1 << 63) - 1, "l": [(1 << 63) - 1]}]


def test_cells_of_removed_columns_are_skipped() -> None:
    table = parse_cql("CREATE TABLE k.t (p int PRIMARY KEY, v int)").tables["k.t"]
    state = cell_row([], [(9, 0, b"", b"x"), (1, 0, b"", b"\0\0\0\2"), (500, CELL_PATH, b"p", b"")])
    batch = pa.RecordBatch.from_pylist([{"key": b"\0\0\0\1", "state": state}], LIVE_ROW_SCHEMA)
    assert Projection(table).project(batch).to_pylist() == [{"p": 1, "v": 2}]


@given(st.integers(0, 200), st.binary(min_size=1, max_size=8))
def test_a_malformed_state_is_rejected_and_never_read_beyond_its_end(cut: int, change: bytes) -> None:
    table = parse_cql("CREATE TABLE k.t (p int, c text, v list<text>, w text, PRIMARY KEY (p, c))").tables[
        "k.t"
    ]
    row = {"p": b"\0\0\0\1", "c": b"cc", "v": struct.pack(">ii", 1, 3) + b"abc", "w": b"w" * 30}
    state = bytearray(live_rows(table, [row]).column("state")[0].as_py())
    state[cut : cut + len(change)] = change
    batch = pa.RecordBatch.from_pylist([{"key": b"\0\0\0\1", "state": bytes(state[:250])}], LIVE_ROW_SCHEMA)
    try:
        Projection(table).project(batch)
    except CorruptInput as error:
        assert "k.t" in str(error)  # a change may also hit a byte that nothing checks


def test_a_key_that_lacks_columns_is_rejected() -> None:
    table = parse_cql("CREATE TABLE k.t (a int, b int, PRIMARY KEY ((a, b)))").tables["k.t"]
    state = cell_row([], [])
    assert state[0] == FORMAT
    batch = pa.RecordBatch.from_pylist([{"key": b"\0\4\0\0\0\1\0", "state": state}], LIVE_ROW_SCHEMA)
    with pytest.raises(CorruptInput, match="key"):
        Projection(table).project(batch)


def test_a_projection_is_pickled_without_compiled_attributes() -> None:
    table = parse_cql("CREATE TABLE k.t (p int PRIMARY KEY, v int)").tables["k.t"]
    projection = Projection(table)
    rows = live_rows(table, [{"p": b"\0\0\0\1", "v": b"\0\0\0\2"}])
    first = projection.project(rows)
    assert pickle.loads(pickle.dumps(projection)).project(rows).equals(first)  # our own bytes


def test_slices_and_nulls_of_a_batch_are_respected() -> None:
    table = parse_cql("CREATE TABLE k.t (p int PRIMARY KEY, v text)").tables["k.t"]
    rows = live_rows(table, [{"p": struct.pack(">i", i), "v": b"v%d" % i} for i in range(10)])
    found = Projection(table).project(rows.slice(3, 4)).to_pylist()
    assert found == [{"p": i, "v": f"v{i}"} for i in range(3, 7)]
    assert Projection(table).project(rows.slice(0, 0)).num_rows == 0
