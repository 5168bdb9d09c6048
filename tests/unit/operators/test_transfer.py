"""The transfer operator: its arguments, its sources, and its results."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_cdc_provider.exceptions import TransientError
from airflow_cdc_provider.operators import transfer as operators
from airflow_cdc_provider.operators.transfer import CommitLogTransferOperator
from airflow_cdc_provider.tasks.state import STATE_LAYOUT
from airflow_cdc_provider.transfer.disposal import CommitLogTransfer
from tests.unit.airflow_context import TaskContext
from tests.unit.transfer.nodes import HOST, Node, files, noise

DECLARATION: dict[str, Any] = {"name": "shop", "source": {"type": "cassandra", "conn_id": "cassandra_shop"}}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "cdc_raw")


def operator(node: Node, tmp_path: Path, **arguments: Any) -> CommitLogTransferOperator:
    given = {
        "connector": DECLARATION,
        "cdc_raw": str(node.cdc_raw),
        "landing": str(tmp_path / "landing"),
        "host_id": HOST,
        **arguments,
    }
    return CommitLogTransferOperator(task_id="transfer", **given)


def captured(segment: int, *, completed: bool = False) -> dict[str, Any]:
    """Return the offset after all earlier segments and the first 100 bytes, or all, of this one."""
    if completed:
        return {HOST: {"v": 1, "floor": segment}}
    return {HOST: {"v": 1, "floor": segment - 1, "open": {str(segment): 100}}}


@pytest.mark.covers("CAS-LIFE-01", "CAS-CFG-11")
def test_it_reads_the_offset_from_state_and_reports(node: Node, tmp_path: Path) -> None:
    from airflow_cdc_provider.assets import changes_asset

    node.finishes(1, noise(100))
    node.grows(2, noise(100))
    transfer = operator(node, tmp_path)
    context = TaskContext()
    assert transfer.execute(context)["copied"] == 2
    context.assets[changes_asset("shop")].set(
        "offset", {"layout": STATE_LAYOUT, "source": "cassandra", "offset": captured(2)}
    )
    assert transfer.execute(context)["deleted"] == 1
    assert sorted(files(tmp_path / "landing" / HOST)) == ["CommitLog-7-2.log", "CommitLog-7-2_cdc.idx"]


def test_counts_bear_the_connectors_tags(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counters: dict[str, tuple[int, dict[str, str]]] = {}
    stats = SimpleNamespace(incr=lambda name, count, tags: counters.update({name: (count, tags)}))
    monkeypatch.setattr(operators, "Stats", stats)
    node.finishes(1, noise(100))
    operator(node, tmp_path, connector={**DECLARATION, "metric_tags": {"team": "a"}}).execute(TaskContext())
    tags = {"team": "a", "connector": "shop", "source": "cassandra", "host": HOST}
    assert counters["cdc.transfer.copied"] == (1, tags)


@pytest.mark.covers("CAS-LIFE-02")
def test_it_warns_when_nothing_is_cleared_away(
    node: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    operator(node, tmp_path, after_transfer="delete", after_commit="keep").execute(TaskContext())
    assert "are never removed" not in caplog.text
    operator(node, tmp_path, after_transfer="keep", after_commit="keep").execute(TaskContext())
    assert "Cassandra refuses writes to tables with CDC" in caplog.text


@pytest.mark.parametrize("limit", [None, "", "None", 0, "0", "0.0", "1e9"])
def test_no_limit_is_none_or_zero(node: Node, tmp_path: Path, limit: Any) -> None:
    node.finishes(1, noise(100))
    assert operator(node, tmp_path, max_bytes_per_second=limit).execute(TaskContext())["copied"] == 1


def test_what_others_brought_is_cleared_away_without_a_source(node: Node, tmp_path: Path) -> None:
    node.finishes(1, noise(100))
    operator(node, tmp_path, offset=captured(1)).execute(TaskContext())
    counts = operator(node, tmp_path, cdc_raw=None, offset=captured(1, completed=True)).execute(TaskContext())
    assert counts["deleted"] == 1
    assert files(tmp_path / "landing" / HOST) == {}


class Refusing(CommitLogTransfer):
    """Takes nothing over."""

    def on_success(self, log: Path, index: Path | None) -> None:
        raise ConnectionError(f"{log.name} is not wanted")


@pytest.mark.covers("CAS-CFG-14")
def test_a_segment_that_is_not_taken_over_stays_and_fails_the_try(node: Node, tmp_path: Path) -> None:
    node.finishes(1, noise(100))
    transfer = operator(node, tmp_path, transfer_class=f"{__name__}.Refusing", offset=captured(1))
    transfer.execute(TaskContext())
    transfer.offset = captured(1, completed=True)
    with pytest.raises(TransientError, match="1 segments of node host-1 were not copied or handed over"):
        transfer.execute(TaskContext())
    assert "CommitLog-7-1.log" in files(tmp_path / "landing" / HOST)


def test_segments_quarantined_are_no_node_of_the_landing_area(node: Node, tmp_path: Path) -> None:
    from airflow_cdc_provider.feeds.cassandra import node_folders
    from airflow_cdc_provider.sources.cassandra.commit_log.segments import list_segments

    node.finishes(1, noise(100))
    node.finishes(2, noise(100))
    node.breaks(2)
    assert operator(node, tmp_path).execute(TaskContext())["errors"] == 1
    landing = tmp_path / "landing"
    assert (landing / "errors" / HOST / "CommitLog-7-2.log").exists()
    assert list(node_folders(str(landing))) == [HOST]
    assert list(list_segments(landing)) == [HOST]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"after_commit": "burn"},
            "invalid value for option after_commit: expected one of keep, delete, archive",
        ),
        ({"landing": None}, "the landing folder is missing"),
        ({"layout": "heap"}, "invalid value for option layout: expected one of whole, chunks"),
        ({"cdc_raw": "/nowhere"}, "can't be read"),
        ({"after_commit": "archive"}, "the archive folder is missing"),
        ({"archive": "/cold"}, "no segment would be archived: expected after_commit archive"),
        ({"cdc_raw": None, "retry_errors": "True"}, "retry_errors needs the source of the segments"),
        ({"cdc_raw": "s3://bucket/shop", "ssh_conn_id": "node"}, "ssh_conn_id requires a folder"),
        ({"host_id": "../billing"}, r"invalid host_id.*found '\.\./billing'"),
        ({"host_id": "/etc"}, "invalid host_id"),
        (
            {"max_bytes_per_second": "fast"},
            "invalid value for max_bytes_per_second: expected a number, 0 or more",
        ),
        ({"landing": "s3://bucket/shop"}, "a bucket can't be the landing folder"),
        ({"cdc_raw": "s3://bucket/shop", "aws_conn_id": "nowhere"}, "there is no connection nowhere"),
        ({"ssh_conn_id": "nowhere"}, "there is no connection nowhere"),
        ({"transfer_class": "nowhere.Class"}, "transfer_class nowhere.Class can't be imported"),
    ],
)
def test_a_wrong_argument_is_reported(
    node: Node, tmp_path: Path, arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(AirflowFailException, match=text):
        operator(node, tmp_path, **arguments).execute(TaskContext())
