"""Debezium's messages in Avro."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tests.unit.sources.debezium.debezium_messages import PLACEHOLDER, column, framed

KEY = {"type": "struct", "fields": [{"type": "int64", "optional": False, "field": "id"}], "name": "s.Key"}
DECIMAL = "org.apache.kafka.connect.data.Decimal"
INNER = pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.utf8(), nullable=False)])
NAMED = {"connect.name": "n.Inner"}
ROW = pa.struct(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("flag", pa.bool_()),
        pa.field("small", pa.int8()),
        pa.field("single", pa.float32()),
        pa.field("double", pa.float64()),
        pa.field("text", pa.utf8()),
        pa.field("data", pa.binary()),
        pa.field(
            "amount",
            pa.binary(),
            metadata={"connect.name": f"{DECIMAL}:1", "connect.parameters": '{"scale": "2"}'},
        ),
        pa.field("at", pa.int64(), metadata={"connect.name": "io.debezium.time.MicroTimestamp:1"}),
        pa.field("list", pa.list_(pa.field("element", pa.utf8()))),
        pa.field("map", pa.map_(pa.int32(), pa.field("value", pa.int64()))),
        pa.field("inner", INNER, metadata=NAMED),
        pa.field("inners", pa.list_(pa.field("element", INNER, nullable=False, metadata=NAMED))),
    ]
)

long_numbers = st.integers(-(1 << 63), (1 << 63) - 1)

inner = st.fixed_dictionaries({"a": st.none() | st.integers(-(1 << 31), (1 << 31) - 1), "b": st.text()})

rows = st.fixed_dictionaries(
    {
        "id": long_numbers,
        "flag": st.none() | st.booleans(),
        "small": st.none() | st.integers(-128, 127),
        "single": st.none() | st.floats(width=32),
        "double": st.none() | st.floats(),
        "text": st.none() | st.text(),
        "data": st.none() | st.binary(),
        "amount": st.none() | st.binary(min_size=1, max_size=9),
        "at": st.none() | long_numbers,
        "list": st.none() | st.lists(st.none() | st.text(), max_size=4),
        "map": st.none() | st.lists(st.tuples(st.integers(-9, 9), st.none() | long_numbers), max_size=4),
        "inner": st.none() | inner,
        "inners": st.none() | st.lists(inner, max_size=3),
    }
)


def framed_key(number: int) -> dict[str, Any]:
    return {"schema": KEY, "payload": {"id": number}}


PLAIN = {"type": "string", "optional": False}
FIELDS = [
    column("id", "int64"),
    column("name", "string"),
    column("price", "bytes", DECIMAL, scale="2"),
    column("at", "int64", "io.debezium.time.MicroTimestamp"),
    column("zoned", "string", "io.debezium.time.ZonedTimestamp"),
    column("day", "int32", "io.debezium.time.Date"),
    column("ratio", "float"),
    {**column("tags", "map"), "keys": PLAIN, "values": {**PLAIN, "type": "int64"}},
    {**column("list", "array"), "items": {"type": "string", "optional": True}},
]


@st.composite
def table_rows(draw: st.DrawFn) -> dict[str, Any]:
    import base64

    raw = draw(st.none() | st.binary(min_size=1, max_size=12))
    return {
        "id": draw(st.integers(0, 5)),
        "name": draw(st.none() | st.text(max_size=5) | st.just(PLACEHOLDER)),
        "price": None if raw is None else base64.b64encode(raw).decode(),
        "at": draw(st.none() | long_numbers),
        "zoned": draw(st.none() | st.sampled_from(["2024-01-02T03:04:05.123456789Z", "0000-00-00"])),
        "day": draw(st.none() | st.integers(-10_000, 10_000)),
        "ratio": draw(st.none() | st.floats(width=32, allow_nan=False, allow_infinity=False)),
        "tags": draw(st.none() | st.dictionaries(st.text(max_size=2), st.integers(-5, 5), max_size=2)),
        "list": draw(st.none() | st.lists(st.none() | st.text(max_size=2), max_size=2)),
    }


def with_schema(content: dict[str, Any]) -> dict[str, Any]:
    found = framed(content, FIELDS)
    op = {"type": "string", "optional": False, "field": "op"}
    found["schema"]["fields"] = [*found["schema"]["fields"], op]
    return found
