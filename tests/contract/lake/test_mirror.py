"""Steps of a merge before its commit, on every lake."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from airflow_cdc_provider.changes.contribution import SPARK_DDL
from airflow_cdc_provider.changes.drift import Drift
from airflow_cdc_provider.changes.fence import Fence
from airflow_cdc_provider.changes.static_columns import StaticColumns
from airflow_cdc_provider.exceptions import CommitConflict, ConfigurationError
from airflow_cdc_provider.lake.mirror import Mirror, MirrorState
from airflow_cdc_provider.lake.table import Lake
from tests.contract.lake.frames import frame_of

pytestmark = [pytest.mark.integration, pytest.mark.each_format]

COLUMNS = pa.schema([pa.field("id", pa.int32())])


@pytest.fixture
def mirror(lake: Lake, namespace: str) -> Mirror:
    """A mirror of two rows."""
    found = Mirror(lake, f"{namespace}.t")
    found.create(COLUMNS)
    state = MirrorState(
        found.state().head,
        merged_through=7,
        fences=(Fence(5, "", b"p", 5),),
        memory={"last_id": 1},
        next_expiry=9,
        unresolved_keys=1,
        unresolved_since=6,
        snapshot_started_us=8,
        rows=2,
    )
    rows = frame_of(lake.spark, [(1, None), (2, None)], found.table.schema())
    found.table.commit(state.head, append=rows, properties=state.properties())
    return found


def append_tombstone(mirror: Mirror) -> int:
    mirror.tombstones.append(frame_of(mirror.lake.spark, [(b"k", 0, *[None] * 6)], SPARK_DDL))
    return mirror.tombstones.read().count()


def test_reserve_changes_only_the_memory(mirror: Mirror) -> None:
    state = mirror.state()
    reserved = mirror.reserve(state, {"last_id": 3}, clear=False)
    found = mirror.state()
    assert found == replace(state, head=found.head, memory={"last_id": 3})
    assert (reserved.head.snapshot, reserved.memory) == (found.head.snapshot, found.memory)
    assert mirror.table.read(reserved.head).count() == 2
    with pytest.raises(CommitConflict):
        mirror.reserve(state, {"last_id": 4}, clear=False)


def test_reserve_without_changes_does_not_commit(mirror: Mirror) -> None:
    state = mirror.state()
    assert mirror.reserve(state, None, clear=False) == state
    assert mirror.state() == state


def test_rows_of_a_dropped_source_table_are_deleted_and_the_merge_is_still_pending(mirror: Mirror) -> None:
    state = mirror.state()
    mirror.reserve(state, None, clear=True)
    found = mirror.state()
    assert found == replace(
        state,
        head=found.head,
        next_expiry=None,
        unresolved_keys=0,
        unresolved_since=0,
        snapshot_started_us=0,
        rows=0,
    )
    assert mirror.table.read().count() == mirror.row_count(found) == 0
    assert mirror.reserve(found, None, clear=True) == found, "it is done once"


def test_tombstones_are_dropped_with_their_mirror(mirror: Mirror) -> None:
    mirror.create(COLUMNS)
    assert append_tombstone(mirror) == 1
    mirror.create(COLUMNS)
    assert append_tombstone(mirror) == 2
    mirror.table.drop()
    mirror.create(COLUMNS)
    assert mirror.tombstones.read().count() == 0


WITH_STATIC_COLUMN = pa.schema([pa.field(name, pa.int32()) for name in ("k", "c", "s")])
STATIC_COLUMNS = StaticColumns(("k",), ("s",))


@pytest.mark.parametrize("separate", [True, False])
def test_mirror_created_with_another_static_columns_layout_is_rejected(
    lake: Lake, namespace: str, separate: bool
) -> None:
    created = Mirror(lake, f"{namespace}.t", static_columns_table=separate)
    created.create(WITH_STATIC_COLUMN, STATIC_COLUMNS)
    assert created.table.schema().names == (["k", "c", "_cdc"] if separate else ["k", "c", "s", "_cdc"])
    created.require_layout(STATIC_COLUMNS)
    other = Mirror(lake, created.name, static_columns_table=not separate)
    with pytest.raises(ConfigurationError, match=f"or drop {created.name} and take a new snapshot"):
        other.require_layout(STATIC_COLUMNS)

    created.table.drop()
    other.require_layout(STATIC_COLUMNS)
    other.create(WITH_STATIC_COLUMN, STATIC_COLUMNS)

    other.require_layout(STATIC_COLUMNS)
    assert other.static_columns.exists() is not separate, (
        "the static columns table is dropped with its mirror"
    )


def test_static_columns_table_is_created_with_the_first_static_column_and_kept(
    lake: Lake, namespace: str
) -> None:
    mirror = Mirror(lake, f"{namespace}.t", static_columns_table=True)
    none = StaticColumns(("k",), ())
    without = pa.schema([field for field in WITH_STATIC_COLUMN if field.name != "s"])
    mirror.prepare(without, static_columns=none)
    assert mirror.state().static_columns is None
    mirror.prepare(WITH_STATIC_COLUMN, static_columns=STATIC_COLUMNS)
    assert mirror.static_columns.schema().names == ["k", "s", "_cdc"]
    mirror.prepare(without, Drift(exact=True), none)
    assert mirror.static_columns.schema().names == ["k", "_cdc"]
    assert mirror.state().static_columns is not None
