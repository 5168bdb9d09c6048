from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.exceptions import SchemaUnknown
from airflow_cdc_provider.sources.cql.describe import parse_cql
from airflow_cdc_provider.sources.cql.schema import CqlType
from airflow_cdc_provider.sources.cql.system_schema import schemas_from_rows
from airflow_cdc_provider.sources.cql.types import parse_type
from tests.unit.sources.cql.recordings import VARIANTS, recorded_schemas, recording


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_real_servers_text_gives_the_schema_that_its_own_tables_give(variant: str) -> None:
    folder = recording(variant)
    with gzip.open(folder / "schema.json.gz") as file:
        from_rows = schemas_from_rows(json.load(file))
    from_text = recorded_schemas(folder)
    assert from_text.tables == from_rows.tables
    assert from_text.types == from_rows.types
    assert len(from_text.tables) > 20


def test_dropped_columns_keep_type_kind_and_time_even_if_they_came_back() -> None:
    evo = recorded_schemas(recording("v7-plain")).tables["shop_a.evo"]
    assert evo.dropped["m"].type == parse_type("map<text, int>")
    assert evo.dropped["m"].dropped_at_us == 1795247435990000
    assert evo.dropped["b"].dropped_at_us == 1795247435063000
    assert "b" in {c.name for c in evo.regular}
    assert "m" not in {c.name for c in evo.regular}


@pytest.mark.parametrize(
    ("columns", "order"),
    [
        # Each as SELECT * of Cassandra 5.0.9 gave it.
        ('a int, "\u4e2d" int, "-" int, "UP" set<int>, v set<int>, w int', "\u4e2d - UP a v w"),
        ('a int, "\U0001f600" set<int>, "select" int', "a select \U0001f600"),
        ('"\U0001f600" int, s1 int, "\u00dc \u00df" int, s2 set<int>', "\u00dc \u00df \U0001f600 s1 s2"),
        (
            '"\u4e2d" set<int>, "\U0001f600" int, a set<int>, b int, "\u00fc" set<int>, "abcdef\u00fc" int, '
            "abcdefa int",
            "\U0001f600 a abcdefa abcdef\u00fc b \u00fc \u4e2d",
        ),
    ],
)
def test_columns_are_in_the_order_of_select_all(columns: str, order: str) -> None:
    text = f"CREATE KEYSPACE k WITH replication = {{}}; CREATE TABLE k.t (id int PRIMARY KEY, {columns});"
    assert " ".join(c.name for c in parse_cql(text).tables["k.t"].columns) == f"id {order}"


def test_a_table_is_read_in_full() -> None:
    schemas = parse_cql(
        """
        CREATE KEYSPACE "Ks" WITH replication = {'class': 'SimpleStrategy', 'replication_factor': '1'}
            AND durable_writes = false;
        CREATE TYPE "Ks".addr (street text, "No" int, tags set<text>);
        CREATE TABLE "Ks"."T;1" ( -- a comment; with a semicolon
            "a""b" int, b text, c timestamp, /* s int, */
            s list<frozen<addr>> static,
            home addr MASKED WITH mask_default(),
            d decimal,
            PRIMARY KEY (("a""b", b), c, d)
        ) WITH ID = 29E3DE10-e580-11f1-a764-fd2ee712b6e7
            AND CLUSTERING ORDER BY (c DESC, d ASC)
            AND comment = 'cdc = true; CREATE TABLE x'
            AND compression = {'class': 'org.apache.cassandra.io.compress.LZ4Compressor'}
            AND cdc = true;
        CREATE INDEX i ON "Ks"."T;1" (d);
        CREATE FUNCTION "Ks".f (x int) CALLED ON NULL INPUT RETURNS int LANGUAGE java AS $$ return x; // ; $$;
        """
    )
    assert not schemas.keyspaces["Ks"].durable_writes
    assert schemas.keyspaces["Ks"].replication["replication_factor"] == "1"
    table = schemas.tables["Ks.T;1"]
    assert table.cdc
    assert table.id == "29e3de10e58011f1a764fd2ee712b6e7"
    assert schemas.by_id[table.id] is table
    assert [c.name for c in table.partition_key] == ['a"b', "b"]
    assert [(c.name, c.descending) for c in table.clustering] == [("c", True), ("d", False)]
    address = CqlType(
        "udt",
        (CqlType("text"), CqlType("int"), CqlType("set", (CqlType("text"),), True)),
        fields=("street", "No", "tags"),
        udt="Ks.addr",
    )
    assert table.regular[0].type == address
    assert table.static[0].type == parse_type("list<frozen<addr>>", lambda _: address)
    assert {c.id for c in (*table.static, *table.regular)} == {1, 2}


def test_views_take_their_columns_from_the_base() -> None:
    schemas = parse_cql(
        """
        CREATE TABLE k.base (a int, b text, c int, s int static, d int, PRIMARY KEY (a, b));
        CREATE MATERIALIZED VIEW k.v AS SELECT a, b, c FROM k.base WHERE c IS NOT NULL AND a IS NOT NULL
            PRIMARY KEY (c, a, b) WITH CLUSTERING ORDER BY (a DESC, b ASC)
            AND ID = 313c8360-e580-11f1-a764-fd2ee712b6e7 AND cdc = false;
        CREATE MATERIALIZED VIEW k.w AS SELECT * FROM k.base WHERE b = 'PRIMARY' PRIMARY KEY (b, a);
        """
    )
    view = schemas.tables["k.v"]
    assert view.view
    assert [(c.name, c.kind, c.position, c.descending) for c in view.columns] == [
        ("c", "partition_key", 0, False),
        ("a", "clustering", 0, True),
        ("b", "clustering", 1, False),
    ]
    assert [c.name for c in schemas.tables["k.w"].columns] == ["b", "a", "c", "d"]


def test_changes_that_follow_are_applied() -> None:
    schemas = parse_cql(
        """
        USE k;
        CREATE TYPE u (a int);
        CREATE TABLE IF NOT EXISTS t (p int PRIMARY KEY, v frozen<u>, w list<frozen<u>>);
        ALTER TABLE t ADD (x int, y text static_like);
        ALTER TABLE t RENAME p TO q;
        ALTER TYPE u ADD b text;
        ALTER TYPE u RENAME a TO c;
        ALTER TABLE t WITH cdc = true;
        ALTER TABLE t DROP x USING TIMESTAMP 17;
        CREATE TABLE gone (a int PRIMARY KEY);
        DROP TABLE IF EXISTS gone;
        INSERT INTO t (q) VALUES (1);
        """.replace(" static_like", "")
    )
    table = schemas.tables["k.t"]
    assert list(schemas.tables) == ["k.t"]
    assert [c.name for c in table.columns] == ["q", "v", "w", "y"]
    assert table.regular[0].type.fields == ("c", "b")
    assert table.regular[1].type.parameters[0].fields == ("c", "b")
    assert table.dropped["x"].dropped_at_us == 17
    assert table.cdc


def test_counter_tables_are_known_as_such() -> None:
    assert parse_cql("CREATE TABLE k.t (a int PRIMARY KEY, c counter)").tables["k.t"].counter


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE k.t (a int)",
        "CREATE TABLE k.t (a int, PRIMARY KEY (b))",
        "CREATE TABLE k.t (a nosuch PRIMARY KEY)",
        "CREATE TABLE t (a int PRIMARY KEY)",
        "CREATE TABLE k.t (a int PRIMARY KEY",
        "ALTER TABLE k.t DROP a",
        "CREATE TABLE k.t (a int PRIMARY KEY); ALTER TABLE k.t RENAME b TO c",
    ],
)
def test_unparsable_text_is_reported_with_the_statement(text: str) -> None:
    with pytest.raises(SchemaUnknown):
        parse_cql(text)


@given(st.text(st.sampled_from("CREATE TABLEkt(),.;'\"$-/* \nint<>={}PRIMARYKEY0aé"), max_size=60))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    try:
        parse_cql("CREATE TABLE k.t (a int PRIMARY KEY); CREATE TABLE " + text)
    except SchemaUnknown as error:
        assert str(error)  # either outcome is right


@given(st.text(min_size=1, max_size=8).filter(lambda t: "." not in t))
def test_any_name_can_be_quoted(name: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    table = parse_cql(f"CREATE TABLE {quoted}.{quoted} ({quoted} int PRIMARY KEY)").tables[f"{name}.{name}"]
    assert table.columns[0].name == name
