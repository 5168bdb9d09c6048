"""What ``check`` finds on real servers: one finding each, with a remedy, and no secret in any text."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pymongo
import pytest

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.base import Finding, ReadLimit
from airflow_cdc_provider.sources.mongodb.options import MongodbAdvanced, MongodbOptions
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
        }
        orders = {"resource": {"db": "shop", "collection": "orders"}, "actions": ["find", "changeStream"]}
        listing = {"resource": {"db": "shop", "collection": ""}, "actions": ["listCollections"]}
        for name, right in (("orders", orders), ("listing", listing)):
            client.admin.command("createRole", name, privileges=[right], roles=[])
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


@pytest.mark.covers("MDB-CAP-10")
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
        row for part in plan.partitions for batch in checked.reader()(part) for row in batch.to_pylist()
    ]
    assert [row["source_table"] for row in changes] == ["shop.orders"]
    checked.close()


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
        rows = [r for b in enough.snapshot_reader()(enough.plan_snapshot("shop.orders").ranges[0]) for r in b]
        assert rows
        before = enough.head()
        secured[1].shop.orders.insert_one({"by": user})
        parts = enough.plan(before, enough.head(), ReadLimit()).partitions
        assert [row["source_table"] for p in parts for b in enough.reader()(p) for row in b.to_pylist()] == [
            "shop.orders"
        ]
        assert enough.plan(None, enough.head(), ReadLimit()).at_head
        enough.close()
    assert levels(alone("reads_orders", "other.things").check())["change stream"] == "error"


def test_what_a_user_may_not_see_is_told_and_not_guessed(secured: tuple[MongoServer, MongoClient]) -> None:
    blind = source(
        secured[0], "reads_orders", scope="collection", target="shop.orders", full_document="post_image"
    )
    (images,) = [f for f in blind.check() if f.subject == "pre- and post-images"]
    assert images.level == "warning"
    assert "may not see" in images.message
    blind.close()
    listed = source(secured[0], "reads_orders", r"shop\.orders")
    assert listed.tables() == ["shop.orders"]
    (refused,) = [f for f in listed.check() if f.level == "error"]
    assert "command" not in refused.message
    assert "both actions on the collection for scope collection" in refused.remedy
    listed.close()


def test_a_wrong_password_is_an_error_and_not_shown(secured: tuple[MongoServer, MongoClient]) -> None:
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
    (finding,) = MongodbSource(options, {"host": "127.0.0.1", "port": 1}, Selection()).check()
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


def test_what_cannot_be_captured_as_asked_is_told(
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
        assert f"{name}.series, {name}.view" in found["views warning"].message
        assert f"{name}.capped" in found["capped collections warning"].message
        assert found["collections warning"].message == f"not there: {name}.missing"
        assert "pre- and post-images ok" not in found
        assert f"{name}.plain" in findings(pre_images=True)["pre- and post-images warning"].message
        assert "collMod" in findings(full_document="post_image")["pre- and post-images error"].remedy
        nothing = MongodbSource(MongodbOptions(), connection, Selection((r"no\.such",)))
        assert levels(nothing.check())["collections"] == "warning"
        assert nothing.tables() == []
        nothing.close()
        wrong = MongodbSource(MongodbOptions(scope="database", target="a.b"), connection, Selection())
        assert levels(wrong.check())["scope"] == "error"
    finally:
        mongo_client.drop_database(name)
