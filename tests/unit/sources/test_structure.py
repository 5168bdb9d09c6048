"""Each source's folder has the modules that docs/design/structure.md lists, and its abilities require."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Final

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.contract import Source
from airflow_cdc_provider.sources.plugin import SourcePlugin
from airflow_cdc_provider.sources.registry import source_names, source_plugin
from tests.conftest import ROOT

FOLDER: Final = ROOT / "airflow_cdc_provider" / "sources"
OWN: Final = tuple(name for name in source_names() if (FOLDER / name).is_dir())
SHARED: Final = {"cassandra": ("cql",), "scylla": ("cql",)}
"""Folders of what sources share with each other."""


def listed() -> dict[str, dict[str, str]]:
    """Read the table of modules: for each, the sources that don't have it, with the reason."""
    text = (ROOT / "docs" / "design" / "structure.md").read_text()
    section = re.split(r"^## ", text, flags=re.M)
    (table,) = (part for part in section if part.startswith("A source's modules"))
    found: dict[str, dict[str, str]] = {}
    for module, absent in re.findall(r"^\| `([a-z_/]+)` \|[^|]+\|([^|]*)\|$", table, re.M):
        names, _, reason = absent.strip().partition(": ")
        found[module] = {name: reason for name in names.split(", ") if name}
    return found


MODULES: Final = listed()


def has(source: str, module: str) -> bool:
    folders = (source, f"{source}/decoding", *SHARED.get(source, ()))
    return any((FOLDER / folder / f"{module}.py").is_file() for folder in folders)


def source_class(name: str) -> type[Source]:
    module = importlib.import_module(f"airflow_cdc_provider.sources.{name}.source")
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Source)]
    (found,) = (kind for kind in kinds if kind is not Source)
    return found


def supports(part: Callable[[], object]) -> bool:
    try:
        part()
    except ConfigurationError:
        return False
    return True


def required(plugin: SourcePlugin, source: type[Source]) -> dict[str, bool]:
    """Return the modules that not every source needs, and whether a source's abilities require them."""
    has_events = supports(plugin.events)
    of_events = {module: has_events for module in MODULES if module.startswith("events/")}
    return of_events | {
        "connection": plugin.connection_type != "kafka",
        "schema_history": source.has_schema_history,
        "quarantine": source.quarantine_reader is not Source.quarantine_reader,
        "snapshot": not source.feed_is_complete,
        "events/recording": supports(plugin.recordings),
    }


def test_the_table_names_only_sources_and_gives_reasons() -> None:
    assert {"plugin", "capture", "snapshot", "events/source_events"} <= MODULES.keys()
    for module, absent in MODULES.items():
        assert absent.keys() <= set(OWN), module
        assert all(absent.values()), module


@pytest.mark.parametrize("name", OWN)
def test_each_source_has_the_modules_of_the_table(name: str) -> None:
    present = {module for module in MODULES if has(name, module)}
    assert present == {module for module, absent in MODULES.items() if name not in absent}


@pytest.mark.parametrize("name", OWN)
def test_abilities_of_a_source_decide_which_modules_it_lacks(name: str) -> None:
    needed = required(source_plugin(name), source_class(name))
    assert {module: name not in MODULES[module] for module in needed} == needed
