"""Events of MongoDB from the lake: byte for byte those of a recording of the same stream."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import text_of
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.jobs.snapshots import snapshot
from airflow_cdc_provider.jobs.spark.session import build_lake
from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.sources.mongodb.events import captured as mongodb_lake
from airflow_cdc_provider.sources.mongodb.position import token_time
from airflow_cdc_provider.sources.recordings import Recording
from tests.conftest import ROOT
from tests.integration.jobs.conftest import RunStage
from tests.recorded_lines import event_lines

if TYPE_CHECKING:
    from pymongo.database import Database
    from pyspark.sql import SparkSession

    from server_kit import MongoServer

pytestmark = pytest.mark.integration

NOW_NS = 1_800_000_000_123_456_789
IMAGES: dict[str, Any] = {"changeStreamPreAndPostImages": {"enabled": True}}


def declaration(database: Database, **more: Any) -> dict[str, Any]:
    return {
        "name": f"shop_{database.name}",
        "source": {"type": "mongodb", "pre_images": True, "advanced": {"batch_events": 3}},
        "tables": [rf"{database.name}\..*"],
        "exclude_tables": [r".*\.hidden"],
        "lake": {"catalog": "lake", "namespace": database.name},
        "publish": {"transactions": True, "topic_prefix": "shop", "mongodb": {"resume_token_header": True}},
        **more,
    }


def fill(database: Database) -> None:
    for name in ("customers", "hidden", "orders", "stock"):
        database.create_collection(name, **IMAGES)
    database.customers.insert_many([{"_id": n, "name": f"é{n}", "of": {"deep": [n, 1.5]}} for n in range(7)])
    database.orders.insert_many([{"_id": bson.ObjectId(), "n": n} for n in range(2_500)])
    database.hidden.insert_one({"_id": 1})


def record(database: Database, collections: tuple[str, ...], folder: Path) -> None:
    for name in collections:
        rows = database[name].find_raw_batches({}, sort=[("_id", 1)])
        (folder / f"snapshot.{database.name}.{name}.bson").write_bytes(b"".join(rows))


def write(database: Database) -> None:
    """Make changes of all kinds, transactions and drops among them."""
    database.customers.update_one({"_id": 1}, {"$set": {"name": "new", "of.deep.1": 2}, "$unset": {"x": 1}})
    database.customers.replace_one({"_id": 2}, {"name": "whole"})
    database.hidden.insert_one({"_id": 2})
    with database.client.start_session() as session, session.start_transaction():
        database.customers.insert_one({"_id": 20}, session=session)
        database.hidden.insert_one({"_id": 3}, session=session)
        database.orders.delete_one({"n": 3}, session=session)
        database.customers.insert_one({"_id": 21}, session=session)
    with database.client.start_session() as session, session.start_transaction():
        database.stock.insert_many([{"_id": n} for n in range(12)], session=session)
    database.stock.drop()
    database.stock.insert_one({"_id": "again"})
    database.stock.rename("store")
    database.store.delete_one({"_id": "again"})


def recorded(server: MongoServer, database: Database, since: bson.Timestamp) -> bytes:
    """Record the change events of a database from a cluster time up to now.

    With the capture's last stage, which shows in the server's tokens.
    """
    with server.client(document_class=RawBSONDocument) as client:
        end = database.client.admin.command("hello")["operationTime"]
        with client.watch(
            [{"$match": {"ns.db": database.name}}, {"$changeStreamSplitLargeEvent": {}}],
            full_document="updateLookup",
            full_document_before_change="whenAvailable",
            start_at_operation_time=since,
            max_await_time_ms=100,
        ) as stream:
            events: list[Any] = []
            while not events or events[-1]["clusterTime"] < end:
                event = stream.try_next()
                if event is not None:
                    events.append(event)
                elif token_time(stream.resume_token or {}) >= (end.time << 32 | end.inc):
                    break
    return b"".join(event.raw for event in events)


def offline(declared: dict[str, Any], folder: Path) -> list[str]:
    lines = event_lines(
        Connector.from_dict(declared), Recording(folder, "", NOW_NS), SkippedRecords(strict=True)
    )
    return plain(b"".join(text_of(chunk) for chunk in lines).decode())


def plain(text: str) -> list[str]:
    """Blank the run's id, which is another in each run."""
    return re.sub(r'(runId\\?",\\?"\\+")[0-9a-f-]{36}', r"\1", text).splitlines()


def captured(run_stage: RunStage, declared: dict[str, Any], folder: Path, **options: Any) -> list[str]:
    path = folder / "events.jsonl"
    result = run_stage("events", declared, {}, path=str(path), now_ns=NOW_NS, **options)
    assert not [line for line in result.findings if line.startswith("skipped")]
    return plain(path.read_text())


def source_of(line: str) -> dict[str, Any]:
    value = json.loads(line)["value"]
    return json.loads(value).get("source", {}) if value else {}


@pytest.mark.covers("MDB-SNAP-20", "MDB-TX-03")
def test_events_of_the_lake_are_those_of_a_recording(
    spark: SparkSession,
    run_stage: RunStage,
    mongo_server: MongoServer,
    database: Database,
    connection: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mongodb_lake, "_ROWS_PER_READ", 2_000)  # several reads, within a snapshot too
    monkeypatch.setattr(mongodb_lake, "_ROWS_AT_ONCE", 700)
    shop = declaration(database)
    fill(database)
    run_stage("snapshot", shop, connection)
    since = database.client.admin.command("ping")["operationTime"]
    record(database, ("customers", "orders", "stock"), tmp_path)
    write(database)
    run_stage("capture", shop, connection, batch_changes=3)  # a batch may end inside a transaction
    (tmp_path / "stream.bson").write_bytes(recorded(mongo_server, database, since))

    theirs = offline(shop, tmp_path)
    ours = captured(run_stage, shop, tmp_path)

    for our, their in zip(ours, theirs, strict=False):
        assert our == their
    assert len(ours) == len(theirs)
    reported = [source_of(line).get("snapshot") for line in ours]
    assert reported[:2507] == ["true"] * 2506 + ["last"]
    assert set(reported[2507:]) == {"false", None}
    kinds = [json.loads(json.loads(line)["value"] or "{}").get("status") for line in ours]
    assert [kind for kind in kinds if kind] == ["BEGIN", "END"] * 2

    # From a batch on: the same lines but the first ones, also inside of the transaction.
    connector = Connector.from_dict(shop)
    last = ChangesTable(build_lake(spark, connector), connector).state().batch
    assert last > 4
    for batch in range(1, last + 1):
        rest = captured(run_stage, shop, tmp_path, after_batch=batch)
        assert rest == ours[len(ours) - len(rest) :], batch
    assert rest == []

    # Of one collection: its part of them. Transactions are those of its own events.
    alone = {**shop, "publish": {**shop["publish"], "transactions": False}}
    name = f"{database.name}.customers"
    of_customers = [line for line in captured(run_stage, alone, tmp_path) if f"shop.{name}" in line]
    assert captured(run_stage, alone, tmp_path, tables=[name]) == of_customers
    assert len(of_customers) == 7 + 4

    # With schema changes, each once, including renames, in stream order.
    schema = {**shop, "publish": {**shop["publish"], "schema_changes": True}}
    both = captured(run_stage, schema, tmp_path)
    assert both == offline(schema, tmp_path)
    ddl = [json.loads(line) for line in both if json.loads(line)["topic"] == "shop.schema-changes"]
    assert [json.loads(event["value"])["type"] for event in ddl] == ["drop", "rename"]
    rest = [line for line in both if json.loads(line)["topic"] != "shop.schema-changes"]
    assert rest == ours


def test_quarantined_events_are_reported(
    spark: SparkSession, run_stage: RunStage, database: Database, connection: dict[str, Any], tmp_path: Path
) -> None:
    shop = declaration(database)
    fill(database)
    run_stage("snapshot", shop, connection)
    connector = Connector.from_dict(shop)
    changes = ChangesTable(build_lake(spark, connector), connector)
    state = changes.state()
    assert state.offset is not None
    broken = {"kind": "quarantine", "origin": "stream", "position": b"\1", "reason": "BROKEN-EVENT: odd"}
    bad = {"source_table": f"{database.name}.orders", "kind": "change", "origin": "stream"}
    changes.append_batch(
        None, state.offset, state, extra_rows=[broken, {**bad, "position": b"\2", "payload": b"\5\0\0\0\0"}]
    )
    path = tmp_path / "events.jsonl"

    result = run_stage("events", shop, {}, path=str(path), after_batch=state.batch)

    assert path.read_text() == ""
    assert result.findings[:2] == (
        "undecodable: the stream at 01: BROKEN-EVENT: odd",
        f"undecodable: {database.name}.orders at 02: "
        "the change event is broken BSON or lacks ns or documentKey",
    )
    strict = {**shop, "source": {**shop["source"], "advanced": {"strict": True}}}
    with pytest.raises(CorruptInput, match="BROKEN-EVENT: odd"):
        run_stage("events", strict, {}, path=str(path), after_batch=state.batch)


def test_a_snapshot_is_whole_when_all_its_collections_are(
    run_stage: RunStage,
    database: Database,
    connection: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for limit in ("_RANGES_PER_CORE", "_MAX_RANGES_PER_CORE"):
        monkeypatch.setattr(snapshot, limit, 1)  # a commit for each two ranges
    shop = declaration(database)
    fill(database)
    database.stock.insert_many([{"_id": n} for n in range(3_000)])
    run_stage("snapshot", shop, connection)
    run_stage("capture", shop, connection)
    run_stage("snapshot", shop, connection, tables=[f"{database.name}.customers"], mode="replace")

    reported = [source_of(line)["snapshot"] for line in captured(run_stage, shop, tmp_path)]

    assert reported == ["true"] * (7 + 2_500 + 3_000 - 1) + ["last"] + ["true"] * 6 + ["last"]


def test_rows_of_incremental_snapshots_are_incremental(
    spark: SparkSession, run_stage: RunStage, database: Database, connection: dict[str, Any], tmp_path: Path
) -> None:
    shop = declaration(database)
    fill(database)
    run_stage("snapshot", shop, connection)
    connector = Connector.from_dict(shop)
    changes = ChangesTable(build_lake(spark, connector), connector)
    state = changes.state()
    assert state.offset is not None
    record_position = (1_700_000_000).to_bytes(4, "big") + (9).to_bytes(4, "big") + bytes(12)
    row = {
        "source_table": f"{database.name}.customers",
        "kind": "snapshot",
        "origin": "stream",
        "position": record_position,
        "version": record_position[:12],
        "request": "ad-hoc",
        "payload": bson.encode({"_id": 1}),
    }
    changes.append_batch(None, state.offset, state, extra_rows=[row])

    (reported,) = captured(run_stage, shop, tmp_path, after_batch=state.batch)

    source = source_of(reported)
    assert (source["snapshot"], source["ord"]) == ("incremental", 9)
    assert [source[f"ts_{unit}"] for unit in ("ms", "us", "ns")] == [17 * 10**n for n in (11, 14, 17)]


def test_what_a_merge_reads_again_is_no_event(
    run_stage: RunStage, database: Database, connection: dict[str, Any], tmp_path: Path
) -> None:
    shop = declaration(database)
    shop["source"] = {"type": "mongodb", "full_document": "none"}
    database.things.insert_many(
        [{"_id": "stays", "a.b": 1, "a": {"b": 2}}, {"_id": "goes", "a.b": 1, "a": {"b": 2}}]
    )
    run_stage("sync", shop, connection)
    database.things.update_many({}, {"$set": {"a.b": 3}})
    run_stage("capture", shop, connection)
    database.things.delete_one({"_id": "goes"})
    (outcome,) = run_stage("merge", shop, connection).tables
    assert outcome.note == "2 unresolved keys were reread"
    run_stage("capture", shop, connection)

    reported = [
        json.loads(json.loads(line)["value"] or "{}").get("op")
        for line in captured(run_stage, shop, tmp_path)
    ]

    assert reported == ["r", "r", "u", "u", "d", None]


@pytest.mark.long
@pytest.mark.usefixtures("warehouse")
def test_the_command_prints_events_of_mongodb_without_a_server(
    run_stage: RunStage,
    spark: SparkSession,
    database: Database,
    connection: dict[str, Any],
    iceberg_jar: Path,
    tmp_path: Path,
) -> None:
    fill(database)
    warehouse = spark.conf.get("spark.sql.catalog.lake.warehouse")
    shop = declaration(database)
    shop["lake"]["catalog_options"] = {"type": "hadoop", "warehouse": warehouse}
    run_stage("snapshot", shop, connection)
    path = tmp_path / "shop.json"
    path.write_text(json.dumps(shop))
    name = f"{database.name}.customers"
    command = ["cdc", "events", "--connector", str(path), "--from-lake", "--table", name]
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CDC__SPARK_JARS": str(iceberg_jar)}

    done = subprocess.run(
        [sys.executable, "-m", "airflow", *command, "--at", str(NOW_NS // 10**9)],
        env={**environment, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    options = {"tables": [name], "path": str(tmp_path / "events.jsonl"), "now_ns": NOW_NS // 10**9 * 10**9}
    run_stage("events", shop, {}, **options)
    assert plain(done.stdout) == plain((tmp_path / "events.jsonl").read_text())
    assert len(done.stdout.splitlines()) == 7
