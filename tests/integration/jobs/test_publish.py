"""The stage publish on real servers: readers of topics see each printed event once, in order per key."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from bson.raw_bson import RawBSONDocument

from airflow_cdc_provider.exceptions import ConfigurationError, OffsetMissing
from server_kit import KafkaServer
from tests.integration.jobs.conftest import RunStage
from tests.integration.jobs.publishing import (
    declaration,
    make_topics,
    partitions_and_policies,
    printed,
    read,
    sequences_of,
    topic_of,
    with_broker,
    write,
)
from tests.integration.jobs.shop import Shop
from tests.unit.sources.mongodb.documents import raw_document, raw_element, raw_string

if TYPE_CHECKING:
    from pymongo.database import Database
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


@pytest.mark.covers("MDB-TPC-07")
def test_each_event_is_published_once_as_it_is_printed(
    run_stage: RunStage,
    database: Database,
    both: dict[str, Any],
    kafka_server: KafkaServer,
    tmp_path: Path,
) -> None:
    topics = make_topics(kafka_server, database, "orders", "customers")
    declared = declaration(database, {"records_per_commit": 17})
    database.orders.insert_many([{"_id": f"old-{n}", "n": n} for n in range(40)])
    database.customers.insert_one({"_id": "old"})
    first = run_stage("sync", declared, both)
    assert first.ok, first.error
    assert first.published is not None
    assert (first.published.records, first.published.lag_seconds, first.published.pending_batches) == (
        41,
        0,
        0,
    )
    sent = first.published.records
    for turn in range(2):
        write(database, turn)
        outcome = run_stage("sync" if turn else "capture", declared, both)
        assert outcome.ok, outcome.error
        sent += outcome.published.records if outcome.published else 0

    shown = printed(run_stage, declared, tmp_path)
    messages = read(kafka_server, topics)
    assert sequences_of(messages) == shown
    assert len(messages) == sent == sum(map(len, shown.values()))
    places: dict[tuple[str | None, bytes | None], set[int]] = defaultdict(set)
    for message in messages:
        places[message.topic(), message.key()].add(message.partition() or 0)
    assert all(len(partitions) == 1 for partitions in places.values()), "a key keeps its partition"
    assert len({m.partition() for m in messages if m.topic() == topics[1]}) == 3

    again = run_stage("publish", declared, both).published
    assert again is not None
    assert (again.records, again.transactions) == (0, 0)
    reported = run_stage("offsets", declared, both, action="show").published
    assert reported is not None
    assert (reported.batch, reported.pending_batches) == (again.batch, 0)

    database.customers.drop()
    odd = [raw_document(raw_element(2, "_id", raw_string(text))) for text in (b"\xff", b"\xfe")]
    database.customers.insert_many([RawBSONDocument(one) for one in odd])
    dropped = run_stage("sync", declared, both)
    named = f"publishing: DROP of {database.name}.customers: no event deletes their rows"
    assert any(finding.startswith(named) for finding in dropped.findings), dropped.findings
    odd_keys = [finding for finding in dropped.findings if "keys with bytes that are not UTF-8" in finding]
    assert [f"{database.name}.customers (2): keys of" in finding for finding in odd_keys] == [True]
    compared = {table.table: table.note for table in run_stage("compare_topics", declared, both).tables}
    assert json.loads(compared[f"{database.name}.customers"])["only_topic"] == 5, "the dropped documents"
    assert compared[f"{database.name}.orders"] == "equal"


def test_batches_that_are_not_published_stay(
    spark: SparkSession,
    run_stage: RunStage,
    database: Database,
    both: dict[str, Any],
    kafka_server: KafkaServer,
) -> None:
    topics = make_topics(kafka_server, database, "orders", "customers")
    declared = declaration(database, {"start": "latest"})
    declared["lake"]["retention_seconds"] = 0
    database.orders.insert_one({"_id": "before"})
    assert run_stage("sync", declared, both).ok
    changes = f"lake.{database.name}.shop_{database.name}_changes"

    def batches() -> int:
        return int(spark.sql(f"SELECT count(DISTINCT batch) FROM {changes} WHERE kind = 'change'").first()[0])

    silent = {**declared, "publish": {**declared["publish"], "kafka": {}}}
    for turn in range(2):
        database.orders.insert_one({"_id": turn})
        assert run_stage("sync", silent, both).ok
    assert not read(kafka_server, topics), "what was before the first run is left out"
    run_stage("offsets", declared, both, action="show")
    run_stage("maintain", declared, both)
    assert batches() == 2
    assert run_stage("publish", declared, both).ok
    assert {m.key() for m in read(kafka_server, topics)} == {b'{"id":"0"}', b'{"id":"1"}'}
    run_stage("maintain", declared, both)
    assert batches() < 2


def test_rejected_records_fail_the_run_or_become_dead_letters_and_foreign_positions_are_refused(
    run_stage: RunStage, database: Database, both: dict[str, Any], kafka_server: KafkaServer
) -> None:
    topics = make_topics(kafka_server, database, "orders")
    kafka_server.create_topic(topic_of(database, "customers"), 1, max_message_bytes=300)
    declared = declaration(database, {"records_per_commit": 5, "on_record_error": "fail"})
    database.orders.insert_many([{"_id": n} for n in range(20)])
    database.customers.insert_one({"_id": 1, "long": "x" * 1000})
    # customers come before orders in the snapshot, so that nothing of the batch is sent ...
    failed = run_stage("sync", declared, both)
    assert (failed.ok, failed.error_code) == (False, "CONFIGURATION")
    assert "customers rejects records: found MSG_SIZE_TOO_LARGE" in failed.error
    assert failed.tables, "what was captured and merged is reported all the same"
    # ... and with dead letters all other records are published.
    with_dead_letters = declaration(database, {"records_per_commit": 5})
    outcome = run_stage("publish", with_dead_letters, both)
    assert outcome.published is not None
    assert (outcome.published.records, outcome.published.dead_letters) == (20, 1)
    assert any("1 records that are refused" in finding for finding in outcome.findings)
    assert len(read(kafka_server, topics)) == 20

    with pytest.raises(ConfigurationError, match="expected a batch from 1 to"):
        run_stage("offsets", declared, both, action="publish", batch=99)
    run_stage("offsets", declared, both, action="publish", batch=1)
    again = run_stage("publish", with_dead_letters, both).published
    assert again is not None
    assert again.records == 20, "requested: published again"
    stranger = {**with_dead_letters, "lake": {"catalog": "lake", "namespace": f"{database.name}_other"}}
    run_stage("capture", stranger, both)
    with pytest.raises(OffsetMissing, match="beyond its changes table"):
        run_stage("publish", stranger, both)


@pytest.mark.covers("MDB-TPC-08")
def test_a_missing_topic_is_named_or_made_by_rule_and_one_that_is_there_is_left(
    run_stage: RunStage,
    database: Database,
    both: dict[str, Any],
    kafka_server: KafkaServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    orders, customers = topic_of(database, "orders"), topic_of(database, "customers")
    kafka_server.create_topic(customers, 2)
    write(database, 0)
    by_people = declaration(database, topics={"create": False})
    by_people["source"]["stream"] = {"expanded_events": True}
    outcome = run_stage("sync", by_people, both)
    assert (outcome.ok, outcome.error_code) == (False, "CONFIGURATION")
    assert "rejects records: expected an existing topic with permission to write" in outcome.error
    assert "found UNKNOWN_TOPIC_OR_PART" in outcome.error
    assert "create the topic, or set publish.topics.create: true" in outcome.error
    assert orders in outcome.error

    rules = {
        "partitions": 4,
        "settings": {"cleanup.policy": "compact"},
        "groups": [{"include": [r".*\.orders"], "partitions": 3, "settings": {"retention.ms": 86_400_000}}],
    }
    made = declaration(database, topics=rules, heartbeat_interval_seconds=3600, schema_changes=True)
    made["source"] = by_people["source"]
    outcome = run_stage("publish", made, both)
    write(database, 1)
    database.orders.create_index("n")
    database.customers.rename("clients")
    outcome = run_stage("sync", made, both)
    assert outcome.ok, outcome.error
    beats = f"__debezium-heartbeat.{database.name}"
    transactions, ddl = f"{database.name}.transaction", f"{database.name}.schema-changes"
    assert partitions_and_policies(kafka_server, orders, customers, transactions, ddl, beats) == {
        orders: (3, "delete"),
        customers: (2, "delete"),
        transactions: (1, "delete"),
        ddl: (1, "delete"),
        beats: (1, "compact"),
    }
    (warning,) = {r.message for r in caplog.records if "is not changed" in r.message}
    assert customers in warning
    assert "partitions 2 where the declaration says 4" in warning
    assert "cleanup.policy delete where the declaration says compact" in warning
    bounds = [json.loads(m.value()) for m in kafka_server.read(transactions)]
    assert [one["status"] for one in bounds] == ["BEGIN", "END"]
    assert bounds[1]["event_count"] == 2
    changed = [json.loads(m.value()) for m in kafka_server.read(ddl)]
    assert [(one["type"], one["collectionName"]) for one in changed] == [
        ("createIndexes", "orders"),
        ("rename", "customers"),
    ]
    assert len(kafka_server.read(beats)) == 2, "one of each run"


@pytest.mark.covers("MDB-HB-01", "MDB-TPC-05")
def test_heartbeats_come_at_their_interval_and_the_position_moves_where_nothing_is_captured(
    run_stage: RunStage,
    database: Database,
    both: dict[str, Any],
    kafka_server: KafkaServer,
    tmp_path: Path,
) -> None:
    declared = declaration(database, heartbeat_interval_seconds=0.5)
    declared["tables"] = [rf"{database.name}\.orders"]
    database.orders.insert_one({"_id": 1})
    first = run_stage("sync", declared, both)
    assert first.published is not None
    database.noise.insert_many([{"_id": n} for n in range(100)])
    options = {"commit_interval_seconds": 60, "max_runtime_seconds": 6}
    quiet = run_stage("stream", declared, both, state_path=str(tmp_path / "state.json"), **options)
    assert (quiet.ok, quiet.changes) == (True, 0)
    assert quiet.offset != first.offset
    assert quiet.published is not None
    assert quiet.published.batch > first.published.batch
    reported = run_stage("offsets", declared, both, action="show").published
    assert reported is not None
    assert reported.batch == quiet.published.batch

    beats = kafka_server.read(f"__debezium-heartbeat.{database.name}")
    assert {m.key() for m in beats} == {json.dumps({"serverName": database.name}).replace(" ", "").encode()}
    assert {m.partition() for m in beats} == {0}
    assert not any(m.headers() for m in beats)
    moments = [json.loads(m.value())["ts_ms"] for m in beats[1:]]
    assert len(moments) >= 4
    # Most come on time; a busy machine may hold one back.
    assert median(later - earlier for earlier, later in pairwise(moments)) <= 1000, moments
    # By the clock: one that comes late doesn't move the next, so a step may be short.
    assert len(moments) <= (moments[-1] - moments[0]) / 500 + 2


@pytest.mark.covers("CAS-CFG-29")
def test_slices_publish_each_event_once_in_order_while_their_number_changes(
    spark: SparkSession,
    run_stage: RunStage,
    database: Database,
    both: dict[str, Any],
    kafka_server: KafkaServer,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    topics = make_topics(kafka_server, database, "orders", "customers")[1:]
    both["kafka"]["sasl.password"] = "s3cret"
    declared = declaration(database, {"records_per_commit": 17}, transactions=False)
    database.orders.insert_many([{"_id": f"old-{n}", "n": n} for n in range(40)])
    database.customers.insert_one({"_id": "old"})
    sent = 0
    for turn, slices in enumerate((2, 3, 1)):  # what waits is published by the old number of slices first
        declared["publish"]["kafka"]["slices"] = slices
        if turn:
            write(database, turn)
            assert run_stage("capture", declared, both).ok
        outcome = run_stage("publish" if turn else "sync", declared, both)
        assert outcome.ok, outcome.error
        assert outcome.published is not None
        assert (outcome.published.pending_batches, outcome.published.lag_seconds) == (0, 0)
        sent += outcome.published.records
    messages = read(kafka_server, topics)
    assert len(messages) == sent
    assert sequences_of(messages) == printed(run_stage, declared, tmp_path)

    executions = spark._jsparkSession.sharedState().statusStore().executionsList()
    # An execution that just began has no description yet.
    plans = [executions.apply(n).physicalPlanDescription() or "" for n in range(executions.size())]
    assert any("MapInArrow" in plan and "slice" in plan for plan in plans), "Spark shows the slices' plans"
    assert not any("s3cret" in text for text in (*plans, *capfd.readouterr()))

    last = run_stage("offsets", declared, both, action="show").published
    assert last is not None
    declared["publish"]["kafka"]["slices"] = 2
    run_stage("offsets", declared, both, action="publish", batch=last.batch)
    again = run_stage("publish", declared, both).published
    assert again is not None
    assert again.records > 0, "requested: published again"
    assert (again.batch, again.pending_batches) == (last.batch, 0)


@pytest.mark.covers("CAS-READ-05", "CAS-TOPIC-01", "CAS-D3X-06", "CAS-D3X-19", "CAS-CFG-29")
def test_tables_of_cassandra_captured_once_go_to_mirrors_to_a_file_and_to_topics_in_json_and_avro(
    shop: Shop, kafka_server: KafkaServer, tmp_path: Path
) -> None:
    shop.run("CREATE TABLE a (k int PRIMARY KEY, v text) WITH cdc = true")
    shop.run("CREATE TABLE b (k int PRIMARY KEY, v text) WITH cdc = true")
    shop.connection = with_broker(shop.connection, kafka_server)
    for number in range(5):
        shop.run(f"INSERT INTO a (k, v) VALUES ({number}, 'é{number}')")
        shop.run(f"UPDATE b SET v = 'x' WHERE k = {number % 2}")
    shop.run("DELETE FROM b WHERE k = 0")
    forms: list[tuple[dict[str, Any], str, int]] = [
        ({}, "{prefix}.{keyspace}.{table}", 1),
        ({"key": "avro", "value": "avro", "topic_delimiter": "_"}, "{prefix}_{keyspace}_{table}", 1),
        ({"key": "avro", "value": "json"}, "{prefix}.{keyspace}.{table}", 2),
    ]
    shop.close_segments()
    for turn, (form, pattern, slices) in enumerate(forms):
        prefix = f"p{turn}_{shop.keyspace}"
        topics = [pattern.format(prefix=prefix, keyspace=shop.keyspace, table=table) for table in "ab"]
        for topic in topics:
            kafka_server.create_topic(topic)
        kafka = {"connection": "kafka", "transactional_id": prefix, "slices": slices}
        shop.declaration["publish"] = {"topic_prefix": prefix, "tombstones": True, **form, "kafka": kafka}
        if not turn:
            assert shop.stage("capture").ok
            assert shop.stage("merge").ok
            assert (shop.assert_equal("a"), shop.assert_equal("b")) == (5, 1)
        else:
            assert shop.stage("offsets", action="adopt").ok
        assert shop.stage("publish").ok

        path = tmp_path / "events.jsonl"
        schemas = {"schemas": True} if "avro" in form.values() else {}
        shop.declaration["publish"] |= schemas
        shop.stage("events", path=str(path))
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for topic, count in zip(topics, (5, 7), strict=True):
            messages = kafka_server.read(topic)
            shown = [line for line in lines if line["topic"] == topic]
            assert len(messages) == len(shown) == count
            if slices > 1:  # the events of a partition key are in order, those of several are not
                messages.sort(key=lambda message: message.key() or b"")
                shown.sort(key=lambda line: printed_bytes(line["key"], "avro") or b"")
            for message, line in zip(messages, shown, strict=True):
                for side in ("key", "value"):
                    sent = getattr(message, side)()
                    assert as_data(sent, line.get(f"{side}_schema"), form.get(side, "json")) == as_data(
                        printed_bytes(line[side], form.get(side, "json")),
                        line.get(f"{side}_schema"),
                        form.get(side, "json"),
                        framed=bool(schemas),
                    )


def printed_bytes(text: str | None, converter: str) -> bytes | None:
    import base64

    if text is None:
        return None
    return base64.b64decode(text) if converter == "avro" else text.encode()


def as_data(data: bytes | None, schema: Any, converter: str, *, framed: bool = False) -> Any:
    """Read a key or value, without when it was made."""
    import io

    if data is None:
        return None
    if converter == "avro":
        found: Any = fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(schema), None)
    else:
        found = json.loads(data)
        found = found["payload"] if framed else found
    return {name: value for name, value in found.items() if not name.startswith("ts_")}
