"""Which tables a merge takes, and on what it is based."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import CommitConflict, ConfigurationError, TransientError
from airflow_cdc_provider.jobs.merging import due
from airflow_cdc_provider.jobs.merging import merge as stage
from airflow_cdc_provider.jobs.merging.pending import Pending
from airflow_cdc_provider.jobs.merging.quarantine import Quarantine
from airflow_cdc_provider.jobs.spark.failures import explain
from airflow_cdc_provider.jobs.spec import TableResult
from airflow_cdc_provider.lake import merge as lake_merge
from airflow_cdc_provider.lake.mirror import MirrorState, StaticColumnsState
from airflow_cdc_provider.lake.reconcile import ReplicaDuplicates
from airflow_cdc_provider.lake.table import Head
from tests.unit.jobs.runs import FakeSource, run_of

STATE = MirrorState(Head("1"), merged_through=4, memory={"v": 1})


CONNECTOR = Connector.from_dict({"name": "shop", "source": {"type": "cassandra"}})
CHANGES = SimpleNamespace(state=lambda: SimpleNamespace(batch=4, offset=None))


class Source(FakeSource):
    """A source whose codecs remember what a test says."""

    def __init__(self, memory: Mapping[str, Any]) -> None:
        super().__init__()
        self.memory = memory

    def codec(self, table: str, memory: Mapping[str, Any] | None = None) -> Any:
        return SimpleNamespace(remember=lambda: self.memory)


def taken(monkeypatch: pytest.MonkeyPatch, source: Any, pending: Pending, quarantined: int = 0) -> list[Any]:
    """Return the tables that a merge takes, each with whether it decodes its quarantine again."""
    counts = {"s.t": quarantined} if quarantined else {}
    quarantine = SimpleNamespace(counts=lambda: counts, release=lambda tables, before_us: None)
    monkeypatch.setattr(Quarantine, "of", lambda connector, lake: quarantine)
    monkeypatch.setattr(stage, "pending_by_table", lambda changes, merged, through: {"s.t": pending})
    monkeypatch.setattr(
        due,
        "prepare",
        lambda *args, retry_quarantined, **others: SimpleNamespace(
            table=args[1], retry_quarantined=retry_quarantined
        ),
    )
    found: list[Any] = []

    def merge_each(job: Any, stores: Any, dirty: list[Any], *others: Any) -> list[Any]:
        found.extend((d.table, d.retry_quarantined) for d in dirty)
        return []

    monkeypatch.setattr(stage, "_merge_each", merge_each)
    mirror = SimpleNamespace(state=lambda: STATE, row_count=lambda state: 1_000_000)
    run = run_of(CONNECTOR, changes=CHANGES, mirrors=lambda table: mirror)
    stage._merge_due(run.job, run.stores, source, ["s.t"], force=False, reread={})
    return found


def test_a_mirror_follows_its_tables_definition_also_without_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column was dropped, or the table re-created and nothing written to it since."""
    assert taken(monkeypatch, Source({"v": 1}), Pending()) == []
    assert taken(monkeypatch, Source({"v": 2}), Pending()) == [("s.t", False)]


def test_quarantined_records_are_decoded_again_by_another_definition_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert taken(monkeypatch, Source({"v": 1}), Pending(), quarantined=3) == []
    assert taken(monkeypatch, Source({"v": 2}), Pending(), quarantined=3) == [("s.t", True)]


class Lake:
    """Two tables whose steps fail as a test says; it keeps which were merged together."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: Mapping[tuple[str, str], Exception]) -> None:
        self.fails = fails
        self.merged: list[list[str]] = []
        self.released: list[str] = []
        self.tried: list[tuple[str, str]] = []
        quarantine = SimpleNamespace(counts=lambda: {"s.a": 1, "s.b": 1}, release=self.release)
        monkeypatch.setattr(Quarantine, "of", lambda connector, lake: quarantine)
        monkeypatch.setattr(stage, "pending_by_table", lambda changes, merged, through: {})
        monkeypatch.setattr(due, "prepare", self.prepare)
        monkeypatch.setattr(stage, "_merge_all", self.merge_all)
        monkeypatch.setattr(stage, "reread_unresolved_keys", self.read_again)
        monkeypatch.setattr(stage, "selected_tables", lambda *parts: ["s.a", "s.b"])

        def mirror(table: str) -> Any:
            return SimpleNamespace(state=lambda: self.state(table))

        self.run = run_of(CONNECTOR, changes=CHANGES, mirrors=mirror, source=Source({"v": 2}))

    def merge(self) -> list[TableResult]:
        return stage.merge_tables(self.run.job, self.run.stores, self.run.source)

    def spoil(self) -> Exception | None:
        """Return what prevents a merge of several tables in one pass."""
        return None

    def step(self, name: str, table: str) -> None:
        self.tried.append((name, table))
        if error := self.fails.get((name, table)):
            raise error

    def state(self, table: str) -> MirrorState:
        self.step("state", table)
        return STATE

    def prepare(self, source: Any, table: str, *others: Any, **more: Any) -> Any:
        self.step("prepare", table)
        return SimpleNamespace(table=table, state=STATE, retry_quarantined=more["retry_quarantined"])

    def merge_all(self, connector: Any, stores: Any, dirty: list[Any], shared: Any) -> list[stage._Merged]:
        self.merged.append([d.table for d in dirty])
        if spoilt := self.spoil():
            raise spoilt
        for d in dirty:
            self.step("merge", d.table)
        results = [TableResult(d.table, rows_written=1, unresolved_keys=1) for d in dirty]
        return [stage._Merged(result, has_unresolved=True) for result in results]

    def read_again(self, job: Any, stores: Any, source: Any, tables: list[str]) -> dict[str, int]:
        self.step("unresolved", tables[0])
        return {}

    def release(self, tables: list[str], before_us: int) -> None:
        self.released += tables


@pytest.mark.parametrize(
    ("where", "merged", "released"),
    [
        ("state", [["s.a"]], ["s.a"]),
        ("prepare", [["s.a"]], ["s.a"]),
        ("merge", [["s.a", "s.b"], ["s.a"], ["s.b"]], ["s.a"]),
        ("unresolved", [["s.a", "s.b"]], ["s.a", "s.b"]),
    ],
)
def test_one_table_that_fails_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, where: str, merged: list[list[str]], released: list[str]
) -> None:
    """What it has in quarantine stays there."""
    lake = Lake(monkeypatch, {(where, "s.b"): ConfigurationError("no", remedy="yes")})
    good, bad = lake.merge()
    assert (good.table, good.rows_written, good.error) == ("s.a", 1, "")
    assert (bad.table, bad.error_code, bad.error) == (
        "s.b",
        "CONFIGURATION",
        str(ConfigurationError("no", remedy="yes")),
    )
    assert bad.rows_written == (1 if where == "unresolved" else 0)
    assert lake.merged == merged
    assert lake.released == released


@pytest.mark.parametrize(
    ("where", "table", "merged"),
    [
        ("state", "s.a", []),
        ("prepare", "s.a", []),
        ("merge", "s.a", [["s.a", "s.b"]]),
        ("unresolved", "s.a", [["s.a", "s.b"]]),
    ],
)
def test_an_unreachable_lake_is_reported_once_and_no_further_table_is_tried(
    monkeypatch: pytest.MonkeyPatch, where: str, table: str, merged: list[list[str]]
) -> None:
    away = RuntimeError(
        "An error occurred while calling o1\nCaused by: java.net.ConnectException: Connection refused"
    )
    lake = Lake(monkeypatch, {(where, name): away for name in ("s.a", "s.b")})
    with pytest.raises(RuntimeError) as raised:
        lake.merge()
    assert raised.value is away
    assert lake.merged == merged
    assert lake.tried[-1] == (where, "s.a"), "s.b is not tried"
    known = explain(raised.value)
    assert isinstance(known, TransientError)
    assert "the lake can't be reached: the remaining tables are not tried" in str(known)


def test_a_lake_that_goes_away_between_two_tables_keeps_what_was_merged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first pass fails of a table's own reason; then the lake goes."""
    lake = Lake(monkeypatch, {("merge", "s.b"): RuntimeError("java.net.UnknownHostException: catalog")})
    spoilt = iter([ConfigurationError("no"), None])
    monkeypatch.setattr(lake, "spoil", lambda: next(spoilt, None))
    with pytest.raises(RuntimeError, match="UnknownHostException"):
        lake.merge()
    assert lake.merged == [["s.a", "s.b"], ["s.a"], ["s.b"]]


def test_a_merge_commits_on_the_state_that_it_was_planned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fences, memory and unresolved keys come from it: a later one would lose what another merge added."""
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
    counted = lake_merge._Outcome(outcome, Counter(), {}, ReplicaDuplicates())
    monkeypatch.setattr(lake_merge, "_reconciled", lambda *args: outcome)
    monkeypatch.setattr(lake_merge, "_count", lambda frame: counted)
    monkeypatch.setattr(lake_merge, "MergeKernel", lambda **values: SimpleNamespace(columns=[]))
    shape: Any = SimpleNamespace(
        model="cell", rules="4.0", mirror_schema=list, project=None, stores_state=False, patch=None
    )
    plan = lake_merge.MergePlan(
        base=STATE, through=4, fences=(), memory={"v": 1}, now_seconds=0, pending_rows=0
    )
    spark: Any = None
    lake_merge.merge(spark, mirror, shape, None, plan)
    assert bases == [STATE.head]


def test_static_columns_of_a_later_merge_that_is_not_done_yet_are_not_replaced() -> None:
    """It has committed them already, and is about to commit its mirror."""
    static_columns = StaticColumnsState(Head("1"), merged_through=5)
    plan = lake_merge.MergePlan(
        base=replace(STATE, static_columns=static_columns),
        through=4,
        fences=(),
        memory={},
        now_seconds=0,
        pending_rows=0,
    )
    mirror: Any = SimpleNamespace(static_columns=SimpleNamespace(name="s.t__static_columns"))
    nothing: Any = None
    with pytest.raises(CommitConflict, match=r"s\.t__static_columns.*through batch 5"):
        lake_merge.merge(nothing, mirror, nothing, None, plan)
