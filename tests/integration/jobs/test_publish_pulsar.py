"""From a real Cassandra to a real Pulsar: topics as DataStax's CDC writes them, each change of a row once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.pulsar.errors import BrokersUnavailable
from airflow_cdc_provider.pulsar.producer import PulsarProducer
from server_kit import PulsarServer
from tests.integration.jobs.shop import Shop

pytestmark = pytest.mark.integration


def declared(shop: Shop, server: PulsarServer, **pulsar: Any) -> dict[str, Any]:
    """Declare publishing to Pulsar; return the connection with the broker's."""
    shop.declare(
        snapshot={"mode": "never"},
        publish={
            "envelope": "datastax",
            "key": "avro",
            "value": "avro",
            "cassandra": {"reread": True, "node_header": False},
            "pulsar": {"connection": "pulsar", "retry_timeout_seconds": 0, **pulsar},
        },
    )
    return {**shop.connection, "pulsar": {"service_url": server.service_url}}


def test_readers_of_datastax_topics_see_each_row_once_also_after_a_kill(
    shop: Shop, pulsar_server: PulsarServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = declared(shop, pulsar_server, records_per_commit=4)
    shop.run("CREATE TABLE t (p text, c int, a int, s set<text>, PRIMARY KEY (p, c)) WITH cdc = true")
    for n in range(10):
        shop.run("INSERT INTO t (p, c, a, s) VALUES (%s, %s, %s, {'x'})", (f"ä{n % 2}", n, n))
    shop.run("DELETE FROM t WHERE p = 'ä0' AND c = 4")
    shop.close_segments()
    assert shop.stage("capture", connection=connection).ok

    send = PulsarProducer.send

    def send_and_break(producer: PulsarProducer, batches: Sequence[pa.RecordBatch]) -> None:
        send(producer, batches)
        raise BrokersUnavailable("the run ends after records were stored, before the position is")

    with monkeypatch.context() as broken:
        broken.setattr(PulsarProducer, "send", send_and_break)
        for _ in range(2):
            with pytest.raises(BrokersUnavailable):
                shop.stage("publish", connection=connection)
    published = shop.stage("publish", connection=connection).published
    assert published is not None
    assert (published.records, published.pending_batches) == (10, 0)

    topic = f"persistent://public/default/data-{shop.keyspace}.t"
    messages = pulsar_server.read(topic)
    rows = {(m["key"]["p"], m["key"]["c"]): m["value"] for m in messages}
    assert len(messages) == len(rows) == 10, "none twice"
    assert rows.pop(("ä0", "4")) is None
    assert {key: value["a"] for key, value in rows.items()} == {
        (f"ä{n % 2}", str(n)): str(n) for n in range(10) if n != 4
    }
    assert {m["encoding"] for m in messages} == {"SEPARATED"}
    assert all(set(m["properties"]) == {"writetime"} for m in messages)
    schema = pulsar_server.admin(f"schemas/public/default/data-{shop.keyspace}.t/schema")
    assert schema["properties"]["key.schema.name"] == "t"

    shop.run("UPDATE t SET a = 100 WHERE p = 'ä1' AND c = 1")
    assert shop.sync(connection=connection).published.records == 1  # type: ignore[union-attr]
    assert pulsar_server.read(topic)[-1]["value"]["a"] == "100"

    shop.run("DELETE FROM t WHERE p = 'ä1'")
    assert shop.sync(connection=connection).published.records == 6  # type: ignore[union-attr]
    deleted = pulsar_server.read(topic)[-6:]
    assert all(message["value"] is None for message in deleted), "also rows of earlier batches"
    assert {message["key"]["c"] for message in deleted[1:]} == {"1", "3", "5", "7", "9"}

    reported = shop.stage("offsets", connection=connection, action="show").published
    assert reported is not None
    assert reported.pending_batches == 0
    shop.stage("offsets", connection=connection, action="publish", batch=1)
    again = shop.stage("publish", connection=connection).published
    assert again is not None
    assert again.records == 17
    assert len(pulsar_server.read(topic)) == 34, "on request all is published again"


def test_a_topic_that_pulsar_refuses_stops_no_other(shop: Shop, pulsar_server: PulsarServer) -> None:
    namespace = f"public/{shop.keyspace}"
    pulsar_server.admin(f"namespaces/{namespace}", {}, method="PUT")
    connection = declared(shop, pulsar_server, namespace=namespace, records_per_commit=3)
    closed = f"persistent/{namespace}/data-{shop.keyspace}.closed"
    pulsar_server.admin(closed, {}, method="PUT")
    pulsar_server.admin(f"{closed}/terminate", {}, method="POST")
    for name in ("a", "closed", "z"):
        shop.run(f"CREATE TABLE {name} (p int PRIMARY KEY, b blob) WITH cdc = true")
        for n in range(4):
            shop.run(f"INSERT INTO {name} (p, b) VALUES (%s, %s)", [n, b"x"])
    shop.close_segments()
    outcome = shop.stage("sync", connection=connection)
    assert not outcome.ok
    assert f"topic data-{shop.keyspace}.closed rejects records" in outcome.error
    assert "TopicTerminatedError" in outcome.error
    assert outcome.published is not None
    assert (outcome.published.records, outcome.published.dead_letters) == (8, 4)
    for name in "az":
        messages = pulsar_server.read(f"persistent://{namespace}/data-{shop.keyspace}.{name}")
        assert sorted(message["key"]["p"] for message in messages) == ["0", "1", "2", "3"]
    assert shop.stage("publish", connection=connection).ok


def test_without_deduplication_a_run_fails_unless_doubles_are_accepted(
    shop: Shop, pulsar_server: PulsarServer
) -> None:
    namespace = f"public/{shop.keyspace}"
    pulsar_server.admin(f"namespaces/{namespace}", {}, method="PUT")
    pulsar_server.admin(f"namespaces/{namespace}/deduplication", False, method="POST")
    connection = declared(shop, pulsar_server, namespace=namespace)
    shop.run("CREATE TABLE t (p int PRIMARY KEY, a int) WITH cdc = true")
    shop.run("INSERT INTO t (p, a) VALUES (1, 1)")
    shop.close_segments()
    assert shop.stage("capture", connection=connection).ok
    with pytest.raises(ConfigurationError, match="doesn't deduplicate"):
        shop.stage("publish", connection=connection)
    declared(shop, pulsar_server, namespace=namespace, delivery="at_least_once")
    shop.run("INSERT INTO t (p, a) VALUES (2, 2)")
    shop.close_segments()
    assert shop.stage("capture", connection=connection).ok
    published = shop.stage("publish", connection=connection).published
    assert published is not None
    messages = pulsar_server.read(f"persistent://{namespace}/data-{shop.keyspace}.t")
    assert sorted(message["key"]["p"] for message in messages) == ["1", "2"]
