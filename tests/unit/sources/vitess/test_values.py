from __future__ import annotations

import datetime
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.sources.vitess.charsets import can_decode, charset_name, decode_column, decoder
from airflow_cdc_provider.sources.vitess.fields import Column
from airflow_cdc_provider.sources.vitess.lake_types import LakeTypes
from airflow_cdc_provider.sources.vitess.values import texts, texts_or_hex, to_lake_type
from tests.unit.sources.vitess.spans_of import spans_of

UTF8 = 255
LATIN1 = 8


def column(column_type: str, **facts: Any) -> Column:
    return Column("c", "VARCHAR", column_type, **{"collation": UTF8, **facts})


def converted(column: Column, *values: bytes | None) -> list[Any]:
    """Show values in the column's own lake type, misfits as the word."""
    array, misfits = to_lake_type(column, LakeTypes().of(column), *spans_of(values))
    return ["misfit" if odd else value for value, odd in zip(array.to_pylist(), misfits, strict=True)]


def as_text(column: Column, *values: bytes | None) -> list[Any]:
    return texts_or_hex(column, *spans_of(values)).to_pylist()


@pytest.mark.parametrize(
    ("column_type", "values", "expected"),
    [
        ("tinyint", [b"-128", b"127", None], [-128, 127, None]),
        ("tinyint(1)", [b"0", b"1", b"127"], [0, 1, 127]),
        ("int", [b"-2147483648", b"2147483648"], [-2147483648, "misfit"]),
        ("int unsigned", [b"4294967295"], [4294967295]),
        ("int(6) unsigned zerofill", [b"000042", b"42"], [42, 42]),
        ("bigint", [b"-9223372036854775808", b"9223372036854775808"], [-(2**63), "misfit"]),
        ("bigint unsigned", [b"18446744073709551615"], [Decimal(2**64 - 1)]),
        ("decimal(5,2)", [b"-123.45", b".5", b"1000.00"], [Decimal("-123.45"), Decimal("0.50"), "misfit"]),
        ("decimal(65,30)", [b".5"], ["0.500000000000000000000000000000"]),
        ("float", [b"1.5E+00", b"1.5"], [1.5, 1.5]),
        ("double", [b"1E-10", b"0.0000000001"], [1e-10, 1e-10]),
        ("bit(1)", [b"\0", b"\1", b"\2"], [False, True, "misfit"]),
        ("bit(20)", [b"\x08\0\1"], [b"\x08\0\1"]),
        ("year", [b"0000", b"2155"], [0, 2155]),
        ("date", [b"2024-02-29", b"1000-01-01"], [datetime.date(2024, 2, 29), datetime.date(1000, 1, 1)]),
        ("date", [b"0000-00-00", b"2023-11-00", b"2023-02-30", b"0000-12-31"], ["misfit"] * 4),
        ("date", [b"0001-01-01"], [datetime.date.min]),
        ("datetime(6)", [b"9999-12-31 23:59:59.999999"], [datetime.datetime.max]),
        ("datetime", [b"2023-11-00 00:00:00", b"rubbish", None], ["misfit", "misfit", None]),
        (
            "timestamp(3)",
            [b"1970-01-01 00:00:01.125"],
            [datetime.datetime(1970, 1, 1, 0, 0, 1, 125000, datetime.UTC)],
        ),
        ("time(6)", [b"-838:59:59.000000", b"-00:00:00.000001", b"24:00"], [-3020399000000, -1, "misfit"]),
        ("binary(4)", [b"a\0\0\0", b""], [b"a\0\0\0", b""]),
        ("vector(2)", [struct.pack("<2f", 1, 2.5), None, b"abc"], [[1.0, 2.5], None, "misfit"]),
        ("json", ['{"a": "é"}'.encode()], ['{"a": "é"}']),
        ("point", [b"\0\0\0\0\1"], [b"\0\0\0\0\1"]),
        ("varchar(9)", [b"", "vär€😀".encode(), b"\xff"], ["", "vär€😀", "misfit"]),
    ],
)
def test_values_are_exact_in_their_lake_type_or_misfits(
    column_type: str, values: list[bytes | None], expected: list[Any]
) -> None:
    assert converted(column(column_type), *values) == expected


@pytest.mark.covers("VIT-TYP-16")
def test_enum_and_set_are_named_by_numbers_as_by_texts() -> None:
    enum = column("enum('a','b,c','d''e','Größe')", as_text=False)
    assert enum.type.members == ("a", "b,c", "d'e", "Größe")
    assert as_text(enum, b"1", b"3", b"4", b"0", None) == ["a", "d'e", "Größe", "", None]
    members = column("set('x','y','z w')", as_text=False)
    assert as_text(members, b"5", b"0", b"7", None) == ["x,z w", "", "x,y,z w", None]
    as_texts = column("enum('a','b,c')")
    assert as_text(as_texts, b"b,c", b"", None) == ["b,c", "", None]
    assert as_text(column("set('x','y')"), b"x,y", b"") == ["x,y", ""]


def test_a_number_without_a_member_is_a_misfit() -> None:
    assert converted(column("enum('a')", as_text=False), b"2", b"-1", b"x") == ["misfit"] * 3
    assert converted(column("set('a')", as_text=False), b"2") == ["misfit"]
    assert converted(
        column(f"set({','.join(map(repr, map(str, range(64))))})", as_text=False), b"9223372036854775808"
    ) == ["63"]


def test_names_of_an_enum_may_come_in_the_columns_own_character_set() -> None:
    assert as_text(column("enum('Größe')", collation=LATIN1), "Größe".encode(), "Größe".encode("latin1")) == [
        "Größe",
        "Größe",
    ]


@pytest.mark.covers("VIT-FLT-16")
def test_an_incomplete_character_at_the_end_is_not_dropped() -> None:
    names = column("set('é','café')", collation=LATIN1)
    assert as_text(names, *(name.encode("latin1") for name in ("é", "café", "é,café"))) == [
        "é",
        "café",
        "é,café",
    ]
    assert decode_column(pa.array([b"ab\xe9", b"ab"]), "").to_pylist() == [None, "ab"]


def test_without_names_an_enum_stays_the_number_that_vitess_8_gives() -> None:
    enum = Column("c", "ENUM", "", UTF8, as_text=False)
    assert converted(enum, b"3", None) == ["3", None]


def test_text_is_read_by_its_character_set() -> None:
    assert as_text(column("varchar(9)", collation=LATIN1), b"latin \xe9 \x80\x81") == ["latin é €\x81"]
    assert as_text(column("char(3)", collation=28), "中文".encode("gbk")) == ["中文"]
    assert as_text(column("text", collation=54), "a€".encode("utf-16-be")) == ["a€"]
    assert as_text(column("varchar(9)", collation=0), "é".encode(), b"\xff") == ["é", "0xFF"]


CHARSETS = sorted({name for name in map(charset_name, range(400)) if can_decode(name)})


@given(st.sampled_from(CHARSETS), st.lists(st.none() | st.text(max_size=8), max_size=8))
def test_each_character_set_decodes_its_own_encoding(charset: str, values: list[str | None]) -> None:
    codec = {"latin1": "cp1252"}.get(charset)
    raws = []
    for text in values:
        try:
            raws.append(None if text is None else text.encode(codec or _codec_name(charset)))
        except UnicodeEncodeError:
            raws.append(b"")
    found = decode_column(pa.array(raws, pa.binary()), charset).to_pylist()
    assert found == [None if raw is None else decoder(charset)(raw)[0] for raw in raws]


def _codec_name(charset: str) -> str:
    return {
        "utf8mb3": "utf-8",
        "utf8mb4": "utf-8",
        "utf16": "utf-16-be",
        "ucs2": "utf-16-be",
        "utf16le": "utf-16-le",
        "utf32": "utf-32-be",
        "gbk": "gbk",
        "sjis": "shift_jis",
    }.get(charset, "ascii")


def test_a_slice_of_a_column_is_decoded_as_its_own_values() -> None:
    raw = pa.array([b"\xe9", b"a", None, b"\xe9b"], pa.binary())
    assert decode_column(raw.slice(1, 2), "latin1").to_pylist() == ["a", None]
    assert decode_column(raw.slice(2), "latin1").to_pylist() == [None, "éb"]


@pytest.mark.parametrize(
    ("collation", "name"),
    [
        (8, "latin1"),
        (11, "ascii"),
        (28, "gbk"),
        (33, "utf8mb3"),
        (46, "utf8mb4"),
        (63, "binary"),
        (255, "utf8mb4"),
        (278, "utf8mb4"),
        (0, ""),
    ],
)
def test_collations_have_character_sets(collation: int, name: str) -> None:
    assert charset_name(collation) == name


@pytest.mark.parametrize(
    ("column_type", "value", "text"),
    [
        ("int(6) unsigned zerofill", b"42", "000042"),
        ("int", b"42", "42"),
        ("decimal(6,4)", b".05", "0.0500"),
        ("float", b"3.1415927E+00", "3.14159"),
        ("double", b"1E+16", "1e16"),
        ("datetime", b"2023-11-00 00:00:00", "2023-11-00 00:00:00"),
        ("varbinary(16)", b"\x00\xff\x80\xfe", "0x00FF80FE"),
        ("bit(8)", b"\x81", "0x81"),
        ("json", b'"str"', '"str"'),
        ("time", b"-838:59:59", "-838:59:59"),
    ],
)
def test_texts_are_those_of_mysql(column_type: str, value: bytes, text: str) -> None:
    assert as_text(column(column_type), value, None) == [text, None]


MOMENTS = st.datetimes(min_value=datetime.datetime(1, 1, 1))


@given(st.lists(st.none() | MOMENTS, max_size=20))
def test_moments_are_those_of_the_calendar(moments: list[datetime.datetime | None]) -> None:
    written = [None if m is None else m.isoformat(" ", "microseconds").encode() for m in moments]
    assert converted(column("datetime(6)"), *written) == moments
    assert converted(column("date"), *(None if w is None else w[:10] for w in written)) == [
        None if m is None else m.date() for m in moments
    ]


def test_with_temporal_text_every_date_is_mysqls_text() -> None:
    types = LakeTypes(temporal="text")
    assert types.of(column("date")) == pa.string()
    array, misfits = to_lake_type(column("date"), pa.string(), *spans_of([b"0000-00-00", b"2024-01-01"]))
    assert array.to_pylist() == ["0000-00-00", "2024-01-01"]
    assert not misfits.any()


def test_values_of_an_older_type_are_converted_to_the_current_one() -> None:
    members = column("enum('7','x')", as_text=False)
    array, misfits = to_lake_type(members, pa.int32(), *spans_of([b"1", b"2"]))
    assert array.to_pylist() == [7, None]
    assert misfits.tolist() == [False, True]
    array, _ = to_lake_type(column("int"), pa.decimal128(9, 2), *spans_of([b"5"]))
    assert array.to_pylist() == [Decimal("5.00")]
    array, _ = to_lake_type(column("date"), pa.timestamp("us"), *spans_of([b"2024-01-02"]))
    assert array.to_pylist() == [datetime.datetime(2024, 1, 2)]
    assert texts(column("decimal(6,2)"), *spans_of([b"9.99"]))[0].to_pylist() == ["9.99"]
