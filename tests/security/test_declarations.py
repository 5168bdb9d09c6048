"""A hostile declaration is refused in bounded time and memory, by an error of bounded length."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_cdc_provider.connector.declaration import Connector, _Declaration
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.registry import source_names, source_plugin
from airflow_cdc_provider.yaml_file import read_yaml
from tests.bounded import bounded

SOURCES = {
    "cassandra": {"conn_id": "c", "cdc_raw": "/landing"},
    "debezium": {"conn_id": "k", "topics": "shop"},
    "mongodb": {"conn_id": "m"},
    "scylla": {"conn_id": "s"},
    "vitess": {"conn_id": "v", "keyspace": "shop"},
}


def nested(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = [value]
    return value


HOSTILE: Mapping[str, Any] = {
    "nested lists": nested("x", 5_000),
    "nested mappings": {"a": nested({"b": 1}, 5_000)},
    "a long text": "x" * 1_000_000,
    "a pattern without end": "(" * 3_000,
    "a repetition without end": "a{99999999999999999999}",
    "digits": 10**5_000,
    "not a number": float("nan"),
    "infinity": float("inf"),
    "half a character": "\ud800",
    "a terminal's commands": "a\x00\n\x1b]0;b\x07\r\x85\u2028",
    "many": list(range(2_000)),
    "keys of other types": {1: 2, None: 3, (1,): 4},
    "a template": "{{ ''.__class__.__mro__ }}",
    "a path": "../../../../etc/passwd",
}


def paths(cls: Any) -> Iterator[tuple[str, ...]]:
    """Yield the path of each option of a class, groups included."""
    hints = typing.get_type_hints(cls)
    for spec in dataclasses.fields(cls):
        yield (spec.name,)
        if dataclasses.is_dataclass(hints[spec.name]):
            for path in paths(hints[spec.name]):
                yield spec.name, *path


def options(source: str) -> list[tuple[str, ...]]:
    shared = list(paths(_Declaration)) if source == "mongodb" else []
    return [*shared, *(("source", *path) for path in paths(source_plugin(source).options))]


def declared(source: str, path: tuple[str, ...], value: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": "shop",
        "source": {"type": source, **SOURCES[source]},
        "lake": {"catalog": "lake", "namespace": "shop"},
    }
    inner = found
    for name in path[:-1]:
        inner = inner.setdefault(name, {})
    inner[path[-1]] = value
    return found


@pytest.mark.parametrize("source", SOURCES)
def test_every_option_is_refused_or_read_whatever_its_value(source: str) -> None:
    Connector.from_dict(declared(source, ("name",), "shop"))
    assert len(options(source)) > 5
    for path in options(source):
        with bounded(seconds=2, mebibytes=64):
            for name, value in HOSTILE.items():
                try:
                    connector = Connector.from_dict(declared(source, path, value))
                    connector.to_dict()
                except ConfigurationError as error:
                    assert len(str(error)) < 5_000, (path, name)
                except Exception as error:
                    raise AssertionError(f"{path}: {name}") from error


def test_every_source_is_tried() -> None:
    assert set(SOURCES) == set(source_names())


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "a: &a [x,x,x,x,x,x,x,x,x]\n"
            + "".join(
                f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n"
                for a, b in zip("abcdefgh", "bcdefghi", strict=True)
            ),
            id="aliases of aliases",
        ),
        pytest.param("a: &a [*a]", id="a list in itself"),
        pytest.param("[" * 20_000, id="nested lists"),
        pytest.param("{a: " * 5_000, id="nested mappings"),
        pytest.param("a: " + "9" * 6_000, id="digits"),
        pytest.param("a: 2001-99-99", id="no date"),
        pytest.param("? [a]\n: b", id="a list as key"),
        pytest.param("!!python/object/apply:os.system ['id']", id="a call"),
        pytest.param("a: !!binary x", id="no base64"),
        pytest.param("a: \x00", id="a control character"),
        pytest.param(
            "a0: &a0 {b: c}\n"
            + "".join(f"a{n + 1}: &a{n + 1} {{<<: [{','.join([f'*a{n}'] * 10)}]}}\n" for n in range(12)),
            id="merge keys of merge keys",
        ),
        pytest.param(
            f"a: &a {{{','.join(f'b{n}: c' for n in range(2_000))}}}\nd: {{<<: [{'*a,' * 2_000}]}}",
            id="a long mapping merged many times",
        ),
        pytest.param("a: &a {<<: *a}", id="a mapping merged with itself"),
        pytest.param(
            "a: &a {b: c}\nd: {e: &e {<<: ["
            + ",".join(["*a"] * 30_000)
            + "]}}\nf: {<<: ["
            + ",".join(["*e"] * 30_000)
            + "]}",
            id="merged before it is read",
        ),
    ],
)
def test_a_file_is_read_within_bounds(text: str, tmp_path: Path) -> None:
    file = tmp_path / "connector.yaml"
    file.write_text(text)
    with (
        bounded(seconds=2, mebibytes=64),
        pytest.raises(ConfigurationError, match=r"connector\.yaml (is|has)"),
    ):
        read_yaml(file)
