from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_cdc_provider.sources.cassandra.debezium.types import event_array, event_field, java_type
from airflow_cdc_provider.sources.cql.schema import CqlType
from airflow_cdc_provider.sources.cql.types import parse_type


@pytest.mark.parametrize(
    ("cql_type", "shown", "event"),
    [
        ("varint", ["12", None, "-170141183460469231731687303715884105729"], [12, None, -1]),
        (
            "decimal",
            ["12345678901234567890.123", "1E+400", None],
            [12345678901234567890.123, float("inf"), None],
        ),
        (
            "duration",
            ["1mo2d3h4ns", "-1y", "", None],
            [2_775_600_000_000_004, -31_104_000_000_000_000, 0, None],
        ),
        ("inet", ["127.0.0.1", None], ["/127.0.0.1", None]),
    ],
)
def test_values_are_shown_as_debezium_does(
    cql_type: str, shown: list[str | None], event: list[object]
) -> None:
    column = event_array(pa.array(shown, pa.utf8()), parse_type(cql_type))
    assert column.to_pylist() == event
    assert column.type == event_field("v", parse_type(cql_type)).type


def test_nested_types_are_converted_inside() -> None:
    cql_type = parse_type("list<frozen<map<inet, varint>>>")
    shown = pa.array([[[("::1", "5")], []], None], pa.list_(pa.map_(pa.utf8(), pa.utf8())))
    column = event_array(shown, cql_type)
    assert column.to_pylist() == [[[("/::1", 5)], []], None]
    assert column.type == event_field("v", cql_type).type


@pytest.mark.parametrize(
    ("cql_type", "name"),
    [
        ("tuple<int, text>", b"Int32UTF8Tuple"),
        ("timestamp", b"io.debezium.time.Timestamp:1"),
        ("uuid", b"io.debezium.data.Uuid:1"),
    ],
)
def test_fields_name_their_schemas(cql_type: str, name: bytes) -> None:
    assert event_field("v", parse_type(cql_type)).metadata == {b"connect.name": name}


@pytest.mark.parametrize(
    ("cql_type", "descending", "name"),
    [
        ("int", True, "ReversedType(PInt32Type)"),
        ("frozen<list<text>>", False, "FrozenType(PListType(PUTF8Type))"),
        ("map<int, uuid>", False, "MapType(PInt32Type,PUUIDType)"),
    ],
)
def test_java_names_of_types(cql_type: str, descending: bool, name: str) -> None:
    package = "org.apache.cassandra.db.marshal."
    assert java_type(parse_type(cql_type), descending=descending) == package + name.replace("P", package)


def test_a_udt_is_a_struct_with_its_name() -> None:
    udt = CqlType("udt", (CqlType("tinyint"),), fields=("a",), udt="ks.address")
    field = event_field("v", udt)
    assert field.type == pa.struct([pa.field("a", pa.int8())])
    assert field.metadata == {b"connect.name": b"ks.address"}
