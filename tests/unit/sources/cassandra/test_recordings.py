"""Recordings of a real node, read and decoded: all that Cassandra's own reader finds, and nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest

from airflow_cdc_provider.changes.record import CHANGE, CHANGE_SCHEMA, QUARANTINE, TRUNCATE
from airflow_cdc_provider.sources.cassandra.capture import LogFolder, head, lag, plan_segments
from airflow_cdc_provider.sources.cassandra.commit_log.sections import walk_sections
from airflow_cdc_provider.sources.cassandra.commit_log.segments import (
    SegmentBytes,
    list_segments,
    read_descriptor,
)
from airflow_cdc_provider.sources.cassandra.commit_log.system_tables import system_table_id
from airflow_cdc_provider.sources.cassandra.commit_log.tables import log_tables
from airflow_cdc_provider.sources.cassandra.payload import Position
from airflow_cdc_provider.sources.cassandra.quarantine import retry_quarantined
from airflow_cdc_provider.sources.cassandra.reader import read_segments
from airflow_cdc_provider.sources.cassandra.records import ReadCounts
from airflow_cdc_provider.sources.contract import ReadLimit
from airflow_cdc_provider.sources.cql.schema import Column, CqlType, TableSchema, number_columns
from tests.unit.sources.cassandra.recordings import (
    HOST,
    VARIANTS,
    Recording,
    decode_all,
    expected_contributions,
    of_kind,
    places,
    read_all,
    recording,
)

COUNTERS = "shop_a.cnt"


@pytest.fixture(params=VARIANTS)
def recorded(request: pytest.FixtureRequest) -> Recording:
    return recording(request.param)


@pytest.mark.recorded
@pytest.mark.covers("CAS-READ-02", "CAS-UNSUP-01", "CAS-UNSUP-02", "CAS-GAP-02", "CAS-GAP-04")
def test_every_update_is_what_cassandras_own_reader_decodes(recorded: Recording) -> None:
    schemas = recorded.schemas.tables
    changes = of_kind(read_all(recorded.log, recorded.tables())[0], CHANGE)

    contributions, reasons = decode_all(changes, schemas)

    assert reasons == []
    cells = boundaries = 0
    seen = Counter[str]()
    for update in recorded.updates():
        table = f"{update['keyspace']}.{update['table']}"
        if table == COUNTERS:
            continue
        expected = expected_contributions(update, schemas[table])
        place = (update["segment"], update["end"], table)
        assert contributions.pop(place, []) == expected, place
        cells += sum(len(c.row.cells) for c in expected)
        boundaries += sum({"open", "close"} <= item.keys() for item in update.get("unfiltered", ()))
        seen[table] += 1
    assert not contributions
    assert cells > 6000
    assert boundaries, "range deletions that adjoin"
    assert Counter(changes["source_table"].to_pylist()) == seen


def test_changes_have_the_ends_of_their_entries_and_their_partition_keys(recorded: Recording) -> None:
    changes = of_kind(read_all(recorded.log, recorded.tables())[0], CHANGE)

    updates = [u for u in recorded.updates() if f"{u['keyspace']}.{u['table']}" != COUNTERS]
    assert places(changes) == [(u["segment"], u["end"], f"{u['keyspace']}.{u['table']}") for u in updates]
    assert changes["key"].to_pylist() == [bytes.fromhex(u["key"]) for u in updates]
    positions = changes["position"].to_pylist()
    assert positions == sorted(set(positions))
    assert set(changes["origin"].to_pylist()) == {HOST}
    assert changes.schema == CHANGE_SCHEMA


@pytest.mark.recorded
@pytest.mark.covers("CAS-C40-02")
def test_index_names_the_logical_end_of_the_data(recorded: Recording) -> None:
    for file in list_segments(recorded.log.path, recorded=True)["node"]:
        with SegmentBytes(file.path) as source:
            descriptor = read_descriptor(source.read(0, 1 << 17), file.path)
            chain = walk_sections(source, descriptor, complete=True)
        assert file.index is not None
        assert file.index.completed
        assert chain.damage == []
        assert chain.sections[-1].end == file.index.end


@pytest.mark.recorded
@pytest.mark.covers("CAS-GAP-01")
def test_reading_in_small_batches_gives_the_same_changes(recorded: Recording) -> None:
    tables = recorded.tables()
    whole, end = read_all(recorded.log, tables)
    pieces, pieces_end = read_all(recorded.log, tables, limit=ReadLimit(bytes=50_000))

    assert pieces_end == end == head(recorded.log)
    assert sorted(_without_clock(pieces), key=str) == sorted(_without_clock(whole), key=str)


def test_same_partition_read_twice_gives_the_same_changes() -> None:
    log, tables = recording("v7-plain").log, recording("v7-plain").tables()
    for part in plan_segments(log, None, head(log), ReadLimit()).partitions:
        first, second = (pa.Table.from_batches(read_segments(part, tables)) for _ in range(2))
        assert _without_clock(first) == _without_clock(second)


@pytest.mark.recorded
@pytest.mark.covers("CAS-READ-06", "CAS-C40-01", "CAS-D3X-02")
def test_growing_segment_is_read_to_its_durable_end_and_later_on_from_there() -> None:
    full = recording("v7-plain")
    midway = LogFolder(str(full.folder / "midway" / "cdc_raw"), HOST, recorded=True)
    tables = full.tables()

    early, offset = read_all(midway, tables)
    assert offset[HOST]["open"] == {"1795247392880": 307939}
    ends = [Position.unpack(p) for p in of_kind(early, CHANGE)["position"].to_pylist()]
    assert max(ends)[:2] <= (1795247392880, 307939)
    assert lag(midway, offset).bytes == 0
    assert lag(full.log, offset).bytes == 596498 - 307939

    late, end = read_all(full.log, tables, offset)
    assert end == head(full.log)
    whole, _ = read_all(full.log, tables)
    joined = pa.concat_tables([early, late])
    assert sorted(_without_clock(joined), key=str) == sorted(_without_clock(whole), key=str)


@pytest.mark.recorded
@pytest.mark.covers("CAS-UNSUP-07")
def test_updates_of_other_tables_are_skipped_and_counted() -> None:
    full = recording("v7-plain")
    selected = {name for name, table in full.schemas.tables.items() if table.cdc}
    counts = ReadCounts()

    records, _ = read_all(full.log, full.tables(selected), counts=counts)

    updates = Counter(f"{u['keyspace']}.{u['table']}" for u in full.updates())
    assert counts.skipped["view"] == updates["shop_a.twin_by_w"] == 19
    assert counts.skipped["counter"] == updates[COUNTERS] == 10
    assert counts.skipped["unselected"] == updates["shop_a.plain_nocdc"]
    changes = Counter(of_kind(records, CHANGE)["source_table"].to_pylist())
    assert changes == {table: n for table, n in updates.items() if table in selected and table != COUNTERS}
    assert changes["shop_a.lwt"] == 9
    paxos = bytes.fromhex(system_table_id("system", "paxos"))
    in_log = sum(data.count(paxos) for data in full.segment_bytes().values())
    assert 0 < in_log <= counts.skipped["system"] == 1027
    assert counts.changes == changes.total()
    assert counts.entries == 3914


def test_selected_table_is_found_when_no_other_is_known() -> None:
    full = recording("v7-plain")
    lwt_table = full.schemas.tables["shop_a.lwt"]

    records, _ = read_all(full.log, log_tables([lwt_table], {lwt_table.full_name}))

    assert set(of_kind(records, CHANGE)["source_table"].to_pylist()) == {"shop_a.lwt"}
    assert len(of_kind(records, CHANGE)) == 9


@pytest.mark.recorded
@pytest.mark.covers("CAS-GAP-07", "DSX-CON-08")
@pytest.mark.parametrize("variant", VARIANTS)
def test_truncate_is_a_fence_in_the_log(variant: str) -> None:
    full = recording(variant)
    records, _ = read_all(full.log, full.tables())

    (truncate,) = of_kind(records, TRUNCATE).to_pylist()
    assert truncate["source_table"].startswith("shop_a.trunc_")
    changes = of_kind(records, CHANGE)
    mine = changes.filter(pa.compute.equal(changes["source_table"], truncate["source_table"]))
    before = [p for p in mine["position"].to_pylist() if p <= truncate["position"]]
    assert 0 < len(before) < len(mine)
    assert truncate["committed_at"].timestamp() == pytest.approx(
        Position.unpack(truncate["position"]).segment / 1000, abs=120
    )


def test_update_of_a_dropped_table_stays_in_quarantine_until_its_schema_is_known() -> None:
    full = recording("v7-plain")
    records, _ = read_all(full.log, full.tables())
    kept = of_kind(records, QUARANTINE)
    assert len(kept) == 5
    assert all(r.startswith("unknown-table: ") for r in kept["reason"].to_pylist())

    old = TableSchema(
        "shop_a",
        "reborn",
        "30736700e58011f1a764fd2ee712b6e7",
        (Column("k", "partition_key", 0, CqlType("int")), Column("v", "regular", -1, CqlType("int"))),
        cdc=True,
    )
    tables = log_tables([*full.schemas.tables.values(), old], {old.full_name})
    (retried,) = retry_quarantined(kept.combine_chunks().to_batches()[0], tables)

    assert retried["kind"].to_pylist() == [CHANGE] * 5
    assert retried["position"].to_pylist() == kept["position"].to_pylist()
    found, reasons = decode_all(pa.Table.from_batches([retried]), {old.full_name: number_columns(old)})
    assert reasons == []
    values = [int.from_bytes(c.row.cells[0].value, "big") for rows in found.values() for c in rows]
    assert values == [74, 70, 0, 66, 70]


def test_dropped_table_is_read_when_both_its_definitions_are_known() -> None:
    full = recording("v7-plain")
    new = full.schemas.tables["shop_a.reborn"]
    old = replace(new, id="30736700e58011f1a764fd2ee712b6e7")

    records, _ = read_all(full.log, log_tables([new, old], {new.full_name}))

    assert len(of_kind(records, CHANGE)) == 4 + 5
    _, reasons = decode_all(of_kind(records, CHANGE), {new.full_name: new})
    assert len(reasons) == 5
    assert all(r.startswith("other-table: ") for r in reasons)


@pytest.mark.recorded
@pytest.mark.covers("CAS-C50-04")
def test_expiries_beyond_2038_are_read_from_version_8() -> None:
    full = recording("v8-plain")
    (table,) = (name for name in full.schemas.tables if name.endswith(".y2038"))
    changes = of_kind(read_all(full.log, full.tables({table}))[0], CHANGE)

    contributions, _ = decode_all(changes, full.schemas.tables)

    ends = [cell.end for rows in contributions.values() for row in rows for cell in row.row.cells]
    assert max(end for end in ends if end < 1 << 62) > 1 << 31


def _without_clock(records: pa.Table) -> list[dict[str, object]]:
    return records.drop_columns(["captured_at"]).to_pylist()
