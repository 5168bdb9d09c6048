"""The sources that declarations can name, of this package and of others."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.custom_classes import load_custom
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.get_provider_info import get_provider_info
from airflow_cdc_provider.migration.offsets.conversion import ConnectOffsets
from airflow_cdc_provider.sources import registry
from airflow_cdc_provider.sources.registry import source_names, source_plugin
from tests.conftest import ROOT

OWN = ("cassandra", "debezium", "mongodb", "scylla", "vitess")


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> dict[str, EntryPoint]:
    """Entry points of other distributions, by name."""
    points: dict[str, EntryPoint] = {}
    monkeypatch.setattr(registry, "_entry_points", lambda: points)
    source_plugin.cache_clear()
    return points


@pytest.mark.parametrize("name", OWN)
def test_a_plug_in_names_parts_that_exist(name: str) -> None:
    plugin = source_plugin(name)
    assert plugin.name == name
    assert (ROOT / "docs" / f"{plugin.docs_page}.md").is_file()
    hook = load_custom("the hook", plugin.hook)
    assert hook.__name__ == plugin.hook.partition(":")[2]
    types = {one["connection-type"] for one in get_provider_info()["connection-types"]}
    if plugin.stored_offsets:
        assert issubclass(load_custom("offsets", plugin.stored_offsets), ConnectOffsets)  # type: ignore[arg-type]
    assert plugin.connection_type in types or plugin.connection_type == "kafka"


@pytest.mark.parametrize("name", ["x", "", None, ["cassandra"], {"type": "cassandra"}])
def test_another_name_is_refused_with_those_that_there_are(name: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"source\.type: expected one of cassandra, debezium, m"):
        Connector.from_dict({"name": "shop", "source": {"type": name}})


def test_a_source_of_another_distribution_can_not_replace_one_of_this(others: dict[str, EntryPoint]) -> None:
    others["vitess"] = EntryPoint("vitess", "no_such_module:PLUGIN", registry.GROUP)
    assert source_names() == OWN
    assert source_plugin("vitess").name == "vitess"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("no_such_module:PLUGIN", "the plug-in of source files can't be loaded"),
        ("airflow_cdc_provider.sources.vitess.plugin:NO_SUCH", "the plug-in of source files can't be loaded"),
        ("airflow_cdc_provider.sources.vitess.plugin:PLUGIN", "the plug-in of source files is invalid"),
        ("airflow_cdc_provider.sources.registry:GROUP", "the plug-in of source files is invalid"),
    ],
)
def test_a_plug_in_that_is_none_is_refused(value: str, message: str, others: dict[str, EntryPoint]) -> None:
    others["files"] = EntryPoint("files", value, registry.GROUP)
    assert source_names() == (*OWN, "files")
    with pytest.raises(ConfigurationError, match=message):
        source_plugin("files")
