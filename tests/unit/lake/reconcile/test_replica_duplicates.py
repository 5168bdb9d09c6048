"""ReplicaDuplicates of changes are counted as an oracle counts them that compares them as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.changes.cells import ROW_UNCERTAIN
from airflow_cdc_provider.lake.reconcile import ReplicaDuplicates, reconcile_cells
from tests.oracles.cassandra_read_path import RANGE_DELETION, ROW, Cell, Contribution, Row
from tests.oracles.contributions import NOW, as_table, lists


def said(contribution: Contribution) -> tuple[Any, ...]:
    """Return all that a contribution says; when its table was truncated is not part of it."""
    row = contribution.as_dict()
    return tuple(row[name] for name in ("scope", "key", "clustering", "clustering_end", "state"))


def counted(contributions: Sequence[Contribution], pending: Sequence[bool]) -> ReplicaDuplicates:
    mask = pa.chunked_array([pending], pa.bool_())
    return reconcile_cells(as_table(list(contributions)), NOW, pending=mask).replica_duplicates


def says_something(contribution: Contribution) -> bool:
    """Return whether it can count: ranges that hold no row, and rows without content, don't."""
    end = contribution.clustering_end
    holds_rows = contribution.scope != RANGE_DELETION or end is None or contribution.clustering < end
    return holds_rows and bool(contribution.row)


@pytest.mark.covers("DSX-CON-04")
@given(lists(uncertain=True, max_size=15), st.integers(0, 3), st.data())
def test_changes_and_their_duplicates_are_counted(
    found: list[Contribution], repeated: int, data: st.DataObject
) -> None:
    several = [c for c in found * repeated + found[: len(found) // 2] if says_something(c)]
    shuffled = data.draw(st.permutations(several))
    pending = data.draw(st.lists(st.booleans(), min_size=len(shuffled), max_size=len(shuffled)))
    changes = [said(c) for c, wanted in zip(shuffled, pending, strict=True) if wanted]
    written = Counter(change for change in changes if not change[-1][1] & ROW_UNCERTAIN)

    assert counted(shuffled, pending) == ReplicaDuplicates(written.total(), written.total() - len(written))


@given(st.lists(st.integers(0, 40), min_size=20, max_size=60), st.randoms(use_true_random=False))
def test_duplicates_are_counted_among_many_changes_of_one_row(times: list[int], random: Any) -> None:
    changes = [Contribution(b"k", ROW, b"", None, 0, Row(cells=(Cell(1, time, b"v"),))) for time in times]
    again = [replace(change, generation=1) for change in random.sample(changes, len(changes) // 2)]
    assert counted(changes, [True] * len(changes)) == ReplicaDuplicates(
        len(times), len(times) - len(set(times))
    )
    assert counted([*changes, *again], [True] * len(changes + again)).duplicates >= len(again)
