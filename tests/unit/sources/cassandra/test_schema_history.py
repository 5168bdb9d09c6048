"""The schema history, replayed from recordings: every statement has the effect that the server describes."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA, SCHEMA
from airflow_cdc_provider.sources.cassandra import records as records_module
from airflow_cdc_provider.sources.cassandra.capture import head, plan_segments
from airflow_cdc_provider.sources.cassandra.commit_log.tables import schema_tables_only
from airflow_cdc_provider.sources.cassandra.reader import SegmentReader
from airflow_cdc_provider.sources.cassandra.schema_history import (
    SchemaHistory,
    SchemaVersion,
    observed,
    read_history,
)
from airflow_cdc_provider.sources.contract import ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.cql.describe import parse_cql
from airflow_cdc_provider.sources.cql.schema import TableSchema
from tests.unit.sources.cassandra.recordings import VARIANTS, of_kind, read_all, recording


def schema_records(variant: str) -> pa.Table:
    records, _ = read_all(recording(variant).log, schema_tables_only())
    assert set(records["kind"].to_pylist()) <= {SCHEMA}
    return records


@pytest.mark.recorded
def test_updates_of_a_keyspace_that_has_too_many_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    log = recording("v7-plain").log
    plan = plan_segments(log, None, head(log), ReadLimit())

    def records(full: frozenset[bytes] | None) -> tuple[pa.Table, int]:
        metrics = ReadMetrics()
        read = list(SegmentReader(schema_tables_only(), log.keys, full).read(plan.partitions, metrics))
        skipped = sum(count for (_, why), count in metrics.skipped.items() if why == "schema")
        return pa.Table.from_batches(read, CHANGE_SCHEMA).drop("captured_at"), skipped

    everything, none = records(None)
    assert none == 0
    assert records(frozenset()) == (everything, 0)
    keyspace = everything["key"][0].as_py()
    rest, skipped = records(frozenset([keyspace]))
    assert keyspace not in rest["key"].to_pylist()
    assert rest.num_rows + skipped == everything.num_rows
    monkeypatch.setattr(records_module, "_MOST_SCHEMA_BYTES", 2_000)
    some, beyond = records(frozenset())
    assert some.num_rows + beyond == everything.num_rows
    assert pc.sum(pc.binary_length(some["payload"])).as_py() < 2_100 * len(plan.partitions)


def at(history: SchemaHistory, moment_us: int) -> dict[str, TableSchema]:
    return SchemaHistory(tuple(v for v in history.versions if v.at_us <= moment_us)).existing


@pytest.mark.recorded
@pytest.mark.covers("CAS-GAP-08")
@pytest.mark.parametrize("variant", VARIANTS)
def test_log_ends_with_the_schema_that_the_server_describes(variant: str) -> None:
    full = recording(variant)
    assert read_history(schema_records(variant)).existing == full.schemas.tables


@pytest.mark.recorded
@pytest.mark.covers("CAS-GAP-08", "CAS-LIM-04")
def test_each_statement_leaves_the_table_that_the_server_describes_after_it() -> None:
    history = read_history(schema_records("v7-plain"))
    types = ""
    described = 0
    with gzip.open(recording("v7-plain").folder / "ddl_timeline.json.gz", "rt") as file:
        timeline = json.load(file)
    for statement in timeline:
        words = statement["cql"].split()
        now = at(history, statement["at_ms"] * 1000 + 999)
        if words[:2] == ["CREATE", "TYPE"]:
            types += statement["cql"] + ";\n"
        if words[:2] == ["DROP", "TABLE"]:
            assert words[2] not in now
        if statement["describe"]:
            (from_describe,) = parse_cql(types + "\n".join(statement["describe"])).tables.values()
            assert now[from_describe.full_name] == from_describe, statement["cql"]
            described += 1
    assert described > 25


@pytest.mark.recorded
@pytest.mark.covers("CAS-GAP-08")
def test_order_of_records_and_duplicates_of_other_nodes_make_no_difference() -> None:
    records = schema_records("v7-plain")
    shuffled = list(range(records.num_rows)) * 2
    random.Random(7).shuffle(shuffled)
    assert read_history(records.take(shuffled)) == read_history(records)


@pytest.mark.recorded
@pytest.mark.covers("CAS-GAP-08")
def test_dropped_table_keeps_the_definition_of_its_entries() -> None:
    history = read_history(schema_records("v7-plain"))
    lives = [v for v in history.versions if v.table == "shop_a.reborn"]
    assert [v.schema is None for v in lives] == [False, True, False]
    first, _, second = lives
    assert first.table_id == lives[1].table_id != second.table_id
    old, new = history.by_id[first.table_id], history.by_id[second.table_id]
    assert [c.type.name for c in old.regular] == ["int"]
    assert [c.type.name for c in new.regular] == ["text"]
    assert history.existing["shop_a.reborn"] == new


def rows_of(variant: str) -> Mapping[str, Any]:
    with gzip.open(recording(variant).folder / "schema.json.gz", "rt") as file:
        found: Mapping[str, Any] = json.load(file)
    return found


def as_table(records: Sequence[Mapping[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist([dict(r) for r in records], schema=CHANGE_SCHEMA)


def test_the_schema_of_the_source_is_recorded_once() -> None:
    rows = rows_of("v7-plain")
    first = list(observed(rows, SchemaHistory(), 1_000_000))
    history = read_history(as_table(first))
    assert history.existing == recording("v7-plain").schemas.tables
    assert list(observed(rows, history, 2_000_000)) == []

    other = {**rows, "columns": [r for r in rows["columns"] if r["column_name"] != "n1"]}
    (second,) = observed(other, history, 3_000_000)
    changed = read_history(as_table([*first, second]))
    assert [v.table for v in changed.versions if v.at_us == 3_000_000] == ["shop_a.evo"]


@pytest.mark.recorded
@pytest.mark.covers("CAS-GAP-08")
def test_log_that_starts_after_a_create_requires_an_observed_schema() -> None:
    records = schema_records("v7-plain")
    whole = read_history(records)
    first, drop, _ = (v for v in whole.versions if v.table == "shop_a.reborn")
    creation = next(r for r in records.to_pylist() if b"reborn" in r["payload"])
    end = creation["position"][:12] + b"\xff" * 4
    late = records.filter(pc.greater(records["position"], pa.scalar(end, pa.binary())))
    assert first.table_id not in read_history(late).by_id

    rows = rows_of("v7-plain")
    tables = [{**r, "id": first.table_id} if r["table_name"] == "reborn" else r for r in rows["tables"]]
    columns = [
        {**r, "type": "int"} if (r["table_name"], r["column_name"]) == ("reborn", "v") else r
        for r in rows["columns"]
    ]
    seen = observed({**rows, "tables": tables, "columns": columns}, SchemaHistory(), drop.at_us - 9)
    mended = read_history(pa.concat_tables([late, as_table(list(seen))]))
    assert mended.by_id[first.table_id] == whole.by_id[first.table_id]
    assert mended.existing == whole.existing


def test_a_type_that_needs_an_unknown_one_harms_only_the_tables_that_use_it() -> None:
    """The log starts after the CREATE TYPE of the inner one."""
    rows = rows_of("v7-plain")
    existing = recording("v7-plain").schemas.tables
    outer = {"type_name": "outer", "field_names": ["x"], "field_types": ["frozen<nowhere>"]}
    types = [*rows["types"], *({**outer, "keyspace_name": t.keyspace} for t in existing.values())]
    column = {
        "keyspace_name": "shop_a",
        "table_name": "evo",
        "column_name": "o",
        "kind": "regular",
        "position": -1,
        "type": "frozen<outer>",
        "clustering_order": "none",
    }
    first = list(observed(rows, SchemaHistory(), 1_000_000))
    unused = list(observed({**rows, "types": types}, SchemaHistory(), 2_000_000))
    history = read_history(as_table([*first, *unused]))
    assert history.existing == existing
    assert len(history.versions) == len(existing)

    used = {**rows, "types": types, "columns": [*rows["columns"], column]}
    again = list(observed(used, SchemaHistory(), 2_000_000))
    assert read_history(as_table([*first, *again])).existing == existing
    alone = read_history(as_table(again)).existing
    assert set(existing) - set(alone) == {"shop_a.evo"}


def test_unreadable_schema_change_is_logged_and_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    records = schema_records("v7-plain")
    rows = records.to_pylist()
    broken = next(i for i, row in enumerate(rows) if row["source_table"] == "system_schema.columns")
    rows[broken]["payload"] = rows[broken]["payload"][:-3]
    read_history(as_table(rows))
    assert "skipped an unreadable change of system_schema.columns: truncated" in caplog.text


def test_no_byte_of_a_record_keeps_the_rest_of_the_history_from_being_read() -> None:
    """Records of the schema stay for good: one that stopped the replay would stop every later run."""
    records = schema_records("v7-plain").to_pylist()
    rng = random.Random(5)
    for _ in range(150):
        broken = dict(rng.choice(records))
        payload = bytearray(broken["payload"])
        payload[rng.randrange(len(payload))] = rng.randrange(256)
        others = [r for r in records if r["key"] == broken["key"] and r["position"] != broken["position"]][
            :20
        ]
        read_history(as_table([*others, {**broken, "payload": bytes(payload)}]))


@pytest.mark.parametrize(
    ("lost", "table"), [("type", "columns"), ("kind", "columns"), ("dropped_time", "dropped_columns")]
)
def test_only_a_table_with_an_unknown_part_is_skipped(lost: str, table: str) -> None:
    rows = rows_of("v7-plain")
    broken = [{**r, lost: None} if r["table_name"] == "evo" else r for r in rows[table]]
    existing = read_history(
        as_table(list(observed({**rows, table: broken}, SchemaHistory(), 1_000_000)))
    ).existing
    assert set(recording("v7-plain").schemas.tables) - set(existing) == {"shop_a.evo"}


def test_reader_of_the_schema_alone_hands_on_nothing_else() -> None:
    full = recording("v7-plain")
    everything, _ = read_all(full.log, full.tables())
    alone = schema_records("v7-plain")
    assert alone["payload"].to_pylist() == of_kind(everything, SCHEMA)["payload"].to_pylist()


def test_updates_are_captured_between_the_statements_that_switch_cdc_on_and_off() -> None:
    def version(at_us: int, cdc: bool, **places: bytes) -> SchemaVersion:
        return SchemaVersion(at_us, "s.t", "1", TableSchema("s", "t", "1", (), cdc=cdc), places)

    versions = (version(1, False, a=b"1"), version(2, True, a=b"3"), version(3, False, a=b"5", b=b"2"))
    history = SchemaHistory(versions)

    def captured(origin: str, *positions: bytes) -> list[bool]:
        places = pa.array([origin] * len(positions)), pa.array(positions, pa.binary())
        return history.captured("1", *places).tolist()

    assert captured("a", b"2", b"3", b"4", b"5", b"6") == [False, False, True, True, False]
    # This node's log doesn't have the switch to on, that one's has neither switch.
    assert captured("b", b"1", b"3") == [True, False]
    assert captured("c", b"1", b"9") == [True, True]
    assert SchemaHistory().captured("1", pa.array(["a"]), pa.array([b"1"], pa.binary())).tolist() == [True]


def observation(**rows: Any) -> bytes:
    """An observation of a keyspace with one table."""
    names = {"keyspace_name": "shop", "table_name": "t"}
    seen = {
        "tables": [
            {**names, "id": "5a1c395e-b41f-11e5-9f22-ba0be0483c18", "flags": ["compound"], "cdc": True}
        ],
        "columns": [{**names, "column_name": "k", "kind": "partition_key", "position": 0, "type": "int"}],
        "views": [],
        "dropped_columns": [],
        "types": [],
        **rows,
    }
    return b"O" + zlib.compress(json.dumps(seen).encode())


def history_of(*payloads: bytes) -> SchemaHistory:
    rows = [
        {"kind": SCHEMA, "origin": "", "position": b"", "key": b"shop", "committed_at": n, "payload": payload}
        for n, payload in enumerate(payloads)
    ]
    return read_history(pa.Table.from_pylist(rows, schema=CHANGE_SCHEMA))


@pytest.mark.parametrize(
    "broken",
    [
        b"O",
        b"Onot deflated",
        b"O" + zlib.compress(b"no JSON"),
        b"O" + zlib.compress(b"[]"),
        b"O" + zlib.compress(b"{}"),
        observation(types=[{"keyspace_name": "shop"}]),
        observation(columns=7),
    ],
)
def test_an_unreadable_observed_schema_is_skipped(broken: bytes) -> None:
    sound = observation()
    assert list(history_of(sound).existing) == ["shop.t"]
    assert history_of(sound, broken).existing == history_of(sound).existing


def test_table_with_an_invalid_id_is_skipped() -> None:
    row = {"keyspace_name": "shop", "table_name": "t", "id": "5a1c395e-b4", "cdc": True}
    assert history_of(observation(tables=[row])).existing == {}
