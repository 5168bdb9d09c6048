"""Tables that a connector selects again are due exactly if changes of them were skipped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.capturing.reselected import mark_reselected
from airflow_cdc_provider.jobs.context.run_report import RunReport
from airflow_cdc_provider.jobs.resuming.progress import Progress, SnapshotProgress
from airflow_cdc_provider.lake.changes_table import ChangesState
from airflow_cdc_provider.lake.table import Head
from tests.unit.jobs.runs import FakeSource

TABLES = ("s.a", "s.ab", "s.b", "t.a")
PATTERNS = (*TABLES, ".*", r"s\..*", r"s\.a.*", r".*\.a", "nothing")


class FakeChanges:
    """A changes table that knows of which tables it has changes."""

    def __init__(self) -> None:
        self.captured: set[str] = set()
        self.commits = 0

    def pending(self, after: int, through: int, tables: Any, kinds: Any) -> Any:
        found = [{"source_table": table} for table in tables if table in self.captured]
        return SimpleNamespace(
            select=lambda _: SimpleNamespace(distinct=lambda: SimpleNamespace(collect=lambda: found))
        )

    def append_batch(self, rows: None, offset: Any, state: ChangesState) -> ChangesState:
        self.commits += 1
        return state


def mark(
    changes: FakeChanges,
    stored: Progress,
    *,
    tables: list[str],
    patterns: list[str],
    excluded: list[str],
    mirrors: set[str],
    resumes: bool = False,
) -> tuple[Progress, RunReport]:
    """Begin a capture of some patterns on a stored offset."""
    connector = Connector.from_dict(
        {
            "name": "shop",
            "source": {"type": "cassandra", "cdc_raw": "/c"},
            "tables": patterns,
            "exclude_tables": excluded,
        }
    )
    source = FakeSource(*(table for table in tables if connector.selects(table)))
    source.resumes_tables = resumes
    stores: Any = SimpleNamespace(
        connector=connector,
        changes=changes,
        mirror=lambda t: SimpleNamespace(table=SimpleNamespace(exists=lambda: t in mirrors)),
    )
    report = RunReport()
    state = ChangesState(Head(None), 7, stored.to_offset())
    progress, _ = mark_reselected(stores, source, report, stored, state)
    return Progress.from_offset(progress.to_offset()), report


some_patterns = st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=3)
captures = st.tuples(
    some_patterns, st.lists(st.sampled_from(TABLES), max_size=1), st.integers(1, len(TABLES))
)


@given(st.lists(captures, min_size=2, max_size=6), st.sampled_from(["snapshot", "mirror", "changes"]))
def test_a_known_table_is_due_if_a_capture_ran_without_it_and_no_other(
    turns: list[tuple[list[str], list[str], int]], known_by: str
) -> None:
    changes, progress = FakeChanges(), Progress({"n": {"v": 1}})
    known: set[str] = set()
    missed: set[str] = set()
    existing: list[str] = []
    for patterns, excluded, count in turns:
        existing += TABLES[len(existing) : count]  # new tables, which no capture has missed
        before = changes.commits
        progress, report = mark(
            changes,
            progress,
            tables=existing,
            patterns=patterns,
            excluded=excluded,
            mirrors=known if known_by == "mirror" else set(),
        )
        connector = Connector.from_dict(
            {"name": "c", "source": {"type": "cassandra", "cdc_raw": "/c"}, "tables": patterns}
        )
        selected = {t for t in existing if connector.selects(t) and t not in excluded}
        due = {table for table, snapshot in progress.snapshots.items() if snapshot.outdated}
        assert due == set(report.reselected) == missed & selected
        assert changes.commits - before == bool(due)
        for table in selected:  # it is captured now, and read if it was due
            missed.discard(table)
            known.add(table)
            if table in due or known_by == "snapshot":
                progress = progress.with_snapshot(table, SnapshotProgress(True))
        if known_by == "changes":
            changes.captured |= selected
        unselected = {t for t in TABLES if not connector.selects(t) or t in excluded}
        missed |= known & unselected


def test_a_table_that_resumes_at_its_own_position_is_not_due() -> None:
    stored = Progress(
        {}, {"s.a": SnapshotProgress(True)}, selection={"tables": ["s.b"], "exclude_tables": [], "at_us": 100}
    )
    progress, report = mark(
        FakeChanges(), stored, tables=["s.a"], patterns=[".*"], excluded=[], mirrors=set(), resumes=True
    )
    assert not progress.snapshots["s.a"].due
    assert "capture resumes at its own position" in report.reselected["s.a"]


@pytest.mark.parametrize(("started_us", "due"), [(99, True), (101, False)])
def test_a_snapshot_after_the_last_capture_without_a_table_has_what_it_missed(
    started_us: int, due: bool
) -> None:
    selection = {"tables": ["s.b"], "exclude_tables": [], "at_us": 100}
    stored = Progress({}, {"s.a": SnapshotProgress(True, started_us=started_us)}, selection=selection)
    progress, report = mark(
        FakeChanges(), stored, tables=["s.a"], patterns=[".*"], excluded=[], mirrors=set()
    )
    assert progress.snapshots["s.a"].due is due
    assert bool(report.reselected) is due
