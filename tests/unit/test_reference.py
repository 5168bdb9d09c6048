"""What ``docs/reference`` lists can be imported, and public modules define nothing else."""

from __future__ import annotations

import importlib
import inspect

import pytest

from tools.reference import (
    FOLDER,
    PACKAGE,
    PAGES,
    PUBLIC_FOLDERS,
    Page,
    folder_modules,
    public_names,
    rendered,
)

LISTED = [(page, module) for page in PAGES for module in page.modules]


@pytest.mark.parametrize(("page", "module"), LISTED, ids=[module for _, module in LISTED])
def test_listed_names_can_be_imported(page: Page, module: str) -> None:
    imported = importlib.import_module(f"{PACKAGE}.{module}")
    assert [name for name in public_names(page, module) if not hasattr(imported, name)] == []


def test_all_modules_of_public_folders_are_listed() -> None:
    assert set(folder_modules(*PUBLIC_FOLDERS)) <= {module for _, module in LISTED}


@pytest.mark.parametrize("module", folder_modules(*PUBLIC_FOLDERS))
def test_modules_of_public_folders_define_only_documented_classes(module: str) -> None:
    imported = importlib.import_module(f"{PACKAGE}.{module}")
    own = {
        name: value
        for name, value in vars(imported).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == imported.__name__
    }
    assert own
    assert all(inspect.isclass(value) and value.__doc__ for value in own.values())


def test_a_page_shows_signatures_and_docstrings_as_markdown() -> None:
    page = Page("p", "Title", "Text.", {"connector.declaration": ("load_connector", "ConnectorLike")})
    assert rendered(page).partition("### load_connector")[2] == (
        "\n\n```text\nload_connector(path: str | Path) -> Connector\n```\n\n"
        "Load a declaration from a YAML file.\n\nRaises:\n\n"
        "- `ConfigurationError`: The file is missing, not valid YAML, or has invalid options, which the "
        "message names.\n\n### ConnectorLike\n\n"
        "A connector, its declaration as a mapping or the JSON of one, or the path of its YAML file.\n"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_are_up_to_date(page: Page) -> None:
    assert (FOLDER / f"{page.name}.md").read_text() == rendered(page), "make reference"
