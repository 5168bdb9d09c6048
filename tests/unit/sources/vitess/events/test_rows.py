"""Rows of mirrors of Vitess as events, without Spark: those of a copy, or what became of them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput
from airflow_cdc_provider.sources.vitess.codec import VitessCodec
from airflow_cdc_provider.sources.vitess.events.captured import RecordedSchema
from airflow_cdc_provider.sources.vitess.events.records import VitessRecords
from airflow_cdc_provider.sources.vitess.events.rows import VitessRows
from airflow_cdc_provider.sources.vitess.events.source_events import VitessSourceEvents
from airflow_cdc_provider.sources.vitess.events.stored_records import decode_records
from airflow_cdc_provider.sources.vitess.schema_history import TableHistory
from tests.unit.jobs.runs import stores_of
from tests.unit.sources.vitess.events.recorded_events import captured
from tests.unit.sources.vitess.events.vitess_recordings import NOW_NS, declared
from tests.unit.vitess_stream import NOT_NULL, PRIMARY, Stream, column

TABLE = "shop.t"
KEY, NAME = column("id", "INT64", "bigint", PRIMARY | NOT_NULL), column("name", "VARCHAR", charset=255)
SHARDS = ("-80", "80-")


class Mirror:
    """Rows of two shards and of two shapes of their table, as a capture and a merge leave them."""

    def __init__(self, folder: Path) -> None:
        stream = Stream(shards=SHARDS)
        for shard, row in zip(SHARDS, ([b"1", b"a"], [b"1", b"b"]), strict=True):
            stream.fields("t", KEY, NAME, shard=shard).change("t", None, row, shard=shard)
        stream.fields("t", KEY, NAME, column("more", "INT64", "bigint"), shard="-80")
        stream.change("t", None, [b"2", b"long" * 50, b"7"], shard="-80")
        self.table, self.fields = captured(stream.write(folder / "made.vstream"), "shop", SHARDS)
        self.schema = RecordedSchema(self.fields, {})
        reported: dict[str, Any] = {"source_table": TABLE, "kind": record.SCHEMA, "origin": "shop/-80"}
        reported |= {"position": bytes(28), "committed_at": datetime.fromtimestamp(0, UTC)}
        shapes = [{**reported, "schema_id": name, "payload": one} for (_, name), one in self.fields.items()]
        self.codec = VitessCodec(TABLE, TableHistory.of(TABLE, shapes))
        changes = self.table.filter(pc.equal(self.table["kind"], record.CHANGE)).combine_chunks()
        (self.changes,) = changes.to_batches()
        decoded = self.codec.decode(self.changes, ())
        in_turn = pc.sort_indices(pa.array(decoded.rows))
        self.rows = decoded.contributions.select(["key", "state"]).take(in_turn)

    def copied(self, connector: Connector) -> list[dict[str, Any]]:
        """Return the events of the rows as a copy gives them."""
        kind = self.changes.schema.get_field_index("kind")
        copies = self.changes.set_column(kind, "kind", pa.repeat(record.SNAPSHOT, self.changes.num_rows))
        at = copies.schema.get_field_index("committed_at")
        never = pa.nulls(copies.num_rows, copies.schema.field(at).type)
        maker = VitessRecords(connector, NOW_NS, lambda keyspace, table: True)
        decoded = decode_records(
            copies.set_column(at, "committed_at", never), self.schema.fields_of, maker.form, maker.captured
        )
        return parsed(maker.build(decoded))

    def merged(self, connector: Connector, *ops: str) -> list[dict[str, Any]]:
        """Return the events of the rows as if they had become what ops say."""
        rows = self.rows.append_column("op", pa.array(ops))
        make = VitessRows(connector, TABLE, self.schema).builder(NOW_NS, None, SkippedRecords(strict=True))
        return parsed(make(rows))


def parsed(records: pa.RecordBatch) -> list[dict[str, Any]]:
    return [{"key": one["key"], "value": one["value"]} for one in records.to_pylist()]


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    return Mirror(tmp_path)


@pytest.mark.parametrize("converter", ["json", "avro"])
def test_read_rows_are_events_like_those_of_a_copy(mirror: Mirror, converter: str) -> None:
    connector = declared("default", transactions=False, key=converter, value=converter)
    expected = mirror.copied(connector)
    assert len(expected) == 3
    assert mirror.merged(connector, "r", "r", "r") == expected
    assert mirror.merged(connector, "c", "c", "c") == expected


def test_changed_rows_are_complete_with_their_shard_and_deleted_ones_have_their_old_values(
    mirror: Mirror,
) -> None:
    connector = declared("default", transactions=False, schemas=False)
    events = mirror.merged(connector, "u", "d", "u")
    values = [json.loads(event["value"]) for event in events if event["value"]]
    assert [value["op"] for value in values] == ["u", "d", "u"]
    by_row = {(v["source"]["shard"], (v["after"] or v["before"])["id"]): v for v in values}
    assert set(by_row) == {("-80", 1), ("-80", 2), ("80-", 1)}
    (deleted,) = (v for v in values if v["op"] == "d")
    assert deleted["after"] is None
    assert all(v["before"] is None and v["after"]["name"] for v in values if v["op"] == "u")
    assert by_row["-80", 2]["after" if by_row["-80", 2]["op"] == "u" else "before"]["more"] == 7
    for (shard, _), value in by_row.items():
        (place,) = json.loads(value["source"]["vgtid"])
        assert (place["shard"], place["gtid"], value["source"]["ts_ms"]) == (shard, "", 0)
    at = [bool(event["value"]) for event in events].index(False)
    assert events[at]["key"] == events[at - 1]["key"]
    assert json.loads(events[at - 1]["value"])["op"] == "d"


def test_a_row_that_can_not_be_decoded_is_reported_with_its_key(mirror: Mirror) -> None:
    states = mirror.rows["state"].to_pylist()
    mirror.rows = mirror.rows.set_column(1, "state", pa.array([states[0][:-1], *states[1:]], pa.binary()))
    key = mirror.rows["key"][0].as_py().hex()
    with pytest.raises(CorruptInput, match=key):
        mirror.merged(declared("default", transactions=False), "r", "r", "r")


def test_tables_without_a_key_are_refused() -> None:
    keyless = VitessCodec(TABLE, TableHistory(TABLE))
    keyless.__dict__["has_key"] = False
    state = SimpleNamespace(memory=None)
    connector = declared("default")
    source: Any = SimpleNamespace(has_schema_history=False, codec=lambda table, memory: keyless)
    stores = stores_of(connector, mirrors=lambda table: SimpleNamespace(state=lambda: state))
    with pytest.raises(ConfigurationError, match="the table has no key"):
        VitessSourceEvents().row_events(stores, source, TABLE)
