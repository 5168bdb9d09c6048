"""Keys of tables without a primary key, from the fields that a real VTGate reports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import pytest

from airflow_cdc_provider.changes.record import SCHEMA
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.sources.contract import ReadLimit
from airflow_cdc_provider.sources.vitess.events.records import VitessRecords
from airflow_cdc_provider.sources.vitess.events.stored_records import decode_records
from airflow_cdc_provider.sources.vitess.fields import TableShape
from airflow_cdc_provider.sources.vitess.options import VitessOptions
from airflow_cdc_provider.sources.vitess.protocol import FieldEvent
from airflow_cdc_provider.sources.vitess.source import VitessSource
from server_kit import VitessServer
from tests.integration.sources.vitess.workload import read

pytestmark = pytest.mark.integration

PAIR: Final = "unique key (a, b)"
TABLES: Final = {
    "first_of_several": f"code varchar(9) not null, mail varchar(9), {PAIR}, unique (mail), unique (code)",
    "nullable_alone": f"mail varchar(9), other int, {PAIR}, unique (mail), unique (other)",
    "pair_alone": f"n int, {PAIR}",
    "pair_promoted": "x int not null, y int not null, code varchar(9), unique (x, y), unique (code)",
}


@pytest.fixture
def _tables(vitess_server: VitessServer) -> Iterator[None]:
    for table, columns in TABLES.items():
        definition = f"create table {table} (place bigint not null, a int, b int, {columns})"
        vitess_server.define("shop", definition, shard_by={table: "place"})
    yield
    with vitess_server.connect("shop").cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"drop table {table}")


@pytest.mark.usefixtures("_tables")
@pytest.mark.covers("VIT-KEY-02")
def test_without_a_primary_key_a_unique_column_is_the_key_and_several_together_are_not(
    vitess_server: VitessServer,
) -> None:
    with closing(
        VitessSource(
            VitessOptions(keyspace="shop"),
            vitess_server.connection,
            lambda name: name.removeprefix("shop.") in TABLES,
        )
    ) as source:
        start = source.start()
        with vitess_server.connect("shop").cursor() as cursor:
            cursor.execute("insert into first_of_several values (7, 1, 2, 'c', 'm')")
            cursor.execute("insert into nullable_alone values (7, 1, 2, 'm', 3)")
            cursor.execute("insert into pair_alone values (7, 1, 2, 3)")
            cursor.execute("insert into pair_promoted values (7, 1, 2, 3, 4, 'c')")
        plan = source.plan(start, source.head(), ReadLimit())
        changes = read(source.reader(), plan.partitions)
    fields = {
        (record["source_table"], record["schema_id"]): record["payload"]
        for record in plan.records
        if record["kind"] == SCHEMA and record["source_table"].removeprefix("shop.") in TABLES
    }
    shapes = {name: TableShape.of(FieldEvent.FromString(payload)) for (name, _), payload in fields.items()}
    mirrored = {name: [shape.columns[n].name for n in shape.key] for name, shape in shapes.items()}

    (in_order,) = changes.sort_by([("origin", "ascending"), ("position", "ascending")]).to_batches()
    published = keys_of_events(in_order, fields)

    assert published == {
        "first_of_several": {"code": "c"},
        "nullable_alone": {"mail": "m"},
        "pair_alone": None,
        # No unique column precedes it and none of its columns is nullable: MySQL reports a primary key.
        "pair_promoted": {"x": 3, "y": 4},
    }
    assert mirrored == {
        "shop.first_of_several": ["code"],
        "shop.nullable_alone": [],  # rows without the value have no key
        "shop.pair_alone": [],
        "shop.pair_promoted": ["x", "y"],
    }


def keys_of_events(changes: Any, fields: dict[tuple[str, str], bytes]) -> dict[str, Any]:
    """Return the key of each table's event."""
    connector = Connector.from_dict({"name": "c", "source": {"type": "vitess", "keyspace": "shop"}})
    builder = VitessRecords(connector, 0, lambda keyspace, table: True)
    decoded = decode_records(
        changes, lambda table, number: fields[table, number], builder.form, builder.captured
    )
    assert not decoded.unread
    events = builder.build(decoded).to_pylist()
    return {event["topic"].rpartition(".")[2]: event["key"] and json.loads(event["key"]) for event in events}
