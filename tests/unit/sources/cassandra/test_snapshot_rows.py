from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_cdc_provider.changes.cells import (
    CELL_COMPLEX_DELETION,
    CELL_EXPIRING,
    CELL_PATH,
    CELL_UNCERTAIN,
    MADE_UP_PATH_MARK,
    NEVER,
    ROW_STATIC,
    ROW_UNCERTAIN,
)
from airflow_cdc_provider.changes.record import CHANGE_SCHEMA, SNAPSHOT
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.lake.reconcile import reconcile_cells
from airflow_cdc_provider.sources.cassandra.codec import CassandraCodec
from airflow_cdc_provider.sources.cassandra.debezium.types import EventTypes
from airflow_cdc_provider.sources.cassandra.snapshots.select_rows import UNKNOWN_TIME
from airflow_cdc_provider.sources.cassandra.snapshots.token_ranges import (
    compile_select,
    page_records,
    select_list,
    split_key,
)
from airflow_cdc_provider.sources.cql.describe import parse_cql
from airflow_cdc_provider.sources.cql.schema import TableSchema
from airflow_cdc_provider.sources.cql.types import parse_type
from tests.unit.sources.cql.cql_values import Native, parts
from tests.unit.sources.cql.recordings import recorded_rows, recorded_schemas, recording

NOW = 1_795_247_456
NOW_US = NOW * 1_000_000 + 123


def _number(value: int | None, size: int) -> Native:
    return None if value is None else value.to_bytes(size, "big", signed=True)


def _numbers(values: Sequence[int | None] | int | None, size: int) -> Native:
    if isinstance(values, int) or values is None:
        return _number(values, size)
    return struct.pack(">i", len(values)) + parts([_number(v, size) for v in values])


def _page(
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


def _records(
    table: TableSchema, rows: Sequence[Mapping[str, Any]], *, elements_have_times: bool = True
) -> pa.RecordBatch:
    program = compile_select(table, elements_have_times=elements_have_times)
    page = _page(table, rows, elements_have_times=elements_have_times)
    keys, payloads = page_records(program, page, len(rows), NOW_US, table.full_name)
    columns = {
        "source_table": pa.array([table.full_name] * len(keys)),
        "kind": pa.array([SNAPSHOT] * len(keys)),
        "key": keys,
        "payload": payloads,
    }
    arrays = [columns.get(f.name, pa.nulls(len(keys), f.type)) for f in CHANGE_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=CHANGE_SCHEMA)


def _recorded(folder: Any, table: TableSchema) -> list[dict[str, Any]]:
    rows = list(recorded_rows(folder, table.full_name))
    for row in rows:
        row["raw"] = {k: None if v is None else bytes.fromhex(v) for k, v in row["raw"].items()}
    return rows


@pytest.mark.parametrize("elements_have_times", [True, False])
@pytest.mark.parametrize("variant", ["v7-plain", "v8-plain"])
def test_a_snapshot_of_what_a_server_shows_merges_to_what_it_shows(
    variant: str, elements_have_times: bool
) -> None:
    folder = recording(variant)
    checked = 0
    for table in recorded_schemas(folder).tables.values():
        rows = _recorded(folder, table)
        codec = CassandraCodec(table)
        if table.view or table.full_name.endswith(".keyonly_olive209"):
            continue
        decoded = codec.decode(_records(table, rows, elements_have_times=elements_have_times), ())
        assert decoded.undecodable == []
        live = reconcile_cells(pa.Table.from_batches([decoded.contributions]), NOW).live
        assert codec.project(live.combine_chunks().to_batches()[0]).num_rows == len(rows) if rows else True
        found = [text for batch in live.to_batches() for text in codec.to_json(batch)]
        assert sorted(found) == sorted(row["json"] for row in rows), table.full_name
        checked += len(rows)
    assert checked > 100


def _cells(payload: bytes) -> tuple[int, int, list[tuple[int, int, int, int, int, bytes, bytes]]]:
    """Return row flags, time, and cells (column, flags, ttl, time, seconds, path, value)."""
    (names,) = struct.unpack_from("<H", payload, 2)
    row = 4 + names
    clustering, count = struct.unpack_from("<II", payload, row + 40)
    at = row + 48 + clustering
    cells = []
    for _ in range(count):
        column, flags, _, ttl, time_us, seconds, path, value = struct.unpack_from("<HBBiqqII", payload, at)
        begin = at + 32
        at = begin + path + value
        cells.append(
            (column, flags, ttl, time_us, seconds, payload[begin : begin + path], payload[begin + path : at])
        )
    assert at == len(payload)
    return payload[row + 1], struct.unpack_from("<q", payload, row + 8)[0], cells


def _row(
    table: TableSchema, raw: Mapping[str, Native], times: Mapping[str, Any], ttls: Mapping[str, Any]
) -> Any:
    names = [c.name for c in table.columns]
    return {
        "raw": {n: raw.get(n) for n in names},
        "writetime": {n: times.get(n) for n in names},
        "ttl": {n: ttls.get(n) for n in names},
    }


def test_a_cell_has_its_write_time_and_expires_when_its_ttl_has_run_out() -> None:
    table = parse_cql("CREATE TABLE k.t (p int PRIMARY KEY, a int, b text, c text)").tables["k.t"]
    row = _row(table, {"p": b"\0\0\0\1", "a": b"\0\0\0\2", "b": b""}, {"a": -5, "b": 7}, {"b": 60})
    (payload,) = _records(table, [row]).column("payload").to_pylist()
    flags, read_us, cells = _cells(payload)
    assert (flags, read_us) == (ROW_UNCERTAIN, NOW_US)
    assert cells == [
        (0, 0, 0, -5, NEVER, b"", b"\0\0\0\2"),
        (1, CELL_EXPIRING, 60, 7, NOW + 60, b"", b""),
    ]


def test_elements_have_their_own_times_where_the_server_shows_them() -> None:
    table = parse_cql(
        """
        CREATE TYPE k.u (x int, y int, z int);
        CREATE TABLE k.t (p int PRIMARY KEY, m map<text, int>, s set<int>, u u);
        """
    ).tables["k.t"]
    one, two = b"\0\0\0\1", b"\0\0\0\2"
    raw = {
        "p": one,
        "m": struct.pack(">i", 2) + parts([b"a", one, b"b", two]),
        "s": struct.pack(">i", 1) + parts([two]),
        "u": parts([one, None, two]),
    }
    times = {"m": [10, 20], "s": [30], "u": [40, None, 50]}
    ttls = {"m": [None, 9], "s": [None], "u": [None, None, 8]}
    timed = _cells(_records(table, [_row(table, raw, times, ttls)]).column("payload")[0].as_py())[2]
    assert timed == [
        (0, CELL_PATH, 0, 10, NEVER, b"a", one),
        (0, CELL_PATH | CELL_EXPIRING, 9, 20, NOW + 9, b"b", two),
        (1, CELL_PATH, 0, 30, NEVER, two, b""),
        (2, CELL_PATH, 0, 40, NEVER, b"\0\0", one),
        (2, CELL_PATH | CELL_EXPIRING, 8, 50, NOW + 8, b"\0\2", two),
    ]
    untimed = _cells(
        _records(table, [_row(table, raw, {}, {})], elements_have_times=False).column("payload")[0].as_py()
    )[2]
    assert [(c[0], c[1], c[3], c[5], c[6]) for c in untimed] == [
        (c[0], CELL_PATH | CELL_UNCERTAIN, UNKNOWN_TIME, c[5], c[6]) for c in timed
    ]


_1582_US = 12_219_292_800 * 1_000_000


def _path_us(path: bytes) -> float:
    """Return the time of a time UUID, in us since 1970."""
    low, middle, high = struct.unpack(">IHH", path[:8])
    return ((((high & 0xFFF) << 48) | (middle << 32) | low) / 10) - _1582_US


def _list_cells(times: list[int | None], *, timed: bool = True) -> list[Any]:
    table = parse_cql("CREATE TABLE k.t (p int PRIMARY KEY, l list<text>)").tables["k.t"]
    values: list[Native] = [b"%c" % (97 + i) for i in range(len(times))]
    raw = {"p": b"\0\0\0\1", "l": struct.pack(">i", len(values)) + parts(values)}
    row = _row(table, raw, {"l": times}, {"l": [None] * (len(times) - 1) + [30]})
    return _cells(_records(table, [row], elements_have_times=timed).column("payload")[0].as_py())[2]


@pytest.mark.parametrize(
    "times",
    [
        [NOW_US - 300, NOW_US - 200, NOW_US - 100],
        [NOW_US - 100, NOW_US - 100, NOW_US - 100],
        [NOW_US - 100, NOW_US - 200, NOW_US - 300],
        [NOW_US + 10**12, 5, -(1 << 62), NOW_US - 1],
    ],
)
def test_elements_of_lists_have_their_write_times_and_made_up_paths_in_order(times: list[int | None]) -> None:
    cells = _list_cells(times)
    assert [c[3] for c in cells] == times
    assert {c[1] & ~CELL_EXPIRING for c in cells} == {CELL_PATH | CELL_UNCERTAIN}
    paths = [c[5] for c in cells]
    assert all(len(p) == 16 and p[6] >> 4 == 1 and p[8:].startswith(MADE_UP_PATH_MARK) for p in paths)
    order = [_path_us(p) for p in paths]
    assert order == sorted(order)
    assert len(set(paths)) == len(paths)
    # Cassandra appends after now, and prepends before now mirrored at 2010.
    assert all(1_262_304_000_000_000 <= o < NOW_US for o in order)


def test_an_element_keeps_its_made_up_path_when_the_list_is_read_again() -> None:
    first = {c[6]: c[5] for c in _list_cells([NOW_US - 300, NOW_US - 200, NOW_US - 100])}
    longer = {c[6]: c[5] for c in _list_cells([NOW_US - 300, NOW_US - 200, NOW_US - 100, NOW_US - 50])}
    assert first.items() <= longer.items()


def test_a_list_without_write_times_counts_as_written_anew_at_the_reading() -> None:
    deletion, *elements = _list_cells([None, None, None], timed=False)
    assert deletion == (0, CELL_COMPLEX_DELETION, 0, NOW_US, NOW, b"", b"")
    assert [e[6] for e in elements] == [b"a", b"b", b"c"]
    assert {e[3] for e in elements} == {NOW_US + 1}
    assert [_path_us(e[5]) for e in elements] == sorted(_path_us(e[5]) for e in elements)


def test_statics_come_once_a_partition_and_a_partition_without_rows_has_no_row() -> None:
    table = parse_cql("CREATE TABLE k.t (p int, c int, s text static, v int, PRIMARY KEY (p, c))").tables[
        "k.t"
    ]
    one, two, three = (struct.pack(">i", i) for i in (1, 2, 3))
    rows = [
        _row(table, {"p": one, "c": one, "s": b"x", "v": one}, {"s": 1, "v": 1}, {}),
        _row(table, {"p": one, "c": two, "s": b"x"}, {"s": 1}, {}),
        _row(table, {"p": two, "c": None, "s": b"y"}, {"s": 2}, {}),
        _row(table, {"p": three, "c": one}, {}, {}),
    ]
    records = _records(table, rows)
    assert records.column("key").to_pylist() == [one, one, one, two, three]
    shown = [_cells(p) for p in records.column("payload").to_pylist()]
    assert [s[0] for s in shown] == [
        ROW_UNCERTAIN | ROW_STATIC,
        ROW_UNCERTAIN,
        ROW_UNCERTAIN,
        ROW_UNCERTAIN | ROW_STATIC,
        ROW_UNCERTAIN,
    ]
    assert [len(s[2]) for s in shown] == [1, 1, 0, 1, 0]


def test_keys_of_several_columns_have_cassandras_form() -> None:
    table = parse_cql("CREATE TABLE k.t (a text, b int, PRIMARY KEY ((a, b)))").tables["k.t"]
    row = _row(table, {"a": b"xy", "b": b"\0\0\0\1"}, {}, {})
    (key,) = _records(table, [row]).column("key").to_pylist()
    assert key == b"\0\2xy\0\0\4\0\0\0\1\0"
    assert split_key(table, key) == [b"xy", b"\0\0\0\1"]


def test_a_counter_is_read_as_of_now() -> None:
    table = parse_cql("CREATE TABLE k.t (p int PRIMARY KEY, c counter)").tables["k.t"]
    row = _row(table, {"p": b"\0\0\0\1", "c": struct.pack(">q", 5)}, {}, {})
    assert _cells(_records(table, [row]).column("payload")[0].as_py())[2] == [
        (0, CELL_UNCERTAIN, 0, NOW_US, NEVER, b"", struct.pack(">q", 5))
    ]


@pytest.mark.covers("CAS-TYPE-05")
def test_counters_at_the_ends_of_their_type_reach_lake_and_events() -> None:
    text = "CREATE TABLE k.t (p int PRIMARY KEY, c counter) WITH ID = 29e3de10-e580-11f1-a764-fd2ee712b6e7"
    table = parse_cql(text).tables["k.t"]
    totals = [-(1 << 63), (1 << 63) - 1, 0]
    rows = [
        _row(table, {"p": struct.pack(">i", n), "c": struct.pack(">q", total)}, {}, {})
        for n, total in enumerate(totals)
    ]
    codec = CassandraCodec(table)
    decoded = codec.decode(_records(table, rows), ())
    live = reconcile_cells(pa.Table.from_batches([decoded.contributions]), NOW).live.combine_chunks()
    mirror = codec.project(live.to_batches()[0]).to_pylist()
    assert sorted(mirror, key=lambda row: row["p"]) == [{"p": n, "c": t} for n, t in enumerate(totals)]
    event = EventTypes().array(pa.array(totals, pa.int64()), parse_type("counter"))
    assert (event.type, event.to_pylist()) == (pa.int64(), totals)


def test_large_values_find_room() -> None:
    table = parse_cql("CREATE TABLE k.t (p int PRIMARY KEY, l list<tinyint>)").tables["k.t"]
    raw = {"p": b"\0\0\0\1", "l": struct.pack(">i", 5000) + parts([b"\1"] * 5000)}
    row = _row(table, raw, {"l": [1] * 5000}, {"l": [None] * 5000})
    assert len(_cells(_records(table, [row]).column("payload")[0].as_py())[2]) == 5000


@pytest.mark.parametrize("cut", [1, 4, 9, 20])
def test_a_page_of_another_form_is_refused(cut: int) -> None:
    table = parse_cql("CREATE TABLE k.t (p int PRIMARY KEY, v text)").tables["k.t"]
    page = _page(table, [_row(table, {"p": b"\0\0\0\1", "v": b"abc"}, {"v": 1}, {})])
    program = compile_select(table, elements_have_times=True)
    with pytest.raises(CorruptInput, match=r"k\.t"):
        page_records(program, page[:-cut], 1, NOW_US, table.full_name)
    with pytest.raises(CorruptInput, match=r"k\.t"):
        page_records(program, page + b"\0" * cut, 1, NOW_US, table.full_name)


def test_names_in_the_query_are_quoted_where_they_must_be() -> None:
    table = parse_cql('CREATE TABLE k.t ("P" int PRIMARY KEY, "select" text, v int)').tables["k.t"]
    program = compile_select(table, elements_have_times=True)
    assert list(select_list(table, program))[:4] == [
        '"P"',
        '"select"',
        'WRITETIME("select")',
        'TTL("select")',
    ]
    assert np.asarray(program.shapes).tolist() == [0, 0]
    assert json.dumps(table.full_name) == '"k.t"'
