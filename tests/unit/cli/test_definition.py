"""The command group inside a real ``airflow``."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import bson
import pytest

from airflow_cdc_provider.cli.definition import get_cdc_cli_commands

ROOT = Path(__file__).parents[3]


def airflow(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "airflow", "cdc", *arguments],
        env={**os.environ, "AIRFLOW_HOME": str(home), "PYTHONPATH": str(ROOT)},
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )


def commands(group: Any, path: str = "") -> dict[str, Any]:
    found = {}
    for one in group:
        name = f"{path} {one.name}".strip()
        found.update(commands(one.subcommands, name) if hasattr(one, "subcommands") else {name: one})
    return found


def documented() -> list[list[str]]:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    lines = [line for page in pages for line in page.read_text().replace("\\\n", "").splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("airflow cdc ")]


@pytest.mark.parametrize("words", documented(), ids=" ".join)
def test_commands_in_the_docs_are_complete_and_known(words: list[str]) -> None:
    found = commands(get_cdc_cli_commands())
    name = next(name for n in (4, 3) if (name := " ".join(words[1:n])) in found)
    known = {flag: argument for argument in found[name].args for flag in argument.flags}
    given = {word for word in words if word.startswith("--")}
    required = {flag for flag, argument in known.items() if argument.kwargs.get("required")}
    assert required <= given <= set(known)


def test_every_command_leads_to_a_function() -> None:
    found = commands(get_cdc_cli_commands())
    assert list(found) == [
        "cdc events",
        "cdc rows",
        "cdc migrate plan",
        "cdc check",
        "cdc schema",
        "cdc create-topics",
        "cdc lag",
        "cdc status",
        "cdc signal",
        "cdc metrics",
        "cdc offsets show",
        "cdc offsets set",
        "cdc offsets reset",
        "cdc offsets remove-origin",
        "cdc offsets adopt",
        "cdc offsets publish-from",
        "cdc offsets export",
        "cdc offsets import",
    ]
    from airflow_cdc_provider.cli import live_commands, migrate, offline_commands

    modules = {"cdc events": offline_commands, "cdc rows": offline_commands, "cdc migrate plan": migrate}
    for name, one in found.items():
        module = modules.get(name, live_commands)
        assert callable(getattr(module, one.func.__name__))


def test_the_definition_is_light() -> None:
    code = (
        "import sys; import airflow.cli.cli_config; before = set(sys.modules);"
        "import airflow_cdc_provider.cli.definition as d; d.get_cdc_cli_commands();"
        "heavy = {'bson', 'numba', 'numpy', 'pyarrow', 'pyspark'};"
        "print(sorted(heavy & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "[]"


def test_airflow_cdc_events_prints_events_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text("name: shop\nsource: {type: mongodb}\n")
    event = {
        "operationType": "insert",
        "clusterTime": bson.Timestamp(1, 1),
        "ns": {"db": "shop", "coll": "c"},
        "documentKey": {"_id": 1},
        "fullDocument": {"_id": 1},
    }
    (tmp_path / "stream.bson").write_bytes(bson.encode(event) + b"\xff")
    done = airflow(tmp_path, "events", "--connector", "shop.yaml", "--input", "stream.bson")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["topic"] == "shop.shop.c"
    assert done.stderr.splitlines()[-1] == "summary: 1 records of the input could not be decoded"


def test_logs_stay_out_of_the_output(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("name: a\nsource: {type: cassandra}\n")
    recording = ROOT / "tests" / "fixtures" / "cassandra" / "debezium-A"
    source = ("--input", str(recording / "cdc_raw"), "--schema", str(recording / "schema.cql"))
    done = airflow(tmp_path, "rows", "--connector", "a.yaml", *source, "--at", "1795247965")
    assert done.returncode == 0, done.stderr
    tables = [json.loads(line)["table"] for line in done.stdout.splitlines()]
    assert set(tables) == {"shop_e.scalars", "shop_e.clustered"}
    assert not done.stdout.startswith("read ")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("events", "--connector", "none.yaml", "--input", "x"), 1, "none.yaml does not exist"),
        (("events", "--connector", "none.yaml"), 2, "either --input PATH or --from-lake is required"),
    ],
)
def test_failures_have_one_message_and_their_exit_code(
    tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = airflow(tmp_path, *arguments)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
