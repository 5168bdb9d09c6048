"""Rows that are compared after a reshard: under whichever shard's name they stand."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from airflow_cdc_provider.jobs.comparing.verify import _Compare, _WithFamilies
from airflow_cdc_provider.lake.mirror import row_ids
from airflow_cdc_provider.sources.vitess.codec import VitessCodec
from airflow_cdc_provider.sources.vitess.schema_history import TableHistory, families_of
from airflow_cdc_provider.sources.vitess.states import key_prefix

LINEAGE = {"shop/-40": ["shop/-80"], "shop/40-80": ["shop/-80"]}
CODEC = VitessCodec("shop.t", TableHistory("shop.t"), LINEAGE)
COLUMNS = pa.schema([("n", pa.int64())])

Row = tuple[str, int, int]
"""Shard, key, value."""


def frame(source: list[Row], mirror: list[Row]) -> pa.RecordBatch:
    rows = [(True, *row) for row in source] + [(False, *row) for row in mirror]
    names = [key_prefix(f"shop/{shard}") + str(key).encode() for _, shard, key, _ in rows]
    keys, empty = (pa.array(found, pa.binary()) for found in (names, [b""] * len(rows)))
    return pa.RecordBatch.from_pylist(
        [
            {"_cdc_id": one.as_py(), "n": n, "_cdc_source": side}
            for one, (side, _, _, n) in zip(row_ids(keys, empty), rows, strict=True)
        ],
        schema=pa.schema([("_cdc_id", pa.binary()), ("n", pa.int64()), ("_cdc_source", pa.bool_())]),
    )


def compared(source: list[Row], mirror: list[Row]) -> dict[str, Any]:
    batches = _WithFamilies(CODEC.families)(iter([frame(source, mirror)]))
    (outcome,) = list(_Compare(COLUMNS)(batches))
    (found,) = outcome.to_pylist()
    return {name: found[name] for name in ("equal", "only_left", "only_right", "different")}


def test_shards_that_share_rows_are_a_family() -> None:
    assert families_of({}) == {}
    grown = {**LINEAGE, "shop/-20": ["shop/-40", "shop/-80"], "shop/c0-": ["shop/80-"]}
    low = dict.fromkeys(["shop/-20", "shop/-40", "shop/-80", "shop/40-80"], "shop/-20")
    assert families_of(grown) == {**low, "shop/80-": "shop/80-", "shop/c0-": "shop/80-"}


@pytest.mark.parametrize(
    ("source", "mirror", "expected"),
    [
        ([("-40", 1, 7)], [("-80", 1, 7)], (1, 0, 0, 0)),
        ([("40-80", 1, 7), ("-40", 2, 8)], [("-80", 1, 7), ("-40", 2, 8)], (2, 0, 0, 0)),
        ([("-40", 1, 7)], [("-80", 1, 9)], (0, 0, 0, 1)),
        ([("-40", 1, 7)], [("80-", 1, 7)], (0, 1, 1, 0)),
        ([("-40", 1, 7)], [("-40", 1, 7), ("-80", 1, 7)], (1, 0, 1, 0)),
        ([("-40", 1, 7), ("40-80", 1, 7)], [("-80", 1, 7)], (0, 2, 1, 0)),
        ([], [("-80", 1, 7)], (0, 0, 1, 0)),
        ([("-40", 1, 7)], [], (0, 1, 0, 0)),
    ],
)
def test_a_row_is_compared_under_the_shard_that_it_came_from(
    source: list[Row], mirror: list[Row], expected: tuple[int, ...]
) -> None:
    assert tuple(compared(source, mirror).values()) == expected


def test_differences_are_reported_by_row() -> None:
    batches = _WithFamilies(CODEC.families)(iter([frame([("-40", 1, 7)], [("-80", 1, 9)])]))
    (outcome,) = list(_Compare(COLUMNS)(batches))
    (sample,) = outcome.column("samples")[0].as_py()
    assert json.loads(sample)["columns"] == ["n"]


def test_without_a_reshard_ids_are_what_they_are() -> None:
    assert VitessCodec("shop.t", TableHistory("shop.t")).families(pa.array([b"x"])) is None
