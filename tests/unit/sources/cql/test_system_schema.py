from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_cdc_provider.exceptions import SchemaUnknown
from airflow_cdc_provider.sources.cql.system_schema import TABLES, load, schemas_from_rows


def _rows() -> dict[str, list[dict[str, Any]]]:
    return {
        "keyspaces": [
            {"keyspace_name": "k", "durable_writes": True, "replication": {"class": "S"}},
            {"keyspace_name": "system", "durable_writes": True, "replication": {}},
        ],
        "tables": [
            {"keyspace_name": "k", "table_name": "t", "id": "a-b", "cdc": None, "flags": ["compound"]}
        ],
        "columns": [_column("p", "partition_key", 0, "int"), _column("v", "regular", -1, "frozen<outer>")],
        "types": [
            {
                "keyspace_name": "k",
                "type_name": "outer",
                "field_names": ["i"],
                "field_types": ["frozen<inner>"],
            },
            {"keyspace_name": "k", "type_name": "inner", "field_names": ["n"], "field_types": ["int"]},
        ],
        "dropped_columns": [
            {
                "keyspace_name": "k",
                "table_name": "t",
                "column_name": "d",
                "dropped_time": "2026-11-21 07:50:35.063Z",
                "type": "text",
            }
        ],
    }


def _column(name: str, kind: str, position: int, cql_type: str) -> dict[str, Any]:
    return {
        "keyspace_name": "k",
        "table_name": "t",
        "column_name": name,
        "kind": kind,
        "position": position,
        "type": cql_type,
        "clustering_order": "none",
    }


def test_types_may_be_in_any_order() -> None:
    schemas = schemas_from_rows(_rows())
    assert schemas.tables["k.t"].regular[0].type.parameters[0].udt == "k.inner"
    assert schemas.tables["k.t"].regular[0].type.frozen


def test_rows_of_3_11_have_no_kind_for_dropped_columns() -> None:
    assert schemas_from_rows(_rows()).tables["k.t"].dropped["d"].kind == "regular"


@pytest.mark.parametrize(
    ("dropped", "microseconds"),
    [
        ("2026-11-21 07:50:35.063Z", 1795247435063000),
        (1795247435063000, 1795247435063000),
        ("+292278994-08-17 07:12:55.807Z", 9223372036854775807000),
        ("1969-12-31 23:59:59.999Z", -1000),
    ],
)
def test_drop_times_are_exact_in_any_year(dropped: str | int, microseconds: int) -> None:
    rows = _rows()
    rows["dropped_columns"][0]["dropped_time"] = dropped
    assert schemas_from_rows(rows).tables["k.t"].dropped["d"].dropped_at_us == microseconds


def test_an_unknown_type_is_rejected() -> None:
    rows = _rows()
    rows["types"] = []
    with pytest.raises(SchemaUnknown, match=r"k\.outer"):
        schemas_from_rows(rows)


class _Session:
    """Answers SELECT JSON as a driver session does, and keeps a record."""

    def __init__(self) -> None:
        self.queries: list[str] = []

    def execute(self, query: str) -> list[tuple[str]]:
        self.queries.append(query)
        table = query.rpartition(".")[2]
        return [(json.dumps(row),) for row in _rows().get(table, [])]


def test_a_cluster_is_read_as_json_without_its_own_keyspaces() -> None:
    session = _Session()
    schemas = load(session)
    assert list(schemas.keyspaces) == ["k"]
    assert list(schemas.tables) == ["k.t"]
    assert session.queries == [f"SELECT JSON * FROM system_schema.{t}" for t in TABLES]


def test_only_the_given_keyspaces_are_read() -> None:
    assert load(_Session(), ["system"]).tables == {}


_COMPACT: list[tuple[list[str], list[tuple[str, str, str]], dict[str, str], set[str]]] = [
    (
        [],
        [
            ("p", "partition_key", "int"),
            ("column1", "clustering", "text"),
            ("v", "static", "int"),
            ("value", "regular", "blob"),
        ],
        {"p": "partition_key", "v": "regular"},
        set(),
    ),
    (
        ["counter"],
        [
            ("p", "partition_key", "int"),
            ("column1", "clustering", "text"),
            ("v", "static", "counter"),
            ("value", "regular", "counter"),
        ],
        {"p": "partition_key", "v": "regular"},
        set(),
    ),
    (
        ["dense"],
        [("p", "partition_key", "int"), ("c", "clustering", "int"), ("value", "regular", "int")],
        {"p": "partition_key", "c": "clustering", "value": "regular"},
        set(),
    ),
    (
        ["dense", "compound"],
        [("p", "partition_key", "int"), ("c", "clustering", "int"), ("value", "regular", "empty")],
        {"p": "partition_key", "c": "clustering"},
        {"value"},
    ),
    (
        ["compound"],
        [
            ("p", "partition_key", "int"),
            ("c", "clustering", "int"),
            ("s", "static", "int"),
            ("value", "regular", "empty"),
        ],
        {"p": "partition_key", "c": "clustering", "s": "static", "value": "regular"},
        set(),
    ),
]


@pytest.mark.parametrize(("flags", "stored", "shown", "hidden"), _COMPACT)
def test_a_table_with_compact_storage_has_the_columns_of_select_all(
    flags: list[str], stored: list[tuple[str, str, str]], shown: dict[str, str], hidden: set[str]
) -> None:
    rows = _rows() | {"dropped_columns": []}
    rows["tables"][0]["flags"] = flags
    rows["columns"] = [
        _column(name, kind, -1 if kind in ("static", "regular") else 0, cql_type)
        for name, kind, cql_type in stored
    ]
    table = schemas_from_rows(rows).tables["k.t"]
    assert {column.name: column.kind for column in table.columns} == shown
    assert set(table.dropped) == hidden
