"""``airflow cdc check``, ``lag`` and ``offsets`` against real databases and a real lake."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ROOT, Airflow, Outcome

pytestmark = [pytest.mark.e2e, pytest.mark.integration]

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def cdc(airflow: Airflow) -> Run:
    """Run ``airflow cdc ...`` for one of the example connectors."""

    def run(*arguments: str, connector: str = "shop_mongodb") -> subprocess.CompletedProcess[str]:
        declared = str(airflow.dags / f"{connector}.yaml")
        return airflow.command("cdc", *arguments, "--connector", declared)

    return run


def said(done: subprocess.CompletedProcess[str]) -> Any:
    """Return the JSON of the last line; fail the test, with what was said, if there is none."""
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
def test_an_offset_is_kept_forgotten_and_put_back(synced: Outcome, cdc: Run, tmp_path: Path) -> None:
    kept = tmp_path / "offset.json"
    exported = cdc("offsets", "export", "--file", str(kept))
    assert exported.returncode == 0, exported.stderr[-3000:]
    forgotten = said(cdc("offsets", "reset"))
    assert forgotten is None or "stream" not in forgotten
    put_back = said(cdc("offsets", "import", "--file", str(kept)))
    assert put_back == json.loads(kept.read_text())
    assert said(cdc("lag"))["seconds"] == 0, "no change waits"
    refused = cdc("offsets", "set", "--offset", '{"stream": {"v": 99}}')
    assert refused.returncode == 1
    assert "expected" in refused.stderr.splitlines()[-1]
    assert said(cdc("offsets", "show")) == put_back


def test_check_names_what_capture_needs_of_each_source(
    store: Any, shop: Any, cdc: Run, landed: Callable[[], None]
) -> None:
    landed()
    for connector, *options in (["shop_mongodb", "--lake"], ["shop_cassandra"]):
        found = cdc("check", *options, connector=connector)
        assert found.returncode == 0, found.stdout + found.stderr[-3000:]
        levels = {line.split(":")[0] for line in found.stdout.splitlines() if ": " in line}
        assert "ok" in levels
        assert "error" not in levels
        assert ("can be written and read" in found.stdout) == bool(options)


def test_a_connection_of_airflows_database_is_found(airflow: Airflow, tmp_path: Path) -> None:
    name = "cdc_cli_kept_in_the_database"
    where = ("--conn-type", "cdc_mongodb", "--conn-host", "127.0.0.1", "--conn-port", "9")
    added = airflow.command("connections", "add", name, *where)
    assert added.returncode == 0, added.stderr[-3000:]
    declared = tmp_path / "kept.yaml"
    declared.write_text(f"name: kept\nsource: {{type: mongodb, conn_id: {name}}}\n")
    # A process of its own, as a user starts it: the other tests' commands are forks of one.
    done = subprocess.run(
        [sys.executable, "-m", "airflow", "cdc", "check", "--connector", str(declared)],
        env=airflow.environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 1
    assert "the server doesn't respond" in done.stdout, done.stdout + done.stderr[-3000:]
