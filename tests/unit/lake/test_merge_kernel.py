"""Merging portion by portion ends with the mirror that one reconciliation of everything shows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, DELETE, LIVE_ROW_SCHEMA, UPSERT
from airflow_cdc_provider.lake.merge_kernel import (
    INPUT_SCHEMA,
    LIVE,
    LIVE_STATIC,
    REMOVE,
    REMOVE_STATIC,
    TOMBSTONE,
)
from airflow_cdc_provider.lake.row_fences import RowFences
from tests.chance import examples
from tests.oracles import cassandra_read_path as oracle
from tests.unit.lake.kernel_tables import Tables, joined_rows, shown_rows


def document(key: bytes, version: int, op: int) -> dict[str, Any]:
    return {
        "key": key,
        "scope": 0,
        "clustering": b"",
        "clustering_end": None,
        "generation": 0,
        "version": version.to_bytes(4, "big"),
        "op": op,
        "state": None if op == DELETE else b"v%d" % version,
    }


DOCUMENTS = st.lists(
    st.builds(
        document, st.sampled_from([b"a", b"b", b""]), st.integers(1, 30), st.sampled_from([UPSERT, DELETE])
    ),
    unique_by=lambda d: (d["key"], d["version"]),
    max_size=30,
)


@given(DOCUMENTS, st.data())
def test_documents_merged_in_any_order_and_portions_end_at_their_greatest_version(
    documents: list[dict[str, Any]], data: st.DataObject
) -> None:
    expected = {}
    for row in sorted(documents, key=lambda d: d["version"]):
        expected[row["key"]] = row["state"]
    shuffled = data.draw(st.permutations(documents + documents[:5]))
    cut = data.draw(st.integers(0, len(shuffled)))
    tables = Tables("row")

    tables.merge(shuffled[:cut], now=0)
    tables.merge(shuffled[cut:], now=0)

    found = {row["_cdc"]["key"]: row["shown"] for row in tables.mirror.values()}
    assert found == {key: state for key, state in expected.items() if state is not None}


def test_fence_hides_documents_up_to_its_position() -> None:
    tables = Tables("row")
    tables.merge(
        [document(b"a", 3, UPSERT), document(b"b", 9, UPSERT)],
        now=0,
        fences=RowFences(((b"", (5).to_bytes(4, "big")),)),
    )

    assert [row["_cdc"]["key"] for row in tables.mirror.values()] == [b"b"]


TIMES = st.integers(1, 4)
CELLS = st.builds(
    lambda column, time, value, kind: oracle.Cell(
        column,
        time,
        b"" if kind == "tombstone" else value,
        tombstone=kind == "tombstone",
        expiring=kind == "expiring",
        ttl=10 if kind == "expiring" else 0,
        end=15 if kind != "live" else oracle.NEVER,
    ),
    st.integers(1, 2),
    TIMES,
    st.sampled_from([b"x", b"y"]),
    st.sampled_from(["live", "live", "tombstone", "expiring"]),
)
ROWS = st.builds(
    lambda liveness, deletion, cells: oracle.Row(
        oracle.Liveness(liveness) if liveness else None,
        (deletion, 5) if deletion else None,
        cells=tuple({c.place: c for c in cells}.values()),
    ),
    st.one_of(st.none(), TIMES),
    st.one_of(st.none(), st.none(), TIMES),
    st.lists(CELLS, max_size=2),
)
DELETIONS = st.builds(lambda time: oracle.Row(deletion=(time, 5)), TIMES)
KEYS = st.sampled_from([b"k", b"l"])
CLUSTERINGS = st.sampled_from([b"\x40a", b"\x40b"])
CONTRIBUTIONS = st.one_of(
    st.builds(lambda k, c, row: oracle.Contribution(k, 0, c, None, 0, row), KEYS, CLUSTERINGS, ROWS),
    st.builds(
        lambda k, cells: oracle.Contribution(
            k, 1, b"", None, 0, oracle.Row(cells=tuple({c.place: c for c in cells}.values()))
        ),
        KEYS,
        st.lists(CELLS, min_size=1, max_size=2),
    ),
    st.builds(lambda k, row: oracle.Contribution(k, 2, b"", None, 0, row), KEYS, DELETIONS),
    st.builds(
        lambda k, c, row: oracle.Contribution(k, 3, c, c + b"\xff", 0, row), KEYS, CLUSTERINGS, DELETIONS
    ),
)


@pytest.mark.covers("CAS-LIM-03")
@settings(max_examples=examples(300))
@given(st.lists(CONTRIBUTIONS, max_size=12), st.data())
def test_cells_merged_in_any_order_and_portions_show_what_the_database_shows(
    contributions: list[oracle.Contribution], data: st.DataObject
) -> None:
    """Static columns in the rows, or in a separate table with which the rows are joined."""
    shuffled = data.draw(st.permutations(contributions + contributions[:3]))
    cut = data.draw(st.integers(0, len(shuffled)))
    for static_columns_table, shown in ((False, shown_rows), (True, joined_rows)):
        tables = Tables("cell", static_columns_table=static_columns_table)

        tables.merge([c.as_dict() for c in shuffled[:cut]], now=10)
        tables.merge([c.as_dict() for c in shuffled[cut:]], now=10)
        assert shown(tables, 10) == oracle.visible(contributions, 10)

        tables.merge([], now=20)
        assert shown(tables, 20) == oracle.visible(contributions, 20)


def of_many_rows(*static_columns: oracle.Cell) -> list[dict[str, Any]]:
    rows = [
        oracle.Contribution(b"k", 0, b"\x40%c" % number, None, 0, oracle.Row(oracle.Liveness(1)))
        for number in range(50)
    ]
    return [
        c.as_dict()
        for c in (*rows, oracle.Contribution(b"k", 1, b"", None, 0, oracle.Row(cells=static_columns)))
    ]


def new_static_columns(*cells: oracle.Cell) -> list[dict[str, Any]]:
    return [oracle.Contribution(b"k", 1, b"", None, 0, oracle.Row(cells=cells)).as_dict()]


def test_change_of_static_columns_writes_no_row_if_they_have_a_separate_table() -> None:
    """The same applies to static columns that start to expire, expire or are deleted."""
    separate, in_rows = Tables("cell", static_columns_table=True), Tables("cell")
    for tables in (separate, in_rows):
        tables.merge(of_many_rows(oracle.Cell(1, 1, b"x")), now=10)

    changed = new_static_columns(oracle.Cell(1, 2, b"y"))
    assert in_rows.merge(changed, now=10) == {LIVE: 50, REMOVE: 50, TOMBSTONE: 1}
    assert separate.merge(changed, now=10) == {LIVE_STATIC: 1, REMOVE_STATIC: 1, TOMBSTONE: 1}
    assert joined_rows(separate, 10) == shown_rows(in_rows, 10)
    expiring = new_static_columns(oracle.Cell(1, 3, b"z", expiring=True, ttl=10, end=15))
    assert separate.merge(expiring, now=10) == {LIVE_STATIC: 1, REMOVE_STATIC: 1, TOMBSTONE: 1}
    assert separate.merge([], now=20) == {REMOVE_STATIC: 1, TOMBSTONE: 1}
    assert not separate.static_columns
    assert len(separate.mirror) == 50
    assert separate.merge(new_static_columns(oracle.Cell(1, 4, b"z")), now=20) == {
        LIVE_STATIC: 1,
        TOMBSTONE: 1,
    }
    assert separate.merge(new_static_columns(oracle.Cell(1, 4, b"z")), now=20) == {}, "existing rows are kept"


def test_static_columns_of_a_killed_merge_are_rewritten() -> None:
    """The columns that show them may have been re-created since."""
    tables = Tables("cell", static_columns_table=True)
    tables.merge(new_static_columns(oracle.Cell(1, 1, b"x")), now=10)

    again = tables.merge(new_static_columns(oracle.Cell(1, 1, b"x")), now=10, rewrite_static_columns=True)

    assert again == {LIVE_STATIC: 1, REMOVE_STATIC: 1}


@pytest.mark.covers("DSX-CON-04")
def test_replica_duplicates_are_counted_among_the_changes_of_a_merge() -> None:
    """Rows of the mirror or the tombstone table are no changes, and neither are rows that a SELECT read."""
    row = oracle.Row(oracle.Liveness(1), cells=(oracle.Cell(1, 1, b"x"),))
    other = oracle.Row(oracle.Liveness(1), cells=(oracle.Cell(1, 1, b"y"),))
    deletion = oracle.Row(deletion=(1, 5))
    changes = [
        *[oracle.Contribution(b"k", 0, b"a", None, 0, row)] * 3,
        oracle.Contribution(b"k", 0, b"a", None, 0, other),
        oracle.Contribution(b"l", 0, b"a", None, 0, row),
        *[oracle.Contribution(b"m", 2, b"", None, 0, deletion)] * 2,
    ]
    tables = Tables("cell")
    tables.merge([c.as_dict() for c in changes], now=10)
    assert tables.duplicates == (7, 3)
    tables.merge([c.as_dict() for c in changes], now=10)
    assert tables.duplicates == (7, 3)
    tables.merge([], now=10)
    assert tables.duplicates == (0, 0)


def test_live_row_schema_is_what_projection_gets() -> None:
    assert LIVE_ROW_SCHEMA.names[4:6] == ["state", "static_state"]
    assert CONTRIBUTION_SCHEMA.names == INPUT_SCHEMA.names[:-2]
