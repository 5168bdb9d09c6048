from __future__ import annotations

import base64
from typing import Any

import bson
import pytest
from bson import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.mongodb.position import LAST_INDEX, StreamPosition
from tests.unit.sources.mongodb.documents import UINT32

TOKENS = st.one_of(st.just(b""), st.text("0123456789ABCDEF").map(lambda t: bson.encode({"_data": t})))
PLACES = st.builds(StreamPosition, UINT32, UINT32, UINT32, TOKENS)


@given(PLACES)
def test_an_offset_reads_back(place: StreamPosition) -> None:
    assert StreamPosition.from_offset(place.to_offset()) == place


@given(PLACES, PLACES)
def test_positions_compare_like_their_encodings(a: StreamPosition, b: StreamPosition) -> None:
    places = [(p.seconds, p.increment, p.index) for p in (a, b)]
    assert (a.encoded < b.encoded) == (places[0] < places[1])
    assert len(a.encoded) == 12


def test_a_position_after_a_cluster_time_starts_with_the_next() -> None:
    assert StreamPosition.after(Timestamp(5, 7)).start_time == Timestamp(5, 8)
    assert StreamPosition(5, 2**32 - 1).start_time == Timestamp(6, 0)
    assert StreamPosition(5, 7, 0).start_time == Timestamp(5, 7)
    assert StreamPosition.after(Timestamp(5, 7)).index == LAST_INDEX


EVENT = (
    "826B08BD6E000000152B042C0100296E5A1004" + "29" * 16 + "46646F63756D656E744B657900461E5F6964002B020000"
)


@pytest.mark.parametrize("number", ["29", "2B02", "2B04", "2BFE"])
def test_the_token_of_a_fragment_is_known_by_its_end(number: str) -> None:
    more = {"_typeBits": b"\x40"}
    whole = StreamPosition(5, 7, 0, bson.encode({"_data": f"{EVENT}04", **more}))
    fragment = StreamPosition(5, 7, 0, bson.encode({"_data": f"{EVENT}{number}04", **more}))
    assert fragment.unsplit == whole
    for other in (whole, StreamPosition(5, 7), StreamPosition(5, 7, 0, bson.encode({"_data": 5}))):
        assert other.unsplit is other
    high_water = StreamPosition(5, 7, token=bson.encode({"_data": "826B016DE6000000012B0429296E04"}))
    assert high_water.unsplit is high_water


GOOD = StreamPosition(1, 2, 3).to_offset()["stream"]


@pytest.mark.parametrize(
    "offset",
    [
        {},
        {"other": GOOD},
        {"stream": GOOD, "other": GOOD},
        {"stream": [1]},
        {"stream": {**GOOD, "v": 2}},
        {"stream": {**GOOD, "t": -1}},
        {"stream": {**GOOD, "t": "1"}},
        {"stream": {**GOOD, "i": 2**32}},
        {"stream": {**GOOD, "i": True}},
        {"stream": {**GOOD, "more": 1}},
        {"stream": {**GOOD, "token": "no base64!"}},
        {"stream": {**GOOD, "token": base64.b64encode(b"no bson").decode()}},
        {"stream": {**GOOD, "token": 5}},
    ],
)
def test_an_offset_of_another_form_is_refused(offset: Any) -> None:
    with pytest.raises(ConfigurationError, match="not a valid MongoDB offset"):
        StreamPosition.from_offset(offset)
