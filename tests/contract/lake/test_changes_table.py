"""The changes table on every lake: batches, their offset, and what waits to be merged."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import functions

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import CommitConflict, ConfigurationError, OffsetMissing
from airflow_cdc_provider.lake.changes_table import OFFSET, ChangesTable
from airflow_cdc_provider.lake.table import Lake
from tests.contract.lake.frames import frame_of

pytestmark = pytest.mark.integration


def declaration(namespace: str) -> Connector:
    return Connector.from_dict(
        {
            "name": "shop",
            "source": {"type": "mongodb", "conn_id": "unused"},
            "lake": {"namespace": namespace},
        }
    )


@pytest.fixture
def changes(lake: Lake, namespace: str) -> ChangesTable:
    table = ChangesTable(lake, declaration(namespace))
    table.create()
    return table


def rows(lake: Lake, *tables: str, kind: str = record.CHANGE, captured: str = "2026-01-01") -> Any:
    values = [
        (table, kind, "stream", bytes([number]), 0, b"k", b"v", b"payload")
        for number, table in enumerate(tables)
    ]
    frame = frame_of(
        lake.spark,
        values,
        "source_table string, kind string, origin string, position binary, generation bigint, key binary, "
        "version binary, payload binary",
    )
    moment = functions.lit(captured).cast("timestamp")
    empty = functions.lit(None).cast("string")
    return frame.withColumns(
        {
            "committed_at": moment,
            "captured_at": moment,
            "transaction": empty,
            "schema_id": empty,
            "reason": empty,
            "request": empty,
        }
    )


def at(position: int) -> dict[str, Any]:
    return {"stream": {"v": 1, "position": position}}


def tables_of(frame: Any) -> list[str]:
    return sorted(row["source_table"] for row in frame.select("source_table").collect())


def rewrite_history(changes: ChangesTable, keep: str) -> None:
    """Let the table be one that another tool made of some of its rows: no snapshot of ours is left."""
    copy = changes.lake.table(f"{changes.name}_copy")
    changes.lake.spark.sql(
        f"CREATE TABLE {copy.sql_name} USING iceberg PARTITIONED BY (batch) "
        f"AS SELECT * FROM {changes.table.sql_name} WHERE {keep}"
    )
    changes.table = copy


@pytest.mark.each_catalog
def test_a_new_table_is_a_first_run(changes: ChangesTable) -> None:
    state = changes.state()
    assert (state.batch, state.offset) == (0, None)


@pytest.mark.each_catalog
def test_a_missing_table_is_a_first_run_and_the_first_batch_creates_it(lake: Lake, namespace: str) -> None:
    changes = ChangesTable(lake, declaration(namespace))
    state = changes.append_batch(rows(lake, "s.a"), at(1), changes.state())
    assert (state.batch, changes.state().offset) == (1, at(1))


@pytest.mark.covers("MDB-XD-35")
def test_each_batch_is_found_with_its_number_and_offset(changes: ChangesTable) -> None:
    state = changes.state()
    for number in range(1, 4):
        state = changes.append_batch(rows(changes.lake, "s.a", "s.b"), at(number), state)
        found = changes.state()
        assert (found.batch, found.offset) == (state.batch, state.offset) == (number, at(number))
        assert state.appended == 2
    assert tables_of(changes.pending(1, 3)) == ["s.a", "s.a", "s.b", "s.b"]
    assert tables_of(changes.pending(1, 2, ["s.b"])) == ["s.b"]


@pytest.mark.each_format
def test_a_record_comes_back_as_it_went_in(changes: ChangesTable) -> None:
    frame = rows(changes.lake, "s.a", captured="2026-03-29 01:30:00.123456")
    changes.append_batch(frame, at(1), changes.state())
    names = record.CHANGE_SCHEMA.names
    assert changes.pending(0, 1).select(*names).collect() == frame.select(*names).collect()
    assert changes.table.read().schema.names == record.TABLE_SCHEMA.names


def test_rows_of_the_driver_go_into_the_same_batch(changes: ChangesTable) -> None:
    extra: list[dict[str, Any]] = [
        {"source_table": "s.a", "kind": record.SNAPSHOT_END, "payload": b"x"},
        {"kind": record.HEARTBEAT, "captured_at": datetime(2026, 1, 1, tzinfo=UTC)},
    ]
    state = changes.append_batch(rows(changes.lake, "s.a"), at(1), changes.state(), extra_rows=extra)
    assert state.appended == 3
    kinds = sorted(row["kind"] for row in changes.pending(0, 1).collect())
    assert kinds == [record.CHANGE, record.HEARTBEAT, record.SNAPSHOT_END]
    assert changes.pending(0, 1, kinds=[record.HEARTBEAT]).count() == 1


def test_a_misspelt_column_is_refused(changes: ChangesTable) -> None:
    with pytest.raises(ConfigurationError, match="kindd"):
        changes.append_batch(None, at(1), changes.state(), extra_rows=[{"kindd": "x"}])


def test_an_offset_is_set_without_changes(changes: ChangesTable) -> None:
    state = changes.append_batch(rows(changes.lake, "s.a"), at(5), changes.state())
    state = changes.set_offset(at(2), state)
    assert (changes.state().batch, changes.state().offset) == (2, at(2))
    assert state.appended == 0
    assert changes.pending(1, 2).count() == 0


def test_records_in_quarantine_may_be_deleted_by_sql(changes: ChangesTable) -> None:
    quarantined = rows(changes.lake, "s.a", kind=record.QUARANTINE)
    state = changes.append_batch(rows(changes.lake, "s.a").union(quarantined), at(1), changes.state())
    changes.lake.spark.sql(f"DELETE FROM {changes.table.sql_name} WHERE kind = '{record.QUARANTINE}'")
    assert changes.lasting(record.QUARANTINE).count() == 0
    later = changes.state()
    assert (later.batch, later.offset) == (state.batch, state.offset)
    changes.append_batch(rows(changes.lake, "s.a"), at(2), later)
    assert changes.pending(0, 2).count() == 2


@pytest.mark.each_catalog
def test_two_runs_from_one_offset_never_both_commit(changes: ChangesTable) -> None:
    state = changes.state()
    changes.append_batch(rows(changes.lake, "s.a"), at(1), state)
    with pytest.raises(CommitConflict):
        changes.append_batch(rows(changes.lake, "s.a"), at(1), state)
    assert changes.pending(0, 9).count() == 1


def test_an_offset_too_long_for_a_property_is_read_from_its_row(changes: ChangesTable) -> None:
    long = {f"node-{number}": {"v": 1, "position": "x" * 100} for number in range(200)}
    state = changes.append_batch(rows(changes.lake, "s.a"), long, changes.state())
    assert OFFSET not in state.head.properties
    assert changes.state().offset == long
    changes.append_batch(rows(changes.lake, "s.a"), at(2), changes.state())
    assert changes.state().offset == at(2)


def test_the_offset_is_found_without_any_property(changes: ChangesTable) -> None:
    """Another tool may rewrite a table's history: what is left then is rows."""
    state = changes.append_batch(rows(changes.lake, "s.a"), at(1), changes.state())
    changes.append_batch(rows(changes.lake, "s.a"), at(2), state)
    rewrite_history(changes, "true")
    state = changes.state()
    assert (state.batch, state.offset) == (2, at(2))
    assert changes.append_batch(rows(changes.lake, "s.a"), at(3), state).batch == 3


@pytest.mark.parametrize("gone", ["kind = 'offset'", "kind = 'offset' AND batch = 2"])
def test_changes_without_an_offset_are_an_error_and_no_first_run(changes: ChangesTable, gone: str) -> None:
    state = changes.append_batch(rows(changes.lake, "s.a"), at(1), changes.state())
    changes.append_batch(rows(changes.lake, "s.a"), at(2), state)
    rewrite_history(changes, f"NOT ({gone})")
    with pytest.raises(OffsetMissing, match="offsets set"):
        changes.state()


def test_pending_changes_are_counted_per_table_and_kind(changes: ChangesTable) -> None:
    lake = changes.lake
    state = changes.append_batch(rows(lake, "s.a", captured="2026-01-01 10:00:00"), at(1), changes.state())
    state = changes.append_batch(rows(lake, "s.a", "s.b", captured="2026-01-01 11:00:00"), at(2), state)
    changes.append_batch(
        rows(lake, "s.a", kind=record.SNAPSHOT, captured="2026-01-01 12:00:00"), at(3), state
    )

    def hour(number: int) -> datetime:
        return datetime(2026, 1, 1, number, tzinfo=UTC)

    def summary(after: int, through: int | None = None) -> list[tuple[Any, ...]]:
        found = changes.summary(after, through)
        return [(p.source_table, p.kind, p.count, p.captured_at, p.through_batch) for p in found]

    assert summary(0) == [
        ("s.a", "change", 2, hour(10), 2),
        ("s.a", "snapshot", 1, hour(12), 3),
        ("s.b", "change", 1, hour(11), 2),
    ]
    assert summary(1, 2) == [("s.a", "change", 1, hour(11), 2), ("s.b", "change", 1, hour(11), 2)]
    assert summary(3) == []


def test_a_reader_keeps_its_snapshot(changes: ChangesTable) -> None:
    state = changes.append_batch(rows(changes.lake, "s.a"), at(1), changes.state())
    frame = changes.pending(0, 99)
    changes.append_batch(rows(changes.lake, "s.b"), at(2), state)
    assert tables_of(frame) == ["s.a"]


@pytest.mark.each_format
def test_merged_and_old_batches_go_and_the_newest_stays(changes: ChangesTable) -> None:
    state = changes.state()
    for number in range(1, 5):
        state = changes.append_batch(rows(changes.lake, "s.a"), at(number), state)
    hour = timedelta(hours=1)
    assert changes.expire(99, datetime.now(UTC) - hour) == 0
    assert changes.expire(0, datetime.now(UTC) + hour) == 0
    assert changes.expire(2, datetime.now(UTC) + hour) == 2
    assert {row["batch"] for row in changes.table.read().collect()} == {3, 4}
    assert changes.expire(99, datetime.now(UTC) + hour) == 3
    assert {row["batch"] for row in changes.table.read().collect()} == {4}
    assert (changes.state().batch, changes.state().offset) == (4, at(4))


def test_schemas_and_quarantined_records_outlive_their_batches(changes: ChangesTable) -> None:
    state = changes.state()
    for number in range(1, 4):
        kinds = (record.CHANGE, record.SCHEMA, record.QUARANTINE)
        frames = [rows(changes.lake, f"s.{kind}", kind=kind) for kind in kinds]
        mixed = frames[0].union(frames[1]).union(frames[2]).coalesce(1)
        state = changes.append_batch(mixed, at(number), state)

    assert changes.expire(2, datetime.now(UTC) + timedelta(days=1)) == 2

    assert tables_of(changes.table.read().where("kind = 'change'")) == ["s.change"]
    for kind in (record.SCHEMA, record.QUARANTINE):
        assert tables_of(changes.lasting(kind)) == [f"s.{kind}"] * 3


@pytest.mark.each_format
def test_decoded_records_replace_their_quarantined_records(changes: ChangesTable) -> None:
    state = changes.append_batch(rows(changes.lake, "s.a"), at(1), changes.state())
    quarantined = rows(changes.lake, "s.x", "s.y", kind=record.QUARANTINE)
    state = changes.append_batch(quarantined, at(2), state)
    stays = quarantined.where("source_table = 's.y'")

    landed = changes.land(rows(changes.lake, "s.x").union(stays), state)

    assert (landed.batch, landed.offset) == (3, at(2))
    assert (changes.state().batch, changes.state().offset) == (3, at(2))
    assert tables_of(changes.lasting(record.QUARANTINE)) == ["s.y"]
    assert tables_of(changes.pending(2, 3, kinds=[record.CHANGE])) == ["s.x"]
    with pytest.raises(CommitConflict):
        changes.land(stays, state)


@pytest.mark.each_catalog
def test_a_capture_continues_while_batches_expire(changes: ChangesTable) -> None:
    state = changes.state()
    for number in range(1, 4):
        state = changes.append_batch(rows(changes.lake, "s.a"), at(number), state)
    changes.expire(2, datetime.now(UTC) + timedelta(hours=1))
    changes.append_batch(rows(changes.lake, "s.a"), at(4), state)
    assert changes.state().offset == at(4)
    assert {row["batch"] for row in changes.table.read().collect()} == {3, 4}


def test_only_batches_older_than_the_moment_go(changes: ChangesTable) -> None:
    state = changes.append_batch(rows(changes.lake, "s.a"), at(1), changes.state())
    time.sleep(0.01)
    between = datetime.now(UTC)
    state = changes.append_batch(rows(changes.lake, "s.a"), at(2), state)
    changes.append_batch(rows(changes.lake, "s.a"), at(3), state)
    assert changes.expire(3, between) == 1


@pytest.mark.parametrize("lake", [("memory", 2)], indirect=True, ids=["iceberg-memory-v2"])
def test_the_offset_outlives_a_hundred_snapshots(lake: Lake, namespace: str) -> None:
    changes = ChangesTable(lake, declaration(namespace))
    changes.create()
    state = changes.append_batch(rows(lake, "s.a", "s.b"), at(0), changes.state())
    for number in range(1, 110):
        state = changes.set_offset(at(number), state)
    report = changes.table.maintain(retain_seconds=0)
    assert report.expired_snapshots >= 110
    assert (changes.state().batch, changes.state().offset) == (110, at(109))
    changes.table.maintain(retain_seconds=0)
    assert changes.state().offset == at(109)
    assert changes.pending(0, 999).count() == 2
    changes.append_batch(rows(lake, "s.a"), at(110), changes.state())


@pytest.mark.each_format
def test_maintenance_of_the_changes_table_drops_batches_and_snapshots(changes: ChangesTable) -> None:
    state = changes.state()
    for number in range(1, 5):
        state = changes.append_batch(rows(changes.lake, "s.a"), at(number), state)
    report = changes.maintain(through_batch=2, retain_seconds=0)
    assert (report.rewritten_files, report.expired_snapshots > 0) == (0, True)
    assert {row["batch"] for row in changes.table.read().collect()} == {3, 4}
    assert changes.state().offset == at(4)
