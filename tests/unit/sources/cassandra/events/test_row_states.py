from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_cdc_provider.changes.cell_row import Cell, CellRow, write_cell_row
from airflow_cdc_provider.changes.cell_times import latest_times
from airflow_cdc_provider.changes.cells import NEVER, ROW_DELETION, ROW_LIVENESS, ROW_UNCERTAIN
from airflow_cdc_provider.changes.contribution import (
    CONTRIBUTION_SCHEMA,
    PARTITION_DELETION,
    RANGE_DELETION,
    ROW,
)
from airflow_cdc_provider.lake.reconcile import reconcile_cells
from airflow_cdc_provider.sources.cassandra.events import row_states as row_states_module
from airflow_cdc_provider.sources.cassandra.events.row_states import rows_before
from tests.chance import examples
from tests.unit.sources.cassandra.events.row_changes import Changes, value_of


def test_each_change_has_the_row_after_it() -> None:
    changes = Changes().write("p", "a", "1", 10).write("q", "a", "2", 10).write("p", "a", "3", 20)
    assert changes.states() == [
        (0, "p", "a", "1", None, True),
        (1, "q", "a", "2", None, True),
        (2, "p", "a", "3", None, True),
    ]


def test_a_late_change_leaves_the_row_as_it_is() -> None:
    changes = Changes().write("p", "a", "new", 20).write("p", "a", "old", 10)
    assert [state[3] for state in changes.states()] == ["new", "new"]


def test_static_columns_are_in_events_of_rows_and_of_their_own() -> None:
    changes = Changes().static("p", "s", 10).write("p", "a", "1", 10).static("p", "t", 20)
    assert changes.states() == [
        (0, "p", None, None, "s", True),
        (1, "p", "a", "1", "s", True),
        (2, "p", None, None, "t", True),
    ]


def test_a_deleted_row_has_no_value() -> None:
    changes = Changes().write("p", "a", "1", 10).delete("p", ROW, 20, "a")
    assert changes.states()[1] == (1, "p", "", None, None, False)


def test_a_deletion_of_a_partition_deletes_its_rows() -> None:
    changes = Changes().static("p", "s", 10).write("p", "a", "1", 10).write("p", "b", "2", 30)
    changes.write("q", "a", "3", 10).delete("p", PARTITION_DELETION, 20)
    assert changes.states()[4:] == [(4, "p", None, None, None, False), (4, "p", "a", None, None, False)]


def test_where_partitions_are_rows_their_deletion_has_one_event() -> None:
    changes = Changes().write("p", "", "1", 10).delete("p", PARTITION_DELETION, 20)
    changes.write("q", "", "2", 30).delete("q", PARTITION_DELETION, 20)
    assert changes.states(clustered=False)[1:] == [
        (1, "p", "", None, None, False),
        (2, "q", "", "2", None, True),
        (3, "q", "", "2", None, True),
    ]


def test_a_deletion_of_a_range_has_an_event_per_deleted_row() -> None:
    changes = Changes().write("p", "a", "1", 10).write("p", "b", "2", 10).write("p", "c", "3", 10)
    changes.delete("p", RANGE_DELETION, 20, "b", clustering_end=b"c")
    assert changes.states()[3:] == [(3, "p", "b", None, None, False)]


def test_a_row_that_a_deletion_removes_in_part_has_an_event_with_the_rest() -> None:
    changes = Changes().write("p", "a", "1", 10).update("p", "a", "2", 30).write("p", "b", "3", 30)
    changes.delete("p", RANGE_DELETION, 20, "a").delete("p", RANGE_DELETION, 20, "a")
    assert changes.states()[3:] == [(3, "p", "a", "2", None, True)], "neither newer rows nor a repetition"


def test_a_row_of_a_select_that_a_deletion_may_have_removed_has_an_event() -> None:
    read = CellRow(ROW_UNCERTAIN, liveness_us=30, clustering=b"\1\0\0\0a")
    changes = Changes().add("p", ROW, read, "a").delete("p", RANGE_DELETION, 20, "a")
    assert [state[:3] for state in changes.states()] == [(0, "p", "a"), (1, "p", "a")]


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("pq"),
            st.sampled_from("abc"),
            st.sampled_from(
                ["write"] * 3 + ["update"] * 3 + ["static", "row"] + ["range"] * 3 + ["partition"]
            ),
            st.integers(1, 6),
        ),
        max_size=14,
    )
)
def test_the_events_of_a_deletion_are_those_of_the_rows_that_it_changes(
    steps: list[tuple[str, str, str, int]],
) -> None:
    changes = Changes()
    for number, (key, row, what, time) in enumerate(steps):
        if what in ("write", "update"):
            (changes.write if what == "write" else changes.update)(
                key, row, f"v{number}", time, change=number
            )
        elif what == "static":
            changes.static(key, f"s{number}", time, change=number)
        elif what == "row":
            changes.delete(key, ROW, time, row, change=number)
        elif what == "range":
            changes.delete(key, RANGE_DELETION, time, row, clustering_end=b"c", change=number)
        else:
            changes.delete(key, PARTITION_DELETION, time, change=number)
    table = pa.Table.from_pylist(changes.rows, CONTRIBUTION_SCHEMA)

    def rows_after(count: int) -> set[tuple[bytes, bytes, bytes]]:
        live = reconcile_cells(table.slice(0, count), 1000).live.to_pylist()
        return {(one["key"], one["clustering"], one["state"]) for one in live if one["state"]}

    found = changes.states()
    for number, (_, _, what, _) in enumerate(steps):
        if what in ("range", "partition"):
            changed = rows_after(number) ^ rows_after(number + 1)
            events = [(s[1], s[2], s[5]) for s in found if s[0] == number and s[2] is not None]
            assert len(events) == len(set(events))
            assert {(key.encode(), str(row).encode()) for key, row, _ in events} == {r[:2] for r in changed}
            lives = {(key.decode(), row.decode()) for key, row, _ in changed & rows_after(number + 1)}
            assert {(key, row) for key, row, alive in events if alive} == lives


def test_rows_of_one_change_have_adjacent_events() -> None:
    changes = Changes().write("p", "a", "1", 10, change=0).write("p", "b", "2", 10, change=0)
    changes.write("p", "a", "3", 20, change=1)
    assert [state[:4] for state in changes.states()] == [
        (0, "p", "a", "1"),
        (0, "p", "b", "2"),
        (1, "p", "a", "3"),
    ]


def test_truncated_rows_do_not_reappear() -> None:
    changes = Changes().write("p", "a", "1", 10).delete("p", ROW, 5, "b", generation=1)
    changes.write("p", "b", "2", 20, generation=1).write("p", "c", "3", 30, generation=0)
    assert [state[2:4] for state in changes.states()] == [("a", "1"), ("", None), ("b", "2"), ("c", None)]


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("pq"),
            st.sampled_from("abc"),
            st.sampled_from(["write"] * 6 + ["row", "range", "partition", "static", "newer"]),
            st.integers(1, 6),
        ),
        max_size=14,
    )
)
def test_rows_that_are_reconciled_at_once_end_as_one_after_the_other(
    steps: list[tuple[str, str, str, int]],
) -> None:
    def build(count: int) -> Changes:
        changes, generation = Changes(), 0
        for number, (key, row, what, time) in enumerate(steps[:count]):
            more: dict[str, Any] = {"generation": generation, "change": number}
            if what == "write":
                changes.write(key, row, f"v{number}", time, **more)
            elif what == "row":
                changes.delete(key, ROW, time, row, **more)
            elif what == "range":
                changes.delete(key, RANGE_DELETION, time, row, clustering_end=b"z", **more)
            elif what == "partition":
                changes.delete(key, PARTITION_DELETION, time, **more)
            elif what == "static":
                changes.static(key, f"s{number}", time)
                changes.rows[-1]["generation"], changes.numbers[-1] = generation, number
            else:
                generation += 1
        return changes

    found = build(len(steps)).states()
    one_by_one = []
    for count in range(1, len(steps) + 1):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(row_states_module, "_rounds", one_round_each)
            one_by_one += [state for state in build(count).states() if state[0] == count - 1]
    assert sorted(map(repr, found)) == sorted(map(repr, one_by_one))


def one_round_each(
    contributions: pa.Table, changes: np.ndarray, names: pa.Array
) -> tuple[np.ndarray, np.ndarray]:
    """Put each change in a round of its own that meets whole partitions."""
    del contributions, names
    return changes - changes.min(initial=0), np.ones(len(changes), np.bool_)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("pq"),
            st.sampled_from("abc"),
            st.sampled_from(["write"] * 6 + ["row", "range", "partition", "static"]),
            st.integers(1, 6),
        ),
        max_size=12,
    )
)
def test_the_before_image_of_each_change_is_the_merge_of_all_earlier_changes(
    steps: list[tuple[str, str, str, int]],
) -> None:
    changes = Changes()
    for number, (key, row, what, time) in enumerate(steps):
        if what == "write":
            changes.write(key, row, f"v{number}", time)
        elif what == "static":
            changes.static(key, f"s{number}", time)
        elif what == "range":
            changes.delete(key, RANGE_DELETION, time, row, clustering_end=b"z")
        else:
            changes.delete(
                key, ROW if what == "row" else PARTITION_DELETION, time, row if what == "row" else ""
            )
    table = pa.Table.from_pylist(changes.rows, CONTRIBUTION_SCHEMA)
    found = rows_before(table, np.array(changes.numbers, np.int64), "4.0").to_pylist()
    for number, (key, row, what, _) in enumerate(steps):
        live = reconcile_cells(table.slice(0, number), 0).live.to_pylist()
        partition = [one for one in live if one["key"] == key.encode()]
        own = [one for one in partition if one["state"] and one["clustering"] == row.encode()]
        state = own[0]["state"] if own and what in ("write", "row") else None
        static = partition[0]["static_state"] if partition else None
        has_static = state is not None or what in ("static", "partition")
        assert value_of(found[number]["state"]) == value_of(state)
        assert value_of(found[number]["static_state"]) == (value_of(static) if has_static else None)


def test_a_partition_of_many_rows_takes_as_many_rounds_as_its_busiest_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reconciled: list[int] = []

    def counted(contributions: pa.Table, *settings: Any) -> Any:
        reconciled.append(contributions.num_rows)
        return reconcile_cells(contributions, *settings)

    monkeypatch.setattr(row_states_module, "reconcile_cells", counted)
    changes = Changes()
    for number in range(2000):
        changes.write("hot", f"row{number % 1000}", f"v{number}", number, change=number)
    for number in range(2000, 2050):
        changes.write("hot", "row7", f"v{number}", number, change=number)
    states = changes.states()
    assert [state[3] for state in states] == [f"v{number}" for number in range(2050)]
    assert len(reconciled) == 52
    assert max(reconciled[2:]) <= 2, "a row is reconciled without the others of its partition"


def test_nothing_gives_nothing() -> None:
    assert Changes().states() == []


@pytest.mark.parametrize("flags", [ROW_LIVENESS, ROW_DELETION, ROW_LIVENESS | ROW_DELETION, 0])
def test_the_latest_time_is_of_liveness_deletion_or_cells(flags: int) -> None:
    cells = tuple(Cell(n, 0, 0, time, NEVER, b"path", b"value") for n, time in enumerate((-7, -5, -6)))
    row = CellRow(flags, liveness_us=3, deletion_us=4, cells=cells, clustering=b"\1\0\0\0c")
    wanted = max([-5, *([3] if flags & ROW_LIVENESS else []), *([4] if flags & ROW_DELETION else [])])
    states = pa.array([b"skipped", write_cell_row(row)], pa.binary()).slice(1)
    assert latest_times(states).tolist() == [wanted]
