"""Example DAGs can be parsed, and the table of them names each."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import re
from pathlib import Path

from airflow.dag_processing.dagbag import DagBag

EXAMPLES = Path(__file__).resolve().parents[2] / "dags_examples"


def test_every_example_is_parsed_without_a_connection_and_has_tasks() -> None:
    bag = DagBag(str(EXAMPLES), bundle_name="examples")
    assert not bag.import_errors
    files = {Path(dag.fileloc).name for dag in bag.dags.values()}
    assert files == {path.name for path in EXAMPLES.glob("*.py")}
    for dag in bag.dags.values():
        assert dag.tasks, dag.dag_id
        assert "cdc" in dag.tags
        assert dag.doc_md


def test_the_trigger_button_asks_only_for_what_is_needed() -> None:
    """A field of text that is empty keeps Airflow's form from being sent, unless null is allowed."""
    bag = DagBag(str(EXAMPLES), bundle_name="examples")
    fields = [(name, dag.params[name]) for dag in bag.dags.values() for name in dag.params]
    assert {name for name, value in fields if value == ""} == {"host_id"}


def test_the_table_of_examples_names_each_file() -> None:
    text = (EXAMPLES / "README.md").read_text()
    assert set(re.findall(r"\| `(\w+\.py)`", text)) == {path.name for path in EXAMPLES.glob("*.py")}
    assert all(path.name in text for path in EXAMPLES.glob("*.yaml"))
