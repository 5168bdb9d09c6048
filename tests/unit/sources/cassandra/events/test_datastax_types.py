"""Values in DataStax's form that no recording holds."""

from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_cdc_provider.sources.cassandra.events.datastax_types import EventTypes
from airflow_cdc_provider.sources.cql.schema import CqlType

DATE, TEXT = CqlType("date"), CqlType("text")
DAYS = pa.array([10, 2_932_897, -719_163, -(1 << 31)], pa.int32()).view(pa.date32())


def one(keys: pa.Array, values: pa.Array) -> pa.MapArray:
    """One map of all these entries."""
    return pa.MapArray.from_arrays(pa.array([0, len(keys)], pa.int32()), keys, values)


@pytest.mark.parametrize(
    ("key_type", "keys", "texts"),
    [
        (DATE, DAYS, ["1970-01-11", "+10000-01-01", "0000-12-31", "-5877641-06-23"]),
        (CqlType("list", (DATE,)), pa.ListArray.from_arrays([0, 1], DAYS[1:2]), ["[+10000-01-01]"]),
        (CqlType("map", (TEXT, DATE)), one(pa.array(["x"]), DAYS[1:2]), ["{x=+10000-01-01}"]),
        (CqlType("map", (DATE, TEXT)), one(DAYS[1:2], pa.array(["x"])), ["{+10000-01-01=x}"]),
    ],
)
def test_dates_beyond_pythons_are_keys_as_javas_text(
    key_type: CqlType, keys: pa.Array, texts: list[str]
) -> None:
    converted = EventTypes("shop").array(
        one(keys, pa.array([1] * len(keys), pa.int32())), CqlType("map", (key_type, CqlType("int")))
    )
    assert [key for key, _ in converted.to_pylist()[0]] == texts
