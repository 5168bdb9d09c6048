"""Which tables a merge takes, and on what it is based."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs import merge as stage
from airflow_cdc_provider.jobs.pending import Pending
from airflow_cdc_provider.jobs.quarantine import Quarantine
from airflow_cdc_provider.lake import merge as lake_merge
from airflow_cdc_provider.lake.mirror import MirrorState
from airflow_cdc_provider.lake.table import Head

STATE = MirrorState(Head("1"), merged_through=4, memory={"v": 1})


class Source:
    """A source that remembers what a test says."""

    def __init__(self, memory: Mapping[str, Any]) -> None:
        self.memory = memory

    def codec(self, table: str, memory: Mapping[str, Any]) -> Any:
        return table, memory

    def remember(self, codec: Any) -> Mapping[str, Any]:
        return self.memory


def taken(monkeypatch: pytest.MonkeyPatch, source: Source, pending: Pending, apart: int = 0) -> list[Any]:
    """Return the tables that a merge takes, each with whether it decodes its quarantine again."""
    counts = {"s.t": apart} if apart else {}
    monkeypatch.setattr(Quarantine, "of", lambda context: SimpleNamespace(counts=lambda: counts))
    monkeypatch.setattr(stage, "pending_by_table", lambda changes, merged, through: {"s.t": pending})
    monkeypatch.setattr(stage, "_prepare", lambda *args, waiting, **others: (args[1], waiting))
    found: list[Any] = []

    def merge_all(context: Any, dirty: list[Any], *others: Any) -> list[Any]:
        found.extend(dirty)
        return []

    monkeypatch.setattr(stage, "_merge_all", merge_all)
    mirror = SimpleNamespace(state=lambda: STATE, row_count=lambda state: 1_000_000)
    context: Any = SimpleNamespace(
        spec=SimpleNamespace(options={}),
        connector=Connector.from_dict({"name": "shop", "source": {"type": "cassandra"}}),
        changes=SimpleNamespace(state=lambda: SimpleNamespace(batch=4)),
        mirror=lambda table: mirror,
        source=source,
    )
    stage._merge_due(context, ["s.t"], force=False, settled={})
    return found


def test_a_mirror_follows_its_tables_definition_also_without_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column was dropped, or the table made anew and nothing written to it since."""
    assert taken(monkeypatch, Source({"v": 1}), Pending()) == []
    assert taken(monkeypatch, Source({"v": 2}), Pending()) == [("s.t", False)]


def test_what_was_set_apart_is_decoded_again_by_another_definition_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert taken(monkeypatch, Source({"v": 1}), Pending(), apart=3) == []
    assert taken(monkeypatch, Source({"v": 2}), Pending(), apart=3) == [("s.t", True)]


def test_a_merge_commits_on_the_state_that_it_was_planned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fences, memory and doubts come from it: on a later one, what another merge added would be lost."""
    bases: list[Head] = []

    def commit(base: Head, **others: Any) -> Head:
        bases.append(base)
        return base

    later = MirrorState(Head("2"), merged_through=5, rows=0)
    mirror: Any = SimpleNamespace(
        state=lambda: later, row_count=lambda state: 0, table=SimpleNamespace(commit=commit)
    )
    outcome: Any = SimpleNamespace(unpersist=lambda: None)
    outcome.where = outcome.select = lambda *texts: outcome
    monkeypatch.setattr(lake_merge, "_reconciled", lambda *args, **others: outcome)
    monkeypatch.setattr(lake_merge, "_count", lambda frame: ({}, None))
    monkeypatch.setattr(lake_merge, "MergeKernel", lambda **values: SimpleNamespace(columns=[]))
    shape: Any = SimpleNamespace(model="cell", rules="4.0", mirror_schema=list, project=None)
    plan = lake_merge.MergePlan(
        base=STATE, through=4, fences=(), memory={"v": 1}, now_seconds=0, pending_rows=0
    )
    spark: Any = None
    lake_merge.merge(spark, mirror, shape, None, plan)
    assert bases == [STATE.head]
