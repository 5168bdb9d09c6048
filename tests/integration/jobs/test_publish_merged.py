"""Publishing after merges on real servers: the last event of each key is the mirror's row, each sent once."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError, OffsetMissing
from server_kit import KafkaServer
from server_kit.scylla import CdcOptions, SystemKeyspaces
from server_kit.scylla.statements import DeleteRow, Insert, SetWhole, Update
from tests.integration.jobs.conftest import Application, RunStage
from tests.integration.jobs.debezium_messages import send
from tests.integration.jobs.imitated import declare
from tests.integration.jobs.printed_events import number
from tests.integration.jobs.publishing import declaration, read, topic_of, with_broker
from tests.integration.jobs.scylla_tables import scylla_table
from tests.integration.jobs.shop import Shop

if TYPE_CHECKING:
    from confluent_kafka import Message
    from pymongo.database import Database
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

TextKeyOps = list[tuple[str, str | None]]
"""Keys and ops of events in the order of their topic; an op of None is a tombstone."""


def merged(database: Database, **kafka: Any) -> dict[str, Any]:
    form = {"json": "extended"}  # as mirrors hold documents
    return declaration(database, {"mode": "after_merge", **kafka}, transactions=False, mongodb=form)


def text_key_ops(messages: list[Message]) -> TextKeyOps:
    found = []
    for message in messages:
        key, value = message.key(), message.value()
        assert key is not None
        found.append((json.loads(key)["id"], json.loads(value)["op"] if value is not None else None))
    return found


def require_equal(messages: list[Message], rows: dict[str, Any]) -> None:
    """Require that readers hold the mirror's rows, and got nothing twice on their way there."""
    held: dict[str, str] = {}
    for message in messages:
        key, value = message.key(), message.value()
        assert key is not None
        name = json.loads(key)["id"]
        if value is None:
            assert name not in held
            continue
        event = json.loads(value)
        assert (event["op"] in "cr") == (name not in held), event
        if event["op"] == "d":
            del held[name]
        else:
            assert held.get(name) != event["after"], "an event that changes nothing"
            held[name] = event["after"]
    assert {name: json.loads(after) for name, after in held.items()} == rows


def mirror_name(database: Database, name: str) -> str:
    return f"{database.name}.{database.name}_{name}"


def mirrored(spark: SparkSession, database: Database, name: str) -> dict[str, Any]:
    """Return the mirror's documents, in canonical Extended JSON, by the text of their keys."""
    rows = spark.sql(f"SELECT document FROM lake.{mirror_name(database, name)}").collect()
    documents = [json.loads(row["document"]) for row in rows]
    return {json.dumps(one["_id"]): one for one in documents}


def run(run_stage: RunStage, stage: str, declared: Mapping[str, Any], both: dict[str, Any]) -> int:
    outcome = run_stage(stage, declared, both)
    assert outcome.ok, outcome.error
    return outcome.published.records if outcome.published else 0


def test_the_last_event_of_each_key_is_the_row_of_the_mirror(
    spark: SparkSession,
    run_stage: RunStage,
    database: Database,
    both: dict[str, Any],
    kafka_server: KafkaServer,
) -> None:
    declared = merged(database, records_per_commit=7)
    declared["lake"]["retention_seconds"] = 0
    silent = {**declared, "publish": {**declared["publish"], "kafka": {}}}
    topic = topic_of(database, "orders")
    orders = database.orders
    orders.insert_many([{"_id": str(n), "n": n} for n in range(20)])
    assert run(run_stage, "sync", declared, both) == 20
    assert {op for _, op in text_key_ops(read(kafka_server, [topic]))} == {"r"}

    orders.insert_one({"_id": "brief"})
    orders.update_one({"_id": "1"}, {"$set": {"turn": 1}})
    orders.update_one({"_id": "2"}, {"$set": {"turn": 1}})
    run(run_stage, "sync", silent, both)
    orders.update_one({"_id": "1"}, {"$set": {"turn": 2}})
    orders.update_one({"_id": "2"}, {"$unset": {"turn": 1}})
    orders.delete_many({"_id": {"$in": ["brief", "3"]}})
    orders.insert_one({"_id": "new"})
    run(run_stage, "sync", silent, both)
    run(run_stage, "maintain", declared, both)
    before = len(read(kafka_server, [topic]))
    assert run(run_stage, "sync", declared, both) == 4, "however many merges there were"
    messages = read(kafka_server, [topic])
    assert sorted(text_key_ops(messages)[before:], key=str) == [
        ('"1"', "u"),
        ('"3"', "d"),
        ('"3"', None),
        ('"new"', "c"),
    ]
    require_equal(messages, mirrored(spark, database, "orders"))

    assert run(run_stage, "publish", declared, both) == 0
    run(run_stage, "maintain", declared, both)
    assert run(run_stage, "publish", declared, both) == 0, "compaction changes no row"
    orders.delete_one({"_id": "4"})
    assert run(run_stage, "sync", declared, both) == 2
    shown = run_stage("offsets", declared, both, action="show").published
    assert shown is not None
    assert (shown.pending_batches, shown.lag_seconds) == (0, 0)


LOOKALIKES: list[dict[str, Any]] = [
    {"price": {"$numberInt": "5"}, "n": 5},
    {"due": {"$date": "tomorrow"}},
    {"schema": {"$id": "x", "$ref": "#/y"}, "s": {"$symbol": "s"}, "u": {"$undefined": True}},
    {"b": {"$binary": {"base64": "AA==", "subType": "00"}}, "list": [{"$oid": "6" * 24}, {"$minKey": 1}]},
]


def test_documents_that_look_like_extended_json_are_published_as_they_are_and_stop_nothing(
    run_stage: RunStage, database: Database, both: dict[str, Any], kafka_server: KafkaServer
) -> None:
    declared = merged(database)
    declared["publish"]["mongodb"] = {}
    declared["source"]["document_column"] = "none"
    changes = {**declared, "name": f"changes_{database.name}"}
    changes["publish"] = {**declared["publish"], "topic_prefix": f"changes_{database.name}"}
    changes["publish"]["kafka"] = {"connection": "kafka"}
    changes["lake"] = {**declared["lake"], "namespace": f"changes_{database.name}"}
    for name in "az":
        database[name].insert_one({"_id": "1"})
    database.m.insert_many([{"_id": str(n), **one} for n, one in enumerate(LOOKALIKES)])
    assert run(run_stage, "sync", declared, both) == 2 + len(LOOKALIKES)
    run(run_stage, "sync", changes, both)

    def documents(prefix: str) -> dict[str, str]:
        messages = read(kafka_server, [f"{prefix}.{database.name}.m"])
        return {(m.key() or b"").decode(): json.loads(m.value() or b"")["after"] for m in messages}

    found = documents(database.name)
    assert found == documents(f"changes_{database.name}")
    assert len(found) == len(LOOKALIKES)
    for table in ("a", "m", "z"):
        compared = run_stage("compare_topics", declared, both, tables=(f"{database.name}.{table}",))
        assert compared.ok, compared.error
    typed = json.dumps({"op": "u", "after": '{"_id": "0","price": 5,"n": 5}'})
    send(kafka_server, topic_of(database, "m"), (json.dumps({"id": '"0"'}, separators=(",", ":")), typed))
    differs = run_stage("compare_topics", declared, both, tables=(f"{database.name}.m",))
    assert (differs.ok, differs.tables[0].differences) == (False, 1)


def test_the_first_run_may_begin_with_what_is_merged_from_now_on(
    run_stage: RunStage, database: Database, both: dict[str, Any], kafka_server: KafkaServer
) -> None:
    declared = merged(database, start="latest")
    topic = topic_of(database, "orders")
    database.orders.insert_many([{"_id": "a"}, {"_id": "b"}])
    assert run(run_stage, "sync", declared, both) == 0
    database.orders.update_one({"_id": "a"}, {"$set": {"n": 1}})
    database.customers.insert_one({"_id": "c"})
    assert run(run_stage, "sync", declared, both) == 2
    assert text_key_ops(read(kafka_server, [topic])) == [('"a"', "u")]
    assert text_key_ops(read(kafka_server, [topic_of(database, "customers")])) == [('"c"', "r")]
    database.customers.drop()
    assert run(run_stage, "sync", declared, both) == 2
    gone = text_key_ops(read(kafka_server, [topic_of(database, "customers")]))
    assert gone[1:] == [('"c"', "d"), ('"c"', None)], "rows of a collection that is gone are gone"


def test_a_re_created_mirror_fails_the_run_and_is_published_again_on_request(
    spark: SparkSession,
    run_stage: RunStage,
    database: Database,
    both: dict[str, Any],
    kafka_server: KafkaServer,
) -> None:
    declared = merged(database)
    topic = topic_of(database, "orders")
    database.orders.insert_many([{"_id": "a"}, {"_id": "b"}])
    assert run(run_stage, "sync", declared, both) == 2
    spark.sql(f"DROP TABLE lake.{mirror_name(database, 'orders')} PURGE")
    run_stage("snapshot", declared, both)
    outcome = run_stage("publish", declared, both)
    assert (outcome.ok, outcome.error_code) == (False, OffsetMissing.code)
    assert "re-created" in outcome.error
    with pytest.raises(ConfigurationError, match="can't continue with batch"):
        run_stage("offsets", declared, both, action="publish", batch=2)
    assert run_stage("offsets", declared, both, action="publish", batch=1).ok
    assert run(run_stage, "publish", declared, both) == 2
    assert sorted(text_key_ops(read(kafka_server, [topic]))) == 2 * [('"a"', "r")] + 2 * [('"b"', "r")]


@pytest.mark.parametrize("mode", ["changes", "after_merge"])
def test_a_record_that_cannot_be_built_is_quarantined_alone_with_its_topic_and_key(
    spark: SparkSession,
    run_stage: RunStage,
    database: Database,
    both: dict[str, Any],
    kafka_server: KafkaServer,
    mode: str,
) -> None:
    declared = declaration(
        database,
        {"mode": mode},
        transactions=False,
        unwrap={"enabled": True},
        transforms=[{"type": "cast", "fields": {"n": "int32"}}],
    )
    failing = {**declared, "publish": {**declared["publish"], "kafka": {**declared["publish"]["kafka"]}}}
    failing["publish"]["kafka"]["on_record_error"] = "fail"
    for name in "amz":
        database[name].insert_many([{"_id": f"{name}{n}", "n": f"{n}"} for n in range(3)])
    database.m.update_one({"_id": "m1"}, {"$set": {"n": "none"}})
    outcome = run_stage("sync", failing, both)
    assert not outcome.ok
    assert f"in the record of topic {topic_of(database, 'm')} with key" in outcome.error
    assert '{"id":"m1"}' in outcome.error

    def published() -> list[list[str]]:
        messages = [read(kafka_server, [topic_of(database, name)]) for name in "amz"]
        return [sorted(json.loads(m.key() or b"")["id"] for m in found) for found in messages]

    outcome = run_stage("sync", declared, both)
    assert outcome.ok, outcome.error
    assert published() == [["a0", "a1", "a2"], ["m0", "m2"], ["z0", "z1", "z2"]]
    found = [text for text in outcome.findings if "cast to int32" in text]
    assert len(found) == 1
    assert f'topic {topic_of(database, "m")}, key {{"id":"m1"}}: ' in found[0]
    dead = spark.table(f"lake.{database.name}.shop_{database.name}_dead_letters").collect()
    assert [(row["topic"], json.loads(row["key"])["id"]) for row in dead] == [(topic_of(database, "m"), "m1")]

    # Comparisons count and name it, and compare all other rows.
    send(kafka_server, topic_of(database, "m"), ('{"id":"m2"}', '{"_id":"m2","n":7}'))
    compared = run_stage("compare_topics", declared, both)
    notes = {table.table: table.note for table in compared.tables}
    assert [notes[f"{database.name}.{name}"] for name in "az"] == ["equal", "equal"]
    (of_m,) = [table for table in compared.tables if table.error]
    assert "1 rows of the mirror" in of_m.error
    assert 'key {"id":"m1"}' in of_m.error
    assert of_m.error.partition("] ")[2] in compared.error
    assert json.loads(of_m.note) == {"equal": 1, "only_topic": 0, "only_mirror": 0, "different": 1}

    database.m.update_one({"_id": "m1"}, {"$set": {"n": "5"}})
    database.z.insert_one({"_id": "z9", "n": "9"})
    outcome = run_stage("sync", declared, both)
    assert outcome.ok, outcome.error
    assert published()[1:] == [["m0", "m1", "m2", "m2"], ["z0", "z1", "z2", "z9"]]


def test_a_table_that_fails_after_some_of_its_rows_were_sent_resumes_later_and_stops_no_other(
    run_stage: RunStage, database: Database, both: dict[str, Any], kafka_server: KafkaServer
) -> None:
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    declared = merged(database, records_per_commit=3, on_record_error="fail")
    kafka_server.create_topic(topic_of(database, "m"), 1, max_message_bytes=1000)

    def publish(ok: bool) -> list[int]:
        outcome = run_stage("sync", declared, both)
        assert outcome.ok is ok, outcome.error
        failed = {table.table: table.error for table in outcome.tables if table.error}
        assert set(failed) == (set() if ok else {f"{database.name}.m"})
        assert ok or "m rejects records: found MSG_SIZE_TOO_LARGE" in failed[f"{database.name}.m"]
        return [len(read(kafka_server, [topic_of(database, name)])) for name in "amz"]

    for name in "az":
        database[name].insert_one({"_id": "1"})
    large = random.Random(0).randbytes(2000).hex()  # also after compression
    database.m.insert_many([{"_id": str(n), "text": large if n == 5 else "x"} for n in range(9)])
    assert publish(ok=False) == [1, 3, 1], "two transactions of m weren't sent"
    for name in "amz":
        database[name].insert_one({"_id": "new"})
    assert publish(ok=False) == [2, 3, 2], "the others go on"
    larger = ConfigEntry("max.message.bytes", "10000", incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ResourceType.TOPIC, topic_of(database, "m"), incremental_configs=[larger])
    admin = AdminClient({"bootstrap.servers": kafka_server.bootstrap})
    for done in admin.incremental_alter_configs([topic]).values():
        done.result(30)
    database.m.delete_one({"_id": "0"})
    assert publish(ok=True) == [2, 12, 2], "ten rows, a delete and its tombstone: nothing twice"
    keys = [key for key, _ in text_key_ops(read(kafka_server, [topic_of(database, "m")]))]
    assert sorted(keys) == sorted([*(f'"{n}"' for n in range(9)), '"0"', '"0"', '"new"'])


def _with_kills(
    spark: SparkSession,
    run_stage: RunStage,
    database: Database,
    both: dict[str, Any],
    server: KafkaServer,
    application: Application,
    kills: int,
) -> None:
    declared = merged(database, records_per_commit=100, retry_timeout_seconds=60)
    warehouse = spark.conf.get("spark.sql.catalog.lake.warehouse")
    lake = {**declared["lake"], "catalog_options": {"type": "hadoop", "warehouse": warehouse}}
    silent = {**declared, "publish": {**declared["publish"], "kafka": {}}}
    rng = random.Random(kills)
    orders = database.orders
    orders.insert_many([{"_id": str(n), "n": 0} for n in range(20_000)])
    run(run_stage, "sync", silent, both)

    def begin(number: int) -> subprocess.Popen[bytes]:
        own = application.start("publish", {**declared, "lake": lake}, both)
        if number % 3 == 2:  # the mirror goes on meanwhile
            orders.update_many({"n": {"$lt": rng.randrange(3)}}, {"$inc": {"n": 1}})
            orders.delete_many({"_id": {"$in": [str(rng.randrange(20_000)) for _ in range(500)]}})
            run(run_stage, "sync", silent, both)
        return own

    application.kill_often(kills, begin)
    last = application.wait(application.start("publish", {**declared, "lake": lake}, both))
    assert last.ok, last.error
    require_equal(read(server, [topic_of(database, "orders")]), mirrored(spark, database, "orders"))


@pytest.mark.long
def test_jobs_killed_often_publish_each_row_once(
    spark: SparkSession,
    run_stage: RunStage,
    database: Database,
    both: dict[str, Any],
    kafka_server: KafkaServer,
    application: Application,
) -> None:
    _with_kills(spark, run_stage, database, both, kafka_server, application, kills=20)


def test_whole_rows_of_cassandra_are_those_of_the_mirror(shop: Shop, kafka_server: KafkaServer) -> None:
    columns = "k int, c int, s text static, v text, m map<text, int>, PRIMARY KEY (k, c)"
    shop.run(f"CREATE TABLE t ({columns}) WITH cdc = true")
    topic = f"{shop.keyspace}.{shop.keyspace}.t"
    shop.connection = with_broker(shop.connection, kafka_server)
    kafka = {"connection": "kafka", "mode": "after_merge", "records_per_commit": 3}
    shop.declare(publish={"topic_prefix": shop.keyspace, "envelope": "datastax", "kafka": kafka})
    for k, c in ((1, 1), (1, 2), (2, 1), (2, 2), (3, 1)):
        shop.run(f"INSERT INTO t (k, c, v, m) VALUES ({k}, {c}, 'a', {{'x': {c}}})")
    shop.run("UPDATE t SET s = 'one' WHERE k = 1")
    shop.run("UPDATE t SET s = 'brief' WHERE k = 5")
    published(shop, 6)
    require_equal_rows(shop, kafka_server.read(topic))

    shop.run("UPDATE t SET v = 'b' WHERE k = 2 AND c = 1")
    shop.run("UPDATE t SET s = 'two' WHERE k = 1")
    shop.run("DELETE FROM t WHERE k = 2 AND c = 2")
    shop.run("DELETE FROM t WHERE k = 3")
    shop.run("UPDATE t SET s = 'alone' WHERE k = 4")
    shop.run("DELETE FROM t WHERE k = 5")
    published(shop, 7)
    messages = kafka_server.read(topic)
    require_equal_rows(shop, messages)
    rows = [(json.loads(m.key() or b""), json.loads(m.value() or b"null")) for m in messages[6:]]
    assert ({"k": 5, "c": None}, None) in rows
    assert ({"k": 4, "c": None}, {"s": "alone"}) in rows
    assert ({"k": 3, "c": 1}, None) in rows
    published(shop, 0)

    shop.run("INSERT INTO t (k, c, v) VALUES (6, 1, 'brief') USING TTL 8")
    alive = shop.sync().published
    outlived = shop.run("SELECT k FROM t WHERE k = 6").one() is not None  # not so on a slow machine
    while shop.run("SELECT k FROM t WHERE k = 6").one():
        time.sleep(0.1)
    ended = shop.sync().published
    assert alive is not None
    assert ended is not None
    values = [json.loads(m.value() or b"null") for m in kafka_server.read(topic)[13:]]
    assert (alive.records, ended.records, values) in (
        (1, 1, [{"s": None, "v": "brief", "m": None}, None]),
        (0, 0, []),
    )
    assert not outlived or alive.records == 1
    kept = shop.spark._jsparkSession.sharedState().cacheManager()
    assert kept.isEmpty(), "frames that outlive their merge fail when files are gone that they were made of"


def published(shop: Shop, count: int) -> None:
    outcome = shop.sync()
    assert outcome.ok, outcome.error
    assert outcome.published is not None
    assert outcome.published.records == count


def require_equal_rows(shop: Shop, messages: list[Message]) -> None:
    """Require that the last value of each key is the mirror's row."""
    held: dict[tuple[int, int | None], Any] = {}
    for message in messages:
        key = json.loads(message.key() or b"")
        held[key["k"], key["c"]] = json.loads(message.value() or b"null")
    rows = shop.mirror("t").drop("_cdc").collect()
    assert rows
    for row in rows:
        value = held.pop((row["k"], row["c"]))
        assert value["s"] == row["s"]
        if row["c"] is not None:
            assert (value["v"], value["m"]) == (row["v"], row["m"])
    assert not any(held.values()), "what is left is gone"


def folded(messages: list[Message], in_cells: bool = True) -> dict[str, dict[str, Any]]:
    """Apply events: return what a reader holds of each key, of columns that the events say something of."""
    held: dict[str, dict[str, Any]] = {}
    for message in messages:
        key, value = (message.key() or b"").decode(), message.value()
        if value is None:
            assert key not in held
            continue
        event = json.loads(value)
        if event["op"] == "d":
            del held[key]
            continue
        assert (event["op"] == "u") or key not in held, event
        keys = json.loads(key)
        cells = {n: c for n, c in event["after"].items() if n not in keys and not n.startswith("_")}
        shown = {n: c["value"] for n, c in cells.items() if c is not None} if in_cells else cells
        assert held.get(key) != shown, "an event that changes nothing"
        held[key] = shown
    return held


def key_ops(messages: list[Message]) -> list[tuple[dict[str, Any], str | None]]:
    found = [(json.loads(m.key() or b""), json.loads(m.value() or b"null")) for m in messages]
    return [(key, value and value["op"]) for key, value in found]


def require_equal_topic(shop: Shop, table: str) -> None:
    result = shop.stage("compare_topics", tables=(f"{shop.keyspace}.{table}",))
    assert (result.ok, [one.note for one in result.tables]) == (True, ["equal"]), result.error


def test_cells_of_cassandras_rows_are_those_of_the_mirror_and_static_columns_are_sent_once(
    shop: Shop, kafka_server: KafkaServer
) -> None:
    shop.run(
        "CREATE TABLE t (k int, c int, s text static, v text, w int, PRIMARY KEY (k, c)) WITH cdc = true"
    )
    topic = f"{shop.keyspace}.{shop.keyspace}.t"
    shop.connection = with_broker(shop.connection, kafka_server)
    kafka = {"connection": "kafka", "mode": "after_merge", "records_per_commit": 3}
    shop.declare(publish={"topic_prefix": shop.keyspace, "tombstones": True, "kafka": kafka})
    for k, c in ((1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (5, 1)):
        shop.run(f"INSERT INTO t (k, c, v, w) VALUES ({k}, {c}, 'a', {c})")
    for k in (1, 2, 3, 4):
        shop.run(f"UPDATE t SET s = 's{k}' WHERE k = {k}")
    published(shop, 10)
    messages = kafka_server.read(topic)
    assert {op for _, op in key_ops(messages)} == {"i", "u"}
    assert folded(messages)['{"k":1,"c":2}'] == {"v": "a", "w": 2}
    assert folded(messages)['{"k":4,"c":null}'] == {"s": "s4"}

    shop.run("INSERT INTO t (k, c, v) VALUES (1, 3, 'new')")  # static columns of other files' rows stay
    shop.run("UPDATE t SET v = null WHERE k = 1 AND c = 2")
    shop.run("DELETE FROM t WHERE k = 1 AND c = 1")
    shop.run("DELETE s FROM t WHERE k = 2")
    shop.run("DELETE FROM t WHERE k = 3")
    shop.run("UPDATE t SET s = 'other' WHERE k = 4")
    shop.run("UPDATE t SET s = 'first' WHERE k = 5")
    published(shop, 11)
    later = kafka_server.read(topic)
    ops = key_ops(later[10:])
    assert sorted(ops, key=str) == sorted(
        [
            ({"k": 1, "c": 3}, "i"),
            ({"k": 1, "c": 2}, "u"),
            ({"k": 1, "c": 1}, "d"),
            ({"k": 1, "c": 1}, None),
            ({"k": 2, "c": None}, "u"),
            ({"k": 3, "c": 1}, "d"),
            ({"k": 3, "c": 1}, None),
            ({"k": 3, "c": None}, "d"),
            ({"k": 3, "c": None}, None),
            ({"k": 4, "c": None}, "u"),
            ({"k": 5, "c": None}, "u"),
        ],
        key=str,
    )
    assert folded(later) == {
        '{"k":1,"c":2}': {"v": None, "w": 2},
        '{"k":1,"c":3}': {"v": "new", "w": None},
        '{"k":1,"c":null}': {"s": "s1"},
        '{"k":2,"c":1}': {"v": "a", "w": 1},
        '{"k":2,"c":2}': {"v": "a", "w": 2},
        '{"k":2,"c":null}': {"s": None},
        '{"k":4,"c":null}': {"s": "other"},
        '{"k":5,"c":1}': {"v": "a", "w": 1},
        '{"k":5,"c":null}': {"s": "first"},
    }
    published(shop, 0)
    require_equal_topic(shop, "t")


@pytest.mark.parametrize("form", [pytest.param("legacy", marks=pytest.mark.long), "advanced"])
def test_rows_of_scylla_are_those_of_the_mirror_and_static_columns_are_sent_once(
    shop: Shop, names: SystemKeyspaces, kafka_server: KafkaServer, form: str
) -> None:
    cluster = scylla_table(shop, names, CdcOptions())
    shop.connection = with_broker(shop.connection, kafka_server)
    kafka = {"connection": "kafka", "mode": "after_merge", "records_per_commit": 2}
    publish = {"topic_prefix": shop.keyspace, "headers": False, "scylla": {"format": form}, "kafka": kafka}
    declare(shop, names, snapshot={"mode": "never"}, publish=publish)
    topic = f"{shop.keyspace}.{shop.keyspace}.item"
    seven, eight = (number(7),), (number(8),)
    cluster.execute("item", *(Insert(seven, (number(n),), {"qty": number(n)}) for n in range(3)))
    cluster.execute("item", Insert(seven, None, {"owner": b"ann"}), Insert(eight, None, {"owner": b"bob"}))
    time.sleep(2.1)
    published(shop, 5)
    assert {op for _, op in key_ops(kafka_server.read(topic))} == {"r"}

    cluster.execute("item", Update(seven, (number(0),), (SetWhole("qty", None),)))
    cluster.execute("item", DeleteRow(seven, (number(1),)), Insert(seven, (number(3),), {"qty": number(3)}))
    cluster.execute("item", Update(eight, None, (SetWhole("owner", b"eve"),)))
    time.sleep(2.1)
    published(shop, 5)
    messages = kafka_server.read(topic)
    assert sorted(key_ops(messages[5:]), key=str) == [
        ({"shop": 7, "sku": 0}, "u"),
        ({"shop": 7, "sku": 1}, "d"),
        ({"shop": 7, "sku": 1}, None),
        ({"shop": 7, "sku": 3}, "c"),
        ({"shop": 8}, "u"),
    ]
    # In the advanced form each row shows all columns; static columns are those of the partition alone.
    shown = {key: {n: v for n, v in one.items() if v is not None} for key, one in _of(messages, form).items()}
    assert shown == {
        '{"shop":7,"sku":0}': {},
        '{"shop":7,"sku":2}': {"qty": 2},
        '{"shop":7,"sku":3}': {"qty": 3},
        '{"shop":7}': {"owner": "ann"},
        '{"shop":8}': {"owner": "eve"},
    }
    published(shop, 0)
    require_equal_topic(shop, "item")


def _of(messages: list[Message], form: str) -> dict[str, dict[str, Any]]:
    held = folded(messages, in_cells=form == "legacy")
    return {key: {n: v for n, v in one.items() if n != "sku"} for key, one in held.items()}
