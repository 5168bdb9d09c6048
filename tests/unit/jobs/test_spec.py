from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.resuming.progress import Progress, SnapshotProgress
from airflow_cdc_provider.jobs.spec import (
    ConnectionRef,
    JobResult,
    JobSpec,
    OriginResult,
    SegmentNumbers,
    TableResult,
)


def test_spec_survives_its_file() -> None:
    spec = JobSpec(
        "sync",
        {"name": "shop"},
        "/tmp/result.json",
        ConnectionRef(file="/run/secret"),
        ("shop.a",),
        {"force": True},
    )

    assert JobSpec.from_json(spec.to_json()) == JobSpec(
        "sync",
        {"name": "shop"},
        "/tmp/result.json",
        ConnectionRef(file="/run/secret"),
        ["shop.a"],
        {"force": True},
    )


def test_spec_of_another_version_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="use the same package version"):
        JobSpec.from_json(json.dumps({"stage": "sync", "connector": {}, "result_path": "x", "newer": 1}))


def test_connection_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "connection.json"
    file.write_text('{"password": "hush"}')
    file.chmod(0o644)

    with pytest.raises(ConfigurationError, match="chmod 600") as caught:
        ConnectionRef(file=str(file)).resolve()

    assert "hush" not in str(caught.value)
    file.chmod(0o600)
    assert ConnectionRef(file=str(file)).resolve() == {"password": "hush"}


def test_missing_connection_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CDC_CONNECTION", raising=False)

    with pytest.raises(ConfigurationError, match="environment variable CDC_CONNECTION"):
        ConnectionRef(environment="CDC_CONNECTION").resolve()
    with pytest.raises(ConfigurationError, match="the job's connection is missing"):
        ConnectionRef(file=str(tmp_path / "none")).resolve()


def test_result_survives_its_file(tmp_path: Path) -> None:
    node = OriginResult("n1", skipped={"view": 1}, segments=SegmentNumbers(2, 1))
    tables = (TableResult("a.b", changes=3),)
    result = JobResult(True, {"n1": {"v": 1}}, 2, 300, 1.5, None, tables, {"capture": 1.0}, origins=(node,))

    result.write(str(tmp_path / "result.json"))

    assert JobResult.read(str(tmp_path / "result.json")) == replace(result, findings=[], selected=[])


def test_progress_keeps_offset_and_half_done_snapshots() -> None:
    left = ({"kind": "tokens", "table": "db.c", "after": 1}, {"kind": "tokens", "table": "db.c", "after": 2})
    running = SnapshotProgress(False, "00", "stream", True, left, 1)
    progress = Progress({"stream": {"v": 1}}, {"db.c": running})

    again = Progress.from_offset(json.loads(json.dumps(progress.to_offset())))

    assert again == progress
    assert again.snapshots["db.c"].ranges == left
