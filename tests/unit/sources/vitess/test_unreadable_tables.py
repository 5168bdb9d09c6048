"""Tables whose changes tablets can't read: named, left out up to the head, and then included again."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import grpc
import pytest

from airflow_cdc_provider.exceptions import PositionLost
from airflow_cdc_provider.sources.contract import ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.vitess.failures import StaleTabletSchema, UnreadableTable, failure
from airflow_cdc_provider.sources.vitess.options import VitessAdvanced, VitessOptions
from airflow_cdc_provider.sources.vitess.source import VitessSource
from tests.unit.sources.vitess.fake_vtgate import Fails, FakeVtgate, Script, Waits, response
from tests.unit.sources.vitess.stream_capture import HEAD, HIGH1, LOW1, LOW2, START

POSITIONS = ", ".join(f"aaaa{n:04}-aaaa-aaaa-aaaa-aaaaaaaaaaaa:1-{n}" for n in range(40))
STREAM = (
    "target: shop.-80.primary: vttablet: rpc error: code = Unknown desc = stream (at source tablet) error @ "
    f"(including the GTID we failed to process) {POSITIONS}: "
)
DROPPED = (
    "{}enum or set column e does not have valid string values: failed to build ENUM and SET column integer "
    "to string mappings failed to build table replication plan for table {}"
)
SHARDS = {"SHOW VITESS_SHARDS": [("shop/-80",), ("shop/80-",)]}
ANSWERS: dict[str, Any] = {**SHARDS, "FULL TABLES": [("item", "BASE TABLE"), ("odd", "BASE TABLE")]}


@pytest.mark.parametrize(
    ("text", "table", "cause"),
    [
        (DROPPED.format(STREAM, "odd"), "odd", "enum or set column e does not have valid string values"),
        (DROPPED.format(STREAM, "o d d"), "o d d", "enum or set column e"),
        (
            f"{STREAM}failed to perform ENUM column integer to string value mapping: no string value found "
            "for ENUM column my e in table odd -- with available values being: "
            f"{dict.fromkeys(range(200), 'x')} -- using the found integer value: 3",
            "odd",
            "using the found integer value: 3",
        ),
        (
            f"{STREAM}failed to build table replication plan for table odd: failed to build ENUM and SET "
            "column integer to string mappings: enum or set column e does not have valid string values: ",
            "odd",
            "enum or set column e",
        ),
        (
            f"{STREAM}no valid integer value found for SET column e in table odd, bytes: 101",
            "odd",
            "SET column e in table odd, bytes: 101",
        ),
    ],
)
def test_the_table_and_the_cause_are_named_however_long_the_text_is(
    text: str, table: str, cause: str
) -> None:
    error = failure("the stream ended", "UNKNOWN", text)

    assert isinstance(error, UnreadableTable)
    assert error.table == table
    assert cause in error.found
    assert len(error.found) < 900


def test_columns_that_a_tablet_does_not_know_yet_name_their_table() -> None:
    fields = 'type:INT32 table:"odd" ' * 100
    text = f"{STREAM}cannot determine table columns for odd: event has [8 3], schema has [{fields}]"
    error = failure("reading", "UNKNOWN", text)
    assert type(error) is StaleTabletSchema
    assert error.table == "odd"
    assert "a tablet doesn't know the columns that the table had" in str(error)


def source_of(server: FakeVtgate, attempts: int = 0) -> VitessSource:
    advanced = VitessAdvanced(
        connect_attempts=attempts, connect_backoff_seconds=0.01, call_timeout_seconds=2.0
    )
    source = VitessSource(
        VitessOptions(keyspace="shop", advanced=advanced), server.connection, lambda _: True
    )
    source._verified = START
    return source


def tables_of(request: Any) -> list[str]:
    return [rule.match for rule in request.filter.rules]


OTHERS: Script = [response(*LOW1), response(*LOW2), response(*HIGH1), Waits()]
FAILS = Fails(grpc.StatusCode.UNKNOWN, DROPPED.format(STREAM, "odd"))
BEHIND = Fails(
    grpc.StatusCode.UNKNOWN, f"{STREAM}cannot determine table columns for odd: event has [8 3], schema has []"
)


@pytest.mark.parametrize(("fails", "attempts", "allowed"), [(FAILS, 5, 16), (FAILS, 1, 0), (BEHIND, 7, 6)])
def test_the_other_tables_are_captured_up_to_the_head_without_it(
    fails: Fails, attempts: int, allowed: int
) -> None:
    scripts: list[Script] = [*[[fails]] * attempts, OTHERS, [Waits()]]
    with FakeVtgate(scripts, ANSWERS) as server, closing(source_of(server, allowed)) as source:
        with pytest.raises(PositionLost, match=r"changes of shop\.odd can't be read") as lost:
            source.plan(START.to_offset(), HEAD.to_offset(), ReadLimit())
        plan = source.plan(START.to_offset(), HEAD.to_offset(), ReadLimit())

        assert list(lost.value.tables) == ["shop.odd"]
        assert "exclude_tables" in lost.value.remedy
        assert plan.at_head
        read = source.reader().read(plan.partitions, ReadMetrics())
        assert sum(batch["source_table"].to_pylist().count("shop.item") for batch in read) == 3
        assert [tables_of(request) for request in server.requests] == [*[["/.*"]] * attempts, ["item"]]
        assert source._is_readable("shop.odd"), "after the head it is read again"


def test_a_table_that_was_dropped_since_is_left_out_without_an_error() -> None:
    answers: dict[str, Any] = {**SHARDS, "FULL TABLES": [("item", "BASE TABLE")]}
    with FakeVtgate([[FAILS], OTHERS], answers) as server, closing(source_of(server)) as source:
        plan = source.plan(START.to_offset(), HEAD.to_offset(), ReadLimit())

    assert plan.at_head
    assert len(plan.partitions) == 1


def test_a_table_that_fails_although_it_is_left_out_fails_the_plan() -> None:
    with FakeVtgate([[FAILS]], ANSWERS) as server, closing(source_of(server)) as source:
        with pytest.raises(PositionLost):
            source.plan(START.to_offset(), HEAD.to_offset(), ReadLimit())
        with pytest.raises(UnreadableTable):
            source.plan(START.to_offset(), HEAD.to_offset(), ReadLimit())


def test_without_any_other_table_the_stream_has_no_rows() -> None:
    answers: dict[str, Any] = {**SHARDS, "FULL TABLES": [("odd", "BASE TABLE")]}
    with FakeVtgate([[FAILS], OTHERS], answers) as server, closing(source_of(server)) as source:
        with pytest.raises(PositionLost):
            source.plan(START.to_offset(), HEAD.to_offset(), ReadLimit())
        source.plan(START.to_offset(), HEAD.to_offset(), ReadLimit())
        assert tables_of(server.requests[-1]) == ["_vt_no_table"]
