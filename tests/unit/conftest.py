"""Airflow's home, a fake ``spark-submit``, and a node's folder with segments."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.fake_spark import spark_submit, work_folder

__all__ = ["spark_submit", "work_folder", "write_segment"]

WriteSegment = Callable[..., Path]


@pytest.fixture
def write_segment(tmp_path: Path) -> WriteSegment:
    """Write a segment: ``write_segment(id, end=..., completed=...)``; without an end it has no idx."""

    def write(
        number: int,
        *,
        end: int | None = None,
        completed: bool = False,
        size: int = 1000,
        folder: Path = tmp_path / "cdc_raw",
        version: int = 7,
    ) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / f"CommitLog-{version}-{number}.log"
        log.write_bytes(b"x" * size)
        if end is not None:
            text = f"{end}\nCOMPLETED" if completed else str(end)
            (folder / f"CommitLog-{version}-{number}_cdc.idx").write_text(text)
        return log

    return write
