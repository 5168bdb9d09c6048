"""Findings of ``check`` on real servers: one each, with a remedy, and no secret in any text."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bson
import pymongo
import pytest
from pymongo import monitoring
from pymongo.errors import OperationFailure

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.contract import Finding, ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.mongodb.change_stream import backlog
from airflow_cdc_provider.sources.mongodb.change_stream.backlog import OplogSample
from airflow_cdc_provider.sources.mongodb.options import (
    MongodbAdvanced,
    MongodbInference,
    MongodbOptions,
    MongodbStream,
)
from airflow_cdc_provider.sources.mongodb.position import StreamPosition
from airflow_cdc_provider.sources.mongodb.reader import TimeSlice
from airflow_cdc_provider.sources.mongodb.selection import Selection
from airflow_cdc_provider.sources.mongodb.source import MongodbSource
from server_kit import MongoServer

if TYPE_CHECKING:
    from pymongo import MongoClient

pytestmark = pytest.mark.integration
PASSWORD = "s3cr3t-of-the-reader"


@pytest.fixture(scope="module")
def secured() -> Iterator[tuple[MongoServer, MongoClient]]:
    with MongoServer(auth=True) as server:
        client = server.client()
        client.shop.orders.insert_one({"_id": 1})
        client.other.things.insert_one({"_id": 1})
        users = {
            "reads_shop": [{"role": "read", "db": "shop"}],
            "reads_all": ["readAnyDatabase"],
            "reads_nothing": [],
            "reads_orders": ["orders"],
            "reads_and_lists": ["orders", "listing"],
            "reads_oplog": ["readAnyDatabase", {"role": "read", "db": "local"}],
            "has_the_least": ["everywhere"],
            "has_none_elsewhere": ["shop_alone"],
        }
        orders = {"resource": {"db": "shop", "collection": "orders"}, "actions": ["find", "changeStream"]}
        listing = {"resource": {"db": "shop", "collection": ""}, "actions": ["listCollections"]}
        databases = {"resource": {"cluster": True}, "actions": ["listDatabases"]}
        all_changes = {"resource": {"db": "", "collection": ""}, "actions": ["find", "changeStream"]}
        shop_changes = {"resource": {"db": "shop", "collection": ""}, "actions": ["find", "changeStream"]}
        for name, *rights in (
            ("orders", orders),
            ("listing", listing),
            ("everywhere", databases, all_changes),
            ("shop_alone", databases, shop_changes),
        ):
            client.admin.command("createRole", name, privileges=rights, roles=[])
        for name, roles in users.items():
            client.admin.command("createUser", name, pwd=PASSWORD, roles=roles)
        yield server, client


def source(server: MongoServer, user: str, *tables: str, **options: Any) -> MongodbSource:
    connection = {
        "host": server.host,
        "port": server.port,
        "login": user,
        "password": PASSWORD,
        "schema": "admin",
        "extra": {"replicaSet": "rs0"},
    }
    return MongodbSource(MongodbOptions(**options), connection, Selection(tables or (".*",)))


def levels(findings: list[Finding]) -> dict[str, str]:
    for finding in findings:
        assert PASSWORD not in repr(finding)
        assert bool(finding.remedy) == (finding.level != "ok"), finding
    worst: dict[str, str] = {}
    for finding in findings:
        if worst.get(finding.subject) != "error":
            worst[finding.subject] = finding.level
    return worst


@pytest.mark.covers("MDB-CAP-10", "MDB-TOP-06")
def test_a_user_that_may_read_everything_is_enough(secured: tuple[MongoServer, MongoClient]) -> None:
    checked = source(secured[0], "reads_all")
    found = levels(checked.check())
    assert {k: v for k, v in found.items() if k != "oplog window"} == {
        "connection": "ok",
        "topology": "ok",
        "collections": "ok",
        "change stream": "ok",
    }
    assert checked.tables() == ["other.things", "shop.orders"]
    assert levels(checked.check(checked.head()))["stored offset"] == "ok"
    before = checked.head()
    secured[1].shop.orders.insert_one({"_id": 2})
    plan = checked.plan(before, checked.head(), ReadLimit())
    assert plan.at_head
    changes = [
        row for batch in checked.reader().read(plan.partitions, ReadMetrics()) for row in batch.to_pylist()
    ]
    assert [row["source_table"] for row in changes] == ["shop.orders"]
    assert checked.earliest()
    assert checked.lag(before).seconds is not None
    checked.close()
    client = secured[0].client(username="reads_all", password=PASSWORD)
    with pytest.raises(OperationFailure, match="not authorized"):  # the oplog is not what was read
        client.local["oplog.rs"].find_one()


@pytest.mark.covers("MDB-PERM-04", "MDB-PERM-01")
def test_list_databases_find_and_change_stream_are_enough_for_the_deployment(
    secured: tuple[MongoServer, MongoClient],
) -> None:
    least = source(secured[0], "has_the_least")
    found = least.check()
    assert not [f for f in found if f.level == "error"], found
    assert least.tables() == ["other.things", "shop.orders"]
    before = least.head()
    secured[1].shop.orders.insert_one({"by": "has_the_least"})
    parts = least.plan(before, least.head(), ReadLimit()).partitions
    assert [
        row["source_table"] for b in least.reader().read(parts, ReadMetrics()) for row in b.to_pylist()
    ] == ["shop.orders"]
    least.close()

    less = source(secured[0], "has_none_elsewhere")
    refused = {f.subject: f for f in less.check() if f.level == "error"}
    assert "error 13" in refused["change stream"].message
    assert "readAnyDatabase for scope deployment" in refused["change stream"].remedy
    less.close()
    inside = source(secured[0], "has_none_elsewhere", scope="database", target="shop")
    assert levels(inside.check())["change stream"] == "ok"
    inside.close()
    outside = source(secured[0], "has_none_elsewhere", scope="database", target="other")
    (named,) = (f for f in outside.check() if f.subject == "change stream")
    assert (named.level, "role read on the database" in named.remedy) == ("error", True)
    outside.close()


def test_the_oplog_is_sampled_for_users_that_may_read_it_and_others_do_without(
    secured: tuple[MongoServer, MongoClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "MIN_BACKLOG_BYTES", 1)
    server, client = secured
    for user, may in (("reads_all", False), ("reads_oplog", True)):
        behind = source(
            server,
            user,
            r"shop\.many",
            advanced=MongodbAdvanced(
                batch_events=50, backlog_threshold_seconds=0.0, backlog_streams=2, sample_oplog=True
            ),
        )
        start = behind.head()
        for _ in range(10):
            client.shop.many.insert_many([{"by": user, "s": "x" * 200} for _ in range(100)])
        head = StreamPosition.from_offset(behind.head())
        sample = OplogSample.take(behind._client, StreamPosition.from_offset(start).time, head.time)
        assert (sample is not None) == may
        offset, seen, sliced = start, 0, 0
        while True:
            plan = behind.plan(offset, head.to_offset(), ReadLimit(changes=400))
            sliced += sum(isinstance(part, TimeSlice) for part in plan.partitions)
            seen += sum(b.num_rows for b in behind.reader().read(plan.partitions, ReadMetrics()))
            offset = plan.end
            if plan.at_head:
                break
        assert seen == 1000
        assert sliced >= 2
        behind.close()


@pytest.mark.covers("MDB-PERM-02")
def test_a_snapshot_and_its_stream_send_hello_and_reads_alone(
    secured: tuple[MongoServer, MongoClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: set[str] = set()

    class Names(monitoring.CommandListener):
        def started(self, event: monitoring.CommandStartedEvent) -> None:
            sent.add(event.command_name)

        def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...

        def failed(self, event: monitoring.CommandFailedEvent) -> None: ...

    reader = source(secured[0], "reads_orders", scope="collection", target="shop.orders")
    watched = partial(pymongo.MongoClient, event_listeners=[Names()])
    monkeypatch.setattr("airflow_cdc_provider.sources.mongodb.connection.MongoClient", watched)
    start = reader.start()
    plan = reader.plan_snapshot("shop.orders")
    assert sum(b.num_rows for b in reader.snapshot_reader().read(plan.ranges, ReadMetrics())) >= 1
    secured[1].shop.orders.insert_one({"by": "stream"})
    assert reader.plan(start, reader.head(), ReadLimit()).partitions
    reader.close()
    # Reads, their ends, the log-in, and what any user may ask.
    assert sent <= {
        *("hello", "find", "aggregate", "getMore", "killCursors", "count", "buildInfo", "buildinfo"),
        *("saslStart", "saslContinue", "endSessions"),
    }
    assert {"hello", "find", "aggregate"} <= sent


@pytest.mark.covers("MDB-PERM-01")
def test_a_missing_right_is_named(secured: tuple[MongoServer, MongoClient]) -> None:
    whole = {f.subject: f for f in source(secured[0], "reads_shop", r"shop\..*").check()}
    assert whole["collections"].level == "ok"
    assert whole["change stream"].level == "error"
    assert "changeStream" in whole["change stream"].remedy
    inside = source(secured[0], "reads_shop", scope="database", target="shop")
    assert levels(inside.check())["change stream"] == "ok"
    inside.close()
    nothing = levels(source(secured[0], "reads_nothing", r"shop\.orders").check())
    assert nothing["change stream"] == "error"


@pytest.mark.covers("MDB-PERM-01")
def test_rights_on_one_collection_are_enough_to_capture_it(
    secured: tuple[MongoServer, MongoClient],
) -> None:
    def alone(user: str, name: str, **options: Any) -> MongodbSource:
        return source(secured[0], user, scope="collection", target=name, **options)

    for user in ("reads_orders", "reads_and_lists"):
        enough = alone(user, "shop.orders")
        found = levels(enough.check())
        assert set(found.values()) == {"ok"}
        assert enough.tables() == ["shop.orders"]
        rows = [
            r
            for b in enough.snapshot_reader().read(
                enough.plan_snapshot("shop.orders").ranges[:1], ReadMetrics()
            )
            for r in b
        ]
        assert rows
        before = enough.head()
        secured[1].shop.orders.insert_one({"by": user})
        parts = enough.plan(before, enough.head(), ReadLimit()).partitions
        assert [
            row["source_table"] for b in enough.reader().read(parts, ReadMetrics()) for row in b.to_pylist()
        ] == ["shop.orders"]
        assert enough.plan(None, enough.head(), ReadLimit()).at_head
        enough.close()
    assert levels(alone("reads_orders", "other.things").check())["change stream"] == "error"


def test_what_a_user_may_not_read_is_reported_and_not_guessed(
    secured: tuple[MongoServer, MongoClient],
) -> None:
    blind = source(
        secured[0], "reads_orders", scope="collection", target="shop.orders", full_document="post_image"
    )
    (images,) = [f for f in blind.check() if f.subject == "pre- and post-images"]
    assert images.level == "warning"
    assert "may not read" in images.message
    blind.close()
    listed = source(secured[0], "reads_orders", r"shop\.orders")
    assert listed.tables() == ["shop.orders"]
    (refused,) = [f for f in listed.check() if f.level == "error"]
    assert "command" not in refused.message
    assert "both actions on the collection for scope collection" in refused.remedy
    listed.close()


@pytest.mark.covers("MDB-CONN-03", "MDB-CONN-05")
def test_login_and_schema_name_the_user_and_the_database_of_its_credentials(
    secured: tuple[MongoServer, MongoClient],
) -> None:
    server, client = secured
    client.shop.command("createUser", "of_shop", pwd=PASSWORD, roles=["read"])
    for user, schema, exists in (
        ("reads_all", "", True),  # admin by default
        ("reads_all", "shop", False),
        ("of_shop", "shop", True),
        ("of_shop", "", False),
    ):
        connection = {"host": server.host, "port": server.port, "login": user, "password": PASSWORD}
        connection["extra"] = {"replicaSet": "rs0"}
        with closing(MongodbSource(MongodbOptions(), connection | {"schema": schema}, Selection())) as found:
            if exists:
                assert found.head()
            else:
                with pytest.raises(ConfigurationError, match="authSource"):
                    found.head()


@pytest.mark.covers("MDB-CONN-04")
def test_a_wrong_password_is_an_error_and_not_printed(secured: tuple[MongoServer, MongoClient]) -> None:
    server = secured[0]
    wrong = MongodbSource(
        MongodbOptions(),
        {
            "host": server.host,
            "port": server.port,
            "login": "reads_all",
            "password": "wr0ng-pass",
            "extra": {},
        },
        Selection(),
    )
    (finding,) = wrong.check()
    assert (finding.level, finding.subject) == ("error", "connection")
    assert "authSource" in finding.remedy
    assert "wr0ng" not in repr(finding)
    with pytest.raises(ConfigurationError) as caught:
        wrong.head()
    assert "wr0ng" not in str(caught.value)
    wrong.close()


def test_an_unreachable_server_is_one_finding() -> None:
    options = MongodbOptions(advanced=MongodbAdvanced(connect_timeout_seconds=0.3))
    began = time.monotonic()
    (finding,) = MongodbSource(options, {"host": "127.0.0.1", "port": 1}, Selection()).check()
    assert time.monotonic() - began < 10, "as long as the client looks for a server, not as a check may take"
    assert (finding.level, finding.subject) == ("error", "connection")
    assert "host, port" in finding.remedy


@pytest.mark.covers("MDB-TOP-03")
def test_a_standalone_server_is_refused_with_the_way_out(tmp_path: Path) -> None:
    from server_kit.mongodb import mongod
    from server_kit.ports import free_port

    _, binary, environment = mongod()
    port = free_port()
    process = subprocess.Popen(
        [
            str(binary),
            "--dbpath",
            str(tmp_path),
            "--port",
            str(port),
            "--bind_ip",
            "127.0.0.1",
            "--nounixsocket",
        ],
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    try:
        with pymongo.MongoClient("127.0.0.1", port, serverSelectionTimeoutMS=30_000) as client:
            client.admin.command("ping")
        alone = MongodbSource(MongodbOptions(), {"host": "127.0.0.1", "port": port}, Selection())
        findings = alone.check()
        assert levels(findings) == {"connection": "ok", "topology": "error"}
        assert "oplog" in findings[-1].message
        assert "rs.initiate" in findings[-1].remedy
        with pytest.raises(ConfigurationError, match="no oplog"):
            alone.head()
        alone.close()
    finally:
        process.terminate()
        process.wait(timeout=30)


@pytest.mark.covers("MDB-TOP-01")
def test_a_set_of_one_member_is_captured_if_the_connection_names_it(mongo_server: MongoServer) -> None:
    def checked(**extra: str) -> dict[str, Finding]:
        connection = {"host": mongo_server.host, "port": mongo_server.port, "extra": extra}
        built = MongodbSource(MongodbOptions(), connection, Selection())
        found = built.check()
        levels(found)
        built.close()
        return {f.subject: f for f in found}

    assert checked(replicaSet="rs0")["topology"].message == "replica set rs0"
    assert checked(replicaSet="rs0")["change stream"].level == "ok"
    unnamed = checked()
    assert (unnamed["topology"].level, "replicaSet=rs0" in unnamed["topology"].remedy) == ("error", True)
    assert checked(replicaSet="other")["connection"].level == "error"


@pytest.mark.covers("MDB-XS-02")
@pytest.mark.parametrize("limit", [{"size": 4096, "max": 3}, {"size": 4096}])
def test_what_a_capped_collection_drops_by_itself_comes_as_deletes(
    mongo_server: MongoServer, mongo_client: MongoClient, limit: dict[str, Any]
) -> None:
    database = mongo_client[f"chk{time.time_ns()}"]
    connection = {"host": mongo_server.host, "port": mongo_server.port, "extra": {"replicaSet": "rs0"}}
    stream = MongodbSource(MongodbOptions(), connection, Selection((rf"{database.name}\.capped",)))
    try:
        database.create_collection("capped", capped=True, **limit)
        before = stream.head()
        database.capped.insert_many([{"_id": n, "s": "x" * 1000} for n in range(10)])
        plan = stream.plan(before, stream.head(), ReadLimit())
        records = [row for b in stream.reader().read(plan.partitions, ReadMetrics()) for row in b.to_pylist()]
        kinds = [bson.decode(record["payload"])["operationType"] for record in records]
        assert kinds.count("insert") == 10
        assert kinds.count("delete") == 10 - database.capped.count_documents({}) >= 6
    finally:
        stream.close()
        mongo_client.drop_database(database.name)


@pytest.mark.covers("MDB-XS-02")
def test_what_cannot_be_captured_as_configured_is_reported(
    mongo_server: MongoServer, mongo_client: MongoClient
) -> None:
    name = f"chk{time.time_ns()}"
    database = mongo_client[name]
    database.create_collection("plain")
    database.create_collection("images", changeStreamPreAndPostImages={"enabled": True})
    database.create_collection("capped", capped=True, size=4096)
    database.command("create", "view", viewOn="plain", pipeline=[])
    database.create_collection("series", timeseries={"timeField": "t"})
    connection = {"host": mongo_server.host, "port": mongo_server.port, "extra": {"replicaSet": "rs0"}}
    tables = (*(rf"{name}\.{c}" for c in ("plain", "images", "capped", "view", "series", "missing")),)

    def findings(**options: Any) -> dict[str, Finding]:
        checked = MongodbSource(MongodbOptions(**options), connection, Selection(tables))
        found = checked.check()
        levels(found)
        checked.close()
        return {f"{f.subject} {f.level}": f for f in found}

    try:
        found = findings()
        assert f"{name}.series, {name}.view" in found["views error"].message
        assert "source.batch" in found["views error"].remedy
        assert "capped collections warning" not in found, "6.0 reports what they drop"
        assert found["collections warning"].message == f"not found: {name}.missing"
        assert "pre- and post-images ok" not in found
        assert f"{name}.plain" in findings(pre_images=True)["pre- and post-images warning"].message
        database.plain.insert_one({"name": 1, "a.b": 2, "NAME": 3, "a": {"b": 4}})
        database.images.insert_one({"document": 5, "name": 6})
        assert "names warning" not in findings()
        names = findings(infer=MongodbInference((rf"{name}\..*",)))["names warning"].message
        assert names.endswith(
            f"{name}.images: document is document__2; {name}.plain: NAME is NAME__2, a is a__2"
        )
        assert "collMod" in findings(full_document="post_image")["pre- and post-images error"].remedy
        database.plain.create_index([("at", -1), ("n", 1)])
        by_field = {f"{name}.plain": "at", f"{name}.images": "n", f"{name}.series": "t", f"{name}.view": "at"}
        batched = findings(batch=(rf"{name}\..*",), batch_cursors=by_field)
        assert batched["batches warning"].message.startswith(f"{name}.images is read by n, but no index")
        assert batched["batches warning"].remedy == 'db.getCollection("images").createIndex({"n": 1})'
        by_pattern = MongodbSource(MongodbOptions(), connection, Selection((rf"{name}\..*",)))
        (left_out,) = (f for f in by_pattern.check() if f.subject == "views")
        assert (left_out.level, f"{name}.series, {name}.view" in left_out.message) == ("warning", True)
        assert by_pattern.tables() == [f"{name}.{c}" for c in ("capped", "images", "plain")]
        by_pattern.close()
        viewed = MongodbSource(
            MongodbOptions(scope="collection", target=f"{name}.view"), connection, Selection()
        )
        assert levels(viewed.check())["views"] == "error"
        viewed.close()
        nothing = MongodbSource(MongodbOptions(), connection, Selection((r"no\.such",)))
        assert levels(nothing.check())["collections"] == "warning"
        assert nothing.tables() == []
        nothing.close()
    finally:
        mongo_client.drop_database(name)


@pytest.mark.covers("MDB-CAP-13", "MDB-CAP-15")
def test_options_without_effect_or_with_risks_are_warned_of(mongo_server: MongoServer) -> None:
    chosen = MongodbSource(
        MongodbOptions(target="shop", stream=MongodbStream(skipped_operations=("d",))),
        {"host": mongo_server.uri},
        Selection(),
    )
    found = {f.subject: f for f in chosen.check()}
    assert {n: f.level for n, f in found.items() if n in ("scope", "skipped operations")} == {
        "scope": "warning",
        "skipped operations": "warning",
    }
    assert "target shop has no effect" in found["scope"].message
    assert "mirrors lack them" in found["skipped operations"].message
    chosen.close()
