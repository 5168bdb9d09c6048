"""The schema history, replayed from recordings: every statement has the effect that the server describes."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA, SCHEMA
from airflow_cdc_provider.sources.cassandra import records as records_module
from airflow_cdc_provider.sources.cassandra.capture import head, plan_segments
from airflow_cdc_provider.sources.cassandra.commit_log.framing import END, LENGTH, START
from airflow_cdc_provider.sources.cassandra.commit_log.tables import schema_tables_only
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.cassandra.payload import SKIPPED_TAG, Position
from airflow_cdc_provider.sources.cassandra.reader import SegmentReader
from airflow_cdc_provider.sources.cassandra.records import ReadCounts, SegmentRecords
from airflow_cdc_provider.sources.cassandra.schema_history import (
    SchemaHistory,
    SchemaVersion,
    observed,
    read_history,
)
from airflow_cdc_provider.sources.cassandra.source import CassandraSource
from airflow_cdc_provider.sources.contract import ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.cql.describe import parse_cql
from airflow_cdc_provider.sources.cql.schema import TableSchema
from tests.unit.sources.cassandra.recordings import HOST, VARIANTS, of_kind, read_all, recording

SKIPPED = bytes([SKIPPED_TAG])


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
    others = pc.not_equal(everything["key"], keyspace)
    assert rest.filter(pc.not_equal(rest["key"], keyspace)) == everything.filter(others)
    notes = rest.filter(pc.equal(rest["key"], keyspace))
    assert set(notes["payload"].to_pylist()) == {SKIPPED}
    assert notes.num_rows == len(set(notes["position"].to_pylist())) <= len(plan.partitions)
    assert rest.num_rows - notes.num_rows + skipped == everything.num_rows
    monkeypatch.setattr(records_module, "_MOST_SCHEMA_BYTES", 2_000)
    some, beyond = records(frozenset())
    of_some = some.filter(pc.not_equal(some["payload"], SKIPPED))
    assert of_some.num_rows + beyond == everything.num_rows
    assert 0 < some.num_rows - of_some.num_rows <= len(plan.partitions)
    assert pc.sum(pc.binary_length(of_some["payload"])).as_py() < 2_100 * len(plan.partitions)


HOUR_US = 3_600_000_000


class Switches:
    """Statements that switch ``cdc`` of ``shop_a.late_cdc`` off and on, after a run has read it as on."""

    def __init__(self) -> None:
        base = schema_records("v7-plain")
        created, altered = (
            row["payload"]
            for row in base.to_pylist()
            if row["source_table"] == "system_schema.tables" and b"late_cdc" in row["payload"]
        )
        self.rows = rows_of("v7-plain")
        self.schema = read_history(base).existing["shop_a.late_cdc"]
        first_us, self.on_us = (v.at_us for v in read_history(base).versions if v.table_id == self.schema.id)
        seen = observed(self.rows, SchemaHistory(), self.on_us + 60_000_000)
        self.before = pa.concat_tables([base, as_table(list(seen))])
        self.off = _later(created, self.on_us - first_us + HOUR_US)
        self.on = _later(altered, 2 * HOUR_US)
        self._created = created

    def other(self, keyspace: bytes, size: int) -> bytes:
        """A large statement of another table."""
        other = self._created.replace(b"\x06shop_a", b"\x06" + keyspace)
        assert other.count(b"late_cdc") == 1
        return other.replace(b"late_cdc", b"an_other") + bytes(size)

    def history(self, *payloads: bytes, seen: Sequence[Mapping[str, Any]] = ()) -> SchemaHistory:
        """The history with the statements in a later segment, and with what later runs read."""
        return read_history(pa.concat_tables([self.before, self.logged(*payloads), as_table(seen)]))

    def logged(self, *payloads: bytes) -> pa.Table:
        mutations = [b"\x01" + payload[1:] for payload in payloads]
        entries = np.zeros((len(payloads), 3), np.int64)
        entries[:, LENGTH] = [len(mutation) for mutation in mutations]
        entries[:, START] = np.cumsum(entries[:, LENGTH]) - entries[:, LENGTH]
        entries[:, END] = np.arange(1, len(payloads) + 1)
        reader = SegmentRecords(HOST, LATER, schema_tables_only(), False, ReadCounts(), frozenset())
        data = np.frombuffer(b"".join(mutations), np.uint8)
        versions = np.array([payload[0] for payload in payloads], np.int64)
        batches = list(reader.split(data, entries, versions, np.zeros(len(payloads), np.int64)))
        return pa.Table.from_batches(batches, CHANGE_SCHEMA)

    def captured(self, history: SchemaHistory, *ends: int) -> list[bool]:
        """Whether changes after those ends of entries of the later segment count as captured."""
        positions = pa.array([Position(LATER, end, 9).pack() for end in ends], pa.binary())
        return history.captured(self.schema.id, pa.array([HOST] * len(ends)), positions).tolist()


LATER = 1 << 41


def _later(payload: bytes, by_us: int) -> bytes:
    """Move the write time of an update, which is a varint of seven bytes."""
    at = payload.index(b"\xfd") + 1
    return (
        payload[:at]
        + (int.from_bytes(payload[at : at + 6], "big") + by_us).to_bytes(6, "big")
        + payload[at + 6 :]
    )


@pytest.mark.recorded
def test_statements_of_one_keyspace_hide_none_of_another() -> None:
    here = Switches()
    large = here.other(b"attack", 523_500)
    history = here.history(large, large, large, here.off, here.on)
    assert history.resumed_at(here.schema) == here.on_us + 2 * HOUR_US
    assert here.captured(history, 3, 4, 5) == [True, False, True]
    assert history.incomplete == {"attack"}
    assert list(observed(here.rows, history, here.on_us + 3 * HOUR_US)) == []


@pytest.mark.recorded
@pytest.mark.parametrize("hidden", ["both", "the second"])
def test_a_table_whose_switches_were_skipped_needs_a_snapshot_and_counts_as_captured(hidden: str) -> None:
    here = Switches()
    large = [here.other(b"shop_a", 523_500)] * 2
    statements = [*large, here.off, here.on] if hidden == "both" else [here.off, *large, here.on]
    unknown = here.history(*statements)
    assert unknown.incomplete == {"shop_a"}
    assert here.captured(unknown, 4) == [True]
    if hidden == "the second":
        assert here.captured(unknown, 1, 2, 3) == [False, False, True]

    read_us = here.on_us + 3 * HOUR_US
    (seen,) = observed(here.rows, unknown, read_us)
    known = here.history(*statements, seen=[seen])
    assert known.resumed_at(here.schema) == read_us
    assert (known.incomplete, here.captured(known, 4)) == (frozenset(), [True])
    assert list(observed(here.rows, known, read_us + HOUR_US)) == []


@pytest.mark.recorded
def test_after_skipped_statements_a_recorded_switch_is_known_again() -> None:
    here = Switches()
    one = here.logged(*[here.other(b"shop_a", 1 << 20)] * 2, here.off, here.on)
    assert one["payload"].to_pylist() == [SKIPPED]
    off = {**here.logged(here.off).to_pylist()[0], "position": Position(LATER, 7).pack()}
    history = read_history(pa.concat_tables([here.before, one, as_table([off])]))
    assert here.captured(history, 2, 6, 7, 8) == [True, True, False, False]
    assert history.resumed_at(here.schema) == 0


@pytest.mark.recorded
def test_a_switch_that_the_log_lacks_is_found_by_the_schema_of_the_next_run() -> None:
    """A node drops segments without changes of captured tables."""
    here = Switches()
    off = here.history(here.off)
    read_us = here.on_us + 3 * HOUR_US
    (seen,) = observed(here.rows, off, read_us)
    on = here.history(here.off, seen=[seen])
    assert on.resumed_at(here.schema) == read_us
    assert here.captured(on, 1, 2) == [True, True]
    assert list(observed(here.rows, on, read_us + HOUR_US)) == []


@pytest.mark.recorded
def test_a_keyspace_of_which_statements_were_skipped_is_reported_until_its_schema_is_read() -> None:
    here = Switches()
    options = CassandraOptions(cdc_raw=str(recording("v7-plain").folder / "cdc_raw"))
    source = CassandraSource(options, {}, lambda table: True, recorded=True)
    statements = [here.other(b"shop_a", 1 << 20)]
    source.learn(pa.concat_tables([here.before, here.logged(*statements)]))
    assert [text for text in source.schema_findings() if text.startswith("shop_a: ")]
    (seen,) = observed(here.rows, here.history(*statements), here.on_us + HOUR_US)
    source.learn(pa.concat_tables([here.before, here.logged(*statements), as_table([seen])]))
    assert not [text for text in source.schema_findings() if text.startswith("shop_a: ")]
    assert source.resumed_at("shop_a.late_cdc") == here.on_us + HOUR_US


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
