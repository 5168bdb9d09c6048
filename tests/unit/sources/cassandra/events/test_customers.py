"""The schemas of table ``customers``, the example of DataStax's documents."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import encode
from airflow_cdc_provider.sources.cassandra.events.decode import EventDecoder
from airflow_cdc_provider.sources.cassandra.events.envelope import build
from airflow_cdc_provider.sources.cassandra.events.records import envelope_options
from airflow_cdc_provider.sources.cql.describe import parse_cql
from airflow_cdc_provider.sources.encoding import converters_of
from tests.oracles.cassandra_read_path import Liveness, Row
from tests.unit.sources.cassandra.commit_logs import UpdateWriter, join_clustering
from tests.unit.sources.cassandra.decoded_changes import changes

CUSTOMERS = parse_cql(
    """
    CREATE TABLE inventory.customers (
        id bigint, registration_date timestamp, first_name text, last_name text, email text,
        PRIMARY KEY (id, registration_date)
    ) WITH ID = 29e3de10-e580-11f1-a764-fd2ee712b6e7
    """
).tables["inventory.customers"]


def plain(schema: Any) -> Any:
    """Reduce an Avro schema to what the documents show: without names for Connect, nulls and namespaces."""
    if isinstance(schema, list):
        (one,) = [member for member in schema if member != "null"]
        return plain(one)
    if not isinstance(schema, dict):
        return schema
    if schema["type"] == "record":
        return {field["name"]: plain(field["type"]) for field in schema["fields"]}
    return schema["type"]


@pytest.mark.covers("DSX-EVT-05")
def test_the_schemas_of_the_customers_example_are_those_of_datastaxs_documents() -> None:
    publish = {"topic_prefix": "cassandra-cluster-1", "envelope": "datastax-cells", "key": "avro"}
    connector = Connector.from_dict(
        {
            "name": "c",
            "source": {"type": "cassandra"},
            "publish": {**publish, "value": "avro", "schemas": True},
        }
    )
    registered = join_clustering((struct.pack(">q", 1562202942545),))
    key = struct.pack(">q", 1001)
    payload = b"\7" + UpdateWriter(CUSTOMERS).write(key, [Row(Liveness(5), None, registered, ())])
    decoded = EventDecoder(CUSTOMERS).decode(changes([payload], [key], kind=["change"]))
    envelope = build(decoded.events, "inventory", "customers", envelope_options(connector, "blue", 7))

    (event,) = encode(envelope, converters_of(connector)).to_pylist()

    of_key, of_value = json.loads(event["key_schema"]), json.loads(event["value_schema"])
    namespace = "io.datastax.connector.cassandra.cassandra_cluster_1.inventory.customers"
    assert [(schema["name"], schema["namespace"]) for schema in (of_key, of_value)] == [
        ("Key", namespace),
        ("Envelope", namespace),
    ]
    assert plain(of_key) == {"id": "long", "registration_date": "long"}
    value = plain(of_value)
    assert (value["op"], value["ts_ms"]) == ("string", "long")
    texts = dict.fromkeys(("version", "connector", "cluster", "keyspace", "table", "file"), "string")
    assert value["source"] == {**texts, "snapshot": "boolean", "pos": "int", "ts_ms": "long"}
    types = {
        "id": "long",  # the documents' example has a number, too, though their schema says string
        "registration_date": "long",
        **dict.fromkeys(("first_name", "last_name", "email"), "string"),
    }
    assert value["after"] == {
        name: {"value": kind, "deletion_ts": "long", "set": "boolean"} for name, kind in types.items()
    }
    after = next(field["type"] for field in of_value["fields"] if field["name"] == "after")
    assert (after["name"], after.get("namespace", namespace)) == ("Value", namespace)
    for field in after["fields"]:
        null, cell = field["type"]
        assert (null, field["default"]) == ("null", None), "a cell that isn't there"
        assert cell["fields"][1] == {"name": "deletion_ts", "type": ["null", "long"], "default": None}
        assert cell["fields"][2] == {"name": "set", "type": "boolean"}
