"""Contributions for tests: as Arrow tables, and at random with every kind of tie."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA
from airflow_cdc_provider.lake.reconcile import Reconciled
from tests.oracles.cassandra_read_path import (
    EXPIRED_MARKER,
    NEVER,
    PARTITION_DELETION,
    RANGE_DELETION,
    ROW,
    STATIC,
    Cell,
    Contribution,
    Kept,
    Liveness,
    Reading,
    Row,
    read,
)

NOW = 1000


def as_table(contributions: Iterable[Contribution]) -> pa.Table:
    return pa.Table.from_pylist([c.as_dict() for c in contributions], CONTRIBUTION_SCHEMA)


def fed_back(result: Reconciled) -> pa.Table:
    """What a later merge reads from an earlier one: the mirror's rows as contributions, and tombstones."""
    rows = result.live.filter(pa.compute.is_valid(result.live["state"]))
    count = rows.num_rows
    mirror = {
        "key": rows["key"],
        "scope": pa.array([ROW] * count, pa.int8()),
        "clustering": rows["clustering"],
        "clustering_end": pa.nulls(count, pa.binary()),
        "generation": rows["generation"],
        "version": rows["version"],
        "op": pa.array([0] * count, pa.int8()),
        "state": rows["state"],
    }
    return pa.concat_tables([pa.table(mirror, CONTRIBUTION_SCHEMA), result.tombstones])


def as_kept(result: Reconciled) -> Kept:
    """The outcome as dictionaries; a row that is there twice is an error."""
    live = {
        (r["key"], r["clustering"]): (r["state"], r["static_state"], r["expires_at"], r["generation"])
        for r in result.live.to_pylist()
    }
    side = {
        (r["key"], r["scope"], r["clustering"], r["clustering_end"]): (r["state"], r["generation"])
        for r in result.tombstones.to_pylist()
    }
    assert len(live) == result.live.num_rows
    assert len(side) == result.tombstones.num_rows
    keys = result.unresolved_keys.to_pylist()
    assert len(keys) == len(set(keys))
    return Kept(live, side, frozenset(keys))


def as_visible(result: Reconciled) -> dict[Any, Any]:
    """What a projection shows of the outcome: cells without CELL_TOMBSTONE, and no judgement of expiry."""
    return {
        (row["key"], row["clustering"]): (_shown(row["state"]), _shown(row["static_state"]))
        for row in result.live.to_pylist()
    }


def _shown(state: bytes | None) -> Mapping[tuple[int, bytes | None], bytes]:
    cells = read(state).cells if state else ()
    return {(c.column, c.path): c.value for c in cells if not c.tombstone and not c.complex_deletion}


KEYS = st.sampled_from([b"a", b"b", b"key-of-nine-and-more"])
CLUSTERINGS = st.sampled_from(
    [b"", b"\x00", b"\x01", b"\x01\x01", b"\x01\x01\x01\x01\x01\x01\x01\x01\x02", b"\x02"]
)
TIMES = st.sampled_from([-(2**63), -1, 0, 1, 2, 3, 4, 5, NOW * 1_000_000 + 500_000, 2**63 - 1])
SECONDS = st.sampled_from([0, 500, NOW - 1, NOW, NOW + 1, NOW + 2, 2**32])
TTLS = st.sampled_from([1, 2, 600])
VALUES = st.sampled_from(
    [b"", b"\x00", b"\x7f", b"\x80", b"\x80\x01", b"more than eight", b"more than eight!"]
)
PATHS = st.sampled_from([b"", b"p", b"q", b"path of ten", b"path of te\xff"])
SIMPLE_COLUMNS = st.integers(1, 2)
COMPLEX_COLUMNS = st.sampled_from([3, 300])
DELETIONS = st.tuples(TIMES, SECONDS)


@st.composite
def cells(draw: st.DrawFn, uncertain: bool) -> Cell:
    path = draw(st.none() | PATHS)
    column = draw(SIMPLE_COLUMNS if path is None else COMPLEX_COLUMNS)
    time = draw(TIMES)
    is_uncertain = uncertain and path is not None and draw(st.booleans())
    match draw(st.sampled_from(["plain", "plain", "expiring", "tombstone", "column"])):
        case "expiring":
            return Cell(
                column,
                time,
                draw(VALUES),
                path,
                expiring=True,
                ttl=draw(TTLS),
                end=draw(SECONDS),
                uncertain=is_uncertain,
            )
        case "tombstone":
            return Cell(column, time, path=path, tombstone=True, end=draw(SECONDS))
        case "column" if path is not None:
            return Cell(column, time, complex_deletion=True, end=draw(SECONDS))
    return Cell(column, time, draw(VALUES), path, uncertain=is_uncertain)


@st.composite
def livenesses(draw: st.DrawFn, uncertain: bool) -> Liveness | Reading | None:
    kinds = ["none", "none", "plain", "expiring", "expired marker"]
    match draw(st.sampled_from([*kinds, "reading", "reading"] if uncertain else kinds)):
        case "plain":
            return Liveness(draw(TIMES))
        case "expiring":
            return Liveness(draw(TIMES), draw(TTLS), draw(SECONDS))
        case "expired marker":
            return Liveness(draw(TIMES), EXPIRED_MARKER, draw(SECONDS))
        case "reading":
            return Reading(draw(TIMES))
    return None


def _one_each(found: list[Cell]) -> tuple[Cell, ...]:
    return tuple({cell.place: cell for cell in found}.values())


@st.composite
def contributions(draw: st.DrawFn, uncertain: bool = False) -> Contribution:
    key = draw(KEYS)
    generation = draw(st.sampled_from([0, 0, 1]))
    scope = draw(
        st.sampled_from([ROW, ROW, ROW, ROW, STATIC, PARTITION_DELETION, RANGE_DELETION, RANGE_DELETION])
    )
    found = st.lists(cells(uncertain), max_size=5).map(_one_each)
    match scope:
        case 0:
            clustering = draw(CLUSTERINGS)
            deletion = draw(st.none() | st.none() | DELETIONS)
            row = Row(draw(livenesses(uncertain)), deletion, clustering, draw(found))
            return Contribution(key, ROW, clustering, None, generation, row)
        case 1:
            marker = Reading(draw(TIMES)) if uncertain and draw(st.booleans()) else None
            return Contribution(key, STATIC, b"", None, generation, Row(marker, cells=draw(found)))
        case 2:
            return Contribution(key, scope, b"", None, generation, Row(deletion=draw(DELETIONS)))
    low, high = draw(CLUSTERINGS), draw(st.none() | CLUSTERINGS)
    return Contribution(key, scope, low, high, generation, Row(deletion=draw(DELETIONS)))


def lists(uncertain: bool = False, max_size: int = 14) -> st.SearchStrategy[list[Contribution]]:
    return st.lists(contributions(uncertain), max_size=max_size)


__all__ = ["NEVER", "NOW", "as_kept", "as_table", "as_visible", "contributions", "fed_back", "lists"]
