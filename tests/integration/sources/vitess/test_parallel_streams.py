"""Several VStreams of a real VTGate return the same as one, also from offsets of Debezium's tasks."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from airflow_cdc_provider.changes.record import CHANGE, TRANSACTION
from airflow_cdc_provider.migration.offsets.connect import to_rest
from airflow_cdc_provider.migration.offsets.vitess import (
    layout_of,
    position_of,
    read_offsets,
    to_debezium,
)
from airflow_cdc_provider.sources.contract import ReadLimit
from airflow_cdc_provider.sources.vitess.options import VitessOptions, VitessTaskOffsets
from airflow_cdc_provider.sources.vitess.position import Position
from airflow_cdc_provider.sources.vitess.protocol import VGtid
from server_kit import VitessServer
from tests.integration.sources.vitess.vitess_sources import captured, snapshot, source_of
from tests.integration.sources.vitess.workload import applied, create, run, selected

pytestmark = pytest.mark.integration


def comparable(records: pa.Table) -> list[Any]:
    rows = [r for r in records.to_pylist() if r["kind"] == CHANGE]
    return sorted((r["origin"], r["position"], r["payload"], r["schema_id"], r["transaction"]) for r in rows)


def test_two_streams_return_the_same_as_one(vitess_server: VitessServer) -> None:
    create(vitess_server, "two1")
    with closing(source_of(vitess_server, "two1")) as source:
        start = source.start()
    run(vitess_server, "two1", 1, 80)
    found = {}
    for streams in (1, 2):
        with closing(source_of(vitess_server, "two1", streams=streams)) as source:
            found[streams], _ = captured(source, start, ReadLimit(bytes=4000))
            assert source.stream_metrics()["stream"].events > 0

    assert comparable(found[1]) == comparable(found[2])
    assert {row[0] for row in comparable(found[1])} == {"shop/-80", "shop/80-"}
    ends = [r for r in found[2].to_pylist() if r["kind"] == TRANSACTION]
    assert {(r["origin"], *(s.shard for s in VGtid.FromString(r["payload"]).shard_gtids)) for r in ends} == {
        ("shop/-80", "-80"),
        ("shop/80-", "80-"),
    }


def test_the_number_of_streams_may_change_from_run_to_run(vitess_server: VitessServer) -> None:
    create(vitess_server, "two2")
    run(vitess_server, "two2", 1, 30)
    with closing(source_of(vitess_server, "two2")) as source:
        offset = source.start()
        source.seek_to(offset)
        tables = [snapshot(source, "two2")]
    for seed, streams in ((2, 2), (3, 1), (4, 3)):
        run(vitess_server, "two2", seed, 30)
        with closing(source_of(vitess_server, "two2", streams=streams)) as source:
            records, offset = captured(source, offset)
        tables.append(records)

    assert applied(tables, "shop.two2") == selected(vitess_server, "two2")


@pytest.mark.covers("VIT-OFS-02")
def test_a_capture_resumes_from_offsets_of_debeziums_tasks(vitess_server: VitessServer) -> None:
    create(vitess_server, "tasks1")
    tasks = VitessTaskOffsets(per_task=True, generation=1, previous_tasks=1)
    options = VitessOptions(keyspace="shop", streams=2, task_offsets=tasks)
    with closing(source_of(vitess_server, "tasks1", streams=2, task_offsets=tasks)) as source:
        start = source.start()
        stored = to_debezium(Position.from_offset(start), "pre", layout_of(options))
        run(vitess_server, "tasks1", 1, 30)

        content = to_rest(stored).encode()
        position, remarks = position_of(read_offsets(content), "pre", options, lambda: sorted(start))
        records, _ = captured(source, position.to_offset())

    assert [partition.get("task_key") for partition, _ in stored] == [None, "task0_2_1", "task1_2_1"]
    assert [len(json.loads(offset["vgtid"])) for _, offset in stored] == [2, 1, 1]
    assert remarks == ()
    assert applied([records], "shop.tasks1") == selected(vitess_server, "tasks1")
