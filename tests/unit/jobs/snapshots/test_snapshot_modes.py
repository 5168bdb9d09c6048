"""Which tables a run reads in full, by the declaration's mode and what was read before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs import sync as sync_stage
from airflow_cdc_provider.jobs.context.run import Run
from airflow_cdc_provider.jobs.resuming.progress import Progress, SnapshotProgress
from airflow_cdc_provider.jobs.snapshots.snapshot import due_tables
from tests.unit.jobs.runs import FakeSource, run_of

TABLES = ["s.done", "s.half", "s.new"]
DONE = SnapshotProgress(True)
HALF = SnapshotProgress(False, ranges=({"kind": "part", "name": "r2"},), committed=1)
OFFSET = Progress({"stream": {"v": 1}}, {"s.done": DONE, "s.half": HALF})


def run_with(mode: str, source: Any = None) -> Run:
    connector = Connector.from_dict(
        {"name": "shop", "source": {"type": "cassandra"}, "snapshot": {"mode": mode}}
    )
    state = SimpleNamespace(offset=OFFSET.to_offset())
    source = source or FakeSource(*TABLES)
    return run_of(connector, changes=SimpleNamespace(state=lambda: state), source=source)


def due_of(run: Run, progress: Progress) -> list[str]:
    return due_tables(run.job, run.stores, run.source, progress)


class Paused(FakeSource):
    """A source whose capture of one table was switched on again."""

    has_schema_history = True
    learned_through = 0

    def resumed_at(self, table: str) -> int:
        return 500 if table == "s.done" else 0


@pytest.mark.covers("CAS-FAULT-08")
@pytest.mark.parametrize(("taken", "due"), [(499, True), (501, False)])
def test_a_table_that_was_not_captured_for_a_while_is_read_again(taken: int, due: bool) -> None:
    asked = run_with("initial", Paused(*TABLES))
    progress = Progress(
        {}, {"s.done": SnapshotProgress(True, started_us=taken), "s.half": DONE, "s.new": DONE}
    )
    assert due_of(asked, progress) == (["s.done"] if due else [])


@pytest.mark.covers("CAS-SNAP-01", "CAS-SNAP-02", "CAS-SNAP-03", "CAS-SNAP-09", "MDB-SNAP-05", "MDB-XF-07")
@pytest.mark.parametrize(
    ("mode", "due"),
    [("initial", ["s.half", "s.new"]), ("never", []), ("always", ["s.done", "s.half", "s.new"])],
)
def test_a_run_reads_the_tables_that_its_mode_asks_for(
    mode: str, due: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[list[str], bool]] = []

    def snapshot(*given: Any, again: bool, replacing: bool) -> None:
        assert replacing
        read.append((given[-1], again))

    order: list[str] = []
    monkeypatch.setattr(sync_stage, "snapshot", snapshot)
    monkeypatch.setattr(sync_stage, "capture", lambda *_: order.append(f"capture after {len(read)}"))
    monkeypatch.setattr(sync_stage, "merge_tables", lambda *_, force: order.append("merge"))
    monkeypatch.setattr(sync_stage, "build_result", lambda _, **parts: parts)
    asked = run_with(mode)

    assert due_of(asked, OFFSET) == due
    sync_stage.sync(asked)

    assert read == ([(due, mode == "always")] if due else [])
    assert order == [f"capture after {len(read)}", "merge"]
