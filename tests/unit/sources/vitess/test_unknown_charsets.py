from __future__ import annotations

from contextlib import closing
from typing import Any

import pyarrow as pa

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.sources.contract import ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.vitess.connection import ConnectionValues
from airflow_cdc_provider.sources.vitess.options import VitessOptions
from airflow_cdc_provider.sources.vitess.protocol import TYPES, FieldEvent
from airflow_cdc_provider.sources.vitess.schema_history import TableHistory
from airflow_cdc_provider.sources.vitess.schema_ids import schema_id
from airflow_cdc_provider.sources.vitess.source import VitessSource
from airflow_cdc_provider.sources.vitess.unknown_charsets import with_charsets
from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient
from tests.unit.sources.vitess.fake_vtgate import (
    FakeVtgate,
    Script,
    Waits,
    fields,
    response,
    rows,
    transaction,
)
from tests.unit.sources.vitess.record_builders import fields as made_fields
from tests.unit.sources.vitess.record_builders import ran, seen
from tests.unit.sources.vitess.stream_capture import START, at

ANSWERS: dict[str, list[tuple[str, ...]]] = {
    "information_schema.columns": [("id", "63"), ("name", "28")],
    "SHOW GLOBAL VARIABLES": [("binlog_row_image", "FULL")],
}


def of_unknown(name: str, shard: str) -> Any:
    """Fields whose text is in a character set that Vitess doesn't know."""
    reported = fields(name, shard)
    reported.field_event.fields[1].charset = 0
    return reported


def test_a_stream_has_the_character_set_from_mysql() -> None:
    text = "中文".encode("gbk").decode("latin1")
    made = rows("item", "-80", (None, ["1", "x"]))
    made.row_event.row_changes[0].after.values = b"1" + text.encode("latin1")
    made.row_event.row_changes[0].after.lengths[:] = [1, 4]
    inside = (of_unknown("item", "-80"), made)
    script: Script = [response(*transaction("-80", {"-80": 11, "80-": 20}, *inside)), Waits()]
    options = VitessOptions(keyspace="shop")
    with (
        FakeVtgate([script], ANSWERS) as server,
        closing(VitessSource(options, server.connection, lambda _: True)) as source,
    ):
        plan = source.plan(START.to_offset(), at(low=11).to_offset(), ReadLimit())
        read = next(source.reader().read([plan.partitions[0]], ReadMetrics()))
        source.learn(pa.Table.from_pylist(list(plan.records), schema=CHANGE_SCHEMA))
        codec = source.codec("shop.item")
        (printed,) = codec.to_json(codec.decode(read, ()).contributions.select(["key", "state"]))
    assert "中文" in printed
    queries = [sql for sql in server.statements if "information_schema.columns" in sql]
    assert len(queries) == 1
    assert "table_name = 'item'" in queries[0]


def test_fields_keep_the_name_that_rows_came_with() -> None:
    reported = made_fields({"id": "bigint", "name": "varchar(20)"})
    reported.fields[1].charset = 0
    with FakeVtgate([[Waits()]], ANSWERS) as server, client_of(server) as client:
        whole = with_charsets(seen(reported, 1), client, "PRIMARY", 5.0)
        again = with_charsets(whole, client, "PRIMARY", 5.0)

    assert whole["schema_id"] == schema_id(reported)
    assert [field.charset for field in FieldEvent.FromString(whole["payload"]).fields] == [63, 28]
    assert TableHistory.of("shop.t", [whole]).newest.columns[1].charset == "gbk"
    assert again == whole
    assert len(server.statements) == 1


def test_known_character_sets_and_other_types_are_not_queried() -> None:
    reported = made_fields({"id": "bigint", "name": "varchar(20)", "kind": "enum('a','b')"})
    reported.fields[2].charset = 0
    with FakeVtgate([[Waits()]], ANSWERS) as server, client_of(server) as client:
        for record in (seen(reported, 1), ran("alter table t add x int", 2)):
            assert with_charsets(record, client, "PRIMARY", 5.0) == record
    assert not server.statements
    assert TYPES[reported.fields[2].type] == "ENUM"


def client_of(server: FakeVtgate) -> VtgateClient:
    return VtgateClient(ConnectionValues.read(server.connection))
