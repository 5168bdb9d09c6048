from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from airflow_cdc_provider.changes.record import CHANGE, SCHEMA, SNAPSHOT
from airflow_cdc_provider.exceptions import ConfigurationError, PositionLost, TransientError
from airflow_cdc_provider.sources.contract import ReadLimit
from airflow_cdc_provider.sources.vitess.options import VitessAdvanced, VitessOptions
from airflow_cdc_provider.sources.vitess.source import VitessSource
from server_kit import VitessServer
from tests.integration.sources.vitess.vitess_sources import captured, snapshot, source_of
from tests.integration.sources.vitess.workload import applied, create, read, run, selected

pytestmark = pytest.mark.integration


@pytest.mark.covers("VIT-STR-05")
def test_a_capture_starts_at_the_current_position_of_each_shard(vitess_server: VitessServer) -> None:
    create(vitess_server, "begin1")
    with closing(source_of(vitess_server, "begin1")) as source:
        start = source.start()

        assert set(start) == {"shop/-80", "shop/80-"}
        assert all(place["gtid"].startswith("MySQL56/") and place["epoch"] == 1 for place in start.values())


@pytest.mark.covers("VIT-STR-03")
def test_only_changes_committed_after_the_start_are_captured(vitess_server: VitessServer) -> None:
    create(vitess_server, "after1")
    run(vitess_server, "after1", 1, 5)
    with closing(source_of(vitess_server, "after1")) as source:
        start = source.start()
        with vitess_server.connect("shop").cursor() as cursor:
            cursor.execute("insert into after1 (id, name) values (5000, 'new')")

        records, _ = captured(source, start)

    rows = [r for r in records.to_pylist() if r["kind"] == CHANGE]
    assert len(rows) == 1
    assert b"5000new" in rows[0]["payload"]


def test_snapshot_and_stream_give_the_table_while_it_is_written(vitess_server: VitessServer) -> None:
    create(vitess_server, "mix1")
    run(vitess_server, "mix1", 1, 40)
    with closing(source_of(vitess_server, "mix1")) as source:
        offset = source.start()
        source.seek_to(offset)
        writer = threading.Thread(target=run, args=(vitess_server, "mix1", 2, 150))
        writer.start()
        copied = snapshot(source, "mix1")
        records, offset = captured(source, offset, ReadLimit(bytes=2000))
        writer.join()
    tables = [copied, records]
    for seed in (3, 4):
        run(vitess_server, "mix1", seed, 40)
        with closing(source_of(vitess_server, "mix1")) as source:  # as after a kill: only the offset is left
            records, offset = captured(source, offset)
        tables.append(records)

    assert applied(tables, "shop.mix1") == selected(vitess_server, "mix1")
    assert {r["origin"] for r in records.to_pylist()} == {"shop/-80", "shop/80-"}
    kinds = set(copied["kind"].to_pylist())
    assert kinds == {SCHEMA, SNAPSHOT}


def test_a_repeated_batch_gives_the_same_records(vitess_server: VitessServer) -> None:
    create(vitess_server, "same1")
    with closing(source_of(vitess_server, "same1")) as source:
        start = source.start()
        run(vitess_server, "same1", 7, 30)
        first, end = captured(source, start)
        again, end_again = captured(source, start)

    def comparable(records: pa.Table) -> list[Any]:
        rows = [r for r in records.to_pylist() if r["kind"] == CHANGE]
        return sorted((r["origin"], r["position"], r["payload"], r["schema_id"]) for r in rows)

    assert comparable(first) == comparable(again)
    assert comparable(first)
    assert set(end) == set(end_again)


def test_a_table_without_rows_is_copied_too(vitess_server: VitessServer) -> None:
    create(vitess_server, "empty1")
    with closing(source_of(vitess_server, "empty1")) as source:
        source.seek_to(source.start())

        records = snapshot(source, "empty1")

    assert set(records["kind"].to_pylist()) == {SCHEMA}


def test_a_filter_copies_the_matching_rows(vitess_server: VitessServer) -> None:
    create(vitess_server, "some1")
    with vitess_server.connect("shop").cursor() as cursor:
        cursor.execute("insert into some1 (id, name) values (1, 'a'), (2, 'b'), (3, 'b')")
    with closing(source_of(vitess_server, "some1")) as source:
        source.seek_to(source.start())
        plan = source.plan_snapshot("shop.some1", "name = 'b'")

        records = read(source.snapshot_reader(), plan.ranges)

    assert set(applied([records], "shop.some1")) == {"2", "3"}
    assert plan.origin == "shop/-80"
    assert set(plan.other_positions) == {"shop/80-"}


def test_an_offset_with_transactions_of_another_server_is_refused(vitess_server: VitessServer) -> None:
    create(vitess_server, "foreign1")
    with closing(source_of(vitess_server, "foreign1")) as source:
        start = source.start()
        for foreign in ("MySQL56/aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa:1-5", _further(start)):
            wrong = {**start, "shop/-80": {**start["shop/-80"], "gtid": foreign}}

            with pytest.raises(PositionLost, match="shop/-80"):
                source.plan(wrong, source.head(), ReadLimit())


def _further(offset: Any) -> str:
    text = str(offset["shop/-80"]["gtid"])
    before, _, last = text.rpartition("-")
    return f"{before}-{int(last) + 1_000_000}"


def test_an_unknown_keyspace_and_unknown_shards_are_reported(vitess_server: VitessServer) -> None:
    options = VitessOptions(keyspace="nosuch")
    with closing(VitessSource(options, vitess_server.connection, lambda _: True)) as source:
        with pytest.raises(ConfigurationError, match="no keyspace nosuch"):
            source.head()
        assert any(finding.level == "error" for finding in source.check())
    with (
        closing(source_of(vitess_server, "x", shards=("-40",))) as source,
        pytest.raises(ConfigurationError, match=r"source\.shards"),
    ):
        source.head()


@pytest.mark.covers("VIT-SCO-03")
def test_one_shard_alone_is_read(vitess_server: VitessServer) -> None:
    create(vitess_server, "shard1")
    with closing(source_of(vitess_server, "shard1", shards=("80-",))) as source:
        start = source.start()
        run(vitess_server, "shard1", 1, 20)
        records, offset = captured(source, start)

    assert set(offset) == {"shop/80-"}
    assert {r["origin"] for r in records.to_pylist()} == {"shop/80-"}


@pytest.mark.covers("VIT-SCO-07", "VIT-SCO-08")
@pytest.mark.parametrize("tablet_type", ["PRIMARY", "REPLICA", "RDONLY"])
def test_tablets_of_each_type_are_read(vitess_server: VitessServer, tablet_type: Any) -> None:
    name = f"tablet_{tablet_type.lower()}"
    create(vitess_server, name)
    with closing(source_of(vitess_server, name, tablet_type=tablet_type)) as source:
        start = source.start()
        run(vitess_server, name, 1, 10)
        records, _ = captured(source, start)

    assert applied([records], f"shop.{name}") == selected(vitess_server, name)


def test_ddl_between_rows_changes_their_fields(vitess_server: VitessServer) -> None:
    create(vitess_server, "ddl1")
    with closing(source_of(vitess_server, "ddl1")) as source:
        start = source.start()
        with vitess_server.connect("shop").cursor() as cursor:
            cursor.execute("insert into ddl1 (id, name) values (1, 'a'), (2, 'b'), (3, 'c')")
        vitess_server.define("shop", "alter table ddl1 add more int")
        vitess_server.wait_for_versions("shop", "ddl1", 2)
        with vitess_server.connect("shop").cursor() as cursor:
            cursor.execute("insert into ddl1 (id, name, more) values (11, 'a', 1), (12, 'b', 2)")
        head = source.head()
        plan = source.plan(start, head, ReadLimit())
        records = read(source.reader(), plan.partitions)

    ids = [r["schema_id"] for r in records.to_pylist() if r["kind"] == CHANGE]
    reported = [r["schema_id"] for r in plan.records]
    assert len(set(ids)) == 2
    assert set(ids) <= set(reported)
    assert "ddl" in reported


def test_no_server_is_a_passing_fault() -> None:
    source = VitessSource(
        VitessOptions(keyspace="shop", advanced=VitessAdvanced(call_timeout_seconds=1.0)),
        {"host": "127.0.0.1", "port": 1},
        lambda _: True,
    )
    with closing(source), pytest.raises(TransientError):
        source.head()


@pytest.fixture(scope="module", autouse=True)
def _tables(vitess_server: VitessServer) -> Iterator[None]:
    yield
    with vitess_server.connect("shop").cursor() as cursor:
        cursor.execute("show tables")
        for (name,) in cursor.fetchall():
            cursor.execute(f"drop table {name}")


def test_a_shard_that_the_offset_lacks_is_refused(vitess_server: VitessServer) -> None:
    create(vitess_server, "lacks1")
    with closing(source_of(vitess_server, "lacks1")) as source:
        start = {"shop/-80": source.start()["shop/-80"]}

        with pytest.raises(ConfigurationError, match="no position of shop/80-"):
            source.plan(start, source.head(), ReadLimit())
