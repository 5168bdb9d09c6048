"""Topics of Cassandra and ScyllaDB against mirrors, on a real broker: equal, until records are wrong."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import pytest

from airflow_cdc_provider.jobs.spec import JobResult
from server_kit import KafkaServer
from server_kit.scylla import CdcOptions, SystemKeyspaces
from server_kit.scylla.statements import DeleteRow, Insert, SetWhole, Update
from tests.integration.jobs.debezium_messages import send
from tests.integration.jobs.imitated import declare
from tests.integration.jobs.printed_events import number
from tests.integration.jobs.publishing import read
from tests.integration.jobs.scylla_tables import scylla_table
from tests.integration.jobs.shop import Shop

pytestmark = pytest.mark.integration

_LATER_US = 4_000_000_000_000_000


class Topic:
    """The topic of a table, to which a test writes what no connector has."""

    def __init__(self, shop: Shop, server: KafkaServer, table: str) -> None:
        self.shop, self.server, self.table = shop, server, table
        self.name = f"{shop.keyspace}.{shop.keyspace}.{table}"
        self._sent = 0

    def key(self, **columns: Any) -> str:
        """Find the key of a row, as it is written there."""
        found = {one.key() for one in read(self.server, [self.name])}
        (key,) = {text for text in found if text is not None and json.loads(text) == columns}
        return key.decode()

    def forge(self, op: str, key: str, after: dict[str, Any] | None) -> None:
        """Write an event that is later than all others."""
        self._sent += 1
        source = {"ts_us": _LATER_US + self._sent, "ts_ms": 0}
        send(self.server, self.name, (key, json.dumps({"op": op, "source": source, "after": after})))

    def compare(self) -> tuple[JobResult, dict[str, Any]]:
        """Compare; return the result and the note of the table."""
        result = self.shop.stage("compare_topics", tables=(f"{self.shop.keyspace}.{self.table}",))
        (table,) = result.tables
        return result, {} if table.note == "equal" else json.loads(table.note)


def reported_differences(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    lines = [one.getMessage() for one in caplog.records if " differs: " in one.getMessage()]
    caplog.clear()
    return [json.loads(line.partition(" differs: ")[2]) for line in lines]


def counts(note: dict[str, Any]) -> tuple[int, ...]:
    return tuple(note[name] for name in ("equal", "only_topic", "only_mirror", "different"))


@pytest.fixture
def published(shop: Shop, kafka_server: KafkaServer) -> Shop:
    shop.connection["kafka"] = {"bootstrap.servers": kafka_server.bootstrap}
    shop.declare(publish={"topic_prefix": shop.keyspace, "kafka": {"connection": "kafka"}})
    return shop


def cell(value: Any) -> dict[str, Any]:
    return {"value": value, "deletion_ts": None, "set": True}


def test_a_topic_of_cells_equals_its_mirror_until_its_records_are_wrong(
    published: Shop, kafka_server: KafkaServer, caplog: pytest.LogCaptureFixture
) -> None:
    shop = published
    shop.run(
        "CREATE TABLE orders (shop text, n int, owner text static, amount double, note text, at timestamp, "
        "tags set<text>, PRIMARY KEY (shop, n)) WITH cdc = true"
    )
    for name in ("a", "b", "c"):
        shop.run("INSERT INTO orders (shop, owner) VALUES (%s, %s)", (name, f"owner of {name}"))
        for n in range(4):
            shop.run(
                "INSERT INTO orders (shop, n, amount, note, at, tags) VALUES (%s, %s, %s, 'é', 1, {'x'})",
                (name, n, 0.1 * n),
            )
    assert shop.sync().ok
    shop.run("UPDATE orders SET amount = 7.5, note = null WHERE shop = 'a' AND n = 0")
    shop.run("UPDATE orders SET tags = tags + {'y'} WHERE shop = 'a' AND n = 1")
    shop.run("UPDATE orders SET note = 'no insert' WHERE shop = 'a' AND n = 9")
    shop.run("DELETE FROM orders WHERE shop = 'a' AND n = 3")
    shop.run("DELETE FROM orders WHERE shop = 'b'")
    shop.run("INSERT INTO orders (shop, n, amount) VALUES ('b', 8, 1.0)")
    shop.run("DELETE FROM orders WHERE shop = 'c' AND n > 1")
    shop.run("INSERT INTO orders (shop, n, amount) VALUES ('c', 3, 2.0)")
    shop.run("UPDATE orders SET owner = 'new' WHERE shop = 'c'")
    assert shop.sync().ok
    shop.assert_equal("orders")

    topic = Topic(shop, kafka_server, "orders")
    result, note = topic.compare()
    assert result.ok, (result.error, note)
    # a: 0, 1, 2, 9 and static columns; b: 8; c: static columns, a range was deleted after its rows' events.
    assert counts(note) == (7, 0, 0, 0)
    assert (note["not_compared"], note["columns_not_compared"]) == (4, ["tags"])
    caplog.clear()

    wrong, deleted, extra = (topic.key(shop="a", n=n) for n in (0, 1, 3))
    static = topic.key(shop="c", n=None)
    topic.forge("u", wrong, {"amount": cell(7.25), "note": cell(None)})
    topic.forge("d", deleted, {"amount": cell(None)})
    topic.forge("u", extra, {"note": cell("back")})
    topic.forge("u", static, {"owner": cell("secret")})
    with caplog.at_level(logging.WARNING):
        result, note = topic.compare()
    assert (result.ok, result.error_code) == (False, "DIFFERENT")
    assert counts(note) == (4, 1, 1, 2)
    found = reported_differences(caplog)
    assert sorted(found, key=repr) == sorted(
        [
            {"key": extra, "only": "topic"},
            {"key": deleted, "only": "mirror"},
            {"key": wrong, "columns": ["amount"]},
            {"key": static, "columns": ["owner"]},
        ],
        key=repr,
    )

    shop.run("TRUNCATE orders")
    truncated = shop.sync()
    named = f"publishing: TRUNCATE of {shop.keyspace}.orders: no event deletes their rows, as with Debezium"
    assert [finding.startswith(named) for finding in truncated.findings if "TRUNCATE" in finding] == [True]
    result, note = topic.compare()
    assert note["only_topic"] > 0


@pytest.mark.long
def test_a_topic_of_whole_rows_equals_its_mirror_until_its_records_are_wrong(
    published: Shop, kafka_server: KafkaServer, caplog: pytest.LogCaptureFixture
) -> None:
    shop = published
    shop.declare(publish={"envelope": "datastax", "cassandra": {"reread": True}})
    shop.run(
        "CREATE TABLE orders (shop text, n int, owner text static, amount decimal, tags set<text>, "
        "PRIMARY KEY (shop, n)) WITH cdc = true"
    )
    for n in range(4):
        shop.run("INSERT INTO orders (shop, n, amount, tags) VALUES ('a', %s, 1.50, {'x'})", (n,))
    shop.run("INSERT INTO orders (shop, owner) VALUES ('a', 'ann')")
    assert shop.sync().ok
    shop.run("UPDATE orders SET tags = tags + {'y'}, amount = null WHERE shop = 'a' AND n = 0")
    shop.run("DELETE FROM orders WHERE shop = 'a' AND n = 3")
    assert shop.sync().ok

    topic = Topic(shop, kafka_server, "orders")
    result, note = topic.compare()
    assert (result.ok, note) == (True, {}), result.error
    wrong, deleted, extra = (topic.key(shop="a", n=n) for n in (0, 1, 3))
    send(kafka_server, topic.name, (wrong, '{"tags":["x"]}'), (deleted, None), (extra, '{"tags":[]}'))
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        result, note = topic.compare()
    assert counts(note) == (2, 1, 1, 1)
    found = reported_differences(caplog)
    assert {"key": wrong, "columns": ["tags"]} in found
    assert len(found) == 3


@pytest.mark.long
@pytest.mark.parametrize("form", [pytest.param("legacy", marks=pytest.mark.long), "advanced"])
def test_a_topic_of_scylla_equals_its_mirror_until_its_records_are_wrong(
    published: Shop,
    names: SystemKeyspaces,
    kafka_server: KafkaServer,
    caplog: pytest.LogCaptureFixture,
    form: str,
) -> None:
    shop = published
    cluster = scylla_table(shop, names, CdcOptions(postimage=form == "advanced"))
    after = {"after": "full"} if form == "advanced" else {}
    declare(
        shop,
        names,
        snapshot={"mode": "never"},
        publish={"headers": False, "scylla": {"format": form, **after}},
    )
    key = (number(7),)
    price = bytes.fromhex("3fb999999999999a")
    cluster.execute(
        "item", *(Insert(key, (number(n),), {"qty": number(n), "price": price}) for n in range(4))
    )
    cluster.execute("item", Insert(key, None, {"owner": b"ann"}))
    time.sleep(2.1)
    assert shop.stage("sync").ok
    cluster.execute("item", Update(key, (number(0),), (SetWhole("qty", number(9)), SetWhole("price", None))))
    cluster.execute("item", DeleteRow(key, (number(3),)))
    time.sleep(2.1)
    assert shop.stage("sync").ok

    topic = Topic(shop, kafka_server, "item")
    result, note = topic.compare()
    assert (result.ok, note) == (True, {}), result.error
    wrong, deleted, extra = (topic.key(shop=7, sku=n) for n in (0, 1, 3))
    quantity = {"value": 5} if form == "legacy" else 5
    topic.forge("u", wrong, {"shop": 7, "sku": 0, "qty": quantity})
    topic.forge("d", deleted, None)
    topic.forge("c", extra, {"shop": 7, "sku": 3, "qty": quantity})
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        result, note = topic.compare()
    assert counts(note) == (2, 1, 1, 1)
    assert {"key": wrong, "columns": ["qty"]} in reported_differences(caplog)
