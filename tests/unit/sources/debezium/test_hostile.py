"""With any content of a topic, a batch is read to its end, and no row is invented."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.sources.debezium.recorded_schemas import RecordedSchemas
from airflow_cdc_provider.sources.debezium.records import read_messages
from tests.unit.sources.debezium.debezium_messages import (
    FEED,
    PLACEHOLDER,
    Table,
    column,
    event,
    framed,
    messages,
)

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.just(PLACEHOLDER),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["id", "a", "A", "_rest", "__op", "x y", "é"])
KINDS = st.sampled_from(["int8", "int64", "float", "double", "boolean", "string", "bytes"])
LOGICAL = st.sampled_from(
    [
        "",
        "io.debezium.time.Date",
        "io.debezium.time.MicroTimestamp",
        "io.debezium.time.ZonedTimestamp",
        "org.apache.kafka.connect.data.Decimal",
    ]
)


@st.composite
def envelopes(draw: st.DrawFn) -> Any:
    row = draw(st.none() | st.text(max_size=5) | st.dictionaries(NAMES, VALUES, max_size=4))
    value = event(draw(st.sampled_from(["c", "u", "d", "r", "t", "m", "i", "?", ""])), None, row)
    value |= draw(
        st.dictionaries(st.sampled_from(["op", "source", "after", "transaction"]), VALUES, max_size=1)
    )
    if draw(st.booleans()):
        fields = [
            column(name, draw(KINDS), draw(LOGICAL), scale=draw(st.sampled_from(["2", "50", "-1"])))
            for name in draw(st.lists(NAMES, max_size=4))
        ]
        return framed(value, fields)
    return value


@st.composite
def written(draw: st.DrawFn) -> bytes | None:
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return None
    if kind == 1:
        return draw(st.binary(max_size=40))
    raw = json.dumps(draw(envelopes() if kind > 2 else VALUES)).encode()
    if kind == 3 and raw:
        cut = draw(st.integers(0, len(raw) - 1))
        raw = raw[:cut] + draw(st.binary(max_size=2)) + raw[cut + 1 :]
    return raw


@given(st.lists(st.tuples(written(), written()), min_size=1, max_size=8))
def test_any_messages_are_read_to_their_end(pairs: list[tuple[bytes | None, bytes | None]]) -> None:
    table = Table()
    records = read_messages(messages(pairs), FEED, RecordedSchemas(), table.skipped)
    kinds = Counter(records.column("kind").to_pylist())
    reported = sum(table.skipped.values()) + sum(kinds.values()) - kinds["schema"]
    assert reported == len(pairs)
    if kinds["schema"]:
        shown = table.merge(records)
        shown.validate(full=True)
        assert len({name.lower() for name in shown.schema.names}) == shown.num_columns


@pytest.mark.parametrize("time_ms", [-(2**63), -1, 0, 253_402_300_800_000, 2**63 // 1000, 2**63 - 1])
def test_a_producers_time_at_the_edges_of_64_bits_stops_nothing(time_ms: int) -> None:
    row = framed({**event("c", None, {"id": 1}), "source": {}}, [column("id", "int64")])
    one = replace(messages([({"id": 1}, row)]), times_ms=np.array([time_ms]))
    records = read_messages(one, FEED, RecordedSchemas(), Counter())
    assert sorted(records.column("kind").to_pylist()) == ["change", "schema"]
    assert all(
        time is None or 1970 <= time.year <= 2023 for time in records.column("committed_at").to_pylist()
    )


@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=4), min_size=1, max_size=6))
def test_rows_without_schema_are_shown_whole(rows: list[dict[str, Any]]) -> None:
    table = Table()
    events = [json.dumps(event("c", None, row)).encode() for row in rows]
    pairs = [({"id": number}, raw) for number, raw in enumerate(events)]
    sound = [pair for pair in pairs if b"NaN" not in pair[1] and b"Infinity" not in pair[1]]
    if not sound:
        return
    shown = table.take(*sound)
    for row in shown.to_pylist():
        rest = json.loads(row["_rest"]) if row["_rest"] else {}
        assert all(row.get(name) is None for name in rest if name in row and name != "_rest")
    assert isinstance(shown, pa.RecordBatch)
