"""The run fails if a test skips itself for a reason that the tests' set-up doesn't list."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

TESTS = """
import pytest

def test_listed():
    pytest.skip("root reads everything")

@pytest.mark.skipif(True, reason="no jar")
def test_marked():
    pass

@pytest.fixture
def server():
    pytest.skip("no server")

def test_server(server):
    pass
"""


def test_only_listed_reasons_skip_a_test(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_module.py").write_text("import pytest\npytest.importorskip('no_such_module')\n")
    plain = ("-p", "tests.conftest", "--continue-on-collection-errors")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plain, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 skipped, 3 errors" in done.stdout, done.stdout
    assert done.stdout.count("no reason that tests/conftest.py lists") >= 3
    for reason in ("no jar", "no server", "no_such_module"):
        assert reason in done.stdout
