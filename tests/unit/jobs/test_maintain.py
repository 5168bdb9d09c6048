"""Which batches maintenance expires."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs import maintain as stage
from airflow_cdc_provider.jobs.merging.pending import Pending
from airflow_cdc_provider.lake.mirror import MirrorState
from airflow_cdc_provider.lake.table import Head
from tests.unit.jobs.runs import FakeSource, run_of

NEVER = MirrorState(Head(None))


def let_go(
    monkeypatch: pytest.MonkeyPatch,
    states: Mapping[str, MirrorState],
    pending: Mapping[str, Pending],
    job: list[str],
) -> int:
    """Maintain as a job for some tables; return the last batch that went."""

    def pending_by_table(changes: Any, merged: Mapping[str, int], through: int) -> Mapping[str, Pending]:
        return {table: pending[table] for table in merged if table in pending}

    monkeypatch.setattr(stage, "pending_by_table", pending_by_table)
    monkeypatch.setattr(stage, "build_result", lambda run, tables: None)
    monkeypatch.setattr(stage, "selected_tables", lambda *parts: job)
    gone: list[int] = []
    kept = SimpleNamespace(
        name="kept",
        maintain=lambda retain_seconds: SimpleNamespace(rewritten_files=0, expired_snapshots=0),
    )

    def mirror(table: str) -> Any:
        own = SimpleNamespace(**vars(kept), exists=lambda: states[table] is not NEVER)
        return SimpleNamespace(
            table=own,
            tables=lambda: [own, kept],
            state=lambda: states[table],
            remove_resolved=lambda state: False,
        )

    run = run_of(
        Connector.from_dict({"name": "shop", "source": {"type": "cassandra"}}),
        source=FakeSource(*states),
        mirrors=mirror,
        changes=SimpleNamespace(
            name="changes",
            table=kept,
            state=lambda: SimpleNamespace(batch=9),
            expire=lambda through, older_than: gone.append(through),
        ),
    )
    stage.maintain(run)
    return gone[0]


@pytest.mark.parametrize("job", [["s.a", "s.b"], ["s.a"]])
def test_changes_that_no_mirror_has_stay_whatever_tables_the_job_is_for(
    monkeypatch: pytest.MonkeyPatch, job: list[str]
) -> None:
    merged = MirrorState(Head("1"), merged_through=9)
    behind = MirrorState(Head("1"), merged_through=4)
    pending = {"s.b": Pending(changes=1)}

    assert let_go(monkeypatch, {"s.a": merged, "s.b": behind}, pending, job) == 4
    assert let_go(monkeypatch, {"s.a": merged, "s.b": NEVER}, pending, job) == -1
    assert let_go(monkeypatch, {"s.a": merged, "s.b": NEVER}, {}, job) == 9


def test_batches_do_not_wait_for_what_is_published_after_merges() -> None:
    kafka = {"connection": "kafka", "mode": "after_merge"}
    declared = {"name": "shop", "source": {"type": "mongodb"}, "publish": {"kafka": kafka}}
    run = run_of(Connector.from_dict(declared))
    assert stage._last_published(run.job, run.stores, run.source, run.clients.connections, 7) == 7
