"""Each promise of docs/security.md names tests that exist, and each file of tests here is named there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text()
HERE = Path(__file__).parent


def named() -> list[tuple[Path, str]]:
    """Return the file and name of each test of the page; the name is empty for all of a file."""
    found: list[tuple[Path, str]] = []
    for path, name in re.findall(r"`([\w/]*\.py)?(?:::(test_\w+))?`", PAGE):
        if path or name:
            file = (ROOT if "/" in path else HERE) / path if path else found[-1][0]
            found.append((file, name))
    return found


def test_each_named_test_exists() -> None:
    assert [
        (str(file), name)
        for file, name in named()
        if not file.is_file() or (name and f"def {name}(" not in file.read_text())
    ] == []


def test_each_file_of_tests_holds_a_promise() -> None:
    files = {file for file, _ in named()}
    assert [
        file.name for file in HERE.glob("test_*.py") if file not in files and file != Path(__file__)
    ] == []


def test_each_promise_names_a_test() -> None:
    promises = PAGE.partition("## What we promise")[2].partition("## What we don't promise")[0]
    rows = [
        row
        for row in promises.splitlines()
        if row.startswith("|") and not row.startswith(("| promise", "|---"))
    ]
    assert len(rows) > 30
    assert [row for row in rows if ".py" not in row.rsplit("|", 2)[1]] == []
