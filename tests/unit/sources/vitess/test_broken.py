"""Messages of a stream that can't be parsed are quarantined, or fail the read with ``strict``."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any

import pytest

from airflow_cdc_provider.changes.record import CHANGE, QUARANTINE
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.contract import ReadMetrics
from airflow_cdc_provider.sources.vitess.decode import decode
from airflow_cdc_provider.sources.vitess.options import VitessAdvanced, VitessOptions
from airflow_cdc_provider.sources.vitess.position import Position
from airflow_cdc_provider.sources.vitess.reader import SliceReader
from airflow_cdc_provider.sources.vitess.schema_history import TableHistory
from airflow_cdc_provider.sources.vitess.schema_ids import REREAD
from airflow_cdc_provider.sources.vitess.source import VitessSource
from tests.unit.sources.vitess.fake_vtgate import Step, Waits, event, fields, response, rows, transaction
from tests.unit.sources.vitess.stream_capture import (
    ALL,
    EXPECTED,
    HEAD,
    HIGH1,
    LOW1,
    LOW2,
    START,
    Capture,
    at,
    changes,
    options,
)

TRUNCATED = response(*LOW2)[:-3]
"""A message that ends too early."""

NO_FIELDS = response(event("FIELD", "-80", field_event=fields("item", "-80").field_event)).replace(
    b"bigint", b"\xff\xffgint"
)
"""A message with valid events, one of which has a body that isn't valid text."""


@pytest.fixture
def stack() -> Any:
    with ExitStack() as one:
        yield one


def chosen(**advanced: Any) -> VitessOptions:
    return VitessOptions(keyspace="shop", advanced=VitessAdvanced(connect_attempts=0, **advanced))


@pytest.mark.covers("VIT-FLT-11")
@pytest.mark.parametrize("broken", [TRUNCATED, NO_FIELDS, b"\x0a\xff\xff\xff\xff\x7f"])
def test_a_message_that_cannot_be_parsed_is_quarantined_and_logged(
    stack: ExitStack, caplog: pytest.LogCaptureFixture, broken: bytes
) -> None:
    script: list[Step] = [response(*LOW1), broken, broken, response(*LOW2, *HIGH1), Waits()]
    capture = Capture(stack, [script], chosen())

    with caplog.at_level(logging.WARNING):
        records, plan = capture.read(START, HEAD)

    assert changes(records) == EXPECTED
    assert Position.from_offset(plan.end) == HEAD
    quarantined = [r for r in records.to_pylist() if r["kind"] == QUARANTINE]
    assert [r["payload"] for r in quarantined] == [broken, broken]
    assert quarantined[0]["reason"].startswith("BROKEN-MESSAGE: ")
    reported = [r.getMessage() for r in caplog.records if "can't be parsed" in r.getMessage()]
    assert len(reported) == 2
    assert START.shards["shop/80-"].gtid in reported[0]
    assert at(low=11).shards["shop/-80"].gtid in reported[0]
    assert len(capture.server.requests) == 1


@pytest.mark.covers("VIT-FLT-11")
def test_quarantined_messages_are_not_logged_if_disabled(
    stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    script: list[Step] = [response(*LOW1), TRUNCATED, response(*LOW2, *HIGH1), Waits()]
    capture = Capture(stack, [script], chosen(log_quarantined_events=False))

    with caplog.at_level(logging.WARNING):
        records, _ = capture.read(START, HEAD)

    assert changes(records) == EXPECTED
    assert not caplog.records


@pytest.mark.covers("VIT-FLT-11")
@pytest.mark.parametrize("broken", [TRUNCATED, NO_FIELDS])
def test_with_strict_the_first_broken_message_ends_it_with_its_offset(
    stack: ExitStack, broken: bytes
) -> None:
    script: list[Step] = [response(*LOW1), broken, Waits()]
    capture = Capture(stack, [script], chosen(strict=True))
    place = at(low=11).shards["shop/-80"].gtid

    with pytest.raises(CorruptInput, match=f"after shop/-80 at {place}.*unset the option"):
        capture.read(START, HEAD)


def test_rows_of_a_message_that_is_missing_take_no_others_with_them(stack: ExitStack) -> None:
    """The middle one of three messages of a transaction."""
    whole = transaction(
        "-80",
        {"-80": 12, "80-": 20},
        rows("item", "-80", (None, ["5", "x"])),
        rows("item", "-80", (None, ["6", "x"])),
        rows("item", "-80", (None, ["7", "x"])),
    )
    script: list[Step] = [
        response(*LOW1, *whole[:2]),
        response(whole[2])[:-4],
        response(*whole[3:]),
        response(*HIGH1),
        Waits(),
    ]
    capture = Capture(stack, [script], chosen())

    records, _ = capture.read(START, HEAD)

    assert [text for _, _, text in changes(records)] == ["1x", "5x", "7x", "3x"]


ROW_OF_TWO = b"\x0a\x02\x02\x02"


def torn(data: bytes, what: bytes) -> bytes:
    """Let a length inside a row change lead out of it."""
    found = data.index(what + ROW_OF_TWO)
    return data[: found + 1] + b"\x7f" + data[found + 2 :]


@pytest.mark.covers("VIT-FLT-11")
@pytest.mark.parametrize("case", ["row", "fields"])
def test_a_row_that_cannot_be_decoded_is_quarantined_by_the_merge(
    stack: ExitStack, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    bad = transaction("-80", {"-80": 12, "80-": 20}, rows("item", "-80", (None, ["2", "x"])))
    if case == "row":
        script: list[Step] = [response(*LOW1), torn(response(*bad), b"\x12\x08"), response(*HIGH1), Waits()]
    else:
        lost = transaction("-80", {"-80": 11, "80-": 20}, rows("item", "-80", (None, ["1", "x"])))
        script = [response(*lost), response(*HIGH1), Waits()]
    head = at(low=12 if case == "row" else 11, high=21)
    capture = Capture(stack, [script], options())
    plan = capture.stream.plan(START, head, ALL)
    metrics = ReadMetrics()

    with caplog.at_level(logging.WARNING):
        read = list(SliceReader(lambda table: True).read(plan.partitions, metrics))

    assert "shop.item in shop/-80 at MySQL56/" in caplog.text
    assert metrics.counts["broken"] == 1
    history = TableHistory.of("shop.item", plan.records)
    found = [decode(batch, history, {}, ()) for batch in read if batch.column("kind")[0].as_py() == CHANGE]
    reasons = [reason for one in found for reason in one.reasons]
    assert [reason.split(":")[0] for reason in reasons] == ["BROKEN-ROW" if case == "row" else "NO-FIELDS"]
    assert sum(one.contributions.num_rows for one in found) == (2 if case == "row" else 1)
    with pytest.raises(CorruptInput, match=r"shop\.item in shop/-80 at MySQL56/.*, row 0"):
        list(SliceReader(lambda table: True, strict=True).read(plan.partitions[:1], ReadMetrics()))


@pytest.mark.covers("VIT-FLT-11")
def test_strict_looks_into_rows(stack: ExitStack) -> None:
    bad = transaction("-80", {"-80": 12, "80-": 20}, rows("item", "-80", (None, ["2", "x"])))
    capture = Capture(stack, [[response(*LOW1), torn(response(*bad), b""), Waits()]], options())
    (part,) = capture.stream.plan(START, at(low=12), ALL).partitions

    assert sum(len(batch) for batch in SliceReader(lambda table: True).read([part], ReadMetrics())) == 4
    with pytest.raises(CorruptInput, match=r"row 0 can't be parsed.*a field leaves its message"):
        list(SliceReader(lambda table: True, strict=True).read([part], ReadMetrics()))


def json_fields(shard: str) -> Any:
    found = fields("docs", shard, ("id", "name", "j", "k"))
    for field in found.field_event.fields[2:]:
        field.type, field.column_type, field.charset = 2078, "json", 63
    return found


@pytest.mark.parametrize("again", [False, True])
def test_a_table_is_due_after_json_that_arrived_broken(
    stack: ExitStack, caplog: pytest.LogCaptureFixture, *, again: bool
) -> None:
    whole = [
        (None, ["1", "{", "{}", '["x"]']),
        (["1", "{", "{", "{"], ["2", "{", "{}", "null"]),
        (["9"] * 4, None),
    ]
    odd = [(None, ["3", "x", "[]", '"base64:type15:AP8=", 1.0]']), (None, ["4", "x", "", "1"])]
    script: list[Step] = [
        response(
            *transaction("-80", {"-80": 11, "80-": 20}, json_fields("-80"), rows("docs", "-80", *whole))
        ),
        response(*transaction("-80", {"-80": 12, "80-": 20}, rows("docs", "-80", *(odd if again else [])))),
        response(*HIGH1),
        Waits(),
    ]
    capture = Capture(stack, [script], chosen(slice_bytes=1))
    source = VitessSource(VitessOptions(keyspace="shop"), {}, lambda table: True)

    with caplog.at_level(logging.WARNING):
        records, _ = capture.read(START, HEAD)

    source.learn(records)
    assert [text.partition(":")[0] for text in source.schema_findings()] == ["shop.docs"] * again
    due = [r for r in records.to_pylist() if r["schema_id"] == REREAD]
    assert [(r["source_table"], r["origin"], r["kind"]) for r in due] == [
        ("shop.docs", "shop/-80", "schema")
    ] * again
    assert all(r["payload"].startswith(b"2 rows") for r in due)
    history = TableHistory.of("shop.docs", records.to_pylist())
    assert (history.reread_us > 0, len(history.shapes)) == (again, 1)
    assert ("that isn't JSON" in caplog.text) == again
