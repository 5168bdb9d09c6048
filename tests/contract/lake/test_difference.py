"""Differences of two snapshots of a mirror: what changed, read from the files that changed, on every lake."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from airflow_cdc_provider.changes.drift import Drift
from airflow_cdc_provider.lake.iceberg import IcebergLake, IcebergTable
from airflow_cdc_provider.lake.iceberg_difference import (
    difference,
    has_snapshot,
    newest_of_same_rows,
    pin,
    release,
)
from airflow_cdc_provider.lake.mirror import Mirror, mirror_arrow_schema, spark_schema
from airflow_cdc_provider.lake.row_changes import all_rows, arrow_batches, changed_rows
from airflow_cdc_provider.lake.static_changes import all_static_columns, changed_static_columns
from airflow_cdc_provider.lake.table import Head
from tests.contract.lake.frames import frame_of

pytestmark = [pytest.mark.integration, pytest.mark.each_format]

COLUMNS = pa.schema([pa.field("text", pa.string()), pa.field("counts", pa.map_(pa.string(), pa.int32()))])
Changes = list[tuple[str, bytes, bytes]]
"""Op, key and state, in order."""


@pytest.fixture
def table(lake: IcebergLake, namespace: str) -> IcebergTable:
    Mirror(lake, f"{namespace}.t").create(COLUMNS)
    return lake.table(f"{namespace}.t")


def commit(table: IcebergTable, rows: Mapping[int, str], gone: tuple[int, ...] = ()) -> str:
    """Write rows, in place of those that have their ids, and delete others."""
    written = [
        (f"text {state}", {"n": 1}, (b"%d" % n, b"%d" % n, None, 0, b"v", state.encode(), None))
        for n, state in rows.items()
    ]
    return write(table, written, [b"%d" % n for n in (*rows, *gone)])


def commit_rows(table: IcebergTable, rows: Mapping[str, tuple[str | None, dict[str, int] | None]]) -> str:
    """Write rows with static columns; a row's first letter names its partition, and ``-`` no row of it."""
    written = [
        (
            text,
            counts,
            (name.encode(), name[:1].encode(), None, 0, b"v", None if name[1:] == "-" else b"s", None),
        )
        for name, (text, counts) in rows.items()
    ]
    return write(table, written, [name.encode() for name in rows])


def write(table: IcebergTable, written: list[Any], replaced: list[bytes]) -> str:
    spark = table.spark
    ids = frame_of(spark, [(one,) for one in replaced], "id binary")
    head = table.commit(
        table.head(),
        append=frame_of(spark, written, spark_schema(mirror_arrow_schema(COLUMNS))) if written else None,
        delete_keys=("_cdc.id", ids),
        properties={},
    )
    assert head.snapshot
    return head.snapshot


def changes(table: IcebergTable, since: str, *columns: str) -> Changes:
    now = table.head().snapshot
    assert now
    with difference(table, since, now) as found:
        return shown(changed_rows(found, columns))


def shown(rows: Any) -> Changes:
    return [
        (row["op"], row["key"], row["state"]) for batch in arrow_batches(rows) for row in batch.to_pylist()
    ]


def files(table: IcebergTable, since: str) -> int:
    now = table.head().snapshot
    assert now
    with difference(table, since, now) as found:
        return found.files


def test_changed_rows_are_reported_once_deletes_first_then_by_key(table: IcebergTable) -> None:
    first = commit(table, dict.fromkeys(range(6), "a"))
    assert shown(all_rows(table.read(), ())) == [("r", b"%d" % n, b"a") for n in range(6)]
    commit(table, {1: "b", 7: "a"}, gone=(0,))
    commit(table, {1: "c", 2: "b", 8: "a"}, gone=(3,))
    commit(table, {2: "a", 9: "x"}, gone=(8,))
    commit(table, {}, gone=(9,))
    assert changes(table, first) == [
        ("d", b"0", b"a"),
        ("d", b"3", b"a"),
        ("u", b"1", b"c"),
        ("c", b"7", b"a"),
    ]


def test_compaction_and_expiry_between_take_and_add_nothing(table: IcebergTable) -> None:
    first = commit(table, dict.fromkeys(range(4), "a"))
    commit(table, {4: "a"})
    pin(table, first)
    commit(table, {0: "b"}, gone=(1,))
    expected = [("d", b"1", b"a"), ("u", b"0", b"b"), ("c", b"4", b"a")]
    assert changes(table, first) == expected
    table.maintain(retain_seconds=0)
    assert newest_of_same_rows(table, first) == first, "rows changed since"
    assert changes(table, first) == expected
    commit(table, {5: "a"})
    assert changes(table, first) == [*expected, ("c", b"5", b"a")]
    release(table, None)
    table.maintain(retain_seconds=0)
    assert not has_snapshot(table, first)


def test_a_compaction_alone_costs_nothing(table: IcebergTable) -> None:
    for n in range(6):
        last = commit(table, {n: "a", n + 10: "a"}, gone=(n - 1,))
    table.maintain(retain_seconds=3600)
    assert changes(table, last) == []
    moved = newest_of_same_rows(table, last)
    assert moved != last
    assert (files(table, moved), newest_of_same_rows(table, moved)) == (0, moved)


def test_only_files_that_changed_are_read(table: IcebergTable) -> None:
    for n in range(5):
        last = commit(table, {n: "a"})
    commit(table, {3: "b"})
    assert files(table, last) == 2
    assert changes(table, last) == [("u", b"3", b"b")]


def test_columns_that_come_and_are_renamed_change_no_row(table: IcebergTable) -> None:
    first = commit(table, dict.fromkeys(range(3), "a"))
    wider = pa.schema([pa.field("words", pa.string()), COLUMNS.field("counts"), pa.field("more", pa.int32())])
    table.evolve(spark_schema(mirror_arrow_schema(wider)), Drift(keys=1))
    values: dict[str, Any] = {"words": "text b", "counts": {"n": 2}, "more": 7}
    values["_cdc"] = (b"1", b"1", None, 0, b"v", b"a", None)
    row = tuple(values[name] for name in table.schema().names)
    written = frame_of(table.spark, [row], table.schema())
    ids = frame_of(table.spark, [(b"1",)], "id binary")
    table.commit(table.head(), append=written, delete_keys=("_cdc.id", ids), properties={})
    table.maintain(retain_seconds=3600)
    assert changes(table, first) == [], "what is kept of the row is equal"
    assert changes(table, first, "words") == changes(table, first, "counts") == [("u", b"1", b"a")]


def test_rows_before_and_what_changed_are_the_rows_after(table: IcebergTable) -> None:
    rng = random.Random(7)
    states: dict[int, str] = {}
    known: list[tuple[str, dict[int, str]]] = []
    for turn in range(6):
        gone = tuple(n for n in states if rng.random() < 0.2)
        written = {rng.randrange(30): f"s{turn}" for _ in range(6)}
        states = {**{n: s for n, s in states.items() if n not in gone}, **written}
        known.append((commit(table, written, gone), dict(states)))
        if turn in (2, 4):
            table.maintain(retain_seconds=3600)
    for snapshot, then in known[:5:2]:
        found = changes(table, snapshot)
        applied = {b"%d" % n: s.encode() for n, s in then.items()}
        for op, key, state in found:
            assert (op == "c") == (key not in applied)
            if op == "d":
                del applied[key]
            else:
                assert applied.get(key) != state
                applied[key] = state
        assert applied == {b"%d" % n: s.encode() for n, s in states.items()}
        assert len({key for _, key, _ in found}) == len(found)


def test_changed_static_columns_are_reported_once_per_partition(table: IcebergTable) -> None:
    one, two = {"n": 1}, {"n": 2}
    none = (None, None)
    commit_rows(table, {"a1": ("a", one), "a2": ("a", one), "b1": none, "c1": ("c", None), "c2": ("c", None)})
    commit_rows(
        table, {"d-": ("d", None), "e1": ("e", None), "f-": ("f", None), "g1": ("g", None), "h1": none}
    )
    first = commit_rows(table, {"i1": ("i", one)})
    now = table.read()
    everything = all_static_columns(now, ("text", "counts"))
    assert [row["key"] for row in everything.collect()] == [b"a", b"c", b"d", b"e", b"f", b"g", b"i"]
    assert all_rows(now, (), static_columns_table=True).count() == 9

    commit_rows(table, {"a3": ("a", one), "b2": none})  # rows came, static columns stay
    write(table, [], [b"c2", b"d-", b"e1"])  # of c a row stays, of d and e nothing
    commit_rows(
        table, {"f1": ("f", None), "g1": none, "h1": ("h", None), "i1": ("i", two), "j1": ("j", None)}
    )
    last = write(table, [], [b"f-"])  # it has a row now
    with difference(table, first, last) as found:
        static_changes = changed_static_columns(
            found, table.read(Head(first)), table.read(), ("text", "counts")
        )
        batches = [row for batch in arrow_batches(static_changes) for row in batch.to_pylist()]
        rows = shown(changed_rows(found, (), static_columns_table=True))
    assert [(row["op"], row["key"]) for row in batches] == [
        ("d", b"d"),
        ("d", b"e"),
        ("u", b"g"),
        ("c", b"h"),
        ("u", b"i"),
        ("c", b"j"),
    ]
    assert {(row["state"], row["clustering"]) for row in batches} == {(None, None)}
    assert [(op, key) for op, key, _ in rows] == [
        ("d", b"c"),
        ("d", b"e"),
        ("c", b"a"),
        ("c", b"b"),
        ("c", b"f"),
        ("c", b"j"),
    ], "static columns alone change no row"
