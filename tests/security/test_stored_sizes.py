"""What is stored with each offset, commit or run has a size that no user of a source chooses."""

from __future__ import annotations

import base64

import bson
import pytest
from bson.max_key import MaxKey
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_cdc_provider.lake.mirror import OFFSET, MirrorState
from airflow_cdc_provider.lake.table import Head
from airflow_cdc_provider.sources.mongodb import chunks, key_ranges
from airflow_cdc_provider.sources.mongodb.position import MOST_BYTES, StreamPosition
from tests.bounded import bounded

SIZES = st.one_of(st.integers(0, 2 * MOST_BYTES), st.just(8 << 20))


@settings(max_examples=20, deadline=None)
@given(SIZES)
def test_a_token_of_any_size_leaves_a_small_offset(size: int) -> None:
    token = bson.encode({"_data": "82" + "0" * size})
    offset = StreamPosition(5, 7, 3, token).to_offset()
    state = MirrorState(Head(None), offset=offset)
    assert len(state.properties()[OFFSET]) < 8192
    resumed = StreamPosition.from_offset(offset)
    assert (resumed.seconds, resumed.increment, resumed.index) == (5, 7, 3)
    assert resumed.token == (token if len(token) <= MOST_BYTES else b"")


def test_a_mirrors_metadata_has_no_large_offset() -> None:
    large = {"t": {"v": "x" * 9000}}
    assert OFFSET not in MirrorState(Head(None), offset=large).properties()
    assert OFFSET not in MirrorState(Head(None)).properties()


def test_a_copy_up_to_a_large_key_goes_up_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"small": bson.encode({"_id": 7}), "large": bson.encode({"_id": "x" * (8 << 20)}), "none": b""}
    monkeypatch.setattr(chunks, "first_id", lambda client, table, options: keys[table])
    found = {table: base64.b64decode(chunks.maximum_key(None, table, "")) for table in keys}  # type: ignore[arg-type]
    assert found == {**keys, "large": bson.encode({"_id": MaxKey()})}


def test_a_key_is_shown_in_few_characters() -> None:
    key = base64.b64encode(bson.encode({"_id": "x" * (8 << 20)})).decode()
    assert len(chunks.format_key(key)) == 200
    assert chunks.format_key(base64.b64encode(bson.encode({"_id": 7})).decode()) == "7"


@settings(max_examples=30, deadline=None)
@given(st.lists(SIZES, min_size=1, max_size=20))
def test_large_keys_bound_no_range(sizes: list[int]) -> None:
    found = [bson.encode({"_id": f"{number}{'x' * size}"}) for number, size in enumerate(sizes)]
    left = iter(found)
    with pytest.MonkeyPatch.context() as patch, bounded(seconds=1):
        patch.setattr(key_ranges, "first_id", lambda *_: next(left, b""))
        bounds = list(key_ranges._boundaries(None, "d.c", 1000, len(sizes) + 1))  # type: ignore[arg-type]
    assert bounds == [one for one in found if len(one) <= MOST_BYTES]
