from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_cdc_provider.changes.cell_row import Cell, CellRow, write_cell_row
from airflow_cdc_provider.changes.cells import (
    CELL_COMPLEX_DELETION,
    CELL_EXPIRING,
    CELL_PATH,
    CELL_TOMBSTONE,
    CELL_UNCERTAIN,
    NEVER,
    ROW_LIVENESS,
    ROW_STATIC,
    ROW_UNCERTAIN,
    SYNTHETIC_PATH_MARK,
)
from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.lake.reconcile import reconcile_cells
from airflow_cdc_provider.sources.cassandra.codec import CassandraCodec
from airflow_cdc_provider.sources.cassandra.events.decode import EventDecoder
from airflow_cdc_provider.sources.cassandra.events.types import EventTypes
from airflow_cdc_provider.sources.cql.describe import parse_cql
from airflow_cdc_provider.sources.cql.schema import TableSchema
from airflow_cdc_provider.sources.cql.select_rows import UNKNOWN_TIME
from airflow_cdc_provider.sources.cql.snapshot import compile_select, page_records, select_list, split_key
from airflow_cdc_provider.sources.cql.snapshot_payload import state_payload
from airflow_cdc_provider.sources.cql.types import parse_type
from tests.unit.sources.cassandra.select_pages import NOW, NOW_US, select_page, select_row, snapshot_records
from tests.unit.sources.cql.cql_values import Native, parts
from tests.unit.sources.cql.recordings import recorded_rows, recorded_schemas, recording


def _recorded(folder: Any, table: TableSchema) -> list[dict[str, Any]]:
    rows = list(recorded_rows(folder, table.full_name))
    for row in rows:
        row["raw"] = {k: None if v is None else bytes.fromhex(v) for k, v in row["raw"].items()}
    return rows


@pytest.mark.parametrize("elements_have_times", [True, False])
@pytest.mark.parametrize("variant", ["v7-plain", "v8-plain"])
def test_a_snapshot_of_a_servers_rows_merges_to_the_same_rows(
    variant: str, elements_have_times: bool
) -> None:
    folder = recording(variant)
    checked = 0
    for table in recorded_schemas(folder).tables.values():
        rows = _recorded(folder, table)
        codec = CassandraCodec(table)
        if table.view or table.full_name.endswith(".keyonly_olive209"):
            continue
        decoded = codec.decode(snapshot_records(table, rows, elements_have_times=elements_have_times), ())
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


def test_a_cell_has_its_write_time_and_expires_when_its_ttl_has_run_out() -> None:
    table = parse_cql("CREATE TABLE k.t (p int PRIMARY KEY, a int, b text, c text)").tables["k.t"]
    row = select_row(table, {"p": b"\0\0\0\1", "a": b"\0\0\0\2", "b": b""}, {"a": -5, "b": 7}, {"b": 60})
    (payload,) = snapshot_records(table, [row]).column("payload").to_pylist()
    flags, read_us, cells = _cells(payload)
    assert (flags, read_us) == (ROW_UNCERTAIN, NOW_US)
    assert cells == [
        (0, 0, 0, -5, NEVER, b"", b"\0\0\0\2"),
        (1, CELL_EXPIRING, 60, 7, NOW + 60, b"", b""),
    ]


def test_elements_have_their_own_times_where_the_server_returns_them() -> None:
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
    timed = _cells(
        snapshot_records(table, [select_row(table, raw, times, ttls)]).column("payload")[0].as_py()
    )[2]
    assert timed == [
        (0, CELL_PATH, 0, 10, NEVER, b"a", one),
        (0, CELL_PATH | CELL_EXPIRING, 9, 20, NOW + 9, b"b", two),
        (1, CELL_PATH, 0, 30, NEVER, two, b""),
        (2, CELL_PATH, 0, 40, NEVER, b"\0\0", one),
        (2, CELL_PATH | CELL_EXPIRING, 8, 50, NOW + 8, b"\0\2", two),
    ]
    untimed = _cells(
        snapshot_records(table, [select_row(table, raw, {}, {})], elements_have_times=False)
        .column("payload")[0]
        .as_py()
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
    row = select_row(table, raw, {"l": times}, {"l": [None] * (len(times) - 1) + [30]})
    return _cells(snapshot_records(table, [row], elements_have_times=timed).column("payload")[0].as_py())[2]


@pytest.mark.parametrize(
    "times",
    [
        [NOW_US - 300, NOW_US - 200, NOW_US - 100],
        [NOW_US - 100, NOW_US - 100, NOW_US - 100],
        [NOW_US - 100, NOW_US - 200, NOW_US - 300],
        [NOW_US + 10**12, 5, -(1 << 62), NOW_US - 1],
    ],
)
def test_elements_of_lists_have_their_write_times_and_synthetic_paths_in_order(
    times: list[int | None],
) -> None:
    cells = _list_cells(times)
    assert [c[3] for c in cells] == times
    assert {c[1] & ~CELL_EXPIRING for c in cells} == {CELL_PATH | CELL_UNCERTAIN}
    paths = [c[5] for c in cells]
    assert all(len(p) == 16 and p[6] >> 4 == 1 and p[8:].startswith(SYNTHETIC_PATH_MARK) for p in paths)
    order = [_path_us(p) for p in paths]
    assert order == sorted(order)
    assert len(set(paths)) == len(paths)
    # Cassandra appends after now, and prepends before now mirrored at 2010.
    assert all(1_262_304_000_000_000 <= o < NOW_US for o in order)


def test_an_element_keeps_its_synthetic_path_when_the_list_is_read_again() -> None:
    first = {c[6]: c[5] for c in _list_cells([NOW_US - 300, NOW_US - 200, NOW_US - 100])}
    longer = {c[6]: c[5] for c in _list_cells([NOW_US - 300, NOW_US - 200, NOW_US - 100, NOW_US - 50])}
    assert first.items() <= longer.items()


def test_a_list_without_write_times_counts_as_overwritten_at_the_time_of_reading() -> None:
    deletion, *elements = _list_cells([None, None, None], timed=False)
    assert deletion == (0, CELL_COMPLEX_DELETION, 0, NOW_US, NOW, b"", b"")
    assert [e[6] for e in elements] == [b"a", b"b", b"c"]
    assert {e[3] for e in elements} == {NOW_US + 1}
    assert [_path_us(e[5]) for e in elements] == sorted(_path_us(e[5]) for e in elements)


def test_static_columns_have_one_record_per_partition_and_a_partition_without_rows_has_no_row() -> None:
    table = parse_cql("CREATE TABLE k.t (p int, c int, s text static, v int, PRIMARY KEY (p, c))").tables[
        "k.t"
    ]
    one, two, three = (struct.pack(">i", i) for i in (1, 2, 3))
    rows = [
        select_row(table, {"p": one, "c": one, "s": b"x", "v": one}, {"s": 1, "v": 1}, {}),
        select_row(table, {"p": one, "c": two, "s": b"x"}, {"s": 1}, {}),
        select_row(table, {"p": two, "c": None, "s": b"y"}, {"s": 2}, {}),
        select_row(table, {"p": three, "c": one}, {}, {}),
    ]
    records = snapshot_records(table, rows)
    assert records.column("key").to_pylist() == [one, one, one, two, three]
    cells_of_rows = [_cells(p) for p in records.column("payload").to_pylist()]
    assert [s[0] for s in cells_of_rows] == [
        ROW_UNCERTAIN | ROW_STATIC,
        ROW_UNCERTAIN,
        ROW_UNCERTAIN,
        ROW_UNCERTAIN | ROW_STATIC,
        ROW_UNCERTAIN,
    ]
    assert [len(s[2]) for s in cells_of_rows] == [1, 1, 0, 1, 0]


def test_keys_of_several_columns_have_cassandras_form() -> None:
    table = parse_cql("CREATE TABLE k.t (a text, b int, PRIMARY KEY ((a, b)))").tables["k.t"]
    row = select_row(table, {"a": b"xy", "b": b"\0\0\0\1"}, {}, {})
    (key,) = snapshot_records(table, [row]).column("key").to_pylist()
    assert key == b"\0\2xy\0\0\4\0\0\0\1\0"
    assert split_key(table, key) == [b"xy", b"\0\0\0\1"]


def test_a_counter_is_read_as_of_now() -> None:
    table = parse_cql("CREATE TABLE k.t (p int PRIMARY KEY, c counter)").tables["k.t"]
    row = select_row(table, {"p": b"\0\0\0\1", "c": struct.pack(">q", 5)}, {}, {})
    assert _cells(snapshot_records(table, [row]).column("payload")[0].as_py())[2] == [
        (0, CELL_UNCERTAIN, 0, NOW_US, NEVER, b"", struct.pack(">q", 5))
    ]


@pytest.mark.covers("CAS-TYPE-05")
def test_counters_at_the_ends_of_their_type_reach_lake_and_events() -> None:
    text = "CREATE TABLE k.t (p int PRIMARY KEY, c counter) WITH ID = 29e3de10-e580-11f1-a764-fd2ee712b6e7"
    table = parse_cql(text).tables["k.t"]
    totals = [-(1 << 63), (1 << 63) - 1, 0]
    rows = [
        select_row(table, {"p": struct.pack(">i", n), "c": struct.pack(">q", total)}, {}, {})
        for n, total in enumerate(totals)
    ]
    codec = CassandraCodec(table)
    decoded = codec.decode(snapshot_records(table, rows), ())
    live = reconcile_cells(pa.Table.from_batches([decoded.contributions]), NOW).live.combine_chunks()
    mirror = codec.project(live.to_batches()[0]).to_pylist()
    assert sorted(mirror, key=lambda row: row["p"]) == [{"p": n, "c": t} for n, t in enumerate(totals)]
    event = EventTypes().array(pa.array(totals, pa.int64()), parse_type("counter"))
    assert (event.type, event.to_pylist()) == (pa.int64(), totals)
    events = EventDecoder(table).decode(_with_positions(snapshot_records(table, rows))).events.to_pylist()
    assert [one["after"]["c"]["value"] for one in events] == totals


TABLE = """
    CREATE TABLE k.t (p int, c int, s text static, a int, l list<int>, PRIMARY KEY (p, c))
    WITH ID = 29e3de10-e580-11f1-a764-fd2ee712b6e7
"""


def test_events_of_a_snapshot_have_all_columns_and_no_more_than_the_select_returns() -> None:
    table = parse_cql(TABLE).tables["k.t"]
    one = b"\0\0\0\1"
    rows = [
        select_row(table, {"p": one, "c": one, "s": b"x", "a": one}, {"s": 5, "a": 7}, {"a": 60}),
        select_row(table, {"p": one, "c": b"\0\0\0\2", "s": b"x"}, {"s": 5}, {}),
    ]
    found = EventDecoder(table).decode(_with_positions(snapshot_records(table, rows))).events.to_pylist()
    assert [event["op"] for event in found] == ["u", "i", "i"]
    assert {(event["snapshot"], event["file"], event["pos"]) for event in found} == {(True, "", -1)}
    assert [event["ts_us"] for event in found] == [5, 7, NOW_US]
    static, full, bare = (event["after"] for event in found)
    assert static["s"] == {"value": "x", "deletion_ts": None, "set": True}
    assert (static["c"], static["a"], static["l"]) == (None, None, None)
    assert full["a"] == {"value": 1, "deletion_ts": (NOW + 60) * 10**6, "set": True}
    assert bare["a"] == {"value": None, "deletion_ts": None, "set": True}
    assert bare["l"] == {"value": [], "deletion_ts": None, "set": True}
    assert full["s"] is bare["s"] is None


def test_the_re_read_of_an_unresolved_key_has_no_event() -> None:
    table = parse_cql(TABLE).tables["k.t"]
    (column,) = [c.id for c in table.regular if c.name == "a"]
    clustering = struct.pack("<i", 4) + b"\0\0\0\1"
    tombstone = Cell(column, CELL_TOMBSTONE, 0, 7, NOW, b"", b"")
    settled = [
        CellRow(0, clustering=clustering, expiry_seconds=NEVER, cells=(tombstone,)),
        CellRow(ROW_LIVENESS, 2**31 - 1, 7, NOW, clustering=clustering, cells=(tombstone,)),
        CellRow(ROW_UNCERTAIN, liveness_us=9, expiry_seconds=6, clustering=clustering),
    ]
    payloads = pa.array([state_payload(table, write_cell_row(row)) for row in settled], pa.binary())
    row = select_row(table, {"p": b"\0\0\0\1", "c": b"\0\0\0\1"}, {}, {})
    records = _with_positions(pa.concat_batches([snapshot_records(table, [row])] * len(settled)))
    settling = records.set_column(CHANGE_SCHEMA.get_field_index("payload"), "payload", payloads)
    assert EventDecoder(table).decode(records).events.num_rows == len(settled)
    decoded = EventDecoder(table).decode(settling)
    assert (decoded.events.num_rows, decoded.reasons) == (0, ())


def _with_positions(records: pa.RecordBatch) -> pa.RecordBatch:
    positions = pa.array([bytes(24) + bytes(16)] * records.num_rows, pa.binary())
    return records.set_column(CHANGE_SCHEMA.get_field_index("position"), "position", positions)


def test_large_values_find_room() -> None:
    table = parse_cql("CREATE TABLE k.t (p int PRIMARY KEY, l list<tinyint>)").tables["k.t"]
    raw = {"p": b"\0\0\0\1", "l": struct.pack(">i", 5000) + parts([b"\1"] * 5000)}
    row = select_row(table, raw, {"l": [1] * 5000}, {"l": [None] * 5000})
    assert len(_cells(snapshot_records(table, [row]).column("payload")[0].as_py())[2]) == 5000


@pytest.mark.parametrize("cut", [1, 4, 9, 20])
def test_a_page_that_does_not_match_the_query_is_rejected(cut: int) -> None:
    table = parse_cql("CREATE TABLE k.t (p int PRIMARY KEY, v text)").tables["k.t"]
    page = select_page(table, [select_row(table, {"p": b"\0\0\0\1", "v": b"abc"}, {"v": 1}, {})])
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
