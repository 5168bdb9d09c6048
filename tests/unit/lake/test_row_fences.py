from __future__ import annotations

import pyarrow as pa

from airflow_cdc_provider.changes.fence import Fence
from airflow_cdc_provider.lake.row_fences import RowFences


class Shards:
    """A codec whose keys begin with a letter for their shard."""

    def key_prefix(self, origin: str) -> bytes:
        return origin.encode()


class OneFeed:
    """A codec of a source with one feed."""

    def key_prefix(self, origin: str) -> bytes:
        return b""


def rows(*pairs: tuple[bytes, bytes]) -> pa.Table:
    return pa.table({"key": [key for key, _ in pairs], "version": [version for _, version in pairs]})


def left(fences: RowFences, *pairs: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    found = fences.filter(rows(*pairs)).to_pylist()
    return [(row["key"], row["version"]) for row in found]


def test_a_fence_of_one_feed_leaves_the_rows_of_the_others() -> None:
    fences = RowFences.of([Fence(1, "a", b"5", 1), Fence(1, "b", b"2", 1), Fence(2, "a", b"6", 2)], Shards())
    assert left(fences, (b"a1", b"6"), (b"a1", b"7"), (b"b1", b"2"), (b"b1", b"3"), (b"c1", b"1")) == [
        (b"a1", b"7"),
        (b"b1", b"3"),
        (b"c1", b"1"),
    ]


def test_a_fence_of_all_feeds_and_of_a_source_with_one_counts_for_every_row() -> None:
    for fences in (
        RowFences.of([Fence(1, "stream", b"5", 1)], OneFeed()),
        RowFences.of([Fence(1, "", b"5", 1)], Shards()),
    ):
        assert left(fences, (b"a", b"5"), (b"b", b"6")) == [(b"b", b"6")]
    assert left(RowFences(), (b"a", b"0")) == [(b"a", b"0")]


def test_a_later_fence_of_any_feed_is_detected() -> None:
    before = RowFences.of([Fence(1, "a", b"5", 1)], Shards())
    assert not before.above(before)
    assert before.above(RowFences())
    assert RowFences.of([Fence(1, "a", b"5", 1), Fence(1, "b", b"1", 1)], Shards()).above(before)
    assert not RowFences.of([Fence(1, "a", b"4", 1)], Shards()).above(before)


def test_rows_that_dont_count_are_found_by_sql_too() -> None:
    fences = RowFences.of([Fence(1, "a", b"5", 1), Fence(1, "b", b"2", 1)], Shards())
    assert fences.predicate("_cdc") == (
        "(_cdc.version <= X'35' AND substring(_cdc.key, 1, 1) = X'61') OR "
        "(_cdc.version <= X'32' AND substring(_cdc.key, 1, 1) = X'62')"
    )
    assert RowFences(((b"", b"5"),)).predicate("_cdc") == "_cdc.version <= X'35'"
    assert RowFences().predicate("_cdc") == "false"
