"""Each way from a node to the landing area, as users take it: the operator, and the shipper before it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.operators.transfer import CommitLogTransferOperator
from tests.conftest import ROOT
from tests.integration.transfer.conftest import WriteConfig, aws_environment
from tests.unit.airflow_context import TaskContext
from tests.unit.transfer.nodes import HOST, Node, assert_equal_files, files, noise

if TYPE_CHECKING:
    from server_kit import S3Server, SshServer

pytestmark = pytest.mark.integration


@pytest.fixture(scope="session")
def shipper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipper, built as ``make shipper`` does."""
    target = tmp_path_factory.mktemp("dist") / "cdc-shipper.pyz"
    subprocess.run([sys.executable, str(ROOT / "tools" / "build_shipper.py"), str(target)], check=True)
    return target


def ship(shipper: Path, config: Path, *, alone: bool = True) -> str:
    """Run the shipper once. Alone it sees Python's standard library only, as on a node."""
    command = [sys.executable, *(["-I", "-S"] if alone else []), str(shipper)]
    done = subprocess.run(
        [*command, "--config", str(config), "--once"],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env=aws_environment(),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test-secret" not in done.stdout + done.stderr
    return done.stdout


def fetch(tmp_path: Path, **arguments: Any) -> dict[str, int]:
    operator = CommitLogTransferOperator(
        task_id="transfer",
        connector={"name": "shop", "source": {"type": "cassandra"}},
        host_id=HOST,
        landing=str(tmp_path / "landing"),
        **arguments,
    )
    return operator.execute(TaskContext())


def write(node: Node) -> None:
    for number in (1, 2, 3):
        node.finishes(number, noise(300_000, number))
    node.grows(4, noise(50_000), ahead=noise(1000))
    node.begins(5)


@pytest.mark.covers("CAS-LIFE-01")
def test_the_operator_brings_segments_from_a_node_behind_ssh(
    tmp_path: Path, ssh_server: SshServer, ssh_folder: Path, ssh_conn_id: str
) -> None:
    node = Node(ssh_folder)
    write(node)
    ssh_server.give(ssh_folder)
    counts = fetch(tmp_path, cdc_raw=str(ssh_folder), ssh_conn_id=ssh_conn_id)
    assert (counts["copied"], counts["deleted"]) == (4, 3)
    assert_equal_files(tmp_path / "landing" / HOST, node.wrote)
    assert sorted(files(ssh_folder)) == [
        "CommitLog-7-4.log",
        "CommitLog-7-4_cdc.idx",
        "CommitLog-7-5.log",
    ]
    node.grows(4, noise(70_000, 1))
    counts = fetch(tmp_path, cdc_raw=str(ssh_folder), ssh_conn_id=ssh_conn_id)
    assert (counts["copied"], counts["copied_bytes"]) == (1, 70_008), "what stands here doesn't travel again"
    assert_equal_files(tmp_path / "landing" / HOST, node.wrote)


def test_the_shipper_puts_segments_into_a_folder(
    tmp_path: Path, shipper: Path, write_config: WriteConfig
) -> None:
    node = Node(tmp_path / "cdc_raw")
    write(node)
    config = write_config(target=tmp_path / "landing")
    assert "copied=4" in ship(shipper, config)
    assert "copied=0" in ship(shipper, config)
    assert_equal_files(tmp_path / "landing" / HOST, node.wrote)
    assert sorted(file.name for file in (tmp_path / "cdc_raw").glob("*.log")) == [
        "CommitLog-7-4.log",
        "CommitLog-7-5.log",
    ]


def test_the_shipper_puts_segments_into_a_landing_area_behind_ssh(
    tmp_path: Path, shipper: Path, write_config: WriteConfig, ssh_server: SshServer, ssh_folder: Path
) -> None:
    node = Node(tmp_path / "cdc_raw")
    write(node)
    target = f"sftp://{ssh_server.user}@{ssh_server.host}:{ssh_server.port}{ssh_folder}"
    config = write_config(target=target, ssh=" ".join(ssh_server.client_options))
    ship(shipper, config)
    assert_equal_files(ssh_folder / HOST, node.wrote)
    assert sorted(file.name for file in (tmp_path / "cdc_raw").glob("*.log")) == [
        "CommitLog-7-4.log",
        "CommitLog-7-5.log",
    ]


def test_the_shipper_puts_chunks_behind_ssh_and_the_operator_fetches_them(
    tmp_path: Path,
    shipper: Path,
    write_config: WriteConfig,
    ssh_server: SshServer,
    ssh_folder: Path,
    ssh_conn_id: str,
) -> None:
    node = Node(tmp_path / "cdc_raw")
    write(node)
    target = f"sftp://{ssh_server.user}@{ssh_server.host}:{ssh_server.port}{ssh_folder}"
    ssh = " ".join(ssh_server.client_options)
    ship(shipper, write_config(target=target, ssh=ssh, layout="chunks", chunk_bytes=100_000))
    counts = fetch(tmp_path, cdc_raw=str(ssh_folder), ssh_conn_id=ssh_conn_id, layout="chunks")
    assert (counts["copied"], counts["deleted"]) == (4, 3)
    assert_equal_files(tmp_path / "landing" / HOST, node.wrote)
    assert {name.split(".")[0] for name in files(ssh_folder / HOST)} == {"CommitLog-7-4"}


@pytest.mark.parametrize("compressed", [False, True])
def test_the_shipper_puts_chunks_into_a_bucket_and_the_operator_fetches_them(
    tmp_path: Path,
    shipper: Path,
    write_config: WriteConfig,
    s3_server: S3Server,
    s3_url: str,
    aws_conn_id: str,
    compressed: bool,
) -> None:
    node = Node(tmp_path / "cdc_raw", compressed=compressed)
    write(node)
    config = write_config(
        target=s3_url, s3={"endpoint_url": s3_server.endpoint, "region": "eu-central-1"}, chunk_bytes=100_000
    )
    ship(shipper, config, alone=False)
    assert [path.name for path in sorted((tmp_path / "cdc_raw").glob("*.log"))] == [
        "CommitLog-7-4.log",
        "CommitLog-7-5.log",
    ]
    counts = fetch(tmp_path, cdc_raw=s3_url, aws_conn_id=aws_conn_id)
    assert (counts["copied"], counts["deleted"]) == (4, 3)
    assert_equal_files(tmp_path / "landing" / HOST, node.wrote)

    node.grows(4, noise(40_000, 1))
    node.finishes(4, noise(20_000, 2))
    ship(shipper, config, alone=False)
    counts = fetch(tmp_path, cdc_raw=s3_url, aws_conn_id=aws_conn_id)
    assert (counts["copied"], counts["deleted"]) == (1, 1)
    assert_equal_files(tmp_path / "landing" / HOST, node.wrote)
    listed = s3_server.client().list_objects_v2(Bucket="landing", Prefix=s3_url.rpartition("/")[2])
    assert listed["KeyCount"] == 0, "what landed leaves the bucket"
