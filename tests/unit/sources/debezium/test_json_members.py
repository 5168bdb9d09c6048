from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_cdc_provider.formats.json_text import DEEPEST
from airflow_cdc_provider.sources.debezium.json_members import elements_of, members_of, read_values
from airflow_cdc_provider.sources.debezium.json_texts import compact, from_base64, strings

TEXTS = st.text(max_size=8) | st.sampled_from(['"', "\\", "\n", "\x01", "é", "😀"])
NUMBERS = st.integers(-(10**25), 10**25) | st.floats(allow_nan=False, allow_infinity=False)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@st.composite
def texts(draw: st.DrawFn) -> tuple[Any, bytes]:
    value = draw(VALUES)
    written = json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])))
    return value, written.encode("utf-8", "surrogatepass")


def parsed(raw: bytes) -> Any:
    """Parse as the standard library does, but for what it adds to the grammar."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    return json.loads(raw.decode(), parse_constant=refuse)


@given(st.lists(texts(), min_size=1, max_size=6))
def test_members_strings_and_compact_texts_are_those_of_the_standard_library(
    given_: list[tuple[Any, bytes]],
) -> None:
    values = [value for value, _ in given_]
    data, found = read_values(pa.array([raw for _, raw in given_], pa.binary()))
    assert (found.kinds > 0).all()
    shown = strings(data, found).to_pylist()
    assert shown == [value if isinstance(value, str) else None for value in values]
    for value, again in zip(values, compact(data, found).to_pylist(), strict=True):
        assert parsed(again) == value
    members = members_of(data, found)
    numbers, names = members.numbered
    objects: dict[int, dict[str, Any]] = {}
    for owner, number, start, end in zip(
        members.owners, numbers, members.values.starts, members.values.ends, strict=True
    ):
        objects.setdefault(int(owner), {})[names[number]] = parsed(data[start:end].tobytes())
    for row, value in enumerate(values):
        assert objects.get(row, {}) == (value if isinstance(value, dict) else {})
    offsets, elements = elements_of(data, found)
    for row, value in enumerate(values):
        own = range(offsets[row], offsets[row + 1])
        inside = [parsed(data[elements.starts[n] : elements.ends[n]].tobytes()) for n in own]
        assert inside == (value if isinstance(value, list) else [])


@given(texts(), st.data())
def test_invalid_json_is_reported(given_: tuple[Any, bytes], data: st.DataObject) -> None:
    broken = bytearray(given_[1])
    broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    raw = bytes(broken[: data.draw(st.integers(1, len(broken)))])
    try:
        parsed(raw)
        sound = True
    except (ValueError, RecursionError):
        sound = False
    _, found = read_values(pa.array([raw, b"{}", None], pa.binary()))
    assert [kind > 0 for kind in found.kinds] == [sound, True, False]


@pytest.mark.parametrize(
    "raw", [b"01", b"1.", b"+1", b"[1,]", b'{"a":1,}', b"{'a':1}", b"NaN", b'"\x01"', b"", b" "]
)
def test_the_grammar_has_no_extensions(raw: bytes) -> None:
    _, found = read_values(pa.array([raw], pa.binary()))
    assert found.kinds.tolist() == [0]


def test_depth_has_a_bound() -> None:
    deep = [b"[" * n + b"]" * n for n in (DEEPEST, DEEPEST + 1)]
    _, found = read_values(pa.array(deep, pa.binary()))
    assert [kind > 0 for kind in found.kinds] == [True, False]


def test_of_members_of_one_name_the_last_counts_however_it_is_spelled() -> None:
    data, found = read_values(pa.array([b'{"a":1,"a":2}', b'{"\\u0061":3}'], pa.binary()))
    (places,) = members_of(data, found).find("a")
    assert [data[a:b].tobytes() for a, b in zip(places.starts, places.ends, strict=True)] == [b"2", b"3"]


def test_half_a_surrogate_pair_is_shown_as_what_it_is_not() -> None:
    data, found = read_values(pa.array([b'"a\\ud83d"', b'"\\ud83d\\ude00"'], pa.binary()))
    assert strings(data, found).to_pylist() == ["a�", "😀"]


@given(st.lists(st.binary(max_size=20), max_size=10))
@example([b""])
def test_base64_comes_back(values: list[bytes]) -> None:
    plain = [base64.b64encode(value).decode() for value in values]
    of_urls = [base64.urlsafe_b64encode(value).decode().rstrip("=") for value in values]
    found, broken = from_base64(pa.array(plain + of_urls, pa.string()))
    assert found.to_pylist() == values + values
    assert not broken.any()


def test_invalid_base64_is_reported() -> None:
    found, broken = from_base64(pa.array(["a", "ab$d", "AQI=", None]))
    assert found.to_pylist() == [None, None, b"\x01\x02", None]
    assert broken.tolist() == [True, True, False, False]


def test_numbers_are_distinguished_by_their_form() -> None:
    _, found = read_values(pa.array([b"1", b"-0", b"1.0", b"1e5"], pa.binary()))
    assert found.kinds.tolist() == [4, 4, 5, 5]
