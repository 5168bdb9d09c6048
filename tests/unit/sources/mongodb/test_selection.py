from __future__ import annotations

import re
from typing import Any

import pytest

from airflow_cdc_provider.migration.debezium.properties import from_debezium
from airflow_cdc_provider.sources.mongodb.selection import Selection, event_filter, is_captured

NAMESPACES = [
    "shop.orders",
    "shop.orders2",
    "shop.a.b",
    "shop2.orders",
    "Shop.orders",
    "x.shop.orders",
    "db-1.ü b",
    "SHOP.ORDERS",
    "\u017fhop.order\u017f",
    "kiosk.tickets",
    "\u212a\u0130OSK.T\u0131ckets",
    "shop.a\nb",
]


def matches(condition: dict[str, Any], namespace: str) -> bool:
    """Judge a filter as the server does, for the operators that we send."""
    database, _, collection = namespace.partition(".")
    values = {"ns.db": database, "ns.coll": collection, "operationType": "insert"}
    for name, test in condition.items():
        if name in ("$or", "$and", "$nor"):
            found = [matches(part, namespace) for part in test]
            ok = {"$or": any(found), "$and": all(found), "$nor": not any(found)}[name]
        elif name == "$expr":
            call = test["$regexMatch"]
            assert call["input"] == {"$concat": ["$ns.db", ".", "$ns.coll"]}
            ok = bool(re.search(call["regex"].replace(r"\z", r"\Z"), namespace))
        elif isinstance(test, dict) and "$in" in test:
            ok = values[name] in test["$in"]
        elif isinstance(test, dict) and "$nin" in test:
            ok = values[name] not in test["$nin"]
        elif isinstance(test, dict):
            ok = bool(re.search(test["$regex"].replace(r"\z", r"\Z"), values[name]))
        else:
            ok = values[name] == test
        if not ok:
            return False
    return True


@pytest.mark.parametrize(
    "pattern",
    [
        r"shop\.orders",
        r"shop\..*",
        r".*\.orders",
        r"shop\.(orders|a\.b)",
        r"shop\.orders|shop2\.orders",
        r"[Ss]hop\.orders[0-9]?",
        r"shop.orders",
        r"sho+p\.orders",
        r"shop\.a\.b",
        r"db-1\.ü b",
        r".*",
        r"s.*\.orders",
        r"(?i:shop\.orders)",
        r"(?i:kiosk\.tickets)",
        r"(?i:[i-k]+osk\.t[^a-h]ckets)",
        r"(?i:shop\.orders|x\..*)",
        r"(?i:s)hop\.(?i:o)rders",
        r"(?i:(?i:k)(?:i))osk\.(?i:(?:ti)ckets)",
        r"(?i:k){1}(?i:(i))osk\..*",
        r"(?=(?:(?i:shop)|(?i:x))\.)(?i:.*\.orders)",
    ],
)
@pytest.mark.covers("MDB-FLT-08", "MDB-XD-24")
def test_the_server_filters_portable_patterns_as_the_client_does(pattern: str) -> None:
    for selection in (Selection((pattern,)), Selection((".*",), (pattern,))):
        sent = event_filter(selection)
        for namespace in NAMESPACES:
            assert matches(sent, namespace) == selection(namespace), (selection, namespace)


@pytest.mark.parametrize(
    "pattern",
    [
        r"shop\.\w+",
        r"(?i)shop\.orders",
        r"(?i:db-1\.ü b)",
        r"shop\.(?!orders).*",
        r"shop\.orders\b",
        r"^shop\..*$",
    ],
)
def test_a_pattern_that_differs_between_dialects_stays_with_the_client(pattern: str) -> None:
    assert all(matches(event_filter(Selection((pattern,))), n) for n in NAMESPACES)
    assert all(matches(event_filter(Selection((".*",), (pattern,))), n) for n in NAMESPACES)


@pytest.mark.covers("MDB-XE-05")
def test_literal_collections_of_a_database_are_one_short_list() -> None:
    sent = event_filter(Selection((r"shop\.b", r"shop\.a", r"x\.y")))
    assert {
        "$or": [{"ns.db": "shop", "ns.coll": {"$in": ["a", "b"]}}, {"ns.db": "x", "ns.coll": {"$in": ["y"]}}]
    } in sent["$or"][0]["$and"]


def test_patterns_of_an_imported_list_select_by_database_and_collection_alone() -> None:
    imported = from_debezium({"topic.prefix": "t", "collection.include.list": r"shop\.orders"}).connector
    assert {
        "ns.db": {"$regex": "\\A(?s:[Ss\u017f][Hh][Oo][Pp])\\z"},
        "ns.coll": {"$regex": "\\A(?s:[Oo][Rr][Dd][Ee][Rr][Ss\u017f])\\z"},
    } in event_filter(Selection(imported.tables))["$or"][0]["$and"][1]["$or"]


TEMPORARY = [
    "tmpaZ0x9.renameCollection",
    "tmpaZ0x9.convertToCapped.orders",
    "tmp.agg_out.09237ebf-8897-4e52-8760-2e6cfce6a671",
    "tmp.agg_out.36",
]
NAMED_LIKE_IT = ["tmp", "tmp.orders", "tmpdata.orders", "tmpaZ0x9.rename_log", "xtmpaZ0x9.renameCollection"]


@pytest.mark.parametrize("selection", [Selection(), Selection((r"shop\..*",), (r"shop\.x",))])
def test_collections_that_the_server_fills_under_another_name_are_no_tables(selection: Selection) -> None:
    for name in [*TEMPORARY, *NAMED_LIKE_IT]:
        for filtered in (
            matches(event_filter(selection), f"shop.{name}"),
            is_captured(f"shop.{name}", selection),
        ):
            assert filtered == (name in NAMED_LIKE_IT), name


def test_drops_and_renames_pass_whatever_is_selected() -> None:
    assert event_filter(Selection((r"a\.b",)))["$or"][1] == {
        "operationType": {"$in": ["drop", "rename", "dropDatabase", "invalidate"]}
    }
