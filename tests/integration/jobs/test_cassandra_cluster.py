"""Two Cassandra nodes, each a separate feed: the mirror equals the merge of both."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from server_kit import CassandraServer
from tests.integration.jobs.conftest import RunStage
from tests.integration.jobs.equality import assert_mirror_equals_table
from tests.integration.jobs.workloads import create_cassandra, write_cassandra
from tests.oracles import cassandra_read_path as oracle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

HINTS = {"hints_flush_period": "1s"}
TRUNCATED = ("plain", "wide")


class Pair:
    """Two nodes of one cluster, and a landing area to which the segments of each are brought on request.

    Args:
        folder: The landing area.
    """

    def __init__(self, folder: Path, first: CassandraServer, second: CassandraServer) -> None:
        self.landing = folder
        self.servers = (first, second)
        self.sessions = [server.connect() for server in self.servers]

    @property
    def connection(self) -> dict[str, Any]:
        return {"host": self.servers[0].host, "port": self.servers[0].port}

    def write(self, keyspace: str, seed: int, count: int) -> None:
        """Write through both nodes in turn, at consistency ONE."""
        for turn, session in enumerate(self.sessions):
            write_cassandra(session, keyspace, 2 * seed + turn, count // 2)

    def bring(self, *numbers: int) -> None:
        """Close the segments of some nodes and copy them to the landing area."""
        for number in numbers:
            server = self.servers[number]
            server.roll_segment(self.sessions[number])
            folder = self.landing / server.host_id
            folder.mkdir(parents=True, exist_ok=True)
            for index in server.cdc_raw.glob("*_cdc.idx"):
                text = index.read_text()
                segment = index.name.replace("_cdc.idx", ".log")
                shutil.copy(server.cdc_raw / segment, folder / segment)
                (folder / index.name).write_text(text)

    def restart(self, number: int) -> None:
        """Start a node that was stopped, and wait until the other has handed it its hints."""
        self.servers[number].start()
        self.sessions[number] = self.servers[number].connect()
        hints = self.servers[1 - number].folder / "hints"
        deadline = time.monotonic() + 90
        while any(hints.glob("*.hints")):
            assert time.monotonic() < deadline, "the hints were not handed over"
            time.sleep(0.2)

    @contextmanager
    def at_all(self) -> Iterator[Any]:
        """Open a session that reads from all replicas."""
        from cassandra import ConsistencyLevel
        from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
        from cassandra.policies import WhiteListRoundRobinPolicy

        host = self.servers[0].host
        profile = ExecutionProfile(
            WhiteListRoundRobinPolicy([host]), consistency_level=ConsistencyLevel.ALL, request_timeout=60
        )
        cluster = Cluster(
            [host],
            port=self.servers[0].port,
            protocol_version=5,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        )
        try:
            yield cluster.connect()
        finally:
            cluster.shutdown()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with (
        CassandraServer(settings=HINTS) as first,
        CassandraServer(address="127.0.0.2", seed=first, settings=HINTS) as second,
    ):
        yield Pair(tmp_path_factory.mktemp("landing"), first, second)


@pytest.fixture
def keyspaces(pair: Pair) -> Iterator[tuple[str, str]]:
    """A keyspace whose data are on one node, and one whose data are on both."""
    number = random.randrange(10**9)
    names = f"one{number}", f"two{number}"
    for replicas, name in enumerate(names, start=1):
        create_cassandra(pair.sessions[0], name, replicas)
    time.sleep(0.5)
    yield names
    for name in names:
        pair.sessions[0].execute(f"DROP KEYSPACE {name}")


def captured(keyspaces: tuple[str, str]) -> list[tuple[str, str]]:
    one, two = keyspaces
    return [(one, "plain"), (two, "plain"), (two, "wide"), (two, "bags")]


def declaration(pair: Pair, keyspaces: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {
        "name": f"cluster_{keyspaces[0]}",
        "source": {"type": "cassandra", "cdc_raw": str(pair.landing)},
        "tables": [rf"{keyspace}\.{table}" for keyspace, table in captured(keyspaces)],
        "lake": {"catalog": "lake", "namespace": keyspaces[0]},
        "snapshot": {"mode": "never"},
        **more,
    }


def assert_mirrors_equal(spark: SparkSession, pair: Pair, keyspaces: tuple[str, str]) -> int:
    with pair.at_all() as session:
        return sum(
            assert_mirror_equals_table(
                spark, session, f"{keyspaces[0]}.{keyspace}_{table}", f"{keyspace}.{table}"
            )
            for keyspace, table in captured(keyspaces)
        )


def assert_write_times_equal(spark: SparkSession, pair: Pair, mirror: str, table: str) -> int:
    """Compare the write times in the states of a mirror's rows with those that the cluster has."""
    times = ", ".join(f"WRITETIME({column})" for column in "abcdefg")
    with pair.at_all() as session:
        rows = session.execute(f"SELECT id, {times} FROM {table}")
        expected = {row[0]: sorted(at for at in row[1:] if at is not None) for row in rows}
    now = int(time.time())
    found = {
        row["id"]: sorted(c.time for c in oracle.read(bytes(row["state"])).cells if c.live(now))
        for row in spark.table(f"lake.{mirror}").select("id", "_cdc.state").collect()
    }
    assert found == expected
    return sum(map(len, found.values()))


def _live_through(
    spark: SparkSession,
    run_stage: RunStage,
    pair: Pair,
    keyspaces: tuple[str, str],
    rng: random.Random,
    count: int,
) -> None:
    """Write, truncate, stop a node and start it again, while one node's segments lag behind."""
    shop = declaration(pair, keyspaces)
    _, two = keyspaces

    def sync() -> None:
        assert not any(t.undecodable for t in run_stage("sync", shop, pair.connection).tables)

    for keyspace in keyspaces:
        pair.write(keyspace, rng.randrange(10**6), count)
    early, late = rng.sample((0, 1), 2)
    pair.bring(early)
    sync()
    for keyspace in keyspaces:
        for table in TRUNCATED:
            pair.sessions[0].execute(f"TRUNCATE {keyspace}.{table}")
    for keyspace in keyspaces:
        pair.write(keyspace, rng.randrange(10**6), count // 2)
    pair.servers[1].stop()
    write_cassandra(pair.sessions[0], two, rng.randrange(10**6), count // 2)
    pair.restart(1)
    time.sleep(2.5)  # TTLs run out
    pair.bring(late)
    sync()
    pair.bring(early)
    sync()
    assert assert_mirrors_equal(spark, pair, keyspaces) > 10


@pytest.mark.covers("CAS-LIM-02", "CAS-LIM-03", "CAS-ANL-01", "DSX-CON-02")
def test_mirrors_equal_the_merge_of_two_nodes(
    spark: SparkSession, run_stage: RunStage, pair: Pair, keyspaces: tuple[str, str]
) -> None:
    _live_through(spark, run_stage, pair, keyspaces, random.Random(1), count=120)
    plain = f"{keyspaces[0]}.{keyspaces[1]}_plain"
    assert assert_write_times_equal(spark, pair, plain, f"{keyspaces[1]}.plain") > 0


@pytest.mark.long
@pytest.mark.covers("CAS-LIM-02", "CAS-LIM-03")
def test_mirrors_equal_the_merge_of_two_nodes_with_any_events_in_between(
    spark: SparkSession, run_stage: RunStage, pair: Pair, keyspaces: tuple[str, str]
) -> None:
    for seed in range(100, 106):
        _live_through(spark, run_stage, pair, keyspaces, random.Random(seed), count=400)


def test_snapshot_after_a_truncate_counts_though_no_segment_contains_it(
    spark: SparkSession, run_stage: RunStage, pair: Pair, keyspaces: tuple[str, str]
) -> None:
    table, mirror = f"{keyspaces[0]}.plain", f"{keyspaces[0]}.{keyspaces[0]}_plain"
    shop = {**declaration(pair, keyspaces), "tables": [rf"{keyspaces[0]}\.plain"]}

    def insert(number: int) -> None:
        pair.sessions[0].execute(f"INSERT INTO {table} (id, a) VALUES ({number}, 'x')")

    for number in range(20):
        insert(number)
    pair.bring(0, 1)
    run_stage("sync", shop, pair.connection)
    assert _rows_equal(spark, pair, mirror, table) == 20

    pair.sessions[1].execute(f"TRUNCATE {table}")
    for number in range(15, 25):
        insert(number)
    run_stage("snapshot", shop, pair.connection)
    run_stage("sync", shop, pair.connection)

    assert _rows_equal(spark, pair, mirror, table) == 10
    changes = f"lake.{keyspaces[0]}.{shop['name']}_changes"
    before = spark.table(changes).count()
    quiet = run_stage("sync", shop, pair.connection)
    assert (quiet.changes, [t.rows_written for t in quiet.tables]) == (0, [0])
    assert spark.table(changes).count() == before, "what is known of a TRUNCATE is not written again"


@pytest.mark.covers("DSX-CON-04", "DSX-AGT-05")
def test_duplicates_of_a_second_replica_and_the_segments_of_each_node_are_counted(
    run_stage: RunStage, pair: Pair, keyspaces: tuple[str, str]
) -> None:
    one, two = (f"{keyspace}.plain" for keyspace in keyspaces)
    for table in (one, two):
        for number in range(20):
            pair.sessions[number % 2].execute(f"INSERT INTO {table} (id, a) VALUES ({number}, 'x')")
    pair.bring(0, 1)

    shop = {**declaration(pair, keyspaces), "tables": [one, two]}
    outcome = run_stage("sync", shop, pair.connection)

    found = {table.table: (table.row_changes, table.replica_duplicates) for table in outcome.tables}
    assert found == {one: (20, 0), two: (40, 20)}
    assert sum(node.mutations for node in outcome.origins) == 60
    for node, server in zip(outcome.origins, sorted(pair.servers, key=lambda s: s.host_id), strict=True):
        count = len(list((pair.landing / server.host_id).glob("*_cdc.idx")))
        assert (node.origin, node.segments and node.segments.read) == (server.host_id, count)
        assert node.latency_p99_seconds is not None


def _rows_equal(spark: SparkSession, pair: Pair, mirror: str, table: str) -> int:
    with pair.at_all() as session:
        return assert_mirror_equals_table(spark, session, mirror, table)
