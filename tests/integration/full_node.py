"""A real node with a small cdc_raw, and a landing area: for tests of a full cdc_raw."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.feeds.cassandra_offset import is_captured
from airflow_cdc_provider.transfer.space import Space, measure
from airflow_cdc_provider.transfer.stores import FolderStore
from airflow_cdc_provider.transfer.transfer import Transfer, TransferCounts
from airflow_cdc_provider.transfer.whole import WholeSegments

if TYPE_CHECKING:
    from server_kit import CassandraServer

CAP_MIB = 5
SEGMENT_MIB = 1


class FullNode:
    """A node with a small cdc_raw, and a landing area.

    Args:
        server: The node.
        landing: The landing area.
    """

    def __init__(self, server: CassandraServer, landing: Path) -> None:
        self.server = server
        self.landing = landing
        self.session = server.connect()
        self.written = 0

    @property
    def space(self) -> Space:
        return measure(self.server.cdc_raw, CAP_MIB << 20, self.server.host_id)

    def write(self, rows: int) -> None:
        for _ in range(rows):
            self.session.execute(
                "INSERT INTO quota.orders (id, data) VALUES (%s, %s)", (self.written, os.urandom(40_000))
            )
            self.written += 1

    def write_until_refused(self) -> None:
        """Write until the node says no."""
        from cassandra import WriteFailure

        with pytest.raises(WriteFailure):
            self.write(2 * (CAP_MIB << 20) // 40_000)

    def write_again(self, rows: int, timeout_seconds: float = 20) -> None:
        """Write once the node has measured the free space again."""
        from cassandra import WriteFailure

        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                return self.write(rows)
            except WriteFailure:
                assert time.monotonic() < deadline, "the node still refuses writes"
                time.sleep(0.05)

    def transfer(self, folder: Path, offset: Mapping[str, Any] | None = None) -> TransferCounts:
        host = self.server.host_id
        landing, errors = folder / host, folder / "errors" / host
        return Transfer(
            WholeSegments(FolderStore(self.server.cdc_raw), host),
            WholeSegments(FolderStore(landing), host),
            after_transfer="delete",
            after_commit="delete",
            is_captured=lambda segment: is_captured(segment, offset),
            errors=WholeSegments(FolderStore(errors), host),
            parallel=2,
        ).run()


@contextmanager
def full_node(landing: Path, *, blocks: bool = True) -> Iterator[FullNode]:
    """Start a node with an empty captured table, quota.orders.

    Args:
        landing: The landing area.
        blocks: Whether writes fail when cdc_raw is full; else the node drops the oldest segments.
    """
    from server_kit import CassandraServer, create_keyspace

    with CassandraServer(
        commitlog_segment_size_mib=SEGMENT_MIB,
        cdc_total_space_mib=CAP_MIB,
        settings={"cdc_block_writes": blocks},
    ) as server:
        node = FullNode(server, landing)
        create_keyspace(node.session, "quota")
        node.session.execute("CREATE TABLE quota.orders (id int PRIMARY KEY, data blob)")
        node.session.execute("ALTER TABLE quota.orders WITH cdc = true")
        yield node
