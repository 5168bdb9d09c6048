"""The demo distinguishes a wrong mirror from a right one."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.spec import JobResult, TableResult
from demo import __main__ as demo
from demo import ui
from demo.layout import Layout
from demo.private_airflow import connectors
from demo.servers import clear
from server_kit.equality import Comparison, compare_cassandra


class Columns:
    """A stand-in for a driver session on one table with one key column."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows
        self.cluster = self
        self.metadata = self
        self.keyspaces = {"k": self}
        self.tables = {"t": self}
        self.primary_key = [self]
        self.name = "id"
        self.columns = {"id": self, "a": self}
        self.cql_type = "text"

    def refresh_keyspace_metadata(self, keyspace: str) -> None:
        """Know it already."""

    def refresh_table_metadata(self, keyspace: str, table: str) -> None:
        """Know it already."""

    def execute(self, statement: str, timeout: float) -> list[Any]:
        """Answer ``SELECT *``."""
        assert statement == "SELECT * FROM k.t"
        return self.rows


class Row(dict[str, Any]):
    """A driver's row."""

    def _asdict(self) -> dict[str, Any]:
        return self


SOURCE: Any = Columns([Row(id=1, a="x"), Row(id=2, a=None)])


def test_equal_mirror_has_no_differences() -> None:
    found = compare_cassandra(SOURCE, "k.t", [{"id": 2, "a": None}, {"id": 1, "a": "x"}])
    assert (found.source_rows, found.mirror_rows, list(found.differences)) == (2, 2, [])


@pytest.mark.parametrize(
    ("mirror", "word"),
    [
        ([{"id": 1, "a": "x"}], "missing in the mirror"),
        ([{"id": 1, "a": "x"}, {"id": 2, "a": None}, {"id": 3, "a": None}], "only in the mirror"),
        ([{"id": 1, "a": "x"}, {"id": 2, "a": ""}], "a is None, in the mirror ''"),
        ([{"id": 1, "a": "x"}, {"id": 2, "a": None}, {"id": 2, "a": None}], "1 rows twice"),
    ],
)
def test_each_kind_of_difference_is_reported(mirror: list[dict[str, Any]], word: str) -> None:
    (text,) = compare_cassandra(SOURCE, "k.t", mirror).differences
    assert word in text


@pytest.mark.parametrize(("differences", "code"), [([], 0), (["k.t [1]: missing in the mirror"], 1)])
def test_exit_code_is_1_on_any_difference(
    differences: list[str],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    comparison = Comparison("shop.t", 1, 1, differences)
    results = {"shop": [JobResult(ok=True, tables=[TableResult("shop.t", changes=3)], lag_seconds=0.5)]}
    monkeypatch.setattr(demo, "_run", lambda *_: ([comparison], results))
    monkeypatch.setattr("sys.argv", ["demo"])
    monkeypatch.setenv("CDC_DEMO", str(tmp_path / "demo"))

    assert demo.main() == code

    printed = capsys.readouterr().out
    assert ("DIFFERENT k.t [1]" in printed) == bool(differences)
    assert ("make ui" in printed) == (not differences)


def test_connectors_are_valid(tmp_path: Path) -> None:
    for name, declared in connectors(Layout(tmp_path), tmp_path, "host").items():
        assert Connector.from_dict(declared).name == name


def test_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="holds what no demo made"):
        clear(Layout(tmp_path))
    assert (tmp_path / "thesis.txt").exists()


def test_earlier_demo_is_removed_unless_it_runs(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        (folder / "ports.json").write_text(json.dumps({"mongodb": listener.getsockname()[1]}))
        with pytest.raises(ConfigurationError, match="still runs"):
            clear(Layout(folder))
    clear(Layout(folder))
    assert not folder.exists()


def test_the_web_pages_say_that_the_demo_runs_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "airflow").mkdir()
    monkeypatch.setenv("CDC_DEMO", str(tmp_path))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        (tmp_path / "ports.json").write_text(json.dumps({"mongodb": listener.getsockname()[1]}))
        assert ui.main() == 1
    assert "still runs" in capsys.readouterr().err
