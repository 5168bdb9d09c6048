"""Sequence ids by which a broker knows records again."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.exceptions import OffsetMissing
from airflow_cdc_provider.jobs.events.made import Made
from airflow_cdc_provider.jobs.publishing.pulsar import numbered
from airflow_cdc_provider.jobs.publishing.standing import Standing
from airflow_cdc_provider.kafka.positions import PublishPosition


def ids_of(pieces: list[tuple[int, int]]) -> list[int]:
    made = (Made(batch, pa.record_batch({"n": pa.array(range(count))})) for batch, count in pieces)
    return [number for one in numbered(made) for number in one.records["sequence"].to_pylist()]


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4))).map(sorted))
def test_ids_grow_and_do_not_depend_on_how_a_batch_comes_in_pieces(pieces: list[tuple[int, int]]) -> None:
    ids = ids_of(pieces)
    assert ids == sorted(set(ids))
    whole = {batch: sum(n for b, n in pieces if b == batch) for batch, _ in pieces}
    assert ids == ids_of(sorted(whole.items()))
    for batch, count in whole.items():  # a run that begins with a later batch gives it the same
        assert ids_of([(batch, count)]) == [number for number in ids if number >> 31 == batch]


def test_a_standing_is_read_as_it_was_written() -> None:
    standing = Standing("shop.1", PublishPosition("shop", 3, 5, 7, "form"))
    assert Standing.from_json(standing.to_json()) == standing
    for broken in ("", "{}", '{"producer": "a", "position": 1}'):
        with pytest.raises(OffsetMissing, match="can't be read"):
            Standing.from_json(broken)
