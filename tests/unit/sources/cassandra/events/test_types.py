from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_cdc_provider.events.connect import schema_of
from airflow_cdc_provider.sources.cassandra.events.types import EventTypes, Varints, java_type
from airflow_cdc_provider.sources.cql.schema import CqlType
from airflow_cdc_provider.sources.cql.types import parse_type


@pytest.mark.parametrize(
    ("cql_type", "projected", "event"),
    [
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
def test_values_have_debeziums_format(
    cql_type: str, projected: list[str | None], event: list[object]
) -> None:
    column = EventTypes().array(pa.array(projected, pa.utf8()), parse_type(cql_type))
    assert column.to_pylist() == event
    assert column.type == EventTypes().field("v", parse_type(cql_type)).type


def number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big", signed=True)


@pytest.mark.covers("CAS-D3X-07")
@pytest.mark.parametrize(
    ("mode", "projected", "event"),
    [
        ("precise", [number(-129, 4), None], [number(-129, 2), None]),
        ("long", [number(12, 1), None, number(-(1 << 127) - 1, 17), b""], [12, None, -1, None]),
        (
            "string",
            ["-170141183460469231731687303715884105729"],
            ["-170141183460469231731687303715884105729"],
        ),
    ],
)
def test_varints_are_exact_on_request(mode: Varints, projected: list[object], event: list[object]) -> None:
    types, varint = EventTypes(varints=mode), parse_type("varint")
    column = types.array(pa.array(projected, types.lake.of(varint)), varint)
    assert column.to_pylist() == event
    assert column.type == types.field("v", varint).type
    schema = schema_of(types.field("v", varint)).to_json()
    assert (
        '"name":"org.apache.kafka.connect.data.Decimal","version":1,"parameters":{"scale":"0"}' in schema
    ) == (mode == "precise")


@pytest.mark.covers("CAS-D3X-07")
def test_decimals_are_exact_on_request() -> None:
    types, decimal = EventTypes(decimals="precise"), parse_type("decimal")
    stored = [number(3, 4) + number(12345, 4), None, number(-400, 4) + number(1, 1)]
    column = types.array(pa.array(stored, types.lake.of(decimal)), decimal)
    assert column.to_pylist() == [
        {"scale": 3, "value": number(12345, 2)},
        None,
        {"scale": -400, "value": number(1, 1)},
    ]
    assert schema_of(types.field("v", decimal)).to_json() == (
        '{"type":"struct","fields":[{"type":"int32","optional":false,"field":"scale"},'
        '{"type":"bytes","optional":false,"field":"value"}],"optional":true,'
        '"name":"io.debezium.data.VariableScaleDecimal","version":1,"doc":"Variable scaled decimal"}'
    )


@pytest.mark.covers("CAS-D3X-07")
def test_decimals_are_plain_digits_on_request() -> None:
    types, decimal = EventTypes(decimals="string"), parse_type("decimal")
    projected = ["1E+3", "-1.50", "0E-10", "1.5E-8", "0E+3", None, "1E+2147483647"]
    column = types.array(pa.array(projected, types.lake.of(decimal)), decimal)
    # The last would have two thousand million zeros.
    assert column.to_pylist() == ["1000", "-1.50", "0.0000000000", "0.000000015", "0", None, "1E+2147483647"]


def test_nested_types_are_converted_inside() -> None:
    cql_type = parse_type("list<frozen<map<inet, varint>>>")
    projected = pa.array([[[("::1", b"\5")], []], None], pa.list_(pa.map_(pa.utf8(), pa.binary())))
    column = EventTypes().array(projected, cql_type)
    assert column.to_pylist() == [[[("/::1", 5)], []], None]
    assert column.type == EventTypes().field("v", cql_type).type


@pytest.mark.parametrize(
    ("cql_type", "name"),
    [
        ("tuple<int, text>", b"Int32UTF8Tuple"),
        ("timestamp", b"io.debezium.time.Timestamp:1"),
        ("uuid", b"io.debezium.data.Uuid:1"),
    ],
)
def test_fields_name_their_schemas(cql_type: str, name: bytes) -> None:
    assert EventTypes().field("v", parse_type(cql_type)).metadata == {b"connect.name": name}


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
    field = EventTypes().field("v", udt)
    assert field.type == pa.struct([pa.field("a", pa.int8())])
    assert field.metadata == {b"connect.name": b"ks.address"}
