"""A Spark application that records its arguments and returns a given result."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_cdc_provider.cli import live_commands
from airflow_cdc_provider.jobs.spec import JobResult, JobSpec


class RecordedApplication:
    """Fake spark-submit: records the specs and returns a result."""

    def __init__(self, result: JobResult | None) -> None:
        self.result = result
        self.specs: list[JobSpec] = []

    def __call__(self, spec: Path) -> str:
        spec_read = JobSpec.from_json(spec.read_text())
        self.specs.append(spec_read)
        if self.result is not None:
            self.result.write(spec_read.result_path)
        return "what Spark printed\n"


def application(monkeypatch: pytest.MonkeyPatch, result: JobResult | None) -> RecordedApplication:
    recorded = RecordedApplication(result)
    monkeypatch.setattr(live_commands, "_submit", recorded)
    return recorded
