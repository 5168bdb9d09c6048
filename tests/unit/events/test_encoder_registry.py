"""What the encoder asks of a registrar, and what stands before the bytes then."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.events import heartbeats
from airflow_cdc_provider.events.connect import INT64, OPTIONAL_STRING, STRING, ConnectSchema, struct
from airflow_cdc_provider.events.encoder import ConverterName, Converters, Destination, Envelope, encode
from airflow_cdc_provider.events.framing import TopicSchema, frame, wire_prefix
from airflow_cdc_provider.exceptions import ConfigurationError


@dataclass
class CountingRegistrar:
    """Returns IDs from 258, and records requested schemas."""

    requested: list[TopicSchema] = field(default_factory=list)

    def schema_id(self, schema: TopicSchema) -> int:
        self.requested.append(schema)
        return 257 + len(self.requested)


KEY = struct("k.Key", ("id", INT64))
VALUE = struct("k.Value", ("id", INT64), ("name", OPTIONAL_STRING))


def envelope(**changes: Any) -> Envelope:
    """Three events in two topics, the last one a delete, a third topic without any."""
    keys = pa.array([{"id": 1}, {"id": 2}, {"id": 3}], pa.struct([("id", pa.int64())]))
    kind = pa.struct([("id", pa.int64()), ("name", pa.utf8())])
    values = pa.array([{"id": 1, "name": "a"}, {"id": 2, "name": None}, None], kind)
    made = Envelope(
        [Destination(f"t{i}", KEY.named(f"k{i}.Key"), VALUE.named(f"k{i}.Value")) for i in range(3)],
        np.array([0, 1, 0]),
        keys,
        values,
        np.array([False, False, True]),
    )
    return replace(made, **changes)


@pytest.mark.parametrize(("name", "index"), [("avro", b""), ("protobuf", b"\0")])
def test_each_topic_has_ids_of_its_own_and_nulls_have_none(name: ConverterName, index: bytes) -> None:
    registrar = CountingRegistrar()
    bare = encode(envelope(), Converters(name, name))
    framed = encode(envelope(), Converters(name, name, registrar=registrar))
    ids = {(item.topic, item.side): 258 + i for i, item in enumerate(registrar.requested)}
    assert sorted(ids) == [("t0", "key"), ("t0", "value"), ("t1", "key"), ("t1", "value")]
    for side in ("key", "value"):
        for topic, plain, bytes_ in zip(*(bare["topic"], bare[side], framed[side]), strict=True):
            if plain.as_py() is None:
                assert bytes_.as_py() is None
                continue
            schema_id = ids[topic.as_py(), side]
            assert bytes_.as_py() == b"\0" + schema_id.to_bytes(4, "big") + index + plain.as_py()
    assert framed["value"].null_count == 2  # the delete and its tombstone
    records = {(item.topic, item.side): item.record for item in registrar.requested}
    assert records["t1", "value"] == "k1.Value"
    assert {item.type for item in registrar.requested} == {name.upper()}


def test_a_topic_with_tombstones_alone_registers_no_value() -> None:
    registrar = CountingRegistrar()
    events = envelope(destination=np.array([0, 0, 1]))
    encode(events, Converters("avro", "avro", registrar=registrar))
    assert ("t1", "value") not in {(item.topic, item.side) for item in registrar.requested}
    assert ("t1", "key") in {(item.topic, item.side) for item in registrar.requested}


def test_formats_without_schemas_use_no_registry() -> None:
    registrar = CountingRegistrar()
    for name in ("json", "string"):
        encode(envelope(), Converters(name, name, registrar=registrar))
    assert not registrar.requested


def test_null_keys_stay_null() -> None:
    keys = pa.nulls(3, pa.struct([("id", pa.int64())]))
    for name in ("avro", "protobuf", "string"):
        registrar = CountingRegistrar()
        made = encode(envelope(key=keys), Converters(name, name, registrar=registrar))
        assert made["key"].null_count == made.num_rows
        assert {item.side for item in registrar.requested} <= {"value"}


def test_text_is_that_of_java() -> None:
    made = encode(envelope(), Converters("string", "string"))
    assert made["key"].to_pylist() == ["Struct{id=1}", "Struct{id=2}", "Struct{id=3}", "Struct{id=3}"]
    assert made["value"].to_pylist() == ["Struct{id=1,name=a}", "Struct{id=2}", None, None]
    items = ConnectSchema("array", items=ConnectSchema("double", optional=True), optional=True)
    pairs = ConnectSchema("map", keys=STRING, items=struct("s", ("b", ConnectSchema("boolean"))))
    kind = pa.struct(
        [("l", pa.list_(pa.float64())), ("m", pa.map_(pa.utf8(), pa.struct([("b", pa.bool_())])))]
    )
    rows = [
        {"l": [1.0, None, float("nan"), 1e21], "m": [("x", {"b": True}), ("y", {"b": False})]},
        {"l": None, "m": []},
    ]
    events = Envelope(
        [Destination("t", STRING, struct("v", ("l", items), ("m", pairs)))],
        np.zeros(2, np.int64),
        pa.array(["a", "b"]),
        pa.array(rows, kind),
        np.zeros(2, np.bool_),
    )
    made = encode(events, Converters("string", "string"))
    assert made["key"].to_pylist() == ["a", "b"]
    assert made["value"].to_pylist() == [
        "Struct{l=[1.0, null, NaN, 1.0E21],m={x=Struct{b=true}, y=Struct{b=false}}}",
        "Struct{m={}}",
    ]


def test_bytes_are_what_they_are_and_nothing_else_is() -> None:
    events = Envelope(
        [Destination("t", STRING, ConnectSchema("bytes", optional=True))],
        np.zeros(2, np.int64),
        pa.array(["a", "b"]),
        pa.array([b"\0\xff", None]),
        np.zeros(2, np.bool_),
    )
    made = encode(events, Converters("string", "bytes"))
    assert made["value"].to_pylist() == [b"\0\xff", None]
    with pytest.raises(ConfigurationError, match="not the key of topic t: expected another"):
        encode(events, Converters("bytes", "bytes"))
    with pytest.raises(ConfigurationError, match="bytes have no text"):
        encode(events, Converters("string", "string"))


def test_heartbeats_are_framed_like_all_records() -> None:
    registrar = CountingRegistrar()
    made = encode(heartbeats.build("hb", "p", 5), Converters("avro", "protobuf", registrar=registrar))
    assert made["key"][0].as_py()[:5] == b"\0\0\0\1\2"
    assert made["value"][0].as_py()[:6] == b"\0\0\0\1\3\0"
    assert [item.record for item in registrar.requested] == [
        "io.debezium.connector.common.ServerNameKey",
        "io.debezium.connector.common.Heartbeat",
    ]


@given(
    payload=st.lists(st.none() | st.binary(max_size=70), max_size=8),
    numbers=st.lists(st.integers(0, 2), min_size=8, max_size=8),
    cut=st.integers(0, 3),
)
def test_frames_of_any_bytes(payload: list[bytes | None], numbers: list[int], cut: int) -> None:
    prefixes = [wire_prefix(1), wire_prefix((1 << 31) - 1, (0,)), wire_prefix(70_000, (7, 300))]
    assert prefixes == [b"\0\0\0\0\1", b"\0\x7f\xff\xff\xff\0", b"\0\0\1\x11\x70\4\x0e\xd8\4"]
    which = np.array(numbers[: len(payload)], np.int64)[cut:]
    column = pa.array(payload, pa.large_binary()).slice(cut)
    wanted = [None if b is None else prefixes[n] + b for n, b in zip(numbers, payload, strict=False)][cut:]
    assert frame(prefixes, which, column).to_pylist() == wanted
