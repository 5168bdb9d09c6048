"""Keys of ``message.key.columns``: as Debezium matches and orders them, and as its documentation says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.connector.publish.vitess import split_expressions
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from airflow_cdc_provider.sources.vitess.events.records import VitessRecords
from airflow_cdc_provider.sources.vitess.events.tables import event_table
from tests.unit.sources.vitess.events.chosen_events import ID, NAME, events_of
from tests.unit.vitess_stream import Stream, column

LEAST = {
    "connector.class": "io.debezium.connector.vitess.VitessConnector",
    "topic.prefix": "cdc",
    "vitess.keyspace": "shop",
}
COLUMNS = ("id", "name", "n", "note", "Total")
FIELDS = Stream().fields("t", ID, *(column(name, "INT32", "int") for name in COLUMNS[1:]))
MESSAGE = FIELDS.messages[0].events[0].field_event.SerializeToString()


def key_of(value: str, table: str = "t") -> list[str]:
    """Return the key columns of a table under a value of the property."""
    connector = from_debezium({**LEAST, "message.key.columns": value}).connector
    form = VitessRecords(connector, 0, lambda keyspace, name: True).form
    return [one.field.name for one in event_table(MESSAGE, "shop", table, form).key]


@pytest.mark.covers("VIT-KEY-04")
@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("shop.t:^n", ["name", "n", "note"]),  # the example of the documentation: columns that start so
        ("shop.t:^n$", ["n"]),
        ("shop.t:note,id", ["note", "id"]),
        (" shop.t : note , id ;", ["note", "id"]),
        ("SHOP.T:TOTAL", ["Total"]),
        ("shop.t:none", ["id"]),
        ("shop.other:n", ["id"]),
        ("shop.t:n;shop.*:name,n", ["n", "name"]),
        ("shop.t:n;shop.t:name", ["n", "name"]),
        ("shop.t:no{1,2}te,n", ["note", "n"]),
        ("shop.t:[n,m]", ["n"]),
        (r"shop.t:note\,?,n", ["note", "n"]),
        ("shop.t:(n|id)", ["id", "n"]),
        ("shop.t:(?:na,|na)me", ["name"]),
        ("(?:a|shop).t:n", ["n"]),
        ("(.*).t:n.*", ["name", "n", "note"]),
    ],
)
def test_keys_are_the_matching_columns_in_the_options_order_else_the_primary_key(
    value: str, key: list[str]
) -> None:
    assert key_of(value) == key


@pytest.mark.parametrize("value", ["shop.t", "shop.t:", ":n", "shop.t:n:id"])
def test_an_entry_without_a_table_and_columns_is_refused(value: str) -> None:
    with pytest.raises(ConfigurationError, match=r"message\.key\.columns: expected keyspace\.table:column"):
        key_of(value)


def debezium(value: str, table: str) -> list[str]:
    """Choose columns like ``Key.CustomKeyMapper`` of Debezium 3.6: tables and columns match together."""
    patterns = []
    for entry in value.split(";"):
        tables, _, names = entry.partition(":")
        patterns += [re.compile(f"{tables}.{name.strip()}", re.IGNORECASE) for name in names.split(",")]
    found = [name for one in patterns for name in COLUMNS if one.fullmatch(f"shop.{table}.{name}")]
    return list(dict.fromkeys(found)) or ["id"]


TABLES = st.sampled_from(["shop.t", "shop.u", "shop[.].*", r"shop\.t.?", "(.*).t", ".*", "s.*p.[tu]"])
NAMES = st.sampled_from([*COLUMNS, "TOTAL", "n.*", "n.*e", "i?d", "[no]+te", "no(te)?", "(na|no).*", "x"])
ENTRIES = st.tuples(TABLES, st.lists(NAMES, min_size=1, max_size=3)).map(
    lambda e: f"{e[0]}:{', '.join(e[1])}"
)


@given(st.lists(ENTRIES, min_size=1, max_size=3).map(";".join), st.sampled_from(["t", "u", "tt"]))
def test_keys_are_debeziums_for_expressions_that_it_can_match(value: str, table: str) -> None:
    assert key_of(value, table) == debezium(value, table)


@given(st.lists(st.sampled_from(["a", r"b\,c", "[d,(]", "e{1,2}", "(f,(g,h))", r"\(i"]), max_size=6))
def test_lists_of_expressions_are_split_at_commas_between_them(parts: list[str]) -> None:
    assert split_expressions(", ".join(parts)) == parts


def test_events_have_the_key_of_the_option(tmp_path: Path) -> None:
    stream = Stream().fields("t", ID, NAME, column("n", "INT32", "int")).change("t", None, (b"1", b"a", b"5"))
    connector = from_debezium({**LEAST, "message.key.columns": "shop.t:n,name"}).connector
    publish = connector.to_dict()["publish"]["vitess"]

    (created,) = events_of(stream, tmp_path, vitess=publish)

    assert list(created["key"].items()) == [("n", 5), ("name", "a")]
