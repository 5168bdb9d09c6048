"""Cassandra: capture goes on through schema changes, and the mirror's columns follow the table's."""

from __future__ import annotations

import base64
import io
import json
import random
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pytest

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import TransientError
from airflow_cdc_provider.sources.cassandra.codec import CassandraCodec, recall_codec
from airflow_cdc_provider.sources.cassandra.source import CassandraSource
from airflow_cdc_provider.sources.registry import source_plugin
from server_kit.cassandra import table_definition
from server_kit.ports import free_port
from tests.integration.jobs.equality import same
from tests.integration.jobs.shop import Shop
from tests.seeds import seeds

pytestmark = pytest.mark.integration


@pytest.fixture
def shop(shop: Shop) -> Shop:
    shop.declare(snapshot={"mode": "never"})
    return shop


def assert_same_columns_and_rows(shop: Shop, table: str) -> int:
    columns = list(table_definition(shop.session, shop.table_name(table)).columns)
    assert sorted(shop.mirror(table).columns) == sorted([*columns, "_cdc"])
    return shop.assert_equal(table)


def captured(shop: Shop) -> dict[str, int]:
    """Count the changes in the changes table."""
    counts = shop.changes().groupBy("source_table").count()
    return {row["source_table"]: row["count"] for row in counts.collect()}


@pytest.mark.covers("CAS-LIM-04", "CAS-LIM-05", "CAS-GAP-08")
def test_mirror_follows_columns_that_come_go_and_are_renamed(shop: Shop) -> None:
    shop.run("CREATE TYPE pair (x int, y text)")
    shop.run(
        "CREATE TABLE evo (k int, c int, a int, b text, p frozen<pair>, m map<text, int>, "
        "PRIMARY KEY (k, c)) WITH cdc = true"
    )
    number = 0

    def write(columns: str, *values: Any) -> None:
        nonlocal number
        for _ in range(3):
            number += 1
            shop.run(
                f"INSERT INTO evo ({columns}) VALUES ({', '.join(['%s'] * len(values))})",
                (*values[:1], number, *values[2:]),
            )

    def synced() -> None:
        outcome = shop.sync()
        assert not any(t.undecodable for t in outcome.tables)
        assert not outcome.findings
        assert assert_same_columns_and_rows(shop, "evo") == number

    write("k, c, a, b, m", 1, 0, 7, "old", {"x": 1})
    shop.run("INSERT INTO evo (k, c, p) VALUES (9, 9, {x: 1, y: 'one'})")
    number += 1
    synced()
    # One statement after the other, each between writes, all captured at once.
    shop.run("ALTER TABLE evo ADD n frozen<list<int>>")
    write("k, c, n", 2, 0, [1, 2])
    shop.run("ALTER TABLE evo DROP b")
    write("k, c, a", 3, 0, 5)
    shop.run("ALTER TABLE evo DROP m")
    shop.run("ALTER TYPE pair ADD z bigint")
    shop.run("INSERT INTO evo (k, c, p) VALUES (9, 10, {x: 2, y: 'two', z: 3})")
    number += 1
    synced()
    shop.run("ALTER TABLE evo ADD b text")
    write("k, c, b", 4, 0, "new")
    shop.run("ALTER TABLE evo RENAME c TO place")
    write("k, place, a", 5, 0, 6)
    shop.run("ALTER TYPE pair RENAME y TO why")
    shop.run("INSERT INTO evo (k, place, p) VALUES (9, 11, {x: 3, why: 'three'})")
    number += 1
    synced()


def test_rows_that_lived_by_a_dropped_column_alone_leave_the_mirror(shop: Shop) -> None:
    """An UPDATE writes no row marker: with its last cells the row goes, at once or with a later change."""
    shop.run("CREATE TABLE t (k int, c int, a int, b int, s int static, PRIMARY KEY (k, c)) WITH cdc = true")
    shop.run("UPDATE t SET b = 1 WHERE k = 1 AND c = 1")
    shop.run("UPDATE t SET b = 1 WHERE k = 2 AND c = 1")
    shop.run("UPDATE t SET a = 1, b = 1 WHERE k = 3 AND c = 1")
    shop.run("UPDATE t SET s = 1 WHERE k = 4")
    shop.run("INSERT INTO t (k, c, b) VALUES (5, 1, 1)")
    shop.run("UPDATE t SET a = 1, b = 1 WHERE k = 6 AND c = 1")
    shop.sync()
    assert assert_same_columns_and_rows(shop, "t") == 6
    shop.run("ALTER TABLE t DROP b")
    shop.run("ALTER TABLE t DROP s")
    shop.run("DELETE a FROM t WHERE k = 2 AND c = 1")
    shop.run("DELETE a FROM t WHERE k = 3 AND c = 1")
    shop.sync()
    assert assert_same_columns_and_rows(shop, "t") == 2
    shop.run("DELETE a FROM t WHERE k = 6 AND c = 1")
    shop.sync()
    assert assert_same_columns_and_rows(shop, "t") == 1


def test_a_key_column_may_get_the_name_of_a_dropped_column(shop: Shop) -> None:
    shop.run("CREATE TABLE t (k int, c int, v int, w int, PRIMARY KEY (k, c)) WITH cdc = true")
    shop.run("INSERT INTO t (k, c, v, w) VALUES (1, 1, 1, 1)")
    assert shop.sync().ok
    shop.run("INSERT INTO t (k, c, v, w) VALUES (1, 2, 2, 2)")
    shop.run("ALTER TABLE t DROP v")
    shop.run("ALTER TABLE t RENAME c TO v")
    shop.run("ALTER TABLE t ADD x int")
    shop.run("INSERT INTO t (k, v, w) VALUES (1, 3, 3)")
    early = shop.stage("verify").error
    assert "t has other columns than its mirror" in early
    assert "run a sync, then verify" in early
    outcome = shop.sync()
    assert (outcome.error, [t.undecodable for t in outcome.tables]) == ("", [0])
    assert assert_same_columns_and_rows(shop, "t") == 3


def test_a_range_by_a_type_of_unknown_order_is_quarantined_and_deletes_nothing_else(shop: Shop) -> None:
    java = "org.apache.cassandra.db.marshal"
    composite = f"{java}.CompositeType({java}.Int32Type,{java}.UTF8Type)"
    shop.run(f"CREATE TABLE t (k int, c '{composite}', d int, PRIMARY KEY (k, c, d)) WITH cdc = true")
    for c in ("-1:x", "5:x", "7:x"):
        shop.run("INSERT INTO t (k, c, d) VALUES (1, %s, 1)", (c,))
    shop.run("DELETE FROM t WHERE k = 1 AND c = '7:x' AND d > 0")
    shop.run("DELETE FROM t WHERE k = 1 AND c > '0:'")  # its bytes are less than those of -1
    (table,) = shop.sync().tables
    assert (table.undecodable, shop.mirror("t").count()) == (1, 2)
    assert shop.quarantine().first().reason.startswith("unordered-type: ")


def assert_same_by_position(shop: Shop, table: str, names: list[str]) -> None:
    """Compare values and order of columns with SELECT *, whatever their names, and mirrors by ``verify``."""
    mirror = shop.mirror(table).drop("_cdc")
    assert mirror.columns == names
    found = [tuple(row) for row in mirror.collect()]
    expected = [tuple(row) for row in shop.run(f"SELECT * FROM {table}")]
    assert len(found) == len(expected)
    for one in expected:
        assert any(all(map(same, one, other)) for other in found), (one, found)
    assert shop.stage("verify").ok


def test_columns_and_fields_may_have_names_that_engines_confuse(shop: Shop) -> None:
    shop.run('CREATE TYPE odd ("first name" int, "zip-code" text, "a.b" int, "ä" int)')
    shop.run(
        'CREATE TABLE d (id int, "ID" int, name text, o frozen<odd>, s int static, "S" int static, '
        'PRIMARY KEY (id, "ID")) WITH cdc = true'
    )
    values = '{"first name": 1, "zip-code": \'z\', "a.b": 2, "ä": 3}'
    shop.run(f"""INSERT INTO d (id, "ID", name, o, s, "S") VALUES (1, 2, 'n', {values}, 3, 4)""")
    assert shop.sync().ok
    assert_same_by_position(shop, "d", ["id", "ID__2", "S", "s__2", "name", "o"])
    assert shop.mirror("d").schema["o"].dataType.names == ["first name", "zip-code", "a.b", "ä"]

    shop.run('ALTER TABLE d ADD "NAME" text')
    shop.run('ALTER TABLE d ADD "o.x" int')
    for field in ("First Name", "a", "A.B"):
        shop.run(f'ALTER TYPE odd ADD "{field}" int')
    with closing(
        source_plugin("cassandra").source(Connector.from_dict(shop.declaration), shop.connection)
    ) as source:
        messages = {found.subject: found.message for found in source.check()}
    renamed = ["ID is ID__2", "s is s__2", "o.x is o_x", "o.First Name is o.First Name__2", "o.a is o.a__2"]
    assert shop.table_name("d") in messages["names"]
    assert all(one in messages["names"] for one in renamed), messages
    shop.run("""INSERT INTO d (id, "ID", "NAME", "o.x") VALUES (1, 3, 'N', 5)""")
    grown = values.replace("}", ', "First Name": 4, "a": 5, "A.B": 6}')
    shop.run(f'INSERT INTO d (id, "ID", o) VALUES (2, 1, {grown})')
    assert shop.sync().ok
    names = ["id", "ID__2", "S", "s__2", "NAME__2", "name", "o", "o_x"]
    assert_same_by_position(shop, "d", names)
    fields = ["first name", "zip-code", "a.b", "ä", "First Name__2", "a__2", "A_B"]
    assert shop.mirror("d").schema["o"].dataType.names == fields

    shop.run('ALTER TABLE d RENAME "ID" TO "Name"')
    shop.run("ALTER TABLE d DROP name")
    shop.run("""UPDATE d SET "NAME" = 'M' WHERE id = 2 AND "Name" = 1""")
    assert shop.sync().ok
    assert_same_by_position(shop, "d", ["id", "Name", "S", "s__2", "NAME__2", "o", "o_x"])


def test_names_that_the_driver_or_the_grammar_confuse_are_read(shop: Shop) -> None:
    """To Python two of these names are one identifier; to CQL two are values unless they are quoted."""
    shop.declare(snapshot={"mode": "initial"})
    shop.run('CREATE TYPE twins ("s" int, "\u017f" int)')
    shop.run(
        'CREATE TABLE words (k int PRIMARY KEY, "false" int, t frozen<twins>, "true" int) WITH cdc = true'
    )
    for k in range(2):
        shop.run(f"""INSERT INTO words (k, "false", t, "true") VALUES ({k}, 2, {{"s": 3, "\u017f": 4}}, 5)""")
    with closing(
        source_plugin("cassandra").source(Connector.from_dict(shop.declaration), shop.connection)
    ) as source:
        assert [found.message for found in source.check() if found.level == "error"] == []
    outcome = shop.sync()
    assert (outcome.error, outcome.snapshot and outcome.snapshot.rows) == ("", 2)
    assert shop.mirror("words").schema["t"].dataType.names == ["s", "\u017f__2"]
    found = sorted(tuple(row) for row in shop.mirror("words").drop("_cdc").collect())
    assert found == [(k, 2, (3, 4), 5) for k in range(2)]
    (table,) = shop.stage("verify").tables
    assert table.note == "equal"


@pytest.mark.parametrize("seed", seeds(1, 2, 3))
def test_columns_and_fields_may_have_any_names(shop: Shop, seed: int) -> None:
    rng = random.Random(seed)
    alphabet = "aAbBzZ019_.-:;,'\"`/\\(){}[]<>|$%&*?!~^ \t\näÄßçşİ\u0131\u041a\u043a漢\U0001f600"
    names = {"".join(rng.choices(alphabet, k=rng.randint(1, 8))) for _ in range(40)}
    names |= {"${env:HOME}", "${x}b", "~"}
    quoted = ['"{}"'.format(name.replace('"', '""')) for name in sorted(names)]
    shop.run(f"CREATE TYPE fields ({', '.join(f'{name} int' for name in quoted)})")
    columns = ", ".join(f"{name} int" for name in quoted[1:])
    shop.run(
        f"CREATE TABLE odd ({quoted[0]} int PRIMARY KEY, {columns}, {'f' * 9} frozen<fields>) WITH cdc = true"
    )
    numbers = [str(number) for number in range(len(quoted))]
    struct = ", ".join(f"{name}: {number}" for name, number in zip(quoted, numbers, strict=True))
    insert = f"INSERT INTO odd ({', '.join(quoted)}, {'f' * 9}) VALUES ({', '.join(numbers)}, {{{struct}}})"
    shop.run(insert)
    assert shop.sync().ok
    assert_same_by_position(shop, "odd", shop.mirror("odd").drop("_cdc").columns)
    shop.run('ALTER TABLE odd DROP "~"')  # a merge then looks for rows that have nothing else
    assert shop.sync().ok
    (table,) = shop.stage("verify").tables
    assert table.note == "equal"


@pytest.mark.covers("CAS-GAP-08")
def test_a_table_that_was_dropped_and_re_created_starts_over(shop: Shop) -> None:
    def create(kind: str) -> None:
        shop.run(f"CREATE TABLE reborn (k int PRIMARY KEY, v {kind}) WITH cdc = true")

    def fill(first: int, value: Any) -> None:
        for k in range(first, first + 5):
            shop.run("INSERT INTO reborn (k, v) VALUES (%s, %s)", (k, value))

    create("int")
    fill(0, 1)
    shop.sync()
    assert assert_same_columns_and_rows(shop, "reborn") == 5
    # Three more lives between two runs, the first two never seen at the source by any of them.
    fill(5, 2)
    for kind, value in (("text", "a"), ("double", 0.5), ("text", "z")):
        shop.run("DROP TABLE reborn")
        create(kind)
        fill(90, value)
        shop.run("TRUNCATE reborn")
        fill(3, value)
    outcome = shop.sync()

    assert not outcome.findings
    assert captured(shop) == {shop.table_name("reborn"): 2 * 5 + 6 * 5}, "also what dropped tables had"
    assert assert_same_columns_and_rows(shop, "reborn") == 5
    assert shop.stage("verify").ok


@pytest.mark.covers("CAS-GAP-05", "CAS-SCHEMA-01")
def test_quarantined_records_land_once_their_schema_is_known(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run("CREATE TABLE stays (k int PRIMARY KEY, v int) WITH cdc = true")
    shop.run("CREATE TABLE goes (k int PRIMARY KEY, v int) WITH cdc = true")
    shop.run("INSERT INTO goes (k, v) VALUES (1, 1)")
    both = " ".join(f"INSERT INTO {t} (k, v) VALUES (2, 2);" for t in ("goes", "stays"))
    shop.run(f"BEGIN BATCH {both} APPLY BATCH")
    shop.run("DROP TABLE goes")
    with monkeypatch.context() as patched:
        patched.setattr(CassandraSource, "learn", lambda self, records: None)
        outcome = shop.sync()
    assert any("quarantine" in finding for finding in outcome.findings)

    again = shop.stage("sync")

    assert not again.findings
    assert assert_same_columns_and_rows(shop, "stays") == 1
    assert captured(shop) == {shop.table_name("goes"): 2, shop.table_name("stays"): 1}
    assert shop.changes(record.QUARANTINE).count() == 0


@pytest.mark.covers("CAS-GAP-05", "CAS-LIM-04")
def test_what_a_merge_could_not_decode_lands_once_the_definition_is_another(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run("CREATE TABLE grows (k int PRIMARY KEY, v int, n int) WITH cdc = true")
    shop.run("INSERT INTO grows (k, v) VALUES (1, 1)")
    shop.run("INSERT INTO grows (k, n) VALUES (2, 2)")
    shop.close_segments()
    codec = CassandraSource.codec

    def outdated(self: CassandraSource, table: str, memory: Any = None) -> CassandraCodec:
        schema = codec(self, table, memory).schema
        return recall_codec(
            replace(schema, columns=tuple(c for c in schema.columns if c.name != "n")), memory
        )

    with monkeypatch.context() as patched:
        patched.setattr(CassandraSource, "codec", outdated)
        for _ in range(2):
            outcome = shop.stage("sync")
            assert shop.mirror("grows").count() == 1
    assert [row["reason"].partition(":")[0] for row in shop.quarantine().collect()] == ["unknown-column"]

    outcome = shop.stage("sync")

    assert not outcome.findings
    assert assert_same_columns_and_rows(shop, "grows") == 2
    assert shop.quarantine().count() == 0


@pytest.mark.covers("CAS-SCHEMA-03", "CAS-FAULT-08")
def test_table_whose_capture_pauses_loses_nothing_and_is_read_again_afterwards(shop: Shop) -> None:
    shop.declare(snapshot={"mode": "initial"})
    shop.run("CREATE TABLE pauses (k int PRIMARY KEY, v int) WITH cdc = true")
    shop.run("INSERT INTO pauses (k, v) VALUES (1, 1)")
    assert not shop.sync().findings
    shop.run("INSERT INTO pauses (k, v) VALUES (2, 2)")
    shop.run("ALTER TABLE pauses WITH cdc = false")
    paused = shop.sync()
    assert [f for f in paused.findings if f"{shop.table_name('pauses')} has cdc = false" in f]
    assert assert_same_columns_and_rows(shop, "pauses") == 2

    shop.run("INSERT INTO pauses (k, v) VALUES (3, 3)")
    shop.close_segments()
    shop.run("ALTER TABLE pauses WITH cdc = true")
    shop.run("INSERT INTO pauses (k, v) VALUES (4, 4)")
    again = shop.sync()

    assert [t.snapshot_rows for t in again.tables] == [4]
    assert not again.findings
    assert assert_same_columns_and_rows(shop, "pauses") == 4
    shop.run(f"ALTER KEYSPACE {shop.keyspace} WITH durable_writes = false")
    last = shop.sync()
    assert [t.snapshot_rows for t in last.tables] == [0]
    (finding,) = last.findings
    assert finding.startswith(f"{shop.table_name('pauses')}: its keyspace has durable_writes = false")


@pytest.mark.covers("CAS-FAULT-02")
def test_capture_goes_on_while_the_cluster_does_not_answer(shop: Shop) -> None:
    shop.declare(snapshot={"mode": "initial"}, source={"advanced": {"request_timeout_seconds": 2}})
    nowhere = {**shop.connection, "port": free_port()}
    shop.run("CREATE TABLE t (k int PRIMARY KEY, v int) WITH cdc = true")
    shop.run("INSERT INTO t (k, v) VALUES (1, 1)")
    with pytest.raises(TransientError):
        shop.sync(connection=nowhere)
    assert not shop.stage("sync").findings
    shop.run("INSERT INTO t (k, v) VALUES (2, 2)")
    shop.run("DELETE FROM t WHERE k = 1")

    outcome = shop.sync(connection=nowhere)

    assert len(outcome.findings) == 1
    assert "doesn't respond" in outcome.findings[0]
    assert assert_same_columns_and_rows(shop, "t") == 1


def test_indexes_and_views_add_nothing_to_what_is_captured_and_are_counted(
    shop: Shop, tmp_path: Path
) -> None:
    shop.run("CREATE TABLE t (k int PRIMARY KEY, v int, w text, x text) WITH cdc = true")
    shop.run("CREATE TABLE unasked (k int PRIMARY KEY)")
    shop.run("CREATE INDEX ON t (v)")
    shop.run("CREATE CUSTOM INDEX ON t (w) USING 'StorageAttachedIndex'")
    shop.run(
        "CREATE MATERIALIZED VIEW by_v AS SELECT * FROM t "
        "WHERE v IS NOT NULL AND k IS NOT NULL PRIMARY KEY (v, k) WITH cdc = true"
    )
    for k in range(20):
        shop.run(f"INSERT INTO t (k, v, w) VALUES ({k}, {k % 3}, 'w')")
    shop.run("UPDATE t SET v = 9 WHERE k = 0")
    shop.run("DELETE FROM t WHERE k = 1")
    for k in range(5):
        shop.run(f"INSERT INTO unasked (k) VALUES ({k})")

    outcome = shop.sync()

    assert not outcome.findings
    assert captured(shop) == {shop.table_name("t"): 22}
    # A view has an update for each insert and the deletion, and two, in one mutation, for the row that moved;
    # an index has none. What else there is belongs to Cassandra, and to other tests' keyspaces.
    assert outcome.skipped["view"] >= 20
    assert outcome.skipped["unselected"] >= 5
    assert set(outcome.skipped) <= {"view", "unselected", "system", "counter"}
    assert assert_same_columns_and_rows(shop, "t") == 19
    path = tmp_path / "events.jsonl"
    shop.stage("events", path=str(path))
    assert {json.loads(line)["topic"] for line in path.read_text().splitlines()} == {
        f"{shop.name}.{shop.table_name('t')}"
    }
    assert len(path.read_text().splitlines()) == 22, "each change; deletions of Cassandra have no tombstone"


def test_counts_of_skipped_records_are_exact(shop: Shop) -> None:
    shop.run("CREATE TABLE t (k int PRIMARY KEY, v int) WITH cdc = true")
    shop.run("CREATE TABLE n (k int PRIMARY KEY, v counter)")
    shop.run(
        "CREATE MATERIALIZED VIEW by_v AS SELECT * FROM t "
        "WHERE v IS NOT NULL AND k IS NOT NULL PRIMARY KEY (v, k)"
    )
    shop.sync()
    for k in range(7):
        shop.run(f"INSERT INTO t (k, v) VALUES ({k}, {k})")
    for _ in range(3):
        shop.run("UPDATE n SET v = v + 1 WHERE k = 1")

    skipped = shop.sync().skipped

    assert (skipped["view"], skipped["counter"]) == (7, 3)


@pytest.mark.covers("CAS-SCHEMA-01", "CAS-SCHEMA-02")
def test_a_running_stream_takes_columns_and_tables_that_come_in_the_middle(
    shop: Shop, tmp_path: Path
) -> None:
    shop.declare(publish={"key": "avro", "value": "avro", "schemas": True})
    shop.run("CREATE TABLE evo (k int PRIMARY KEY, v int) WITH cdc = true")
    shop.run("INSERT INTO evo (k, v) VALUES (1, 1)")
    shop.sync()
    before = avro_events(shop, tmp_path)

    def quarantined() -> int:
        return shop.changes(record.QUARANTINE).count()

    of_others = quarantined()  # tables of other tests whose definitions this node's log has no more
    state, stop = tmp_path / "state.json", tmp_path / "stop"
    ended: list[Any] = []

    def stream() -> None:
        paths: dict[str, Any] = {"state_path": str(state), "stop_path": str(stop)}
        ended.append(shop.stage("stream", commit_interval_seconds=0.5, **paths))

    def wait_for(what: str, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 240
        while not holds():
            assert thread.is_alive(), f"the stream ended before {what}"
            assert time.monotonic() < deadline, f"no {what}"
            time.sleep(0.2)

    def rounds() -> int:
        return int(json.loads(state.read_text())["rounds"]) if state.exists() else 0

    def rows(table: str) -> int:
        made = shop.spark.catalog.tableExists(f"lake.{shop.mirror_name(table)}")
        return shop.mirror(table).count() if made else 0

    thread = threading.Thread(target=stream)
    thread.start()
    try:
        wait_for("first round", lambda: rounds() >= 1)
        shop.run("ALTER TABLE evo ADD n text")
        shop.run("INSERT INTO evo (k, v, n) VALUES (2, 2, 'two')")
        shop.run("CREATE TABLE late (k int PRIMARY KEY, v int) WITH cdc = true")
        shop.run("INSERT INTO late (k, v) VALUES (1, 1)")
        shop.close_segments()
        wait_for("row with the new column", lambda: rows("evo") == 2)
        wait_for("row of the new table", lambda: rows("late") == 1)
        # Once more, so that nothing of the first change's reading is left over.
        shop.run("ALTER TABLE evo ADD m bigint")
        shop.run("INSERT INTO evo (k, m) VALUES (3, 3)")
        shop.close_segments()
        wait_for("row with the second new column", lambda: rows("evo") == 3)
    finally:
        stop.touch()
        thread.join(240)
    assert [outcome.ok for outcome in ended] == [True]
    assert quarantined() == of_others
    assert assert_same_columns_and_rows(shop, "evo") == 3
    assert assert_same_columns_and_rows(shop, "late") == 1

    # The schema in Avro has grown likewise: who reads by it reads what was written before too.
    after = avro_events(shop, tmp_path)
    old, new = (events[f"{shop.name}.{shop.table_name('evo')}"] for events in (before, after))
    assert [columns(schema) for schema, _ in old] == [{"k", "v", "_range_start", "_range_end"}]
    assert [columns(schema) for schema, _ in new] == [columns(old[0][0]) | {"m", "n"}] * 3
    afters = [read(data, schema)["after"] for schema, data in new]
    values = [{c: cell and cell["value"] for c, cell in one.items()} for one in afters]
    assert [(one["k"], one["v"], one["n"], one["m"]) for one in values] == [
        (1, 1, None, None),
        (2, 2, "two", None),
        (3, None, None, 3),
    ]
    grown = read(old[0][1], old[0][0], new[0][0])
    assert grown["after"]["v"]["value"] == 1
    assert grown["after"]["n"] is grown["after"]["m"] is None


def avro_events(shop: Shop, folder: Path) -> dict[str, list[tuple[Any, bytes]]]:
    """Return schema and bytes of each value that the lake's changes make, by topic."""
    path = folder / "events.jsonl"
    shop.stage("events", path=str(path))
    found: dict[str, list[tuple[Any, bytes]]] = {}
    for line in map(json.loads, path.read_text().splitlines()):
        schema = fastavro.parse_schema(line["value_schema"])
        found.setdefault(line["topic"], []).append((schema, base64.b64decode(line["value"])))
    return found


def read(data: bytes, schema: Any, reader: Any = None) -> dict[str, Any]:
    found = fastavro.schemaless_reader(io.BytesIO(data), schema, reader)
    assert isinstance(found, dict)
    return found


def columns(schema: Any) -> set[str]:
    (after,) = [field["type"] for field in schema["fields"] if field["name"] == "after"]
    return {field["name"] for field in after["fields"]}
