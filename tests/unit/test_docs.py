"""What README and docs show is true: snippets compile, declarations load, links and make targets exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_cdc_provider.connector import Connector
from tests.conftest import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def blocks(language: str) -> list[Any]:
    """List all fenced blocks of a language, as test parameters."""
    found = []
    for page in PAGES:
        for number, text in enumerate(
            re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)
        ):
            found.append(pytest.param(text, id=f"{page.relative_to(ROOT)}-{number}"))
    return found


@pytest.mark.parametrize("text", blocks("python"))
def test_python_snippets_compile_and_name_what_exists(text: str) -> None:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("airflow_cdc_provider"):
            module = ROOT / (node.module or "").replace(".", "/")
            file = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
            assert file.exists(), f"{node.module} does not exist"
            for alias in node.names:
                assert re.search(rf"\b{alias.name}\b", file.read_text()), f"{node.module} has no {alias.name}"


def test_example_test_runs_select_a_test() -> None:
    commands = re.findall(r"pytest (tests/\S+) -k (\w+)", "\n".join(page.read_text() for page in PAGES))
    assert commands
    for file, word in commands:
        assert re.search(rf"def test_\w*{word}", (ROOT / file).read_text()), (
            f"-k {word} selects nothing of {file}"
        )


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_snippets_are_valid(text: str) -> None:
    values = yaml.safe_load(text)
    if "source" in values:
        connector = Connector.from_dict(values)
        assert Connector.from_dict(connector.to_dict()) == connector


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        other = (page.parent / name).resolve() if name else page
        assert other.exists(), f"{page.name} links to {target}"
        if anchor:
            titles = re.findall(r"^#+ (.*)$", other.read_text(), re.M)
            anchors = {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}
            assert anchor in anchors, f"{page.name} links to {target}, {other.name} has {sorted(anchors)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_make_targets_exist(page: Path) -> None:
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(), re.M))
    assert named <= TARGETS, f"{page.name} names make {', '.join(sorted(named - TARGETS))}"


def test_every_make_target_is_explained() -> None:
    text = (ROOT / "Makefile").read_text()
    explained = set(re.findall(r"^([a-z-]+):.*## \w", text, re.MULTILINE))
    assert explained == TARGETS
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony is not None
    assert set(phony.group(1).split()) == TARGETS


def test_readme_shows_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert "```bash\nmake demo\nmake test\n```" in text


def test_every_page_is_reachable_from_the_index() -> None:
    linked = set(re.findall(r"\]\(([^)#]+)\)", (ROOT / "docs" / "index.md").read_text()))
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES if (ROOT / "docs") in page.parents}
    assert pages - {"index.md"} <= linked


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_has_the_marks_of_a_merge_conflict(page: Path) -> None:
    assert not re.findall(r"^(?:<{7} .*|={7}|>{7} .*)$", page.read_text(), re.M)
