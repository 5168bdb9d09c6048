"""What is stored with each offset, commit or run has a size that no user of a source chooses."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson.max_key import MaxKey
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.lake.mirror import OFFSET, MirrorState
from airflow_cdc_provider.lake.table import Head
from airflow_cdc_provider.sources.cassandra import schema_history
from airflow_cdc_provider.sources.cassandra.payload import OBSERVED_TAG, SKIPPED_TAG
from airflow_cdc_provider.sources.cassandra.schema_history import read_history
from airflow_cdc_provider.sources.mongodb import chunks, key_ranges
from airflow_cdc_provider.sources.mongodb.cursor_reads import CursorField
from airflow_cdc_provider.sources.mongodb.position import MOST_BYTES, StreamPosition
from airflow_cdc_provider.sources.scylla.schema_history import LogHistory
from airflow_cdc_provider.sources.vitess import ddl
from airflow_cdc_provider.sources.vitess.ddl import read_statement, recorded_bytes
from airflow_cdc_provider.sources.vitess.options import VitessOptions
from airflow_cdc_provider.sources.vitess.records import schema_record
from airflow_cdc_provider.sources.vitess.schema_ids import DDL
from airflow_cdc_provider.sources.vitess.source import VitessSource
from tests.bounded import bounded
from tests.unit.sources.scylla.small_log import TABLE

SIZES = st.one_of(st.integers(0, 2 * MOST_BYTES), st.just(1 << 20))


@settings(max_examples=20, deadline=None)
@given(SIZES)
def test_a_token_of_any_size_leaves_a_small_offset(size: int) -> None:
    token = bson.encode({"_data": "82" + "0" * size})
    offset = StreamPosition(5, 7, 3, token).to_offset()
    state = MirrorState(Head(None), offset=offset)
    assert len(state.properties()[OFFSET]) < 8192
    resumed = StreamPosition.from_offset(offset)
    assert (resumed.seconds, resumed.increment, resumed.index) == (5, 7, 3)
    assert resumed.token == (token if len(token) <= MOST_BYTES else b"")


def test_a_mirrors_metadata_has_no_large_offset() -> None:
    large = {"t": {"v": "x" * 9000}}
    assert OFFSET not in MirrorState(Head(None), offset=large).properties()
    assert OFFSET not in MirrorState(Head(None)).properties()


def test_a_copy_up_to_a_large_key_goes_up_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"small": bson.encode({"_id": 7}), "large": bson.encode({"_id": "x" * (8 << 20)}), "none": b""}
    monkeypatch.setattr(chunks, "first_id", lambda client, table, options: keys[table])
    found = {table: base64.b64decode(chunks.maximum_key(None, table, "")) for table in keys}  # type: ignore[arg-type]
    assert found == {**keys, "large": bson.encode({"_id": MaxKey()})}


def test_a_read_after_a_large_value_is_a_full_one() -> None:
    cursor = CursorField("at")
    assert cursor.next_state("x" * (8 << 20), "", 1.0, full=True) == ""
    assert json.loads(cursor.next_state("x", "", 1.0, full=True))["value"] == "x"


def test_a_fault_of_a_record_quotes_the_beginning_of_its_key() -> None:
    skipped = SkippedRecords(strict=False)
    skipped.add("topic t, key " + "x" * (8 << 20), "NO-BASE")
    (text,) = skipped.undecodable
    assert len(text) < 1_100
    assert text.endswith("x...: NO-BASE")


def test_a_key_is_shown_in_few_characters() -> None:
    key = base64.b64encode(bson.encode({"_id": "x" * (8 << 20)})).decode()
    assert len(chunks.format_key(key)) == 200
    assert chunks.format_key(base64.b64encode(bson.encode({"_id": 7})).decode()) == "7"


@settings(max_examples=10, deadline=None)
@given(st.lists(SIZES, min_size=1, max_size=9))
def test_large_keys_bound_no_range(sizes: list[int]) -> None:
    found = [bson.encode({"_id": f"{number}{'x' * size}"}) for number, size in enumerate(sizes)]
    left = iter(found)
    with pytest.MonkeyPatch.context() as patch, bounded(seconds=1):
        patch.setattr(key_ranges, "first_id", lambda *_: next(left, b""))
        bounds = list(key_ranges._boundaries(None, "d.c", 1000, len(sizes) + 1))  # type: ignore[arg-type]
    assert bounds == [one for one in found if len(one) <= MOST_BYTES]


def statement(text: bytes, shard: str = "shop/0", number: int = 0) -> dict[str, Any]:
    return schema_record(
        text,
        DDL,
        table=None,
        origin=shard,
        position=number.to_bytes(8, "big"),
        committed_us=1,
        captured_us=1,
    )


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9_000)), max_size=12), st.integers(1, 6))
def test_statements_of_a_table_are_bounded(sizes: list[tuple[str, int]], batches: int) -> None:
    recorded: list[Mapping[str, Any]] = []
    texts = [f"ALTER TABLE {table} COMMENT '{'x' * size}'".encode() for table, size in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ddl, "MOST_RECORDED_BYTES", 20_000)
        for _ in range(batches):
            new = [*map(statement, texts), {"kind": "schema", "schema_id": "fields"}]
            recorded += ddl.bounded(new, recorded_bytes(recorded))
    found = recorded_bytes(recorded)
    assert all(size <= 20_000 + 10_100 + 1_100 * batches for size in found.values())
    assert sum(one["schema_id"] == "fields" for one in recorded) == batches


def test_beyond_the_most_one_statement_for_each_batch_says_that_a_snapshot_is_due() -> None:
    text = b"ALTER TABLE t COMMENT '" + b"x" * 1_000_000 + b"'"
    full = recorded_bytes([statement(text), statement(text), statement(text)])
    other = statement(b"ALTER TABLE other ADD x int")
    elsewhere = statement(text, "shop/80-")
    found = ddl.bounded([statement(text), other, statement(text, number=9), elsewhere], full)
    assert found[:2] == [other, elsewhere]
    (last,) = found[2:]
    assert (last["payload"], last["position"][-1]) == (b"RENAME TABLE `t` TO `t`", 9)
    assert isinstance(read_statement(last["payload"].decode())[0].actions[0], ddl.Unknown)


def test_statements_are_parsed_once_for_all_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []

    def counted(text: str) -> tuple[ddl.TableStatement, ...]:
        parsed.append(text)
        return read_statement(text)

    monkeypatch.setattr("airflow_cdc_provider.sources.vitess.schema_history.read_statement", counted)
    texts = [f"ALTER TABLE t{n % 40} ADD c{n} INT DEFAULT (1 + {n})".encode() for n in range(300)]
    records = [
        statement(text, shard, n) for n, text in enumerate(texts) for shard in ("shop/-80", "shop/80-")
    ]
    source = VitessSource(VitessOptions(keyspace="shop"), {}, lambda table: True)
    source.learn(pa.Table.from_pylist(records, CHANGE_SCHEMA))
    due = [source.resumed_at(f"shop.t{n}") > 0 for n in range(80)]
    assert due == [True] * 40 + [False] * 40
    assert len(parsed) == len(texts)


def test_schemas_of_a_log_are_bounded() -> None:
    history = LogHistory()
    records: list[dict[str, Any]] = []
    with bounded(seconds=5):
        for number in range(40):
            payload = json.dumps({"id": "i", "n": number, "x": "x" * (1 << 19)}).encode()
            table = replace(TABLE, payload=payload)
            found = list(history.new_records([table], (), number + 1))
            records += found
            history = LogHistory(pa.Table.from_pylist(records, CHANGE_SCHEMA))
    assert 1 < len(records) <= 18


def test_a_keyspace_with_many_recorded_updates_gets_no_further_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def records(key: bytes, tag: int, count: int, copies: int = 1) -> list[dict[str, Any]]:
        row = {"kind": "schema", "source_table": "system_schema.other", "key": key, "origin": "n"}
        payloads = [bytes([tag]) + bytes([n]) * (4 << 20) for n in range(count)] * copies
        return [{**row, "position": b"", "committed_at": 0, "payload": payload} for payload in payloads]

    few = [*records(b"few", 7, 2, copies=9), *records(b"observed", OBSERVED_TAG, 9)]
    found = [*records(b"full", 7, 9), *few, *records(b"skipped", SKIPPED_TAG, 9)]
    assert read_history(pa.Table.from_pylist(found, CHANGE_SCHEMA)).full == {b"full"}
    monkeypatch.setattr(schema_history, "_MOST_COPIED_BYTES", 64 << 20)
    assert read_history(pa.Table.from_pylist(few, CHANGE_SCHEMA)).full == {b"few"}
