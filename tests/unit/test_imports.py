"""Tests share helper modules; they import nothing from other tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.conftest import ROOT

FILES = [
    file for folder in ("tests", "tools", "benchmarks", "demo") for file in (ROOT / folder).rglob("*.py")
]


def imported(file: Path) -> list[str]:
    """List the modules that a file imports, and the names that it imports from them."""
    names = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return names


def test_helpers_come_from_helper_modules() -> None:
    found = [(str(file.relative_to(ROOT)), name) for file in FILES for name in imported(file)]
    assert [(file, name) for file, name in found if re.match(r"tests\..*\btest_", name)] == []
