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

pytestmark = pytest.mark.integration

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
        doubts=1,
        doubts_since=6,
        unseen_before_us=8,
        rows=2,
    )
    rows = lake.spark.createDataFrame([(1, None), (2, None)], found.table.schema())
    found.table.commit(state.head, append=rows, properties=state.properties())
    return found


def beside(mirror: Mirror) -> int:
    mirror.side.append(mirror.lake.spark.createDataFrame([(b"k", 0, *[None] * 6)], SPARK_DDL))
    return mirror.side.read().count()


def test_what_is_reserved_leaves_all_else_as_it_was(mirror: Mirror) -> None:
    state = mirror.state()
    reserved = mirror.reserve(state, {"last_id": 3}, clear=False)
    found = mirror.state()
    assert found == replace(state, head=found.head, memory={"last_id": 3})
    assert (reserved.head.snapshot, reserved.memory) == (found.head.snapshot, found.memory)
    assert mirror.table.read(reserved.head).count() == 2
    with pytest.raises(CommitConflict):
        mirror.reserve(state, {"last_id": 4}, clear=False)


def test_nothing_to_reserve_is_no_commit(mirror: Mirror) -> None:
    state = mirror.state()
    assert mirror.reserve(state, None, clear=False) == state
    assert mirror.state() == state


def test_rows_of_a_table_that_is_gone_leave_and_all_is_still_to_be_done(mirror: Mirror) -> None:
    state = mirror.state()
    mirror.reserve(state, None, clear=True)
    found = mirror.state()
    assert found == replace(
        state, head=found.head, next_expiry=None, doubts=0, doubts_since=0, unseen_before_us=0, rows=0
    )
    assert mirror.table.read().count() == mirror.row_count(found) == 0
    assert mirror.reserve(found, None, clear=True) == found, "it is done once"


def test_what_stands_beside_a_mirror_goes_with_it(mirror: Mirror) -> None:
    mirror.create(COLUMNS)
    assert beside(mirror) == 1
    mirror.create(COLUMNS)
    assert beside(mirror) == 2
    mirror.table.drop()
    mirror.create(COLUMNS)
    assert mirror.side.read().count() == 0


WITH_STATICS = pa.schema([pa.field(name, pa.int32()) for name in ("k", "c", "s")])
STATICS = StaticColumns(("k",), ("s",))


@pytest.mark.parametrize("apart", [True, False])
def test_a_mirror_is_refused_that_was_made_to_show_statics_elsewhere(
    lake: Lake, namespace: str, apart: bool
) -> None:
    made = Mirror(lake, f"{namespace}.t", statics_apart=apart)
    made.create(WITH_STATICS, STATICS)
    assert made.table.schema().names == (["k", "c", "_cdc"] if apart else ["k", "c", "s", "_cdc"])
    made.require_layout(STATICS)
    other = Mirror(lake, made.name, statics_apart=not apart)
    with pytest.raises(ConfigurationError, match=f"or drop {made.name} and take a new snapshot"):
        other.require_layout(STATICS)

    made.table.drop()
    other.require_layout(STATICS)
    other.create(WITH_STATICS, STATICS)

    other.require_layout(STATICS)
    assert other.statics.exists() is not apart, "a table of statics goes with the mirror that it was beside"


def test_a_table_of_statics_comes_with_the_first_static_column_and_stays(lake: Lake, namespace: str) -> None:
    mirror = Mirror(lake, f"{namespace}.t", statics_apart=True)
    none = StaticColumns(("k",), ())
    without = pa.schema([field for field in WITH_STATICS if field.name != "s"])
    mirror.prepare(without, statics=none)
    assert mirror.state().statics is None
    mirror.prepare(WITH_STATICS, statics=STATICS)
    assert mirror.statics.schema().names == ["k", "s", "_cdc"]
    mirror.prepare(without, Drift(exact=True), none)
    assert mirror.statics.schema().names == ["k", "_cdc"]
    assert mirror.state().statics is not None
