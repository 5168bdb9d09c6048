"""What is Iceberg's own about the lake: branches, tags, and commits whose outcome is unknown."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from airflow_cdc_provider.exceptions import CommitConflict, CommitStateUnknown
from airflow_cdc_provider.lake.iceberg import BRANCH_PREFIX, HEAD_TAG, MAINTENANCE, IcebergTable
from airflow_cdc_provider.lake.iceberg_maintenance import DEAD_BRANCH_SECONDS
from tests.integration.lake.conftest import MakeTable

pytestmark = pytest.mark.integration


def ids(table: IcebergTable) -> list[int]:
    return sorted(row["id"] for row in table.read().collect())


def refs(table: IcebergTable) -> set[str]:
    return {str(name) for name in table.load().refs()}


def rows(table: IcebergTable, *numbers: int) -> Any:
    return table.spark.createDataFrame(pa.table({"id": pa.array(numbers, pa.int64())}))


def before_publishing(table: IcebergTable, happening: Callable[[], None]) -> list[int]:
    """Let something happen once, after the data are written and before main is moved; count the tries."""
    publish, tries = table._fast_forward, [0]

    def interrupted(loaded: Any, branch: str, tip: int) -> None:
        tries[0] += 1
        if tries[0] == 1:
            happening()
        publish(loaded, branch, tip)

    table._fast_forward = interrupted  # type: ignore[method-assign,assignment]  # the moment has no other door
    return tries


def test_a_table_has_the_settings_that_a_mirror_needs(make_table: MakeTable) -> None:
    for version in (2, 3):
        loaded = make_table(format_version=version).load()
        properties = {str(k): str(loaded.properties()[k]) for k in loaded.properties()}
        assert loaded.operations().current().formatVersion() == version
        assert properties["write.delete.mode"] == "merge-on-read"
        assert properties["write.parquet.compression-codec"] == "zstd"
        assert properties["write.metadata.delete-after-commit.enabled"] == "true"


def test_a_commit_leaves_the_tag_on_itself_and_no_branch(make_table: MakeTable) -> None:
    table = make_table()
    for number in range(2):
        head = table.commit(table.head(), append=rows(table, number), properties={"cdc.n": str(number)})
        assert refs(table) == {"main", HEAD_TAG}
        assert str(table.load().snapshot(HEAD_TAG).snapshotId()) == head.snapshot


def test_an_error_after_the_commit_took_effect_is_a_success(make_table: MakeTable) -> None:
    table = make_table()
    publish = table._fast_forward

    def answer_lost(loaded: Any, branch: str, tip: int) -> None:
        publish(loaded, branch, tip)
        raise ConnectionError("the answer was lost")

    table._fast_forward = answer_lost  # type: ignore[method-assign,assignment]
    head = table.commit(table.head(), append=rows(table, 1), properties={"cdc.n": "1"})
    assert ids(table) == [1]
    assert table.head().snapshot == head.snapshot


def test_an_error_of_unknown_outcome_is_reported_as_such(make_table: MakeTable) -> None:
    table = make_table()
    base = table.head()

    def request_lost(loaded: Any, branch: str, tip: int) -> None:
        raise ConnectionError("the request was lost")

    table._fast_forward = request_lost  # type: ignore[method-assign,assignment]
    with pytest.raises(CommitStateUnknown, match=r"ConnectionError.*read the table's head"):
        table.commit(base, append=rows(table, 1), properties={"cdc.n": "1"})
    assert table.head() == base
    assert refs(table) == {"main"}  # what was on its way can't be published any more


def test_a_table_that_cannot_be_read_after_an_error_is_an_unknown_outcome(make_table: MakeTable) -> None:
    table = make_table()

    def all_lost(loaded: Any, branch: str, tip: int) -> None:
        table.load = all_lost  # type: ignore[assignment, method-assign]
        raise ConnectionError("the network is gone")

    table._fast_forward = all_lost  # type: ignore[method-assign,assignment]
    with pytest.raises(CommitStateUnknown):
        table.commit(table.head(), append=rows(table, 1), properties={"cdc.n": "1"})


def test_another_change_of_metadata_does_not_stop_a_commit(make_table: MakeTable) -> None:
    table, other = make_table(), None
    other = table.lake.table(table.name)
    tries = before_publishing(
        table,
        lambda: other.load().updateProperties().set("comment", "by another").commit(),
    )
    table.commit(table.head(), append=rows(table, 1), properties={"cdc.n": "1"})
    assert (tries, ids(table)) == ([1], [1]), "Iceberg itself repeats such a change"


def test_maintenance_during_a_commit_repeats_it(make_table: MakeTable) -> None:
    table = make_table()
    base = table.head()
    other = table.lake.table(table.name)
    tries = before_publishing(table, lambda: other.load().newFastAppend().set(MAINTENANCE, "x").commit())
    table.commit(base, append=rows(table, 1), properties={"cdc.n": "1"})
    assert (tries[0], ids(table), refs(table)) == (2, [1], {"main", HEAD_TAG})
    assert dict(table.head().properties) == {"cdc.n": "1"}


def test_another_writer_during_a_commit_is_a_conflict(make_table: MakeTable) -> None:
    table = make_table()
    base = table.head()
    other = table.lake.table(table.name)
    before_publishing(table, lambda: other.append(rows(other, 7)))
    table.exclusive = other.exclusive = _no_turns  # type: ignore[method-assign,assignment]  # else other would wait
    with pytest.raises(CommitConflict):
        table.commit(base, append=rows(table, 1), properties={"cdc.n": "1"})
    assert (ids(table), refs(table)) == ([7], {"main"})


def test_a_commit_whose_branch_was_tidied_away_is_repeated(make_table: MakeTable) -> None:
    table = make_table()
    other = table.lake.table(table.name)

    def tidy() -> None:
        for name in refs(other) - {"main"}:
            other.remove_branch(name)

    before_publishing(table, tidy)
    table.commit(table.head(), append=rows(table, 1), properties={"cdc.n": "1"})
    assert (ids(table), refs(table)) == ([1], {"main", HEAD_TAG})


def test_only_branches_of_dead_writers_are_removed(make_table: MakeTable) -> None:
    table = make_table()
    snapshot = int(table.head().snapshot or 0)
    now = int(time.time())
    dead = f"{BRANCH_PREFIX}{now - DEAD_BRANCH_SECONDS - 5}_abc"
    alive = f"{BRANCH_PREFIX}{now - DEAD_BRANCH_SECONDS + 60}_abc"
    foreign = [f"{BRANCH_PREFIX}experiment", "audit"]
    for name in (dead, alive, *foreign):
        table.load().manageSnapshots().createBranch(name, snapshot).commit()
    table.maintain(retain_seconds=3600)
    assert refs(table) == {"main", alive, *foreign}


def test_a_rollback_takes_the_properties_back_with_the_rows(make_table: MakeTable) -> None:
    table = make_table()
    first = table.commit(table.head(), append=rows(table, 1), properties={"cdc.n": "1"})
    table.commit(first, append=rows(table, 2), properties={"cdc.n": "2"})
    table.load().manageSnapshots().rollbackTo(int(first.snapshot or 0)).commit()
    assert dict(table.head().properties) == {"cdc.n": "1"}
    table.commit(table.head(), append=rows(table, 3), properties={"cdc.n": "3"})
    assert ids(table) == [1, 3]
    assert dict(table.head().properties) == {"cdc.n": "3"}


def test_tables_are_committed_to_from_several_threads(make_table: MakeTable) -> None:
    tables = [make_table() for _ in range(4)]

    def work(table: IcebergTable) -> list[int]:
        head = table.head()
        for number in range(3):
            head = table.commit(
                head,
                append=rows(table, number, number + 10),
                delete_keys=("id", rows(table, number + 9)),
                properties={"cdc.n": str(number)},
            )
        return ids(table)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, tables)) == [[0, 1, 2, 12]] * 4


def test_keys_are_broadcast_and_the_table_is_not_shuffled(make_table: MakeTable) -> None:
    table = make_table("id bigint, _cdc struct<id: binary, state: binary>")
    frame = table.spark.range(100).selectExpr(
        "id", "named_struct('id', cast(cast(id as string) as binary), 'state', cast('s' as binary)) _cdc"
    )
    head = table.commit(table.head(), append=frame, properties={"cdc.n": "1"})
    keys = frame.where("id < 50").select("_cdc.id")
    seen: list[str] = []
    original = table.spark.sql

    def explained(statement: str, *arguments: Any, **options: Any) -> Any:
        if statement.startswith("DELETE"):
            seen.append(original(f"EXPLAIN {statement}").first()[0])
        return original(statement, *arguments, **options)

    table.spark = _WithSql(table.spark, explained)
    table.commit(head, delete_keys=("_cdc.id", keys), properties={"cdc.n": "2"})
    (plan,) = seen
    assert "BroadcastHashJoin" in plan  # the target is not shuffled to find its rows
    assert "LeftSemi, BuildRight" in plan
    assert table.read().count() == 50


class _WithSql:
    """A session whose ``sql`` is another function."""

    def __init__(self, spark: Any, sql: Any) -> None:
        self._spark = spark
        self.sql = sql

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)


class _NoTurns:
    def __enter__(self) -> None:
        """Wait for nobody."""

    def __exit__(self, *error: object) -> None:
        """Wake nobody."""


def _no_turns() -> _NoTurns:
    return _NoTurns()
