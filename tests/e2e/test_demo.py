"""README's second command: the demo ends well, and would not if a mirror were wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from server_kit import quick_spark
from tests.conftest import ROOT
from tests.e2e.conftest import INTERPRETED

pytestmark = [pytest.mark.e2e, pytest.mark.long]


def test_demo_compares_equal_and_its_mirrors_can_be_queried(tmp_path: Path) -> None:
    quick = quick_spark()
    interpreted = " ".join(f"-D{name}={value}" for name, value in INTERPRETED.items())
    environment = {
        **os.environ,
        **quick,
        "SPARK_SUBMIT_OPTS": f"{quick['SPARK_SUBMIT_OPTS']} {interpreted}",
        "CDC_DEMO": str(tmp_path / "demo"),
        "PYTHONPATH": str(ROOT),
    }

    demo = subprocess.run(
        [sys.executable, "-m", "demo", "--rows", "200", "--changes", "400"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "mirrors equal their source" in demo.stdout
    assert "make ui" in demo.stdout
    query = subprocess.run(
        [sys.executable, "-m", "demo.lake", "SELECT count(*) AS n FROM shop_archive"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "n" in query.stdout
