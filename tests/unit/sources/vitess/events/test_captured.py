"""Events of captured records against those of the recording that was captured."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.events.encoder import text_of, to_lines
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.vitess.events.captured import ORDER, partition_by, record_pieces
from airflow_cdc_provider.sources.vitess.events.records import VitessRecords
from airflow_cdc_provider.sources.vitess.events.stored_records import decode_records
from airflow_cdc_provider.sources.vitess.schema_ids import DDL
from tests.unit.sources.lake_records import vitess
from tests.unit.sources.vitess.events.recorded_events import captured
from tests.unit.sources.vitess.events.vitess_recordings import FIXTURES, NOW_NS, declared, records
from tests.unit.vitess_stream import NOT_NULL, PRIMARY, Stream, column


def printed_lines(
    table: pa.Table, fields: dict[tuple[str, str], bytes], name: str, size: int, **publish: Any
) -> list[dict[str, Any]]:
    """Print the events of records, read so many at a time."""
    connector = declared(name, schemas=False, headers=False, **publish)
    maker = VitessRecords(connector, NOW_NS, lambda keyspace, table: True)

    def lines() -> Iterator[str]:
        for piece in record_pieces(iter(table.to_batches(max_chunksize=size))):
            decoded = decode_records(piece, lambda table, id: fields[table, id], maker.form, maker.captured)
            assert not decoded.unread
            yield from text_of(to_lines(maker.build(decoded), ())).decode().splitlines()

    return [json.loads(line) for line in lines()]


def of_shard(found: list[dict[str, Any]], shard: str) -> list[Any]:
    """Return the events of a shard, without tombstones, BEGIN and END."""
    values = [(r["topic"], r["key"], json.loads(r["value"])) for r in found if r["value"]]
    return [one for one in values if "op" in one[2] and one[2]["source"]["shard"] == shard]


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize(
    ("name", "keyspace", "shards"), [("txordered", "shop", ("-80", "80-")), ("unsharded", "lookup", ("0",))]
)
def test_captured_records_give_each_shards_events_as_the_recording_does(
    name: str, keyspace: str, shards: tuple[str, ...], size: int
) -> None:
    table, fields = captured(name, keyspace, shards)
    recorded = records(declared(name, schemas=False, headers=False), FIXTURES / "vstream" / f"{name}.vstream")

    # A capture has no copy in its stream: the rows of snapshots have records of their own.
    found = printed_lines(table.filter(table["committed_at"].is_valid()), fields, name, size)

    for shard in shards:
        changes = [event for event in of_shard(recorded, shard) if event[2]["source"]["ts_ms"]]
        assert len(changes) > 3
        assert of_shard(found, shard) == changes


@pytest.mark.covers("VIT-TXN-13")
def test_batches_of_dropped_transaction_records_still_move_the_position() -> None:
    kept, dropped = (
        vitess(transactions=True, vitess={"ordered_transactions": False, "transaction_records": records_too})
        for records_too in (True, False)
    )
    of_all, of_rows = (
        [(one.batch, one.records["topic"].to_pylist()) for one in made.made(0, 1)] for made in (kept, dropped)
    )

    assert [number for number, _ in of_rows] == [number for number, _ in of_all]
    assert [[t for t in topics if t != "cdc.transaction"] for _, topics in of_all] == [t for _, t in of_rows]
    assert any(topics and not left for (_, topics), (_, left) in zip(of_all, of_rows, strict=True))


def test_snapshot_rows_have_their_shard_without_a_position() -> None:
    table, fields = captured("unsharded", "lookup", ("0",))
    rows = table.filter(pc.equal(table["kind"], record.CHANGE))
    kind = rows.schema.get_field_index("kind")
    copies = rows.set_column(kind, "kind", pa.repeat(record.SNAPSHOT, rows.num_rows))

    found = [json.loads(r["value"]) for r in printed_lines(copies, fields, "unsharded", 10_000) if r["value"]]

    events = [value for value in found if "op" in value]
    assert len(events) >= rows.num_rows
    nowhere = [{"keyspace": "lookup", "shard": "0", "gtid": "", "table_p_ks": []}]
    assert all(json.loads(value["source"]["vgtid"]) == nowhere for value in events)
    assert [value["status"] for value in found if "status" in value][:2] == ["BEGIN", "END"]


def in_lakes_order(table: pa.Table, reshards: frozenset[int]) -> tuple[pa.Table, list[str]]:
    """Sort records as Spark does, by the same expressions; return them, and what parts each."""
    columns = ("batch", "kind", "position", "origin")
    with sqlite3.connect(":memory:") as lake:
        lake.execute(f"CREATE TABLE changes ({', '.join(columns)})")
        reported = zip(*(table[name].to_pylist() for name in columns), strict=True)
        lake.executemany("INSERT INTO changes VALUES (?, ?, ?, ?)", reported)
        query = f"SELECT rowid - 1, {partition_by(reshards)} FROM changes ORDER BY {', '.join(ORDER)}"
        found = lake.execute(query).fetchall()
    return table.take([number for number, _ in found]), [part for _, part in found]


def test_a_row_keeps_its_order_in_the_batch_in_which_its_shard_is_split(tmp_path: Path) -> None:
    key, name = column("id", "INT64", "bigint", PRIMARY | NOT_NULL), column("name", "VARCHAR", charset=255)
    stream = Stream(shards=("-80", "80-")).fields("t", key, name, shard="-80")
    stream.fields("t", key, name, shard="80-").change("t", None, [b"9", b"other"], shard="80-")
    stream.change("t", None, [b"1", b"1"], shard="-80").change("t", [b"1", b"1"], [b"1", b"2"], shard="-80")
    stream.gtids = {**dict.fromkeys(("-40", "40-80"), stream.gtids["-80"]), "80-": stream.gtids["80-"]}
    stream.fields("t", key, name, shard="-40").change("t", [b"1", b"2"], [b"1", b"3"], shard="-40")
    stream.change("t", [b"9", b"other"], None, shard="80-").change("t", [b"1", b"3"], None, shard="-40")
    table, fields = captured(stream.write(tmp_path / "made.vstream"), "shop", ("-80", "80-"))
    assert pc.unique(table["origin"]).to_pylist() == ["shop/-40", "shop/-80", "shop/80-"], "by name"

    rows, parts = in_lakes_order(table.add_column(0, "batch", pa.repeat(7, len(table))), frozenset([3, 7]))
    found = printed_lines(rows.drop_columns(["batch"]), fields, "default", 2, transactions=False)

    changes = [json.loads(r["value"]) for r in found if r["value"]]
    names = [((one["before"] or {}).get("name"), (one["after"] or {}).get("name")) for one in changes]
    assert [pair for pair in names if "other" not in pair] == [
        (None, "1"),
        ("1", "2"),
        ("2", "3"),
        ("3", None),
    ]
    assert [pair for pair in names if "other" in pair] == [(None, "other"), ("other", None)]
    assert set(parts) == {""}, "one slice has them all"
    _, parts = in_lakes_order(table.add_column(0, "batch", pa.repeat(8, len(table))), frozenset([3, 7]))
    assert set(parts) == {"shop/-40", "shop/-80", "shop/80-"}


def test_a_change_without_its_transaction_is_refused() -> None:
    table, fields = captured("unsharded", "lookup", ("0",))
    rows = table.filter(pc.equal(table["kind"], record.CHANGE))

    with pytest.raises(CorruptInput, match="has no transaction"):
        printed_lines(rows, fields, "unsharded", 10_000)


@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_statements_among_captured_records_give_the_events_that_the_recording_does(
    tmp_path: Path, size: int
) -> None:
    key, name = column("id", "INT64", "bigint", PRIMARY | NOT_NULL), column("name", "VARCHAR", charset=255)
    stream = Stream(shards=("-80",)).fields("t", key, shard="-80").change("t", None, [b"1"], shard="-80")
    stream.ddl("alter table t add column name varchar(9)", shard="-80").fields("t", key, name, shard="-80")
    stream.change("t", [b"1", None], [b"1", b"x"], shard="-80").ddl("drop table t", shard="-80")
    path = stream.write(tmp_path / "made.vstream")
    chosen: dict[str, Any] = {"schema_changes": True, "transactions": False}
    recorded = records(declared("default", schemas=False, headers=False, **chosen), path)

    table, fields = captured(path, "shop", ("-80",))
    found = printed_lines(table, fields, "default", size, **chosen)

    assert [r["topic"] for r in recorded] == ["cdc.shop.t", "cdc", "cdc.shop.t", "cdc"]
    assert found == recorded


def test_a_statement_captured_without_its_vgtid_has_its_shard() -> None:
    table, fields = captured("unsharded", "lookup", ("0",))
    rows = table.filter(pc.equal(table["kind"], record.CHANGE)).slice(0, 1).to_pylist()
    old = {"kind": record.SCHEMA, "schema_id": DDL, "payload": b"drop table plain", "transaction": None}
    records = pa.Table.from_pylist([{**rows[0], **old, "source_table": None}], record.CHANGE_SCHEMA)

    (found,) = printed_lines(records, fields, "unsharded", 10, schema_changes=True, transactions=False)

    reported = json.loads(json.loads(found["value"])["source"]["vgtid"])
    assert reported == [{"keyspace": "lookup", "shard": "0", "gtid": "", "table_p_ks": []}]
