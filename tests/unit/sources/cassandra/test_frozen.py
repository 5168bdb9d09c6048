"""Frozen columns: typed in the lake, and in events by their parts or as the bytes that Cassandra stores."""

from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.events.connect import schema_of
from airflow_cdc_provider.lake.reconcile import reconcile_cells
from airflow_cdc_provider.sources.cassandra.codec import CassandraCodec
from airflow_cdc_provider.sources.cassandra.events.decode import EventDecoder
from airflow_cdc_provider.sources.cassandra.events.types import EventTypes
from airflow_cdc_provider.sources.cql.describe import parse_cql
from tests.unit.sources.cassandra.frozen_values import (
    COLUMNS,
    DRIVER_TYPES,
    FIELDS,
    ROWS,
    assert_restored,
    native,
)
from tests.unit.sources.cassandra.select_pages import NOW, select_row, snapshot_records

TABLE = parse_cql(
    f"CREATE TYPE k.u {FIELDS}; CREATE TABLE k.t {COLUMNS} WITH ID = 29e3de10-e580-11f1-a764-fd2ee712b6e7"
).tables["k.t"]


def records() -> pa.RecordBatch:
    given = []
    for values in ROWS:
        raw = {name: native(name, values.get(name)) for name in DRIVER_TYPES}
        given.append(select_row(TABLE, raw, dict.fromkeys(DRIVER_TYPES, 5), {}))
    found = snapshot_records(TABLE, given)
    positions = pa.array([bytes(40)] * found.num_rows, pa.binary())
    return found.set_column(CHANGE_SCHEMA.get_field_index("position"), "position", positions)


@pytest.mark.covers("CAS-TYPE-10")
def test_frozen_values_are_restored_from_lake_and_events_in_any_format() -> None:
    batch = records()
    codec = CassandraCodec(TABLE)
    live = reconcile_cells(pa.Table.from_batches([codec.decode(batch, ()).contributions]), NOW).live
    mirror = codec.project(live.combine_chunks().to_batches()[0])
    decoded = EventDecoder(TABLE, EventTypes()).decode(batch).events
    stored = EventDecoder(TABLE, EventTypes(frozen="bytes")).decode(batch).events
    assert_restored(ROWS, mirror, decoded, stored)
    plain_column = stored.schema.field("after").type.field("plain").type.field("value")
    assert plain_column.type == pa.int32(), "what is not frozen stays as it is"
    key = stored.schema.field("key").type
    assert [schema_of(key.field(i)).type for i in range(2)] == ["bytes", "bytes"]
    assert stored["key"].to_pylist()[1] == {name: native(name, ROWS[1][name]) for name in ("p", "c")}


def test_an_unfrozen_collection_is_always_structured() -> None:
    table = parse_cql("CREATE TABLE k.t (p int PRIMARY KEY, l list<frozen<set<int>>>, t tuple<int, text>)")
    types = EventTypes(frozen="bytes")
    assert types.event_schema(table.tables["k.t"]) == table.tables["k.t"]
