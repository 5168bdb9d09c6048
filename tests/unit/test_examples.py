"""Example DAGs can be parsed, and the table of them names each."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import re
from pathlib import Path

from airflow.dag_processing.dagbag import DagBag

from airflow_cdc_provider.operators.spark_stage import SparkStageOperator
from airflow_cdc_provider.operators.transfer import CommitLogTransferOperator

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


def test_one_nodes_fault_ends_neither_the_capture_nor_the_clearing_of_all(tmp_path: Path) -> None:
    bag = DagBag(str(EXAMPLES), bundle_name="examples")
    dags = [dag for dag in bag.dags.values() if dag.dag_id == "sync_when_cdc_raw_fills"]
    pages = (EXAMPLES.parent / "docs").glob("*.md")
    snippets = [
        text for page in pages for text in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    ]
    for number, text in enumerate(
        text for text in snippets if "CommitLogTransferOperator(" in text and "DAG(" in text
    ):
        file = tmp_path / f"snippet_{number}.py"
        file.write_text(text.replace("/opt/cdc/shop.yaml", str(EXAMPLES / "shop_cassandra.yaml")))
        found = DagBag(str(file), bundle_name="docs")
        assert not found.import_errors
        dags += found.dags.values()
    after = 0
    for dag in dags:
        for task in dag.tasks:
            if not isinstance(task, (SparkStageOperator, CommitLogTransferOperator)):
                continue
            around = [dag.get_task(before) for before in task.upstream_task_ids]
            if any(isinstance(one, (SparkStageOperator, CommitLogTransferOperator)) for one in around):
                after += 1
                assert task.trigger_rule == "all_done", (dag.dag_id, task.task_id)
            rules = [dag.get_task(later).trigger_rule for later in task.downstream_task_ids]
            assert not rules or isinstance(task, CommitLogTransferOperator) or "all_success" in rules, (
                "nothing follows that fails the DAG's run if this fails"
            )
    assert after >= 6
