"""SIGKILL at random moments, again and again, while a node writes: nothing half is seen, nothing is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_cdc_provider.connections.stores import s3_store
from airflow_cdc_provider.transfer.chunks import ChunkedSegments
from airflow_cdc_provider.transfer.transfer import Transfer
from tests.conftest import ROOT
from tests.integration.transfer.conftest import WriteConfig, aws_environment
from tests.unit.transfer.nodes import HOST, Node, assert_equal_files, assert_nothing_half, noise, whole

if TYPE_CHECKING:
    from server_kit import S3Server, SshServer

pytestmark = [pytest.mark.integration, pytest.mark.covers("CAS-FAULT-05")]

SHIPPER = (sys.executable, "-m", "airflow_cdc_provider.transfer.shipper", "--config")
FETCHER = """
import sys
from pathlib import Path
import boto3
from airflow_cdc_provider.transfer.chunks import ChunkedSegments
from airflow_cdc_provider.transfer.s3 import S3Store, split_s3_url
from airflow_cdc_provider.transfer.stores import FolderStore
from airflow_cdc_provider.transfer.transfer import Transfer
from airflow_cdc_provider.transfer.whole import WholeSegments
endpoint, url, landing, host = sys.argv[1:]
client = boto3.client("s3", endpoint_url=endpoint, region_name="eu-central-1")
source = ChunkedSegments(S3Store(client, *split_s3_url(url)), host)
target = WholeSegments(FolderStore(Path(landing)), host)
while True:
    Transfer(source, target, after_transfer="delete", parallel=3).run()
"""


class Kills:
    """A program that is started and killed, while a node writes.

    Args:
        command: The program; it runs until it is killed.
        node: The node.
        begin_seconds: The least time that the program needs to begin its work.
        pause_seconds: How long the node rests between two sections.
    """

    def __init__(
        self, command: Sequence[str], node: Node | None, begin_seconds: float, pause_seconds: float = 0.01
    ) -> None:
        self.command = command
        self.node = node
        self.begin_seconds = begin_seconds
        self.pause_seconds = pause_seconds
        self.rng = random.Random(0)
        self.segment = 1

    def write(self) -> None:
        """Write a section or two; now and then finish the segment."""
        if self.node is None:
            return
        section = noise(self.rng.randrange(1, 40_000), self.rng.randrange(1 << 20))
        if self.rng.random() < 0.3:
            self.node.finishes(self.segment, section)
            self.segment += 1
        else:
            self.node.grows(self.segment, section, ahead=noise(self.rng.randrange(500)))

    def kill(self, times: int, look: Callable[[], None]) -> None:
        """Kill the program so many times, and look after each time and while it runs."""
        for _ in range(times):
            with running(self.command) as process:
                deadline = time.monotonic() + self.begin_seconds + self.rng.uniform(0, 0.4)
                while time.monotonic() < deadline:
                    self.write()
                    look()
                    time.sleep(self.pause_seconds)
                assert process.poll() is None, "it ended before it was killed"
            look()


@contextmanager
def running(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program, and kill it with all that it started."""
    environment = {**aws_environment(), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def finish(node: Node, config: Path) -> None:
    """Let the shipper work in peace for once."""
    done = subprocess.run(
        [*SHIPPER, str(config), "--once"], env=aws_environment(), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert {f"CommitLog-7-{s.id}" for s in node.segments.segments() if s.complete} == set()


def test_a_shipper_that_is_killed_never_shows_half_a_segment(
    tmp_path: Path, write_config: WriteConfig
) -> None:
    node, landing = Node(tmp_path / "cdc_raw"), tmp_path / "landing" / HOST
    config = write_config(target=landing.parent)
    kills = Kills([*SHIPPER, str(config)], node, begin_seconds=0.15)
    kills.kill(20, lambda: assert_nothing_half(landing, node.wrote))
    finish(node, config)
    assert_equal_files(landing, node.wrote)
    assert kills.segment > 5
    assert list(landing.glob(".*.part")) == []


def test_a_shipper_that_is_killed_never_shows_half_a_segment_behind_ssh(
    tmp_path: Path, write_config: WriteConfig, ssh_server: SshServer, ssh_folder: Path
) -> None:
    node, landing = Node(tmp_path / "cdc_raw"), ssh_folder / HOST
    target = f"sftp://{ssh_server.user}@{ssh_server.host}:{ssh_server.port}{ssh_folder}"
    config = write_config(target=target, ssh=" ".join(ssh_server.client_options))
    kills = Kills([*SHIPPER, str(config)], node, begin_seconds=0.6, pause_seconds=0.05)
    kills.kill(8, lambda: assert_nothing_half(landing, node.wrote))
    finish(node, config)
    assert_equal_files(landing, node.wrote)
    assert list(landing.glob(".*.part")) == []


def test_killed_shippers_and_fetchers_lose_nothing_on_the_way_through_a_bucket(
    tmp_path: Path, write_config: WriteConfig, s3_server: S3Server, s3_url: str, aws_conn_id: str
) -> None:
    node, landing = Node(tmp_path / "cdc_raw"), tmp_path / "landing" / HOST
    config = write_config(
        target=s3_url, s3={"endpoint_url": s3_server.endpoint, "region": "eu-central-1"}, chunk_bytes=20_000
    )
    fetcher = [sys.executable, "-c", FETCHER, s3_server.endpoint, f"{s3_url}/{HOST}", str(landing), HOST]

    def look() -> None:
        assert_nothing_half(landing, node.wrote)

    shipping = Kills([*SHIPPER, str(config)], node, begin_seconds=0.6, pause_seconds=0.05)
    fetching = Kills(fetcher, None, begin_seconds=0.6)
    for _ in range(4):
        shipping.kill(2, look)
        fetching.kill(2, look)
    finish(node, config)
    source = ChunkedSegments(s3_store(aws_conn_id, f"{s3_url}/{HOST}"), HOST)
    counts = Transfer(source, whole(landing), after_transfer="delete").run()
    assert counts.errors == 0
    assert_equal_files(landing, node.wrote)
