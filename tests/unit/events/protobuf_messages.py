"""Schemas and rows of every type, and classes to read Protobuf messages with."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import google.type
import grpc_tools
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc
from hypothesis import strategies as st

from airflow_cdc_provider.events.connect import schema_of
from airflow_cdc_provider.events.protobuf_schema import Nullables

SOURCES = [Path(grpc_tools.__file__).parent / "_proto", Path(next(iter(google.type.__path__))).parents[1]]
"""Where ``google/protobuf/*.proto`` and ``google/type/*.proto`` are."""

CONFLUENT = {
    "confluent/type/decimal.proto": """syntax = "proto3";
package confluent.type;
message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
""",
    "confluent/meta.proto": """syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta { string doc = 1; map<string, string> params = 2; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
""",
}


@cache
def message_class(text: str, full_name: str) -> Any:
    """Compile a file with protoc and return the class of one of its messages."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, content in {**CONFLUENT, "schema.proto": text}.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(content)
        includes = [f"-I{place}" for place in (folder, *SOURCES)]
        arguments = ["protoc", *includes, "--include_imports", f"--descriptor_set_out={folder}/out"]
        assert protoc.main([*arguments, "schema.proto"]) == 0, text
        files = descriptor_pb2.FileDescriptorSet.FromString((folder / "out").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for compiled in files.file:
        pool.Add(compiled)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(full_name))


INNER = pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.utf8(), nullable=False)])
EVERY_TYPE = pa.struct(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("flag", pa.bool_()),
        pa.field("small", pa.int8()),
        pa.field("single", pa.float32()),
        pa.field("double", pa.float64()),
        pa.field("text", pa.utf8()),
        pa.field("data", pa.binary()),
        pa.field("list", pa.list_(pa.field("element", pa.utf8(), nullable=False))),
        pa.field("numbers", pa.list_(pa.field("element", pa.int64(), nullable=False))),
        pa.field("halves", pa.list_(pa.field("element", pa.float64(), nullable=False))),
        pa.field("map", pa.map_(pa.utf8(), pa.field("value", pa.int64(), nullable=True))),
        pa.field("inner", INNER, metadata={"connect.name": "k.inner"}),
        pa.field(
            "inners", pa.list_(pa.field("element", INNER, nullable=False, metadata={"connect.name": "inner"}))
        ),
    ]
)

SCHEMA = schema_of(pa.field("", EVERY_TYPE, nullable=False, metadata={"connect.name": "shop.orders.Value"}))

longs = st.integers(-(1 << 63), (1 << 63) - 1)

inner = st.fixed_dictionaries({"a": st.none() | st.integers(-(1 << 31), (1 << 31) - 1), "b": st.text()})

rows = st.fixed_dictionaries(
    {
        "id": longs,
        "flag": st.none() | st.booleans(),
        "small": st.none() | st.integers(-128, 127),
        "single": st.none() | st.floats(width=32, allow_nan=False),
        "double": st.none() | st.floats(allow_nan=False),
        "text": st.none() | st.text(),
        "data": st.none() | st.binary(),
        "list": st.none() | st.lists(st.text(), max_size=4),
        "numbers": st.none() | st.lists(longs, max_size=4),
        "halves": st.none() | st.lists(st.floats(allow_nan=False), max_size=4),
        "map": st.none() | st.lists(st.tuples(st.text(), st.none() | longs), max_size=3),
        "inner": st.none() | inner,
        "inners": st.none() | st.lists(inner, max_size=3),
    }
)


def expected_text(row: Any, nullables: Nullables) -> Any:
    """Return what a reader sees: empty lists for none, a type's default for null without presence."""
    row = {**row, **{name: row[name] or [] for name in ("list", "numbers", "halves", "map", "inners")}}
    if nullables != "plain":
        return row
    zeros = {"flag": False, "small": 0, "single": 0.0, "double": 0.0, "text": "", "data": b""}
    row |= {name: zero for name, zero in zeros.items() if row[name] is None}
    row["map"] = [(key, value or 0) for key, value in row["map"]]
    row["inners"] = [{**one, "a": one["a"] or 0} for one in row["inners"]]
    if row["inner"]:
        row["inner"] = {**row["inner"], "a": row["inner"]["a"] or 0}
    return row
