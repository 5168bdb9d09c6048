"""The capture stage's loop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import CommitConflict
from airflow_cdc_provider.jobs.capturing import capture as stage
from airflow_cdc_provider.lake.changes_table import ChangesState
from airflow_cdc_provider.lake.table import Head
from airflow_cdc_provider.sources.contract import Plan, ReadLimit, SegmentCounts
from tests.unit.jobs.runs import FakeSource, run_of

SPARK = SimpleNamespace(
    sparkContext=SimpleNamespace(
        defaultParallelism=2, accumulator=lambda value, _: SimpleNamespace(value=value)
    )
)


CONNECTOR = Connector.from_dict({"name": "shop", "source": {"type": "cassandra"}})


class Source(FakeSource):
    """A source that has nothing to say yet."""

    has_schema_history = True
    learned_through = 1


@pytest.mark.covers("DSX-AGT-05")
def test_nodes_of_a_batch_that_cannot_be_committed_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Node(Source):
        def plan(self, start: Any, head: Any, limit: ReadLimit) -> Plan:
            segments = {"a": SegmentCounts(waiting=2, taken=1), "b": SegmentCounts(waiting=1)}
            return Plan(end={"a": 1}, partitions=(), at_head=True, segments=segments)

    def refuse(*_: Any, **__: Any) -> Any:
        raise CommitConflict("another capture was first")

    state = ChangesState(Head(None), 0, None)
    changes = SimpleNamespace(state=lambda: state, append_batch=refuse)
    run = run_of(CONNECTOR, changes=changes, source=Node(), spark=SPARK)
    with pytest.raises(CommitConflict):
        stage.capture(run.job, run.stores, run.source, run.report)
    assert run.report.uncommitted == ["a"]


def test_stop_before_the_first_batch_is_a_clean_one() -> None:
    """There is no changes table yet, so there is no quarantine in it."""

    def no_table(kind: str) -> Any:
        raise AssertionError("read before it exists")

    changes = SimpleNamespace(
        state=lambda: ChangesState(Head(None), 0, None),
        table=SimpleNamespace(exists=lambda: False),
        lasting=no_table,
    )
    run = run_of(CONNECTOR, changes=changes, source=Source(), spark=SPARK, stopping=lambda: True)
    counts = stage.capture(run.job, run.stores, run.source, run.report)
    assert (counts.batches, counts.changes, counts.quarantined) == (0, 0, 0)


class Frame:
    """Records, counted by kind and reason."""

    def __init__(self, *counts: tuple[str, str | None, int]) -> None:
        self.counts = [dict(zip(("kind", "code", "count"), count, strict=True)) for count in counts]

    def select(self, *_: str) -> Frame:
        return self

    selectExpr = groupBy = persist = select

    def count(self) -> Any:
        return self

    def unpersist(self) -> None: ...
    def drop(self, *_: str) -> Any:
        return SimpleNamespace(toArrow=lambda: None)

    def collect(self) -> list[dict[str, Any]]:
        return self.counts


@pytest.mark.parametrize(
    ("again", "commits", "counts"),
    [
        (Frame(("quarantine", "UNKNOWN-SCHEMA", 3)), False, (0, 3)),
        (Frame(("quarantine", "UNKNOWN-SCHEMA", 2), ("quarantine", "LATE-TRUNCATE", 1)), True, (0, 3)),
        (
            Frame(("quarantine", "UNKNOWN-SCHEMA", 1), ("change", None, 2), ("schema", None, 1)),
            True,
            (2, 1),
        ),
    ],
)
def test_records_quarantined_for_another_reason_than_before_are_committed(
    monkeypatch: pytest.MonkeyPatch, again: Frame, commits: bool, counts: tuple[int, int]
) -> None:
    landed: list[Any] = []
    changes: Any = SimpleNamespace(
        table=SimpleNamespace(exists=lambda: True),
        lasting=lambda _: Frame(("quarantine", "UNKNOWN-SCHEMA", 3)),
        land=lambda rows, state: landed.append(rows),
    )
    monkeypatch.setattr(stage, "map_in_arrow", lambda *_: again)
    state = ChangesState(Head(None), 7, {})
    source: Any = Source()
    assert stage.land_quarantined(CONNECTOR, changes, source, state) == counts
    assert landed == ([again] if commits else [])
