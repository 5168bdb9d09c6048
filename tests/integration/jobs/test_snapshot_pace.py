"""A snapshot that is held back, and what it says of its way."""

from __future__ import annotations

import logging
import re
import time

import pytest

from airflow_cdc_provider.jobs.snapshots import snapshot
from tests.integration.jobs.shop import Shop

pytestmark = pytest.mark.integration


def test_a_snapshot_keeps_to_its_rate_and_logs_its_progress(
    shop: Shop,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for limit in ("_RANGES_PER_CORE", "_MAX_RANGES_PER_CORE"):
        monkeypatch.setattr(snapshot, limit, 4)
    shop.run("CREATE TABLE t (k int PRIMARY KEY, v text) WITH cdc = true")
    insert = shop.prepare("INSERT INTO t (k, v) VALUES (?, 'x')")
    for k in range(600):
        shop.session.execute(insert, (k,))
    shop.declare(source={"advanced": {"fetch_size": 10}}, snapshot={"rows_per_second": 100})
    caplog.set_level(logging.INFO)
    started = time.monotonic()

    outcome = shop.stage("sync")

    assert time.monotonic() - started > 5
    assert [t.snapshot_rows for t in outcome.tables] == [600]
    lead = f"snapshot of {shop.table_name('t')}"
    *progress, completed = (
        r.getMessage() for r in caplog.records if re.match(f"{lead}(:.*read| completed)", r.getMessage())
    )
    assert progress
    assert all(
        re.fullmatch(f"{lead}: \\d+ of \\d+ ranges read, about [1-9]\\d* s left", line) for line in progress
    )
    assert completed.startswith(f"{lead} completed: 600 rows, ")
