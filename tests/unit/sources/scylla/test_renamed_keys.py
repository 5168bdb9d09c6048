"""Log rows that lost the values of a renamed key column are decoded as they were written, or not at all."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from airflow_cdc_provider.sources.scylla.codec import ScyllaCodec, recall_scylla_codec
from airflow_cdc_provider.sources.scylla.events.decode import EventDecoder, TableEvents
from airflow_cdc_provider.sources.scylla.events.tables import event_table
from airflow_cdc_provider.sources.scylla.payload import schema_digest
from airflow_cdc_provider.sources.scylla.schema_history import LogHistory
from server_kit.scylla.base_table import BaseTable
from server_kit.scylla.cluster import LoggedChange
from server_kit.scylla.statements import DeleteRange, DeleteRow, Insert, Limit, SetWhole, Statement, Update
from server_kit.scylla.tables import CdcOptions, Column, Table
from server_kit.scylla.workload import draw_table
from tests.oracles.cassandra_read_path import read as read_cells
from tests.unit.server_kit.scylla.item import INT, ITEM, PAIRS, T, i, server, t
from tests.unit.sources.scylla.altered_table import AlteredTable
from tests.unit.sources.scylla.logged import (
    STREAM,
    LogRow,
    change_record,
    changes,
    codec_of,
    logged_rows,
    payloads,
    record_of,
    record_of_change,
    schema_payload,
    table_schema,
    time_uuid,
)
from tests.unit.sources.scylla.random_log_rows import random_changes

NEW = "renamed"


def renamed(table: Table, name: str) -> Table:
    """Return a table after a key column was renamed."""

    def of(columns: tuple[Column, ...]) -> tuple[Column, ...]:
        return tuple(replace(c, name=NEW) if c.name == name else c for c in columns)

    order = frozenset(NEW if one == name else one for one in table.descending)
    return replace(table, partition=of(table.partition), clustering=of(table.clustering), descending=order)


def read_after_rename(table: Table, rows: Sequence[LogRow], renamed_us: int) -> dict[str, object]:
    """Write the record of a change that was read after the rename: the log has no value of the column."""
    return {**change_record(table, rows), "schema_id": schema_digest(_payload(table, renamed_us))}


def _payload(table: Table, renamed_us: int) -> bytes:
    return json.dumps({**json.loads(schema_payload(table)), "renamed_us": renamed_us}).encode()


def codec_after(table: Table, renamed_us: int) -> ScyllaCodec:
    payload = _payload(table, renamed_us)
    return recall_scylla_codec(table_schema(table), {schema_digest(payload): payload}, None)


def contributions(codec: ScyllaCodec, record: dict[str, object]) -> tuple[list[dict[str, Any]], list[str]]:
    decoded = codec.decode(changes([record]), [])
    return decoded.contributions.to_pylist(), list(decoded.reasons)


@pytest.mark.parametrize("seed", range(30))
def test_random_changes_are_decoded_as_they_were_written_or_quarantined(seed: int) -> None:
    chance = random.Random(seed)
    table = draw_table(chance, "k", "t", cdc=CdcOptions())
    while not table.clustering:
        table = draw_table(chance, "k", "t", cdc=CdcOptions())
    name = chance.choice([c.name for c in (*table.clustering, *table.partition)])
    now = renamed(table, name)
    before, after = codec_of(table), codec_after(now, T + 1000)
    events_before = EventDecoder(event_table(schema_payload(table)))
    events_after = EventDecoder(event_table(_payload(now, T + 1000)))
    quarantined = 0
    for logged in random_changes(chance, BaseTable(table), 40):
        rows = [{n: v for n, v in row.items() if n != name} for row in logged_rows(logged)]
        expected, _ = contributions(before, record_of(logged))
        record = read_after_rename(now, rows, T + 1000)
        found, reasons = contributions(after, record)
        quarantined += bool(reasons)
        assert reasons or found == expected
        assert all(reason.startswith(("renamed-key: ", "bad-key: ", "bad-log-row: ")) for reason in reasons)

        published = events_after.decode(payloads([record]))
        if not published.undecodable:
            assert _events(published.events, name) == _events(
                events_before.decode(payloads([record_of(logged)])).events, name
            )
    assert quarantined


def _events(events: Any, name: str) -> list[dict[str, Any]]:
    """Return events without the renamed column, which only those of static columns may lack."""
    rows: list[dict[str, Any]] = events.to_pylist()
    return [{**r, "key": {n: v for n, v in r["key"].items() if n not in (name, NEW)}} for r in rows]


@pytest.mark.parametrize(
    ("table", "statement", "column"),
    [
        (ITEM, DeleteRange((i(7),), (), Limit(i(5), True), Limit(i(6), True)), "sku"),
        (ITEM, DeleteRange((i(7),), (), Limit(i(5), False), None), "sku"),
        (ITEM, DeleteRow((i(7),), (i(1),)), "sku"),
        (ITEM, Insert((i(7),), (i(1),), {}), "sku"),
        (ITEM, Insert((i(7),), (i(1),), {"name": t("tea")}), "sku"),
        (ITEM, Update((i(7),), (i(1),), (SetWhole("name", None),)), "sku"),
        (ITEM, Insert((i(7),), (i(1),), {"name": t("tea")}), "shop"),
        (PAIRS, DeleteRange((i(7),), (i(1),), Limit(i(5), True), Limit(i(6), True)), "b"),
        (PAIRS, DeleteRange((i(7),), (i(1),)), "a"),
        (PAIRS, Insert((i(7),), (i(1), i(2)), {}), "b"),
    ],
)
def test_what_lost_a_value_is_quarantined_with_the_reason(
    table: Table, statement: Statement, column: str
) -> None:
    (change,) = server(table).execute(statement)
    now = renamed(table, column)
    rows = logged_rows(LoggedChange(table, (i(7),), STREAM, time_uuid(T), change))
    lost = [{n: v for n, v in row.items() if n != column} for row in rows]
    _, (reason,) = contributions(codec_after(now, T), read_after_rename(now, lost, T))
    assert reason.startswith("bad-key: " if column == "shop" else ("renamed-key: ", "bad-log-row: "))
    assert now.full_name in reason
    # What is written after the rename has its values.
    kept = [{NEW if n == column else n: v for n, v in row.items()} for row in rows]
    found, reasons = contributions(codec_after(now, T - 1), read_after_rename(now, kept, T - 1))
    assert not reasons
    assert found == contributions(codec_of(table), record_of_change(table, change, (i(7),)))[0]


@pytest.mark.parametrize("table", [ITEM, PAIRS])
def test_a_range_without_any_bound_is_never_a_whole_partition(table: Table) -> None:
    (change,) = server(table).execute(DeleteRange((i(7),), (), Limit(i(5), True), Limit(i(6), True)))
    unbound = replace(change, rows=tuple(replace(row, clustering=()) for row in change.rows))
    record = record_of_change(table, unbound, (i(7),))
    found, (reason,) = contributions(codec_of(table), record)
    assert not found
    assert reason.startswith("bad-marker: ")


def _events_of(table: Table, published: TableEvents) -> list[tuple[str, bool, list[Any]]]:
    names = [c.name for c in (*table.partition, *table.clustering)]
    rows: list[dict[str, Any]] = published.events.to_pylist()
    return [(row["op"], row["static"], [row["key"][name] for name in names]) for row in rows]


def _shown(
    codec: ScyllaCodec, found: list[dict[str, Any]], altered: AlteredTable, us: int
) -> list[dict[str, Any]]:
    """Return contributions with cells by name, without those of columns that were dropped since."""
    present = {c.name for c in altered.others if altered.dropped_columns.get(c.name, 0) < us}
    names = {c.id: c.name for c in (*codec.schema.static, *codec.schema.regular)}
    shown = []
    for one in found:
        row = read_cells(one["state"])
        cells = {names[c.column]: (c.time, c.value, c.end) for c in row.cells if names[c.column] in present}
        if cells or row.liveness or row.deletion:
            shown.append({**one, "state": (row.liveness, row.deletion, row.clustering, cells)})
    return shown


@pytest.mark.parametrize("seed", range(60))
def test_changes_that_wait_while_columns_change_are_decoded_as_they_were_written_or_quarantined(
    seed: int,
) -> None:
    chance = random.Random(seed)
    altered = AlteredTable.draw(chance)
    altered.record(altered.observe()[0])
    waiting: list[LoggedChange] = []
    renamed_us = 0
    for _ in range(12):
        waiting += altered.write(8)
        for _ in range(chance.randrange(4)):
            keys = altered.keys
            altered.alter()
            renamed_us = altered.now_us if altered.keys != keys else renamed_us
        log, codec = altered.observe()
        events = EventDecoder(event_table(log.payload))
        read = chance.randrange(len(waiting) + 1)  # a killed run leaves some for the next
        for change in waiting[:read]:
            us, record = change.change.time, altered.read(log, change)
            found, reasons = contributions(codec, record)
            if reasons:
                assert renamed_us, "no key column was ever renamed"
                assert max(us, renamed_us) <= log.renamed_us, "its table is due"
                assert reasons[0].startswith(("renamed-key: ", "bad-key: ", "bad-log-row: "))
            else:
                before = codec_of(change.table)
                expected, _ = contributions(before, record_of(change))
                assert _shown(codec, found, altered, us) == _shown(before, expected, altered, us)
            published = events.decode(payloads([record]))
            if not published.undecodable:
                written = EventDecoder(event_table(schema_payload(change.table)))
                expected_events = written.decode(payloads([record_of(change)]))
                assert _events_of(altered.table, published) == _events_of(change.table, expected_events)
        waiting = waiting[read:]
        if chance.random() < 0.8:
            altered.record(log)
            assert altered.observe()[0].payload == log.payload, "a schema that is known isn't recorded again"


SECOND_US = 1_000_000


def _altered(*columns: str) -> AlteredTable:
    clustering = tuple(Column(name, INT) for name in columns)
    altered = AlteredTable(random.Random(1), Table("k", "t", (Column("pk", INT),), clustering))
    altered.record(altered.observe()[0])
    return altered


def test_a_rename_whose_trace_is_overwritten_is_found_by_the_recorded_schema() -> None:
    altered = _altered("a", "ck")
    table = altered.table
    (change,) = server(table).execute(DeleteRange((i(7),), (i(1),), Limit(i(5), True)), at=altered.now_us + 1)
    altered.rename("ck", "ck2")
    altered.add("ck")
    altered.drop("ck")
    log, codec = altered.observe()
    logged = LoggedChange(table, (i(7),), STREAM, time_uuid(change.time), change)
    found, (reason,) = contributions(codec, altered.read(log, logged))
    assert not found
    assert reason.startswith("renamed-key: ")
    assert log.renamed_us == altered.now_us
    altered.record(log)
    altered.add("v")
    altered.drop("v")
    assert altered.observe()[0].renamed_us == log.renamed_us, "another drop is no rename"
    altered.rename("ck2", "ck")
    altered.add("ck2")
    altered.drop("ck2")
    assert altered.observe()[0].renamed_us == altered.now_us, "the keys have the names of before"


def test_without_a_recorded_schema_a_rename_differs_in_what_the_log_drops_with_it() -> None:
    altered = _altered("ck")
    altered.history = LogHistory()
    altered.add("v")
    altered.drop("v")
    assert altered.observe()[0].renamed_us == 0
    altered.rename("ck", "v")
    altered.rename("v", "ck2")
    assert altered.observe()[0].renamed_us == altered.now_us, "v was dropped without a flag this time"
