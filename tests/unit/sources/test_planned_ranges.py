"""Planned snapshot ranges survive JSON, and nothing else comes back from it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from airflow_cdc_provider.exceptions import OffsetMissing
from airflow_cdc_provider.sources.cassandra.source import CassandraSource
from airflow_cdc_provider.sources.cql.snapshot import SnapshotRange as TokenRange
from airflow_cdc_provider.sources.debezium.source import DebeziumSource
from airflow_cdc_provider.sources.mongodb.key_ranges import SnapshotRange as KeyRange
from airflow_cdc_provider.sources.mongodb.source import MongodbSource
from airflow_cdc_provider.sources.mongodb.whole_reads import WholeRead
from airflow_cdc_provider.sources.planned_ranges import PlannedRanges
from airflow_cdc_provider.sources.scylla.source import ScyllaSource
from airflow_cdc_provider.sources.vitess.snapshot import SnapshotRange as ShardRange
from airflow_cdc_provider.sources.vitess.source import VitessSource

TOKENS = TokenRange("k.t", -(2**63), 2**63 - 1, "a > 1", "node", b"\x00\xff")
KEYS = KeyRange("d.c", 3, b"", b"\x05\x00\x00\x00\x00", '{"a": 1}', 2**62, 1, b"\x01", 7)
WHOLE = WholeRead("d.view", "", 9)
SHARD = ShardRange("k.t", 1, "k/-80", "MySQL56/a:1-9", 2, "")


@pytest.mark.parametrize(
    ("stored", "ranges"),
    [
        (CassandraSource.planned_ranges, [TOKENS, TOKENS._replace(after=5), TOKENS._replace(after=7)]),
        (ScyllaSource.planned_ranges, [TOKENS, TOKENS._replace(where="")]),
        (MongodbSource.planned_ranges, [KEYS, WHOLE, replace(WHOLE, where="{}"), KEYS, KEYS]),
        (VitessSource.planned_ranges, [SHARD]),
        (DebeziumSource.planned_ranges, []),
    ],
    ids=["cassandra", "scylla", "mongodb", "vitess", "debezium"],
)
def test_ranges_of_every_source_survive_json(stored: PlannedRanges, ranges: list[Any]) -> None:
    for step in range(1, len(ranges) + 1):
        left, found = tuple(json.loads(json.dumps(stored.to_json(ranges)))), []
        while left:
            some, left = stored.take(left, step)
            found += some
        assert found == ranges
    assert stored.take(stored.to_json(ranges), 99) == (ranges, ())


def test_ranges_of_an_older_release_have_all_fields_and_are_read() -> None:
    of = CassandraSource.planned_ranges
    whole = [*of.to_json([TOKENS]), *of.to_json([TOKENS._replace(after=5)])]
    assert of.take(whole, 9) == ([TOKENS, TOKENS._replace(after=5)], ())


def test_a_filter_is_stored_once_for_all_ranges_and_once_for_those_that_are_left() -> None:
    of = CassandraSource.planned_ranges
    stored = of.to_json([TOKENS._replace(after=n, where="x" * 16_000) for n in range(4_096)])
    assert len(json.dumps(stored)) < 200_000
    _, left = of.take(stored, 8)
    assert len(json.dumps(left)) < 200_000


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "builtins.print"},
        {"kind": None},
        {"after": "7"},
        {"after": True},
        {"position": "no hexadecimal"},
        {"position": 5},
        {"further": 1},
    ],
    ids=str,
)
def test_an_object_that_is_no_range_is_refused_with_the_ranges_that_there_are(change: dict[str, Any]) -> None:
    (stored,) = CassandraSource.planned_ranges.to_json([TOKENS])
    with pytest.raises(OffsetMissing, match="snapshot range that can't be read") as refused:
        CassandraSource.planned_ranges.take([{**stored, **change}], 1)
    assert "tokens: table, after, through" in str(refused.value)


def test_a_missing_field_and_what_is_no_object_are_refused() -> None:
    (stored,) = CassandraSource.planned_ranges.to_json([TOKENS])
    del stored["table"]
    for broken in (stored, "gASVBgAAAAAAAABdlC4=", None):
        with pytest.raises(OffsetMissing, match="snapshot range that can't be read"):
            CassandraSource.planned_ranges.take([broken], 1)  # type: ignore[list-item]
