"""The page on adding a source shows the files that a test installs and runs."""

from __future__ import annotations

import re
from pathlib import Path

from tests.contract.sources.distribution import ENTRY_POINTS, MODULES, SOURCE

PAGE = Path(__file__).parents[2] / "docs" / "add-a-source.md"


def test_page_shows_the_modules_of_the_distribution() -> None:
    blocks = re.findall(r"`jsonl_source/(\w+\.py)`:\n\n```python\n(.*?)```\n", PAGE.read_text(), re.DOTALL)
    assert dict(blocks) == {name: (SOURCE / name).read_text() for name in MODULES}


def test_page_shows_the_entry_point_of_the_distribution() -> None:
    group, point = ENTRY_POINTS.splitlines()
    name, value = point.split(" = ")
    shown = f'[project.entry-points."{group.strip("[]")}"]\n{name} = "{value}"\n'
    assert shown in PAGE.read_text()
