"""A mirror of a Vitess table whose columns come, go and are renamed, on every lake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_cdc_provider.changes.fence import Fence
from airflow_cdc_provider.lake.merge import MergePlan, merge
from airflow_cdc_provider.lake.mirror import Mirror
from airflow_cdc_provider.lake.table import Lake
from airflow_cdc_provider.sources.vitess.codec import VitessCodec
from airflow_cdc_provider.sources.vitess.schema_history import TableHistory
from tests.unit.sources.vitess.record_builders import TABLE, batch, change, changed, fields, place, ran, seen

pytestmark = [pytest.mark.integration, pytest.mark.each_format]

FIRST = fields({"id": "bigint", "a": "int", "at": "datetime(3)", "d": "date", "u": "bigint unsigned"})
SECOND = fields({"id": "bigint", "b": "int", "at": "datetime(3)", "d": "date", "c": "decimal(5,2)"})
ALTERED = "alter table t rename column a to b, drop u, add c decimal(5,2) default 9.99"


def merged(
    lake: Lake,
    mirror: Mirror,
    codec: VitessCodec,
    changes: Sequence[Mapping[str, Any]],
    through: int,
    fences: Sequence[Fence] = (),
) -> list[dict[str, Any]]:
    """Fit the mirror, merge changes and return its rows by ``id``."""
    mirror.create(codec.mirror_schema())
    state = mirror.reserve(mirror.state(), codec.reserve(codec.memory), clear=False)
    mirror.prepare(codec.mirror_schema(), codec.drift)
    contributions = codec.decode(batch(changes), fences).contributions
    frame = lake.spark.createDataFrame(pa.Table.from_batches([contributions]))
    merge(
        lake.spark,
        mirror,
        codec,
        frame,
        MergePlan(
            base=state,
            through=through,
            fences=fences,
            memory=codec.remember(),
            now_seconds=0,
            pending_rows=contributions.num_rows,
            rows_to_rewrite=codec.rows_to_rewrite,
        ),
    )
    rows = mirror.table.read().drop("_cdc").orderBy("id").collect()
    return [row.asDict() for row in rows]


def test_rows_that_a_mirror_has_follow_their_columns(lake: Lake, namespace: str) -> None:
    mirror = Mirror(lake, f"{namespace}.t")
    records = [seen(FIRST, 1)]
    first = VitessCodec(TABLE, TableHistory.of(TABLE, records))
    rows = [
        changed(
            FIRST,
            change(None, ["1", "5", "2024-02-29 23:59:59.125", "2024-02-29", "18446744073709551615"]),
            2,
        ),
        changed(FIRST, change(None, ["2", None, "0000-00-00 00:00:00.000", "0000-00-00", "0"]), 2, number=1),
    ]
    at = datetime(2024, 2, 29, 23, 59, 59, 125000)
    rest = '{"at": "0000-00-00 00:00:00.000", "d": "0000-00-00"}'
    assert merged(lake, mirror, first, rows, 1) == [
        {"id": 1, "a": 5, "at": at, "d": date(2024, 2, 29), "u": Decimal(2**64 - 1), "_rest": None},
        {"id": 2, "a": None, "at": None, "d": None, "u": Decimal(0), "_rest": rest},
    ]
    assert dict(mirror.table.read().dtypes)["at"] == "timestamp_ntz"
    records += [ran(ALTERED, 3), seen(SECOND, 4)]
    second = VitessCodec(TABLE, TableHistory.of(TABLE, records), memory=mirror.state().memory)
    later = [changed(SECOND, change(None, ["3", "7", None, None, "1.5"]), 5)]
    assert merged(lake, mirror, second, later, 2) == [
        {"id": 1, "b": 5, "at": at, "d": date(2024, 2, 29), "c": Decimal("9.99"), "_rest": None},
        {"id": 2, "b": None, "at": None, "d": None, "c": Decimal("9.99"), "_rest": rest},
        {"id": 3, "b": 7, "at": None, "d": None, "c": Decimal("1.50"), "_rest": None},
    ]
    third = VitessCodec(TABLE, TableHistory.of(TABLE, records), memory=mirror.state().memory)
    assert third.rows_to_rewrite == ""
    deletes = [changed(SECOND, change(["1", "5", None, None, "1.5"], None), 6)]
    assert [row["id"] for row in merged(lake, mirror, third, deletes, 3)] == [2, 3]


def test_a_truncation_removes_the_rows_of_its_shard_up_to_its_position(lake: Lake, namespace: str) -> None:
    mirror = Mirror(lake, f"{namespace}.t")
    event = fields({"id": "bigint"})
    codec = VitessCodec(TABLE, TableHistory.of(TABLE, [seen(event, 1)]))
    before = [
        changed(event, change(None, ["1"]), 90, "-80"),
        changed(event, change(None, ["2"]), 5, "80-"),
        changed(event, change(None, ["3"]), 7, "80-"),
    ]
    assert len(merged(lake, mirror, codec, before, 1)) == 3
    fences = (Fence(1, "shop/-80", place(100), 1), Fence(1, "shop/80-", place(6), 1))
    after = [
        changed(event, change(None, ["4"]), 101, "-80"),
        changed(event, change(None, ["5"]), 8, "80-"),
        changed(event, change(None, ["6"]), 95, "-80"),
    ]
    again = VitessCodec(TABLE, codec.history, memory=mirror.state().memory)
    found = merged(lake, mirror, again, after, 2, fences)
    assert [row["id"] for row in found] == [3, 4, 5]
