"""Publishing options of MongoDB events: CloudEvents, topics by a class, Avro, ids of transactions."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import bson
import fastavro
import pyarrow as pa
import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from airflow_cdc_provider.sources.mongodb.events.decode import decode_stream
from airflow_cdc_provider.sources.mongodb.events.records import MongodbRecords
from tests.unit.sources.mongodb.events.mongodb_recordings import NOW_NS
from tests.unit.sources.mongodb.events.published_events import UPDATE, change, published

CLOUD_EVENT = (
    '{"id":"name:shop;ts:1700000000000;ord:3","source":"/debezium/mongodb/shop","specversion":"1.0",'
    '"type":"io.debezium.connector.mongodb.DataChangeEvent","time":"2023-11-14T22:13:20.000Z",'
    '"datacontenttype":"application/json","iodebeziumop":"c","iodebeziumversion":"3.6.1.Final",'
    '"iodebeziumconnector":"mongodb","iodebeziumname":"shop","iodebeziumtsms":"1700000000000",'
    '"iodebeziumsnapshot":"false","iodebeziumdb":"shop","iodebeziumsequence":null,'
    '"iodebeziumtsus":"1700000000000000","iodebeziumtsns":"1700000000000000000",'
    '"iodebeziumcollection":"flat","iodebeziumord":3,"iodebeziumlsid":null,"iodebeziumtxnNumber":null,'
    '"iodebeziumwallTime":null,"iodebeziumtxid":null,"iodebeziumtxtotalorder":null,'
    '"iodebeziumtxdatacollectionorder":null,'
    '"data":{"before":null,"after":"{\\"_id\\": 1,\\"x\\": 2}","updateDescription":null}}'
)


@pytest.mark.covers("MDB-XD-33")
def test_cloud_events_have_debeziums_attributes_and_data(tmp_path: Path) -> None:
    publish = {"envelope": "cloudevents"}
    delete = change(operationType="delete", fullDocument=...)
    inserted, updated, deleted, tombstone = published(tmp_path, [change(), change(**UPDATE), delete], publish)
    assert inserted["value"] == CLOUD_EVENT
    assert (inserted["topic"], inserted["key"]) == ("shop.shop.flat", '{"id":"1"}')
    data = json.loads(updated["value"])["data"]
    assert data["updateDescription"]["updatedFields"] == '{"secret": 2}'
    assert json.loads(deleted["value"])["iodebeziumop"] == "d"
    assert tombstone["value"] is None

    (framed,) = published(tmp_path, [change()], {**publish, "schemas": True})
    plain = json.loads(CLOUD_EVENT)
    whole = json.loads(framed["value"])
    payload = whole["data"].pop("payload")
    schema = whole["data"].pop("schema")
    assert {**whole, "data": payload} == plain, "no schema but that of the data"
    assert (schema["name"], [field["field"] for field in schema["fields"]]) == (
        "io.debezium.connector.mongodb.Data",
        list(payload),
    )
    assert json.loads(framed["key"])["payload"] == {"id": "1"}


@pytest.mark.covers("MDB-XD-33")
def test_cloud_events_have_the_transaction(tmp_path: Path) -> None:
    event = change(lsid={"id": 1}, txnNumber=bson.Int64(7))
    begin, record = published(tmp_path, [event], {"envelope": "cloudevents", "transactions": True})
    assert json.loads(begin["value"])["status"] == "BEGIN"
    found = {
        name: text for name, text in json.loads(record["value"]).items() if name.startswith("iodebeziumtx")
    }
    assert found == {
        "iodebeziumtxnNumber": "7",
        "iodebeziumtxid": '{"id": 1}:7',
        "iodebeziumtxtotalorder": "1",
        "iodebeziumtxdatacollectionorder": "1",
    }


@pytest.mark.covers("MDB-XD-33")
def test_debeziums_cloud_events_converter_is_imported() -> None:
    converter = {"topic.prefix": "shop", "value.converter": "io.debezium.converters.CloudEventsConverter"}
    imported = from_debezium(converter)
    assert imported.connector.publish.envelope == "cloudevents"
    assert any("json.schemas.enable isn't set" in note for note in imported.notes)
    with_schemas = from_debezium(
        {**converter, "value.converter.json.schemas.enable": "true", "key.converter.schemas.enable": "true"}
    )
    assert with_schemas.connector.publish.schemas
    for name, value in (("serializer.type", "avro"), ("extension.attributes.enable", "false")):
        with pytest.raises(ConfigurationError, match=name):
            from_debezium({**converter, f"value.converter.{name}": value})
    for wrong in ({"value": "avro"}, {"unwrap": {"enabled": True}}):
        publish = {"envelope": "cloudevents", **wrong}
        with pytest.raises(ConfigurationError, match=r"JSON only|exclude each other"):
            Connector.from_dict({"name": "a", "source": {"type": "mongodb"}, "publish": publish})


class ByTeam:
    """A strategy as a user writes it."""

    def data_change_topic(self, prefix: str, database: str, table: str) -> str:
        return f"{prefix}/{database.upper()}.team.{table}" if table != "nameless" else ""


class NoStrategy:
    """A class without the method."""


HERE = __name__


@pytest.mark.covers("MDB-TPC-02")
def test_topics_are_named_by_a_class_of_ones_own(tmp_path: Path) -> None:
    publish = {"topic_naming": f"{HERE}:ByTeam"}
    (record,) = published(tmp_path, [change()], publish)
    assert record["topic"] == "shop_SHOP.team.flat"
    (framed,) = published(tmp_path, [change()], {**publish, "schemas": True})
    assert json.loads(framed["value"])["schema"]["name"] == "shop_SHOP.team.flat.Envelope"
    with pytest.raises(ConfigurationError, match=r"returns no topic for shop\.nameless"):
        published(tmp_path, [change(ns={"db": "shop", "coll": "nameless"})], publish)
    for class_path in (f"{HERE}:Missing", "no_such_module_anywhere:X"):
        with pytest.raises(ConfigurationError, match=r"topic_naming can't be loaded"):
            published(tmp_path, [change()], {"topic_naming": class_path})
    with pytest.raises(ConfigurationError, match="is not a topic naming strategy"):
        published(tmp_path, [change()], {"topic_naming": f"{HERE}:NoStrategy"})
    with pytest.raises(ConfigurationError, match=r"publish\.topic_naming"):
        published(tmp_path, [change()], {"topic_naming": "ByTeam"})
    with pytest.raises(ConfigurationError, match="exclude each other"):
        published(tmp_path, [change()], {**publish, "topic_pattern": "{table}"})


@pytest.mark.covers("MDB-TPC-02")
def test_debeziums_strategies_are_followed_or_refused_with_the_reason() -> None:
    def imported(value: str) -> Connector:
        return from_debezium({"topic.prefix": "shop", "topic.naming.strategy": value}).connector

    assert not imported("io.debezium.schema.DefaultTopicNamingStrategy").publish.topic_naming
    assert imported(f"{HERE}:ByTeam").publish.topic_naming == f"{HERE}:ByTeam"
    for name, reason in (
        ("io.debezium.schema.SchemaTopicNamingStrategy", "no schema"),
        ("io.debezium.schema.DefaultRegexTopicNamingStrategy", r"topic\.regex"),
        ("io.debezium.schema.DefaultUnicodeTopicNamingStrategy", "escapes characters"),
        ("org.example.Own", "a Java class"),
    ):
        with pytest.raises(ConfigurationError, match=reason):
            imported(name)


def decoded(*events: bytes) -> pa.RecordBatch:
    return decode_stream(pa.array(events, pa.binary()), full_document="lookup", pre_images=False).events


@pytest.mark.covers("MDB-TX-04", "MDB-SRC-08")
def test_a_transactions_id_is_the_session_and_the_number_or_the_one_that_there_is() -> None:
    session = {"id": bson.Binary(b"\1" * 16, 4), "uid": b"u"}
    uuid = '{"$binary": "AQEBAQEBAQEBAQEBAQEBAQ==","$type": "04"}'
    text = f'{{"id": {uuid},"uid": {{"$binary": "dQ==","$type": "00"}}}}'
    number = bson.Int64(2**40)
    declared = {"name": "shop", "source": {"type": "mongodb"}, "publish": {"transactions": True}}

    def rendered(**members: Any) -> tuple[Any, Any, Any, list[str]]:
        maker = MongodbRecords(Connector.from_dict(declared), NOW_NS)
        records, _ = maker.records(decoded(change(**members)))
        value = json.loads(records["value"][-1].as_py())
        started_ids = [json.loads(key)["id"] for key in records["key"].to_pylist()[:-1]]
        found = value["transaction"] and value["transaction"]["id"]
        return found, value["source"]["lsid"], value["source"]["txnNumber"], started_ids

    both = f"{text}:{2**40}"
    assert rendered(lsid=session, txnNumber=number) == (both, text, 2**40, [both])
    # Debezium's source block has both or none.
    assert rendered(lsid=session) == (text, None, None, [text])
    assert rendered(txnNumber=number) == (str(2**40), None, None, [str(2**40)])
    assert rendered() == (None, None, None, [])


@pytest.mark.covers("MDB-EVT-01")
def test_keys_and_values_are_published_with_their_schema_or_not_and_in_avro_too(tmp_path: Path) -> None:
    (plain,) = published(tmp_path, [change()], {})
    (framed,) = published(tmp_path, [change()], {"schemas": True})
    (written,) = published(tmp_path, [change()], {"schemas": True, "key": "avro", "value": "avro"})
    for part in ("key", "value"):
        payload = json.loads(plain[part])
        assert "schema" not in payload
        both = json.loads(framed[part])
        assert list(both) == ["schema", "payload"]
        assert both["payload"] == payload
        assert [field["field"] for field in both["schema"]["fields"]] == list(payload)
        # What a registry keeps, and what its client puts its number before.
        schema = fastavro.parse_schema(written[f"{part}_schema"])
        data = io.BytesIO(base64.b64decode(written[part]))
        assert fastavro.schemaless_reader(data, schema, None) == payload
        assert not data.read()
