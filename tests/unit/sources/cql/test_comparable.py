from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput
from airflow_cdc_provider.sources.cql.comparable import AFTER, MALFORMED, comparable_bytes, encode_clustering
from airflow_cdc_provider.sources.cql.programs import compile_types
from airflow_cdc_provider.sources.cql.schema import CqlType
from airflow_cdc_provider.sources.cql.scratch import new_scratch
from airflow_cdc_provider.sources.cql.types import parse_type
from tests.chance import examples
from tests.unit.sources.cql.cql_values import SCALARS, compare, types, values, varint


def _sign(a: bytes, b: bytes) -> int:
    return (a > b) - (a < b)


def _encode(cql_type: CqlType, value: bytes | None, *, descending: bool = False) -> bytes:
    return comparable_bytes(compile_types([cql_type]), 0, value, descending=descending)


@pytest.mark.parametrize("name", sorted(SCALARS))
def test_scalars_compare_as_cassandra_compares_them(name: str) -> None:
    cql_type = CqlType(name)

    @settings(max_examples=examples(300), deadline=None)
    @given(values(cql_type), values(cql_type))
    def check(a: bytes, b: bytes) -> None:
        expected = compare(cql_type, a, b)
        assert _sign(_encode(cql_type, a), _encode(cql_type, b)) == expected
        assert (
            _sign(_encode(cql_type, a, descending=True), _encode(cql_type, b, descending=True)) == -expected
        )

    check()


@settings(max_examples=examples(1000), deadline=None)
@given(st.data())
def test_nested_values_compare_as_cassandra_compares_them(data: st.DataObject) -> None:
    cql_type = data.draw(types(depth=3))
    drawn = values(cql_type)
    a, b = data.draw(drawn), data.draw(drawn)
    descending = data.draw(st.booleans())
    expected = compare(cql_type, a, b) * (-1 if descending else 1)
    encoded = [_encode(cql_type, v, descending=descending) for v in (a, b)]
    assert _sign(encoded[0], encoded[1]) == expected


@settings(max_examples=examples(500), deadline=None)
@given(st.data())
def test_clusterings_compare_column_by_column_and_prefixes_enclose_their_rows(data: st.DataObject) -> None:
    columns = data.draw(st.lists(st.tuples(types(depth=1), st.booleans()), min_size=1, max_size=3))
    programs = compile_types(t for t, _ in columns)
    descending = np.array([d for _, d in columns], np.uint8)

    def encode(row: list[bytes], count: int) -> bytes:
        native = np.frombuffer(b"".join(struct.pack("<i", len(v)) + v for v in row) or b"\0", np.uint8)
        out = np.empty(1 << 14, np.uint8)
        end = encode_clustering(
            programs.nodes,
            programs.roots,
            descending,
            count,
            native,
            0,
            native.size,
            new_scratch(native.size),
            out,
            0,
        )
        assert 0 <= end <= out.size
        return bytes(out[:end])

    rows = [[data.draw(values(t)) for t, _ in columns] for _ in range(2)]
    orders = [
        compare(t, a, b) * (-1 if d else 1) for (t, d), a, b in zip(columns, rows[0], rows[1], strict=True)
    ]
    expected = next((o for o in orders if o), 0)
    first, second = (encode(row, len(columns)) for row in rows)
    assert _sign(first, second) == expected
    for count in range(len(columns)):
        prefix = encode(rows[0], count)
        first_order = next((o for o in orders[:count] if o), 0)
        inside = prefix <= second < prefix + bytes([AFTER])
        assert inside == (first_order == 0)
        assert prefix <= first < prefix + bytes([AFTER])


@pytest.mark.parametrize("descending", [False, True])
def test_a_null_column_comes_before_all_values(descending: bool) -> None:
    for value in (b"", b"\0\0\0\0"):
        null = _encode(CqlType("int"), None, descending=descending)
        assert null < _encode(CqlType("int"), value, descending=descending)


@pytest.mark.parametrize(
    ("text", "a", "b"),
    [
        ("decimal", "0000000164", "00000002" + varint(1000).hex()),
        ("decimal", "0000000500", "fffffffb00"),
        ("varint", "80", "ffff80"),
        ("double", "7ff8000000000000", "ffffffffffffffff"),
        ("tuple<int, text>", "0000000400000001", "0000000400000001ffffffff"),
        ("boolean", "01", "07"),
    ],
)
def test_values_that_cassandra_calls_equal_get_equal_bytes(text: str, a: str, b: str) -> None:
    cql_type = parse_type(text)
    assert _encode(cql_type, bytes.fromhex(a)) == _encode(cql_type, bytes.fromhex(b))


@settings(max_examples=examples(2000), deadline=None)
@given(types(depth=2), st.binary(max_size=24))
@example(CqlType("list", (CqlType("int"),), frozen=True), bytes.fromhex("7fffffff"))
@example(CqlType("vector", (CqlType("text"),), dimensions=2), b"\xff" * 9)
@example(CqlType("decimal"), b"\0\0\0\0")
def test_invalid_bytes_are_rejected_or_encoded_but_never_read_beyond_their_end(
    cql_type: CqlType, raw: bytes
) -> None:
    programs = compile_types([cql_type])
    guarded = np.concatenate([np.frombuffer(raw, np.uint8), np.full(32, 0xAA, np.uint8)])
    other = np.concatenate([np.frombuffer(raw, np.uint8), np.full(32, 0x55, np.uint8)])
    from airflow_cdc_provider.sources.cql.comparable import encode_component

    results = []
    for memory in (guarded, other):
        out = np.zeros(1 << 12, np.uint8)
        end = encode_component(programs.nodes, 0, 0, memory, 0, len(raw), new_scratch(len(raw)), out, 0)
        results.append((end, bytes(out[: max(end, 0)])))
    assert results[0] == results[1]
    assert results[0][0] == MALFORMED or results[0][0] > 0


def test_wrong_length_is_an_error_that_contains_the_bytes() -> None:
    with pytest.raises(CorruptInput, match="010203"):
        _encode(CqlType("int"), b"\1\2\3")


def test_a_small_output_is_counted_not_overrun() -> None:
    value = b"x" * 1000 + b"\0" * 1000
    assert len(_encode(CqlType("blob"), value)) == 1 + 1000 + 2000 + 2


def test_types_nested_beyond_the_kernels_stack_are_rejected() -> None:
    cql_type = CqlType("int")
    for _ in range(40):
        cql_type = CqlType("list", (cql_type,), frozen=True)
    with pytest.raises(ConfigurationError, match="at most 32"):
        compile_types([cql_type])
