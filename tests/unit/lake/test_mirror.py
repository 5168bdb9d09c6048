from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.lake.mirror import fingerprints, row_ids, spark_schema

PAIRS = st.lists(
    st.tuples(st.binary(max_size=4), st.one_of(st.none(), st.binary(max_size=4))), min_size=1, max_size=20
)


@given(PAIRS)
def test_ids_are_equal_exactly_where_rows_are(pairs: list[tuple[bytes, bytes | None]]) -> None:
    shown = [(k, None if c is None else b"\x40" + c) for k, c in pairs]

    ids = row_ids(
        pa.array([k for k, _ in shown], pa.binary()), pa.array([c for _, c in shown], pa.binary())
    ).to_pylist()

    assert len(set(ids)) == len(set(shown))


@given(PAIRS)
def test_fingerprints_are_equal_exactly_where_all_columns_are(
    pairs: list[tuple[bytes, bytes | None]],
) -> None:
    columns = [
        pa.array([k for k, _ in pairs], pa.binary()),
        pa.array([c for _, c in pairs], pa.binary()),
        pa.array([None if c is None else len(c) for _, c in pairs], pa.int8()),
    ]

    assert len(set(fingerprints(columns).to_pylist())) == len(set(pairs))


def test_geometries_of_debezium_are_structs_wherever_they_stand() -> None:
    geometry = pa.struct([pa.field("wkb", pa.binary()), pa.field("srid", pa.int32())])
    inside = pa.struct([pa.field("at", geometry)])
    kinds = [geometry, inside, pa.list_(pa.field("element", geometry)), pa.map_(pa.string(), geometry)]
    shown = spark_schema(pa.schema([(f"c{number}", kind) for number, kind in enumerate(kinds)]))
    plain = "struct<wkb:binary,srid:int>"
    assert [one.dataType.simpleString() for one in shown] == [
        plain,
        f"struct<at:{plain}>",
        f"array<{plain}>",
        f"map<string,{plain}>",
    ]
