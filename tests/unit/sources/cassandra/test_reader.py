"""Reading of slices: mutations of several updates, skipped updates, and corrupt input."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_cdc_provider.changes.record import CHANGE, CHANGE_SCHEMA, QUARANTINE, TRUNCATE
from airflow_cdc_provider.exceptions import CorruptInput, SchemaUnknown
from airflow_cdc_provider.sources.cassandra.capture import LogFolder
from airflow_cdc_provider.sources.cassandra.commit_log.system_tables import system_table_id
from airflow_cdc_provider.sources.cassandra.commit_log.tables import LogTables, log_tables
from airflow_cdc_provider.sources.cassandra.payload import FENCE, Position, Truncation
from airflow_cdc_provider.sources.cassandra.quarantine import retry_quarantined
from airflow_cdc_provider.sources.cassandra.records import ReadCounts
from airflow_cdc_provider.sources.cql.schema import TableSchema
from tests.oracles.cassandra_read_path import Cell, Liveness, Row
from tests.unit.sources.cassandra.commit_logs import (
    EPOCH_US,
    HEADER_BYTES,
    Stats,
    UpdateWriter,
    entry,
    mutation,
    put_segment,
    segment,
    uvint,
)
from tests.unit.sources.cassandra.recordings import decode_all, of_kind, places, read_all, recording
from tests.unit.sources.cassandra.updates import PLAIN, table

KEY = b"\0\0\0\x01"
SELECTED = replace(PLAIN, name="selected")
OTHER = table("other", "p id int\nr a int\nr m map<int, text>", 0x31)
ALONE = replace(table("alone", "p id int\nr a int", 0x32), keyspace="elsewhere")
COUNTER = replace(table("clicks", "p id int\nr n counter", 0x33), counter=True)
VIEW = replace(table("view", "p id int\nr a int", 0x34), view=True)
UNKNOWN = table("unknown", "p id int\nr a int", 0x35)
KNOWN = (SELECTED, OTHER, ALONE, COUNTER, VIEW)


def update(schema: TableSchema, number: int = 1) -> bytes:
    first = schema.regular[0]
    value = b"" if first.type.name == "counter" else number.to_bytes(4, "big")
    return UpdateWriter(schema).write(
        KEY, [Row(Liveness(number), None, b"", (Cell(first.id, number, value),))]
    )


def tables(*schemas: TableSchema) -> LogTables:
    return log_tables(schemas or KNOWN, {SELECTED.full_name})


def read(
    tmp_path: Path, mutations: list[bytes], known: LogTables | None = None, *, strict: bool = False
) -> tuple[pa.Table, ReadCounts]:
    put_segment(tmp_path, 9, segment(9, [mutations]))
    counts = ReadCounts()
    log = LogFolder(str(tmp_path), "host", strict=strict)
    return read_all(log, known or tables(), counts=counts)[0], counts


@pytest.mark.covers("CAS-UNSUP-04", "CAS-GAP-01")
def test_mutation_of_several_updates_is_split(tmp_path: Path) -> None:
    parts = [update(OTHER), update(SELECTED, 5), update(COUNTER), update(VIEW), update(SELECTED, 6)]
    records, counts = read(tmp_path, [mutation(*parts)])

    assert records["payload"].to_pylist() == [b"\x07" + parts[1], b"\x07" + parts[4]]
    positions = [Position.unpack(p) for p in records["position"].to_pylist()]
    assert [p.ordinal for p in positions] == [1, 4]
    assert len({p.end for p in positions}) == 1
    assert (counts.entries, counts.changes) == (1, 2)
    assert counts.skipped == {"unselected": 1, "view": 1, "counter": 1}


def test_mutations_of_other_keyspaces_are_skipped_unparsed(tmp_path: Path) -> None:
    broken = mutation(update(ALONE), update(ALONE)[:-3])
    records, counts = read(tmp_path, [broken, mutation(update(SELECTED))])
    assert records["kind"].to_pylist() == [CHANGE]
    assert counts.skipped == {"unselected": 2}


@pytest.mark.covers("CAS-SETUP-06")
def test_update_of_an_unselected_table_is_counted_without_knowing_its_columns(tmp_path: Path) -> None:
    newer = table("other", "p id int\nr added list<int>", 0x31)
    row = Row(None, None, b"", (Cell(1, 5, b"\0\0\0\1", path=b"x" * 16),))
    records, counts = read(
        tmp_path, [mutation(UpdateWriter(newer).write(KEY, [row])), mutation(update(SELECTED))]
    )
    assert records["kind"].to_pylist() == [CHANGE]
    assert counts.skipped == {"unselected": 1}


@pytest.mark.covers("CAS-UNSUP-07")
def test_system_tables_are_skipped_without_their_schema(tmp_path: Path) -> None:
    names = [
        ("system", "paxos"),
        ("system_traces", "events"),
        ("system_auth", "roles"),
        ("system", "batches"),
    ]
    own = [bytes.fromhex(system_table_id(*name)) + b"\x04abcd and whatever follows" for name in names]
    records, counts = read(tmp_path, [mutation(own[0]), mutation(own[1], own[1]), mutation(update(SELECTED))])
    assert records["kind"].to_pylist() == [CHANGE]
    assert counts.skipped == {"system": 3}


@pytest.mark.covers("CAS-GAP-05")
def test_unknown_table_puts_the_mutation_into_quarantine_whole(tmp_path: Path) -> None:
    whole = mutation(update(OTHER), update(SELECTED, 5), update(UNKNOWN), update(SELECTED, 6))
    records, counts = read(tmp_path, [whole, mutation(update(SELECTED, 7))])

    assert records["kind"].to_pylist() == [CHANGE, CHANGE, QUARANTINE]
    kept = records.to_pylist()[2]
    assert kept["reason"].startswith(
        f"unknown-table: no known schema has this table id ({UNKNOWN.id} at byte"
    )
    assert kept["payload"] == b"M\x07\0\x02" + whole
    assert kept["source_table"] is None
    assert (counts.changes, counts.quarantined) == (2, 1)


def test_quarantined_mutation_is_captured_once_its_table_is_known(tmp_path: Path) -> None:
    whole = mutation(update(OTHER), update(SELECTED, 5), update(UNKNOWN), update(SELECTED, 6))
    records, _ = read(tmp_path, [whole])
    batch = of_kind(records, QUARANTINE).combine_chunks().to_batches()[0]

    (still,) = retry_quarantined(batch, tables())
    assert still["kind"].to_pylist() == [QUARANTINE]
    assert still["payload"].to_pylist() == batch["payload"].to_pylist()

    (retried,) = retry_quarantined(batch, tables(*KNOWN, UNKNOWN))
    assert retried["kind"].to_pylist() == [CHANGE]
    (position,) = (Position.unpack(p) for p in retried["position"].to_pylist())
    assert position.ordinal == 3
    complete, _ = read(tmp_path, [whole], tables(*KNOWN, UNKNOWN))
    landed = sorted(of_kind(records, CHANGE)["position"].to_pylist() + retried["position"].to_pylist())
    assert landed == complete["position"].to_pylist()


def test_unknown_column_in_a_mutation_of_several_updates_is_quarantined(tmp_path: Path) -> None:
    newer = table("other", "p id int\nr a int\nr added int", 0x31)
    row = Row(Liveness(5), None, b"", (Cell(2, 5, b"\0\0\0\1"),))
    whole = mutation(UpdateWriter(newer).write(KEY, [row]), update(SELECTED))
    records, _ = read(tmp_path, [whole])
    assert [r.split(":")[0] for r in records["reason"].to_pylist()] == ["unknown-column"]


def test_update_of_one_table_needs_no_schema_at_all(tmp_path: Path) -> None:
    newer = table("selected", "p id int\nr added int", 0x11)
    row = Row(Liveness(5), None, b"", (Cell(1, 5, b"\0\0\0\1"),))
    records, _ = read(tmp_path, [mutation(UpdateWriter(newer).write(KEY, [row]))])
    assert records["kind"].to_pylist() == [CHANGE]
    assert decode_all(records, {SELECTED.full_name: SELECTED})[1][0].startswith("unknown-column")


@pytest.mark.covers("CAS-GAP-05")
@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (uvint(0) + bytes(20), "bad-count"),
        (uvint(99) + bytes(20), "bad-count"),
        pytest.param(uvint(65_537) + 65_536 * update(SELECTED) + b"x" * 16, "bad-count", id="too-many"),
        (bytes(10), "truncated"),
        (b"\xff" * 12, "truncated"),
        (mutation(update(SELECTED), update(SELECTED)) + b"x", "trailing-bytes"),
        (mutation(update(SELECTED), update(SELECTED))[:-2], "truncated"),
        (mutation(update(SELECTED))[:18] + b"\x7f", "truncated"),
    ],
)
def test_malformed_mutation_is_quarantined_and_the_others_are_captured(
    tmp_path: Path, bad: bytes, code: str
) -> None:
    records, counts = read(tmp_path, [mutation(update(SELECTED, 1)), bad, mutation(update(SELECTED, 2))])
    (kept,) = of_kind(records, QUARANTINE).to_pylist()
    assert kept["reason"].startswith(f"{code}: ")
    assert kept["payload"][4:] == bad
    assert counts.quarantined == 1
    ends = [end for _, end, _ in places(of_kind(records, CHANGE))]
    assert {min(ends), max(ends)} == {
        HEADER_BYTES + 8 + len(entry(mutation(update(SELECTED)))),
        HEADER_BYTES + 8 + 2 * len(entry(mutation(update(SELECTED)))) + len(entry(bad)),
    }


@pytest.mark.covers("CAS-C50-09")
def test_damage_is_located_counted_and_quarantined_and_the_rest_is_captured(tmp_path: Path) -> None:
    writes = [mutation(update(SELECTED, n)) for n in range(1, 5)]
    data = bytearray(segment(9, [writes[:2], writes[2:]]))
    length = len(entry(writes[0]))
    data[HEADER_BYTES + 8 + length + 20] ^= 1
    put_segment(tmp_path, 9, bytes(data))
    counts = ReadCounts()

    records, offset = read_all(LogFolder(str(tmp_path), "host"), tables(), counts=counts)

    assert len(of_kind(records, CHANGE)) == 3
    (kept,) = of_kind(records, QUARANTINE).to_pylist()
    assert kept["reason"].startswith("entry-checksum: ")
    assert f"{length} bytes from position {HEADER_BYTES + 8 + length})" in kept["reason"]
    assert Position.unpack(kept["position"])[:2] == (9, HEADER_BYTES + 8 + length)
    assert kept["payload"][9:] == bytes(data[HEADER_BYTES + 8 + length : HEADER_BYTES + 8 + 2 * length])
    assert (counts.damaged, counts.changes) == (1, 3)
    assert offset["host"]["done"] == [[9, 9]]


def test_segment_truncated_before_the_end_in_its_index_is_damage(tmp_path: Path) -> None:
    data = segment(9, [[mutation(update(SELECTED, n))] for n in range(1, 4)])
    put_segment(tmp_path, 9, data[:-40], end=len(data))
    records, _ = read_all(LogFolder(str(tmp_path), "host"), tables())
    reasons = [r.split(":")[0] for r in of_kind(records, QUARANTINE)["reason"].to_pylist()]
    assert "ends-early" in reasons or "marker-target" in reasons
    assert len(of_kind(records, CHANGE)) == 2


@pytest.mark.parametrize("flip", [0, 5, 13])
def test_segment_of_a_recording_with_a_corrupt_header_is_one_corrupt_range(tmp_path: Path, flip: int) -> None:
    data = bytearray(segment(9, [[mutation(update(SELECTED))]]))
    data[flip] ^= 1
    put_segment(tmp_path, 9, bytes(data))
    put_segment(tmp_path, 10, segment(10, [[mutation(update(SELECTED))]]))
    records, offset = read_all(LogFolder(str(tmp_path), "host", recorded=True), tables())
    assert records["kind"].to_pylist() == [QUARANTINE, CHANGE]
    assert records["reason"][0].as_py().startswith("header-unreadable: ")
    assert offset["host"]["done"] == [[9, 10]]


def test_segment_under_another_segments_name_is_not_read(tmp_path: Path) -> None:
    put_segment(tmp_path, 9, segment(8, [[mutation(update(SELECTED))]]))
    records, _ = read_all(LogFolder(str(tmp_path), "host", recorded=True), tables())
    assert [r.split(":")[0] for r in records["reason"].to_pylist()] == ["header-mismatch"]


@pytest.mark.covers("CAS-GAP-05", "CAS-C50-09")
def test_strict_reading_fails_with_the_position(tmp_path: Path) -> None:
    with pytest.raises(SchemaUnknown, match="segment 9 of node host"):
        read(tmp_path, [mutation(update(UNKNOWN))], strict=True)
    data = bytearray(segment(9, [[mutation(update(SELECTED))]]))
    data[-1] ^= 1
    put_segment(tmp_path, 9, bytes(data))
    with pytest.raises(CorruptInput, match=r"entry-checksum: .* from position 28\)"):
        read_all(LogFolder(str(tmp_path), "host", strict=True), tables())


def test_any_flipped_byte_of_a_segment_costs_at_most_its_section_and_is_reported(tmp_path: Path) -> None:
    sections = [[mutation(update(SELECTED, 10 * s + n)) for n in range(3)] for s in range(1, 5)]
    sound = segment(9, sections)
    put_segment(tmp_path, 9, sound)
    log = LogFolder(str(tmp_path), "host")
    whole = set(read_all(log, tables())[0]["payload"].to_pylist())
    assert len(whole) == 12
    rng = random.Random(7)
    for at in range(HEADER_BYTES, len(sound)):
        data = bytearray(sound)
        data[at] ^= 1 << rng.randrange(8)
        put_segment(tmp_path, 9, bytes(data))
        records, _ = read_all(log, tables())
        landed = set(of_kind(records, CHANGE)["payload"].to_pylist())
        assert landed <= whole
        assert len(landed) >= 9, at
        assert landed == whole or len(of_kind(records, QUARANTINE)) > 0, at


def test_truncation_of_a_selected_table_is_a_fence(tmp_path: Path) -> None:
    local = table("local", "p key text\nr truncated_at map<uuid, blob>", 0)
    local = replace(local, keyspace="system", id=system_table_id("system", "local"))
    record = (5).to_bytes(8, "big") + (777).to_bytes(4, "big") + (1795247440773).to_bytes(8, "big")
    cells = tuple(
        Cell(1, 50, record, bytes.fromhex(schema.id))
        for schema in sorted((SELECTED, OTHER), key=lambda s: s.id)
    )
    deleted = (Cell(1, 51, path=bytes.fromhex(SELECTED.id), tombstone=True, end=9),)
    writer = UpdateWriter(local)
    own = [mutation(writer.write(b"local", [Row(None, None, b"", c)])) for c in (cells, deleted)]

    records, counts = read(tmp_path, own)

    (fence,) = records.to_pylist()
    assert (fence["kind"], fence["source_table"]) == (TRUNCATE, SELECTED.full_name)
    assert Position.unpack(fence["position"]) == Position(5, 777, FENCE)
    assert fence["position"][16:] == (1795247440773).to_bytes(8, "big")
    assert fence["committed_at"].timestamp() == 1795247440.773
    assert fence["payload"] == Truncation(5, 777, 1795247440773).pack()
    assert (counts.truncations, counts.skipped) == (1, {"system": 2})


def test_truncation_at_an_invalid_time_is_skipped(tmp_path: Path) -> None:
    local = table("local", "p key text\nr truncated_at map<uuid, blob>", 0)
    local = replace(local, keyspace="system", id=system_table_id("system", "local"))
    cells = (Cell(1, 50, bytes(12) + b"\x7f" + bytes(7), bytes.fromhex(SELECTED.id)),)
    own = mutation(UpdateWriter(local).write(b"local", [Row(None, None, b"", cells)]))
    records, counts = read(tmp_path, [own, mutation(update(SELECTED))])
    assert (records["kind"].to_pylist(), counts.truncations) == ([CHANGE], 0)


def test_truncation_that_cannot_be_read_is_not_lost_silently(tmp_path: Path) -> None:
    local = table("local", "p key text\nr from_the_future int\nr truncated_at map<uuid, blob>", 0)
    local = replace(local, keyspace="system", id=system_table_id("system", "local"))
    cells = (Cell(1, 50, b"\0\0\0\1"), Cell(2, 50, b"x" * 20, bytes.fromhex(SELECTED.id)))
    records, _ = read(
        tmp_path, [mutation(UpdateWriter(local).write(b"local", [Row(None, None, b"", cells)]))]
    )
    (kept,) = records.to_pylist()
    assert kept["kind"] == QUARANTINE
    assert kept["reason"].startswith("unknown-column: ")


def test_records_have_the_columns_of_the_contract(tmp_path: Path) -> None:
    put_segment(tmp_path, 9, segment(9, [[mutation(update(SELECTED)), mutation(update(UNKNOWN))]]))
    records, _ = read_all(LogFolder(str(tmp_path), "host"), tables())
    assert records.schema == CHANGE_SCHEMA
    assert records["origin"].to_pylist() == ["host", "host"]
    assert records["generation"].to_pylist() == [0, 0]
    assert None not in records["captured_at"].to_pylist()
    assert records["committed_at"].null_count == 2


@pytest.mark.covers("CAS-LIM-01")
@pytest.mark.parametrize(
    ("written_us", "expected_us"),
    [
        (1795247417587452, 1795247417587452),
        (EPOCH_US - 5, EPOCH_US - 5),  # USING TIMESTAMP may say anything
        (EPOCH_US, None),  # an update without any time
        (-5, None),
        (1 << 62, None),  # no moment that Python or Spark know
    ],
)
def test_a_change_has_its_write_time(tmp_path: Path, written_us: int, expected_us: int | None) -> None:
    row = Row(Liveness(written_us), None, b"", (Cell(SELECTED.regular[0].id, written_us, b"\0\0\0\1"),))
    records, _ = read(
        tmp_path, [mutation(UpdateWriter(SELECTED, Stats(timestamp=written_us)).write(KEY, [row]))]
    )
    assert records["committed_at"].cast(pa.int64()).to_pylist() == [expected_us]


@pytest.mark.recorded
@pytest.mark.covers("CAS-LIM-01")
def test_write_times_of_a_recording_are_those_that_cassandra_reads() -> None:
    full = recording("v7-plain")
    records, _ = read_all(full.log, full.tables())
    expected_us = of_kind(records, CHANGE).select(["position", "committed_at"])
    moments = {
        (place.segment, place.end): us
        for place, us in zip(
            map(Position.unpack, expected_us["position"].to_pylist()),
            expected_us["committed_at"].cast(pa.int64()).to_pylist(),
            strict=True,
        )
    }
    times: dict[tuple[int, int], set[int]] = {}
    with gzip.open(full.folder / "updates.jsonl.gz", "rt") as lines:
        for update in map(json.loads, lines):
            times.setdefault((update["segment"], update["end"]), set()).update(_numbers(update))
    assert len(moments) > 500
    exact = 0
    for place, moment in moments.items():
        if moment is None:
            assert not any(EPOCH_US < number < 1 << 53 for number in times[place])
        else:
            exact += moment in times[place]
            assert moment <= max(times[place])
    # The others are batches in which a later deletion replaced an earlier one.
    assert exact > 0.95 * len(moments)


def _numbers(value: Any) -> Iterator[int]:
    if isinstance(value, int):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _numbers(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _numbers(one)


def test_selected_view_is_captured(tmp_path: Path) -> None:
    known = log_tables(KNOWN, {VIEW.full_name})
    records, _ = read(tmp_path, [mutation(update(VIEW))], known)
    assert records["source_table"].to_pylist() == [VIEW.full_name]


def test_every_system_table_of_the_recordings_is_known() -> None:
    for variant in ("v7-plain", "v8-plain"):
        full = recording(variant)
        counts = ReadCounts()
        records, _ = read_all(full.log, full.tables(), counts=counts)
        unknown = of_kind(records, QUARANTINE)["reason"].to_pylist()
        assert len(unknown) == 5  # the dropped table
        assert counts.skipped["system"] > 900


def test_counts_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        read(tmp_path, [mutation(update(SELECTED)), mutation(update(VIEW))])
    assert "'view': 1" in caplog.text
