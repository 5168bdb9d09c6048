"""Every option of a declaration may come from an environment variable."""

from __future__ import annotations

import dataclasses
import traceback
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.connector.declaration import _Declaration
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.registry import source_names, source_plugin


def options(cls: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """List the paths of all options, with types and defaults."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            yield from options(hint, (*path, field.name))
        elif not field.metadata.get("secret"):
            factory = field.default_factory
            default = field.default if factory is dataclasses.MISSING else factory()
            yield (*path, field.name), hint, default


def values(hint: Any, default: Any) -> list[Any]:
    """Return the default and others, right or wrong."""
    if typing.get_origin(hint) is typing.Literal:
        return list(typing.get_args(hint))
    given = [] if default in (dataclasses.MISSING, None) else [default]
    samples: dict[Any, list[Any]] = {bool: [True, False], int: [3, -5], float: [2.5, 4], str: ["shop.a.b"]}
    if hint in samples:
        return [*given, *samples[hint]]
    if typing.get_origin(hint) is tuple:
        return [list(one) for one in given] + [["shop.a.b"], []]
    if typing.get_origin(hint) is Mapping or "apping" in str(hint):
        return [dict(one) for one in given] + [{"a.b": "c"}, {"linger.ms": "5"}]
    return [*given, 7]


ALL = [
    (kind, path, value)
    for kind in source_names()
    for path, hint, default in (
        *options(_Declaration),
        *((("source", *path), hint, default) for path, hint, default in options(source_plugin(kind).options)),
    )
    if path != ("source",)
    for value in values(hint, default)
]


REQUIRED: dict[str, dict[str, Any]] = {"vitess": {"keyspace": "shop"}, "debezium": {"topics": [r"shop\..*"]}}
"""Options that a source can't do without."""


def declared(kind: str, path: tuple[str, ...], value: Any) -> Connector | str:
    """Return the connector, or the error, of a declaration with one option."""
    declaration: dict[str, Any] = {"name": "shop", "source": {"type": kind, **REQUIRED.get(kind, {})}}
    inner = declaration
    for name in path[:-1]:
        inner = inner.setdefault(name, {})
    inner[path[-1]] = value
    try:
        return Connector.from_dict(declaration)
    except ConfigurationError as error:
        return error.message


def shown(found: Connector | str, value: Any) -> Connector | str:
    """Return an error with what it would show of a value that weren't a variable's."""
    name = next(iter(value), "") if isinstance(value, dict) else str(value)
    return found.replace("${env:THE_OPTION}", name) if isinstance(found, str) else found


@pytest.mark.covers("DSX-AGT-04")
@pytest.mark.parametrize("section", sorted({path[0] for _, path, _ in ALL}))
@pytest.mark.parametrize("kind", source_names())
def test_an_option_from_the_environment_is_the_option(
    kind: str, section: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    different = []
    for path, value in [(path, value) for of, path, value in ALL if (of, path[0]) == (kind, section)]:
        monkeypatch.setenv("THE_OPTION", value if isinstance(value, str) else yaml.safe_dump(value))
        if shown(declared(kind, path, "${env:THE_OPTION}"), value) != declared(kind, path, value):
            different.append((".".join(path), value))
    assert different == []


def test_all_options_are_among_them_and_most_values_are_right() -> None:
    assert len({(kind, path) for kind, path, _ in ALL}) > 100
    some = ALL[::7]
    right = [one for one in some if isinstance(declared(*one), Connector)]
    assert len(right) > len(some) * 0.7  # of the wrong ones most are options of another source


def test_a_variable_that_is_not_set_is_reported_with_its_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    with pytest.raises(ConfigurationError, match=r"option snapshot\.mode .* not set: expected NOT_SET"):
        Connector.from_dict(
            {"name": "a", "source": {"type": "cassandra"}, "snapshot": {"mode": "${env:NOT_SET}"}}
        )


def test_the_type_and_whole_parts_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIND", "cassandra")
    monkeypatch.setenv("TABLES", "['shop\\..*', 'x.y']")
    monkeypatch.setenv("LAKE", "{catalog: lake, merge: {min_pending_ratio: 0.5}}")
    found = Connector.from_dict(
        {
            "name": "a",
            "source": {"type": "${env:KIND}"},
            "tables": "${env:TABLES}",
            "lake": "${env:LAKE}",
        }
    )
    assert (found.type, found.tables) == ("cassandra", (r"shop\..*", "x.y"))
    assert found.lake.merge.min_pending_ratio == 0.5


def test_a_secret_stays_a_reference_which_the_job_resolves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_SECRET", "hush")
    encryption = {"keystore": "/k", "keystore_password": "${env:THE_SECRET}"}
    found = Connector.from_dict({"name": "a", "source": {"type": "cassandra", "encryption": encryption}})
    assert found.to_dict()["source"]["encryption"]["keystore_password"] == "${env:THE_SECRET}"
    assert found.split_secrets()[1] == []


def test_members_of_lists_and_mappings_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP", r"shop_eu\..*")
    monkeypatch.setenv("FILTER", "region = 7")
    found = Connector.from_dict(
        {
            "name": "a",
            "source": {"type": "cassandra"},
            "tables": ["${env:SHOP}", r"stock\..*"],
            "snapshot": {"filters": {"stock.rows": "${env:FILTER}"}},
        }
    )
    assert found.tables == (r"shop_eu\..*", r"stock\..*")
    assert found.snapshot.filters == {"stock.rows": "region = 7"}
    monkeypatch.delenv("SHOP")
    with pytest.raises(ConfigurationError, match=r"option tables\[0\] refers to an environment variable"):
        Connector.from_dict({"name": "a", "source": {"type": "cassandra"}, "tables": ["${env:SHOP}"]})


def test_what_is_no_yaml_is_reported_without_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBERS", "[hush, {")
    with pytest.raises(ConfigurationError, match=r"option tables: expected valid YAML") as caught:
        Connector.from_dict({"name": "a", "source": {"type": "cassandra"}, "tables": "${env:NUMBERS}"})
    assert "hush" not in "".join(traceback.format_exception(caught.value))
