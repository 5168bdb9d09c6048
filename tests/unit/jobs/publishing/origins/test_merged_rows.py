"""Rows that no record can be built of, without Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput
from airflow_cdc_provider.jobs.publishing.origins.merged_rows import built


def rows(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"key": pa.array([bytes([n]) for n in range(count)], pa.binary())})


@given(
    st.integers(1, 40),
    st.dictionaries(st.integers(0, 39), st.sampled_from([ValueError, pa.ArrowCapacityError, CorruptInput])),
)
def test_rows_that_a_builder_fails_at_are_skipped_alone_and_named(
    count: int, broken: dict[int, type[Exception]]
) -> None:
    def build(batch: pa.RecordBatch) -> pa.RecordBatch:
        for key in batch["key"].to_pylist():
            if key[0] in broken:
                raise broken[key[0]]("no record")
        return batch

    skipped = SkippedRecords(strict=False)
    found = [key[0] for part in built(build, rows(count), "k.t", skipped) for key in part["key"].to_pylist()]
    missing = [n for n in range(count) if n in broken]
    assert found == [n for n in range(count) if n not in broken]
    assert [text.split(":")[0] for text in skipped.undecodable] == [f"k.t at {n:02x}" for n in missing]
    if missing:
        with pytest.raises(CorruptInput, match=f"k.t at {missing[0]:02x}"):
            list(built(build, rows(count), "k.t", SkippedRecords(strict=True)))


def test_an_invalid_declaration_fails_the_run() -> None:
    def build(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ConfigurationError("two names are equal in Avro")

    with pytest.raises(ConfigurationError):
        list(built(build, rows(3), "k.t", SkippedRecords(strict=False)))
