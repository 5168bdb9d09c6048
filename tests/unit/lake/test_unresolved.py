"""A second reading settles what it shows otherwise, at the write times in question and no later."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from airflow_cdc_provider.changes.cell_row import read_cell_row
from airflow_cdc_provider.changes.cells import SYNTHETIC_PATH_MARK
from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA
from airflow_cdc_provider.lake.reconcile import reconcile_cells
from airflow_cdc_provider.lake.reconcile.fully_observed import fully_observed
from airflow_cdc_provider.lake.unresolved import resolve
from tests.oracles.cassandra_read_path import Cell, Contribution, Liveness, Reading, Row, write

HELD = Row(Reading(10), cells=(Cell(1, 5, b"a"), Cell(2, 7, b"b")))


def contribution(row: Row) -> dict[str, Any]:
    return Contribution(b"k", 0, b"\x40c", None, 0, row).as_dict()


def settlements(held: Row, shown: Row | None, *tombstones: dict[str, Any]) -> list[dict[str, Any]]:
    mirror = pa.table(
        {
            "key": pa.array([b"k"], pa.binary()),
            "clustering": pa.array([b"\x40c"], pa.binary()),
            "state": pa.array([write(held)], pa.binary()),
        }
    )
    again = [] if shown is None else [contribution(shown)]
    batch = pa.RecordBatch.from_pylist(again, schema=CONTRIBUTION_SCHEMA)
    return [
        {**contribution(HELD), "key": s.key, "clustering": s.clustering, "state": s.state}
        for s in resolve(
            mirror, pa.Table.from_pylist(list(tombstones), CONTRIBUTION_SCHEMA), [batch], now_seconds=50
        )
    ]


def live(*rows: dict[str, Any]) -> list[set[int]]:
    found = reconcile_cells(pa.Table.from_pylist(list(rows), schema=CONTRIBUTION_SCHEMA), 60).live
    states = [read_cell_row(state) for state in found["state"].to_pylist()]
    return [{c.column for c in state.cells if not c.flags & 1} for state in states]


def unresolved(*rows: dict[str, Any]) -> set[bytes]:
    table = pa.Table.from_pylist(list(rows), schema=CONTRIBUTION_SCHEMA)
    return set(reconcile_cells(table, 60).unresolved_keys.to_pylist())


def test_row_that_the_source_no_longer_returns_is_deleted() -> None:
    assert live(contribution(HELD)) == [{1, 2}]

    assert live(contribution(HELD), *settlements(HELD, None)) == []


def test_cell_that_the_source_does_not_return_is_deleted_and_the_rest_kept() -> None:
    shown = Row(Reading(30), cells=(Cell(2, 7, b"b"),))

    assert live(contribution(HELD), contribution(shown), *settlements(HELD, shown)) == [{2}]


def test_what_is_written_after_the_reading_lives_again() -> None:
    later = Row(Liveness(40), cells=(Cell(1, 40, b"new"),))

    assert live(contribution(HELD), *settlements(HELD, None), contribution(later)) == [{1}]


def test_row_shown_as_it_is_needs_no_settlement() -> None:
    assert settlements(HELD, HELD) == []


@pytest.mark.parametrize(
    "cell", [Cell(1, 5, tombstone=True, end=3), Cell(1, 5, b"x", expiring=True, ttl=1, end=50)]
)
def test_dead_cells_are_not_missed(cell: Cell) -> None:
    held = Row(Liveness(10), cells=(cell,))

    assert settlements(held, Row(Reading(30))) == []


@pytest.mark.parametrize(
    "held",
    [
        Row(Reading(20), deletion=(15, 0)),
        Row(Reading(20_000_000, Liveness(5, ttl=10, expires=40))),
        Row(Reading(20_000_000, Liveness(5, ttl=10, expires=40)), deletion=(3, 0)),
    ],
    ids=["deleted", "ended", "deleted and ended"],
)
def test_a_row_read_without_cells_is_unresolved_only_once(held: Row) -> None:
    shown = Row(Reading(50_000_000))
    answers = settlements(held, shown)

    assert unresolved(contribution(held)) == {b"k"}
    assert unresolved(contribution(held), contribution(shown), *answers) == set()
    assert live(contribution(held), contribution(shown), *answers) == [set()]


def test_a_deletion_after_the_second_reading_is_unresolved_again() -> None:
    held, shown = Row(Reading(20), deletion=(15, 0)), Row(Reading(50))
    settled = [contribution(held), contribution(shown), *settlements(held, shown)]

    assert unresolved(*settled, contribution(Row(deletion=(15, 0)))) == set()
    assert unresolved(*settled, contribution(Row(deletion=(16, 0)))) == {b"k"}


@pytest.mark.parametrize("known", [None, Liveness(5), Liveness(5, ttl=100, expires=105)])
def test_a_row_that_lives_for_all_that_is_known_needs_no_settlement(known: Liveness | None) -> None:
    assert settlements(Row(Reading(20, known)), Row(Reading(50))) == []


def test_a_known_liveness_after_the_deletion_resolves_the_row() -> None:
    held = Row(Reading(20, Liveness(16)), deletion=(15, 0))

    assert unresolved(contribution(held)) == set()
    assert unresolved(contribution(Row(Reading(20, Liveness(15)), deletion=(15, 0)))) == {b"k"}


DEAD = Cell(1, 25, tombstone=True, end=30)


@pytest.mark.parametrize(
    "above",
    [
        None,
        Contribution(b"k", 2, b"", None, 0, Row(deletion=(35, 40))),
        Contribution(b"k", 3, b"\x40", b"\x40d", 0, Row(deletion=(35, 40))),
    ],
    ids=["nothing", "partition", "range"],
)
@pytest.mark.parametrize("known", [None, Liveness(5)], ids=["unknown", "known"])
def test_a_row_that_lost_all_cells_and_is_read_without_is_unresolved_only_once(
    above: Contribution | None, known: Liveness | None
) -> None:
    """Also under a deletion of the tombstone table, and if the cell is still live in the mirror."""
    tombstones = [above.as_dict()] if above else []
    for cell in (DEAD, Cell(1, 25, b"unseen")):
        held, shown = Row(Reading(40, known), cells=(cell,)), Row(Reading(50))
        answers = settlements(held, shown, *tombstones)

        assert unresolved(*tombstones, contribution(held), contribution(shown), *answers) == set()
        assert live(*tombstones, contribution(held), contribution(shown), *answers) == [set()]


def test_a_row_that_lives_by_a_known_liveness_needs_no_cell() -> None:
    assert unresolved(contribution(Row(Reading(40, Liveness(5)), cells=(DEAD,)))) == set()
    assert unresolved(contribution(Row(Reading(40), cells=(DEAD,)))) == {b"k"}


def test_static_columns_that_the_source_no_longer_returns_are_deleted() -> None:
    static = Row(Reading(10), cells=(Cell(3, 7, b"s"), Cell(4, 8, b"t")))
    tombstones = Contribution(b"k", 1, b"", None, 0, static).as_dict()
    shown = Contribution(b"k", 1, b"", None, 0, Row(Reading(30), cells=(Cell(4, 8, b"t"),))).as_dict()
    batch = pa.RecordBatch.from_pylist([shown], schema=CONTRIBUTION_SCHEMA)
    nothing = pa.table({name: pa.array([], pa.binary()) for name in ("key", "clustering", "state")})

    (answer,) = resolve(nothing, pa.Table.from_pylist([tombstones], CONTRIBUTION_SCHEMA), [batch], 50)

    assert (answer.scope, answer.key) == (1, b"k")
    settled = {**tombstones, "state": answer.state}
    (row,) = reconcile_cells(
        pa.Table.from_pylist([tombstones, shown, settled], CONTRIBUTION_SCHEMA), 60
    ).live.to_pylist()
    state = read_cell_row(row["static_state"])
    assert {c.column for c in state.cells if not c.flags & 1} == {4}


def test_data_that_only_an_older_reading_returned_is_unresolved() -> None:
    """It was deleted unseen, perhaps; the second reading of the same explains nothing more."""
    first = Row(Reading(10), cells=(Cell(1, 5, b"a"), Cell(2, 7, b"b")))
    second = Row(Reading(30), cells=(Cell(2, 7, b"b"),))
    assert unresolved(contribution(first), contribution(second)) == {b"k"}
    answers = settlements(first, second)
    assert unresolved(contribution(first), contribution(second), *answers) == set()
    assert live(contribution(first), contribution(second), *answers) == [{2}]


LISTED = [bytes(8) + bytes([0, n]) + bytes(6) for n in range(9)]
"""Paths of a list's elements as the log has them."""


@pytest.mark.parametrize("shown", ["ab", "ba", "abc", "a", "cb"])
def test_elements_of_a_list_are_known_by_write_time_and_value_in_whatever_order(shown: str) -> None:
    """Their paths, by which cells stand in a row, don't sort as the list does; ``c`` is new."""
    elements = zip((b"a", b"b"), LISTED[:2], strict=True)
    held = Row(Liveness(1), cells=tuple(Cell(1, 5, value, path=path) for value, path in elements))
    paths = [bytes([0] * 7 + [n]) + SYNTHETIC_PATH_MARK + bytes(3) for n in range(len(shown))]
    cells = tuple(Cell(1, 5, v.encode(), path=p) for v, p in zip(shown, paths, strict=True))
    answers = settlements(held, Row(Reading(30), cells=cells))
    gone = [LISTED.index(cell.path) for answer in answers for cell in read_cell_row(answer["state"]).cells]
    assert gone == ["ab".index(value) for value in "ab" if value not in shown]


@pytest.mark.parametrize("seed", range(20))
def test_rows_that_are_shown_whole_are_those_without_a_settlement(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Which the kernel finds, and Python row by row."""
    rng = random.Random(seed)

    def cell(column: int, path: bytes = b"") -> Cell:
        time, end = rng.randrange(3), rng.choice([40, 60])
        return rng.choice(
            [
                *[Cell(column, time, rng.choice([b"x", b"y"]), path=path)] * 3,
                Cell(column, time, path=path, tombstone=True, end=end),
                Cell(column, time, b"x", path=path, expiring=True, ttl=1, end=end),
            ]
        )

    places = [(1, b""), (2, b""), (3, b"p"), (3, b"q"), (4, LISTED[0])]
    lives: list[Reading | Liveness] = [Reading(10), Liveness(7)]

    def row() -> Row:
        chosen = sorted(rng.sample(places, rng.randrange(5)))
        return Row(rng.choice(lives), cells=tuple(cell(*one) for one in chosen))

    held = [row() for _ in range(200)]
    again = [
        Contribution(b"k%d" % n, 0, b"c", None, 0, row()).as_dict() for n in range(200) if rng.random() < 0.9
    ]
    mirror = pa.table(
        {
            "key": pa.array([b"k%d" % n for n in range(200)], pa.binary()),
            "clustering": pa.array([b"c"] * 200, pa.binary()),
            "state": pa.array([write(one) for one in held], pa.binary()),
        }
    )
    arguments = (
        mirror,
        CONTRIBUTION_SCHEMA.empty_table(),
        [pa.RecordBatch.from_pylist(again, schema=CONTRIBUTION_SCHEMA)],
        50,
    )
    found = list(resolve(*arguments))
    passed = []

    def none_whole(held: Any, shown: Any, now_seconds: int) -> pa.Array:
        passed.append(sum(fully_observed(held, shown, now_seconds).to_pylist()))
        return pa.array([False] * len(held))

    monkeypatch.setattr("airflow_cdc_provider.lake.unresolved.fully_observed", none_whole)
    assert list(resolve(*arguments)) == found
    assert passed[0] > 5
    assert len(found) > 50
