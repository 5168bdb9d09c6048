from __future__ import annotations

import json
import pickle
from typing import Any

import bson
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from bson import json_util

from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, LIVE_ROW_SCHEMA
from airflow_cdc_provider.changes.fence import Fence, generation_at
from airflow_cdc_provider.formats.bson import as_bytes, split_documents
from airflow_cdc_provider.sources.mongodb.codec import LAKE_TYPE, MISFITS, MongodbCodec
from airflow_cdc_provider.sources.mongodb.options import MongodbInference, MongodbOptions
from airflow_cdc_provider.sources.mongodb.records import snapshot_records
from tests.unit.sources.mongodb.documents import READ, mutated
from tests.unit.sources.mongodb.recorded_changes import event, recorded, records


def codec(table: str = "shop.a.b", **options: Any) -> MongodbCodec:
    built: MongodbCodec = pickle.loads(pickle.dumps(MongodbCodec.of(table, MongodbOptions(**options))))
    return built


def live(*documents: bytes) -> pa.RecordBatch:
    columns = {f.name: pa.nulls(len(documents), f.type) for f in LIVE_ROW_SCHEMA}
    columns["state"] = pa.array(documents, pa.binary())
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=LIVE_ROW_SCHEMA)


def decoded(*events: bytes, fences: tuple[Fence, ...] = (), **options: Any) -> list[tuple[int, Any]]:
    found = codec(**options).decode(records(*events), fences)
    found.contributions.validate(full=True)
    assert found.contributions.schema == CONTRIBUTION_SCHEMA
    assert found.undecodable == ()
    return [(r["op"], r["state"] and bson.decode(r["state"], READ)) for r in found.contributions.to_pylist()]


def test_each_operation_does_its_part() -> None:
    assert decoded(
        event("insert", fullDocument={"_id": 1, "v": 1}),
        event("update", fullDocument={"_id": 1, "v": 2}),
        event("replace", fullDocument={"_id": 1, "v": 3}),
        event("delete", fullDocument=...),
    ) == [(0, {"_id": 1, "v": 1}), (0, {"_id": 1, "v": 2}), (0, {"_id": 1, "v": 3}), (1, None)]


def test_an_update_whose_look_up_found_nothing_changes_nothing() -> None:
    assert decoded(event("update", fullDocument=None)) == []


def test_an_update_without_its_post_image_is_reported_not_lost() -> None:
    batch = records(event(), event("update", fullDocument=None))
    found = codec(full_document="post_image").decode(batch, ())
    assert found.contributions.num_rows == 1
    assert found.undecodable == (1,)
    assert found.reasons[0].startswith("NO-POST-IMAGE: ")


def test_a_delta_without_a_document_is_reported() -> None:
    found = codec(full_document="none").decode(records(event("update", fullDocument=...)), ())
    assert (found.undecodable, found.reasons[0][:12]) == ((0,), "NO-DOCUMENT:")


def test_what_an_update_did_is_a_patch_with_full_document_none() -> None:
    description = {"updatedFields": {"v": 2}, "removedFields": []}
    update = event("update", fullDocument=..., updateDescription=description)
    events = (event(), update, event("delete", fullDocument=...))
    assert decoded(*events, full_document="none") == [(0, {"_id": 1, "x": 2}), (2, description), (1, None)]
    assert codec().decode(records(update), ()).reasons[0][:12] == "NO-DOCUMENT:"


def test_a_broken_patch_is_reported() -> None:
    broken = bson.Binary(b"\x05\0\0\0\1")  # a document that doesn't end with a zero
    raw = event("update", fullDocument=..., updateDescription={"updatedFields": {"v": broken}})
    offset = raw.index(bytes(broken)) - 1
    damaged = raw[: offset - 8] + raw[offset - 8 : offset].replace(b"\x05v\0", b"\x77v\0") + raw[offset:]
    assert damaged != raw
    found = codec(full_document="none").decode(records(damaged), ())
    assert (found.contributions.num_rows, found.reasons[0][:12]) == (0, "BROKEN-BSON:")


def test_a_snapshot_record_without_payload_means_that_the_document_was_deleted() -> None:
    data = as_bytes(bson.encode({"_id": 1}))
    spans = split_documents(data)
    batch = snapshot_records(data, spans, table="shop.a.b", time=1, number=0, first_row=0, captured_us=0)
    column_index = batch.schema.get_field_index("payload")
    (found,) = (
        codec()
        .decode(batch.set_column(column_index, "payload", pa.nulls(1, pa.binary())), ())
        .contributions.to_pylist()
    )
    assert (found["op"], found["state"], found["version"]) == (1, None, batch.column("version")[0].as_py())


def test_fields_that_patches_set_are_counted() -> None:
    description = {"updatedFields": {"v": 2, "d.x": 1}, "removedFields": ["gone"]}
    update = event("update", fullDocument=..., updateDescription=description)
    of = codec(full_document="none", infer=MongodbInference((".*",)))
    counts = of.tally(of.decode(records(event(fullDocument={"_id": 1, "w": "x"}), update), ()).contributions)
    assert {row["name"] for row in counts.to_pylist()} == {"_id", "w", "v", "d.x"}


def test_a_change_without_id_is_reported() -> None:
    found = codec().decode(records(event(documentKey={})), ())
    assert (found.undecodable, found.reasons[0][:7]) == ((0,), "NO-KEY:")


def test_a_broken_payload_is_reported_with_its_offset_and_the_rest_decoded() -> None:
    batch = records(event(), event(), event())
    payload = batch.column("payload").to_pylist()
    payload[1] = mutated(payload[1], [(4, 0x55)])
    batch = batch.set_column(
        batch.schema.get_field_index("payload"), "payload", pa.array(payload, pa.binary())
    )
    found = codec().decode(batch, ())
    assert found.contributions.num_rows == 2
    assert found.undecodable == (1,)
    assert found.reasons == ("BROKEN-BSON: an unknown element type, at byte 4",)


def test_records_of_other_kinds_give_nothing() -> None:
    drop = event("drop", documentKey=..., fullDocument=...)
    assert decoded(drop, event()) == [(0, {"_id": 1, "x": 2})]


def test_generations_follow_the_fences() -> None:
    batch = records(recorded("default"))
    batch = batch.filter(pc.equal(batch.column("source_table"), "shop.orders"))
    places = batch.column("position").to_pylist()
    fences = (Fence(1, "stream", places[5], 1), Fence(2, "", places[9], 2), Fence(3, "other", places[0], 3))
    found = codec("shop.orders", full_document="lookup").decode(batch.slice(2, 20), fences)
    kept = [p for n, p in enumerate(places[2:22]) if n not in found.undecodable]
    assert found.contributions.column("generation").to_pylist() == [
        generation_at(fences, "stream", p) for p in kept
    ]


def test_a_replacing_snapshot_comes_after_its_own_fence() -> None:
    data = as_bytes(bson.encode({"_id": 1, "v": "s"}))
    rows = snapshot_records(
        data,
        split_documents(data),
        table="shop.a.b",
        time=(10 << 32) | 1,
        number=0,
        first_row=0,
        captured_us=0,
    )
    fence = Fence(1, "stream", rows.column("version")[0].as_py(), 1)
    (before,) = codec().decode(records(event()), (fence,)).contributions.to_pylist()
    (after,) = codec().decode(rows, (fence,)).contributions.to_pylist()
    assert (before["generation"], after["generation"]) == (0, 1)
    assert bson.decode(after["state"]) == {"_id": 1, "v": "s"}
    assert before["key"] == after["key"]


def test_a_mirror_row_holds_id_document_and_declared_columns() -> None:
    columns = {"shop.a.b": {"city": "ship.city string", "n": "n bigint"}}
    projected = codec(columns=columns)
    first, second = (
        bson.encode({"_id": 1, "n": 5, "ship": {"city": "Graz"}}),
        bson.encode({"_id": "é", "n": 1.5}),
    )
    batch = projected.project(live(first, second))
    batch.validate(full=True)
    assert batch.schema.equals(projected.mirror_schema())
    assert batch.to_pylist() == [
        {
            "_id": '{"$numberInt": "1"}',
            "document": json_util.dumps(bson.decode(first), json_options=json_util.CANONICAL_JSON_OPTIONS),
            "city": "Graz",
            "n": 5,
        },
        {"_id": '"é"', "document": '{"_id": "é", "n": {"$numberDouble": "1.5"}}', "city": None, "n": None},
    ]
    assert json.loads(batch.schema.metadata[MISFITS]) == {"n": 1}


@pytest.mark.covers("MDB-XS-06")
def test_an_encrypted_field_passes_as_the_binary_that_it_is() -> None:
    cipher = bson.Binary(bytes(range(40)), 6)
    document = bson.encode({"_id": 1, "secret": cipher})
    (state,) = [state for _, state in decoded(event("insert", fullDocument={"_id": 1, "secret": cipher}))]
    assert state == {"_id": 1, "secret": cipher}
    projected = (
        codec(columns={"shop.a.b": {"secret": "secret binary"}}).project(live(document)).to_pylist()[0]
    )
    assert projected["secret"] == bytes(cipher)
    assert json_util.loads(projected["document"])["secret"] == cipher


def test_without_misfits_the_schema_has_no_metadata() -> None:
    assert codec().project(live(bson.encode({"_id": 1}))).schema.metadata is None


@pytest.mark.parametrize(("form", "names"), [("none", ["_id"]), ("variant", ["_id", "document"])])
def test_the_document_column_can_be_left_out_or_marked(form: str, names: list[str]) -> None:
    schema = codec(document_column=form).mirror_schema()
    assert schema.names == names
    if form == "variant":
        assert schema.field("document").metadata == {LAKE_TYPE: b"variant"}


def test_json_is_what_json_util_prints() -> None:
    documents = [bson.encode({"_id": n, "s": "é😀", "f": 0.1}) for n in range(3)]
    expected = [
        json_util.dumps(bson.decode(d), json_options=json_util.CANONICAL_JSON_OPTIONS) for d in documents
    ]
    assert list(codec().to_json(live(*documents))) == expected


def test_no_rows_are_no_error() -> None:
    assert codec().decode(records(), ()).contributions.num_rows == 0
    assert codec().project(live()).num_rows == 0
    assert list(codec().to_json(live())) == []
