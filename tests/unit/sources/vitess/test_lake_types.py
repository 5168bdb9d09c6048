from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_cdc_provider.sources.vitess.fields import Column, ColumnType, TableShape
from airflow_cdc_provider.sources.vitess.lake_types import TYPES, LakeTypes, family_of, type_table
from airflow_cdc_provider.sources.vitess.protocol import TYPES as WIRE_TYPES
from tests.conftest import ROOT
from tests.unit.sources.vitess.record_builders import TABLE, fields


def test_the_documentation_contains_the_type_table() -> None:
    assert type_table() in (ROOT / "docs" / "types-vitess.md").read_text()


def test_each_type_name_occurs_once_in_the_table() -> None:
    names = [name for row in TYPES for name in row.names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int", ColumnType("int")),
        ("INT(6) unsigned ZEROFILL", ColumnType("int", (6,), (), True, True)),
        ("decimal(65,30)", ColumnType("decimal", (65, 30))),
        ("numeric(8,3) unsigned", ColumnType("decimal", (8, 3), (), True)),
        ("timestamp(6)", ColumnType("timestamp", (6,))),
        ("enum('a','b,c','d''e','(x)','')", ColumnType("enum", (), ("a", "b,c", "d'e", "(x)", ""))),
        ("set('x','y','z w')", ColumnType("set", (), ("x", "y", "z w"))),
        ("geomcollection", ColumnType("geometrycollection")),
        ("", ColumnType("")),
    ],
)
def test_sql_types_are_parsed(text: str, expected: ColumnType) -> None:
    assert ColumnType.parse(text) == expected


@pytest.mark.parametrize(
    ("wire", "facts", "lake"),
    [
        ("INT8", {}, pa.int32()),
        ("UINT32", {}, pa.int64()),
        ("UINT64", {}, pa.decimal128(20, 0)),
        ("DECIMAL", {"length": 7, "decimals": 2}, pa.decimal128(5, 2)),
        ("DECIMAL", {"length": 6, "decimals": 4, "flags": 32}, pa.decimal128(5, 4)),
        ("DECIMAL", {"length": 67, "decimals": 30}, pa.string()),
        ("VARBINARY", {"collation": 46}, pa.string()),
        ("VARBINARY", {"collation": 63}, pa.binary()),
        ("BLOB", {"collation": 46}, pa.string()),
        ("BIT", {"length": 1}, pa.bool_()),
        ("BIT", {"length": 8}, pa.binary()),
        ("ENUM", {"collation": 255}, pa.string()),
        ("YEAR", {}, pa.int32()),
        ("TIMESTAMP", {"decimals": 3}, pa.timestamp("us", tz="UTC")),
        ("GEOMETRY", {}, pa.binary()),
    ],
)
def test_a_field_without_its_sql_type_has_a_lake_type(
    wire: str, facts: dict[str, int], lake: pa.DataType
) -> None:
    assert LakeTypes().of(Column("c", wire, **facts)) == lake  # type: ignore[arg-type]


def test_every_type_on_the_wire_has_a_lake_type() -> None:
    for wire in WIRE_TYPES.values():
        assert isinstance(LakeTypes().of(Column("c", wire)), pa.DataType), wire


def test_words_rule_over_the_type_on_the_wire() -> None:
    text_with_binary_collation = Column("c", "BINARY", "char(10)", 46)
    assert family_of(text_with_binary_collation) == "text"
    assert LakeTypes().of(Column("c", "CHAR", "char(9)", 69)) == pa.binary(), "no codec reads dec8"


def test_a_shape_is_parsed_from_the_message() -> None:
    event = fields({"tenant": "bigint", "no": "int not null", "note": "varchar(9)"}, ("tenant", "no"))
    shape = TableShape.parse(event.SerializeToString())
    assert shape.table == TABLE
    assert shape.key == (0, 1)
    assert [(c.name, c.wire_type, c.nullable) for c in shape.columns] == [
        ("tenant", "INT64", False),
        ("no", "INT32", False),
        ("note", "VARCHAR", True),
    ]
    event.table_name = "t"
    event.ClearField("table_name")
    event.table_name = "t"
    assert TableShape.of(event).table == TABLE, "VTGate may leave out the keyspace"
