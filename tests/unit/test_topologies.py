"""Each way to place agents that ``docs/topologies.md`` shows, carried out on two nodes as it stands there."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag

from airflow_cdc_provider.connector import load_connector
from airflow_cdc_provider.events.encoder import text_of
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.operators.transfer import CommitLogTransferOperator
from airflow_cdc_provider.sources.recordings import Recording
from airflow_cdc_provider.transfer.shipper import Settings, Shipper
from tests.conftest import ROOT
from tests.recorded_lines import event_lines
from tests.unit.airflow_context import TaskContext

NODES = ("2e9143c7-14f1-4bcd-9c32-3bc85029f3b8", "7d0c5f1a-6d64-4a3e-9f0e-0b6a1c52d9aa")
RECORDING = ROOT / "tests" / "fixtures" / "cassandra" / "debezium-A"
PAGE = (ROOT / "docs" / "topologies.md").read_text()


def snippets(title: str, language: str) -> list[str]:
    """Return the page's blocks of one language below a title."""
    _, _, rest = PAGE.partition(f"\n## {title}\n")
    part, _, _ = rest.partition("\n## ")
    return re.findall(rf"^```{language}\n(.*?)^```", part, re.M | re.S)


class Cluster:
    """Two nodes that logged the same writes, and a landing area declared as the page does.

    Args:
        folder: For all of it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.landing = folder / "landing" / "shop"
        self.landing.mkdir(parents=True)
        for host_id in NODES:
            self.cdc_raw(host_id).mkdir(parents=True)
            for file in (RECORDING / "cdc_raw").iterdir():
                data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
                (self.cdc_raw(host_id) / file.name.removesuffix(".gz")).write_bytes(data)
        (declared,) = snippets("Common set-up", "yaml")
        self.declaration = folder / "shop.yaml"
        self.declaration.write_text(self.here(declared))

    def cdc_raw(self, host_id: str) -> Path:
        """Return the folder that is ``/var/lib/cassandra/cdc_raw`` on a node."""
        return self.folder / host_id / "cdc_raw"

    def here(self, text: str, host_id: str = "") -> str:
        """Put this machine's folders in the place of those that a snippet names."""
        places = {
            "/landing/shop": self.landing,
            "/opt/cdc/shop.yaml": self.declaration,
            "/var/lib/cassandra/cdc_raw": self.cdc_raw(host_id),
        }
        for shown, place in places.items():
            text = text.replace(shown, str(place))
        return text

    def transfers(self, title: str, on: str = "") -> dict[str, CommitLogTransferOperator]:
        """Build the DAGs of a part of the page, and return their transfers by node.

        Args:
            title: Of the part.
            on: The node whose folders the worker sees.
        """
        found: dict[str, CommitLogTransferOperator] = {}
        for text in snippets(title, "python"):
            # A name for each node: Python takes a file of the same size and second for what it compiled.
            file = self.folder / f"dag_{on or 'all'}.py"
            file.write_text(self.here(text, on))
            bag = DagBag(file)
            assert not bag.import_errors
            transfers = [
                t for dag in bag.dags.values() for t in dag.tasks if isinstance(t, CommitLogTransferOperator)
            ]
            assert len(transfers) == len(NODES)
            found |= {task.host_id: task for task in transfers}
        assert set(found) == set(NODES)
        return found

    def events(self) -> list[dict[str, Any]]:
        """Return the events of what lies in the landing area."""
        recording = Recording(self.landing, str(RECORDING / "schema.cql"), 1_800_000_000_000_000_000)
        connector = replace(load_connector(self.declaration), tables=(".*",))
        lines = event_lines(connector, recording, SkippedRecords(strict=True))
        return [json.loads(line) for chunk in lines for line in text_of(chunk).splitlines()]

    def is_free(self, host_id: str) -> bool:
        """Return whether a node's cdc_raw has space again."""
        return not any(self.cdc_raw(host_id).iterdir())


def all_captured() -> dict[str, Any]:
    """Return the offset after everything that the nodes logged."""
    (number,) = {int(file.name.split("-")[2].split("_")[0]) for file in RECORDING.glob("cdc_raw/*_cdc.idx")}
    return {host_id: {"v": 1, "floor": number} for host_id in NODES}


def by_workers(cluster: Cluster) -> None:
    for host_id in NODES:
        task = cluster.transfers("A worker on each node", on=host_id)[host_id]
        assert task.queue == f"cassandra-{host_id[:8]}", "a worker of this node takes it"
        task.execute(TaskContext())
        assert cluster.is_free(host_id)


def by_mount(cluster: Cluster) -> None:
    for host_id in NODES:
        mounted = cluster.cdc_raw(host_id).rename(cluster.landing / host_id)
        cluster.cdc_raw(host_id).symlink_to(mounted)  # a mount is a folder at both places


def by_sidecars(cluster: Cluster) -> None:
    (text,) = snippets("A sidecar on each node", "ini")
    for host_id in NODES:
        file = cluster.folder / f"{host_id}.ini"
        file.write_text(cluster.here(text, host_id).replace(f"host_id = {NODES[0]}", f"host_id = {host_id}"))
        Shipper(Settings.read(file)).ship()
        assert cluster.is_free(host_id)


@pytest.mark.recorded
@pytest.mark.covers("CAS-DEPLOY-01")
@pytest.mark.parametrize("bring", [by_workers, by_mount, by_sidecars], ids=lambda way: way.__name__)
def test_each_topology_brings_all_nodes_segments_and_each_event_names_its_node(
    tmp_path: Path, bring: Callable[[Cluster], None]
) -> None:
    cluster = Cluster(tmp_path)
    bring(cluster)

    events = cluster.events()

    nodes = Counter(json.loads(dict(event["headers"])["cdc.node"]) for event in events)
    assert set(nodes) == set(NODES)
    assert nodes[NODES[0]] == nodes[NODES[1]] > 30, "each logged the same"

    # What was captured is cleared away by the task that the page shows for it.
    for host_id, task in cluster.transfers("A shared mount").items():
        assert task.cdc_raw is None
        task.offset = all_captured()
        task.execute(TaskContext())
        assert not any((cluster.landing / host_id).glob("CommitLog-*"))
        assert cluster.is_free(host_id)


def test_the_other_ways_are_one_transfer_per_node_too(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    fetching = cluster.transfers("A sidecar on each node")
    assert {task.cdc_raw for task in fetching.values()} == {"s3://segments/shop"}
    by_ssh = cluster.transfers("Collected by SSH", on=NODES[0])
    assert len({task.ssh_conn_id for task in by_ssh.values()}) == len(NODES)
