"""Where each table stands, told without changing anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.jobs.spec import TableStatus
from tests.integration.jobs.conftest import RunStage

if TYPE_CHECKING:
    from server_kit import CassandraServer

pytestmark = pytest.mark.integration


@pytest.mark.covers("CAS-LIFE-04")
def test_a_table_stands_where_its_mirrors_last_commit_has_brought_it(
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
) -> None:
    node = cassandra_server.host_id
    shop = {
        "name": f"status_{keyspace}",
        "source": {"type": "cassandra", "cdc_raw": str(cassandra_server.cdc_raw), "node": node},
        "tables": [rf"{keyspace}\..*"],
        "lake": {"catalog": "lake", "namespace": keyspace},
    }

    def stage(name: str, **options: Any) -> Any:
        return run_stage(name, shop, connection, **options)

    def status() -> dict[str, TableStatus]:
        return {
            one.table.removeprefix(f"{keyspace}."): one for one in stage("offsets", action="status").status
        }

    def write(table: str, key: int) -> None:
        cassandra_session.execute(f"INSERT INTO {keyspace}.{table} (id) VALUES ({key})")

    for table in ("orders", "customers"):
        cassandra_session.execute(f"CREATE TABLE {keyspace}.{table} (id int PRIMARY KEY) WITH cdc = true")
        write(table, 1)
    assert {(one.snapshot, one.offset, one.rows) for one in status().values()} == {("none", None, None)}

    cassandra_server.roll_segment(cassandra_session)
    first = stage("sync")
    assert set(first.offset[node]) >= {"floor", "open"}, "segments and positions, by node"
    for one in status().values():
        assert (one.snapshot, one.offset, one.pending, one.rows) == ("done", first.offset, 0, 1)

    write("orders", 2)
    cassandra_server.roll_segment(cassandra_session)
    captured = stage("capture")
    assert captured.offset != first.offset
    now = status()
    assert now["orders"].offset == first.offset, "what is captured is not in the mirror yet"
    assert (now["orders"].pending, now["orders"].rows) == (1, 1)
    assert now["orders"].pending_seconds > 0
    assert (now["customers"].offset, now["customers"].pending) == (captured.offset, 0)

    stage("merge")
    now = status()
    assert (now["orders"].offset, now["orders"].pending, now["orders"].rows) == (captured.offset, 0, 2)
