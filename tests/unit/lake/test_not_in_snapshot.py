"""Which states a complete snapshot leaves unresolved."""

from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.lake.reconcile.not_in_snapshot import (
    NOT_IN_SNAPSHOT,
    READ,
    WRITTEN_SINCE,
    snapshot_status,
)
from tests.oracles.cassandra_read_path import Cell, Liveness, Reading, Row, write

OLD, NEW, FUTURE = Cell(1, 50, b"a"), Cell(2, 150, b"b"), Cell(3, 5000, b"c")


@pytest.mark.parametrize(
    ("row", "seen"),
    [
        (Row(Reading(100), cells=(OLD,)), READ),
        (Row(Reading(120), cells=(OLD, NEW)), READ),
        (Row(Reading(99), cells=(NEW,)), NOT_IN_SNAPSHOT),
        (Row(Liveness(99)), NOT_IN_SNAPSHOT),
        (Row(Liveness(100), cells=(NEW,)), WRITTEN_SINCE),
        (Row(Liveness(150), cells=(OLD,)), NOT_IN_SNAPSHOT),
        (Row(cells=(NEW,)), WRITTEN_SINCE),
        (Row(cells=(OLD, NEW)), NOT_IN_SNAPSHOT),
        (Row(cells=(FUTURE,)), NOT_IN_SNAPSHOT),
        (Row(Liveness(5000)), NOT_IN_SNAPSHOT),
        (Row(cells=(Cell(1, 50, tombstone=True, end=3), NEW)), WRITTEN_SINCE),
        (Row(cells=(Cell(1, 50, b"x", expiring=True, ttl=1, end=60),)), WRITTEN_SINCE),
    ],
)
def test_data_neither_read_nor_written_since_is_not_in_the_snapshot(row: Row, seen: int) -> None:
    states = pa.array([write(Row(Liveness(150))), write(row)], pa.binary())
    assert snapshot_status(states, 100, 1000, 60).to_pylist() == [WRITTEN_SINCE, seen]


def test_a_malformed_state_is_an_error() -> None:
    with pytest.raises(CorruptInput, match="state 0"):
        snapshot_status(pa.array([b"\x01abc"], pa.binary()), 0, 1, 0)


def test_no_states_are_nothing() -> None:
    assert len(snapshot_status(pa.array([], pa.binary()), 0, 1, 0)) == 0
