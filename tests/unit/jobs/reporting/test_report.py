"""A result has what was done, whatever can't be read when it is built."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import TransientError
from airflow_cdc_provider.jobs.capturing.capture import CaptureCounts
from airflow_cdc_provider.jobs.reporting.report import build_result
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.jobs.spec import JobResult, PublishResult, SnapshotResult, TableResult
from airflow_cdc_provider.sources.contract import Lag, Offset
from tests.unit.jobs.runs import FakeSource, run_of

CONNECTOR = Connector.from_dict({"name": "shop", "source": {"type": "cassandra"}})
TABLES = [TableResult(f"k.t{number}", changes=number, seconds=2.5) for number in range(10)]


class SourceAway(FakeSource):
    """A source whose server is away by now."""

    def lag(self, offset: Offset | None) -> Lag:
        raise OSError("no route to host")


def state() -> Any:
    offset = Progress({"stream": {"v": 1}}).to_offset()
    return SimpleNamespace(offset=offset, batch=7, committed_at=1.0)


def lake_away() -> Any:
    raise TransientError("the lake can't be reached")


def result(source: FakeSource, read: Any, **parts: Any) -> JobResult:
    run = run_of(CONNECTOR, source=source, changes=SimpleNamespace(state=read))
    captured = CaptureCounts(batches=3, changes=45)
    return build_result(
        run, captured=captured, tables=TABLES, published=PublishResult(7, records=45), **parts
    )


def numbers(found: JobResult) -> tuple[Any, ...]:
    published = found.published.records if found.published else None
    return (found.batches, found.changes, len(found.tables), published, found.seconds["merge"])


@pytest.mark.parametrize("away", ["nothing", "source", "lake"])
def test_a_result_keeps_its_numbers(away: str) -> None:
    source = SourceAway("k.t0") if away == "source" else FakeSource("k.t0")
    found = result(source, lake_away if away == "lake" else state)
    assert numbers(found) == (3, 45, 10, 45, 25.0)
    assert found.ok == (away != "lake")
    assert ("the lag is unknown: OSError: no route to host" in found.findings) == (away == "source")
    assert found.error == ("[CDC-TRANSIENT] the lake can't be reached" if away == "lake" else "")
    assert found.newest_batch == (None if away == "lake" else 7)
    assert found.selected == (() if away == "lake" else ("k.t0",))


def test_errors_of_snapshots_and_publishing_are_those_of_their_tables() -> None:
    shot = SnapshotResult(tables=1, remaining=1, errors={"k.t3": "[CDC-CONFIGURATION] no such column"})
    found = result(FakeSource("k.t0"), state, shot=shot)
    assert (found.ok, found.error_code) == (False, "CONFIGURATION")
    assert found.error == "[CDC-CONFIGURATION] 1 of 10 tables failed: k.t3: no such column"
    assert numbers(found) == (3, 45, 10, 45, 25.0)
