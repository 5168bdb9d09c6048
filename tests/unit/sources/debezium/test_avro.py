"""Avro out of topics: to the JSON and the schemas that JsonConverter would have written."""

from __future__ import annotations

import io
import json
import math
import pickle
from collections import Counter
from dataclasses import replace
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.events.avro_converter import to_avro as encoded_as_avro
from airflow_cdc_provider.events.avro_schema import avro_of_connect
from airflow_cdc_provider.events.connect import ConnectSchema, schema_of
from airflow_cdc_provider.events.json_converter import to_json
from airflow_cdc_provider.exceptions import TransientError
from airflow_cdc_provider.formats.arrow_bytes import binary_buffer
from airflow_cdc_provider.kafka.registry import RegisteredSchema
from airflow_cdc_provider.sources.debezium import avro_json, converters, json_writing
from airflow_cdc_provider.sources.debezium.avro_program import compile_avro
from airflow_cdc_provider.sources.debezium.converters import LARGE, SOUND, FramedConverter
from airflow_cdc_provider.sources.debezium.reader import read_parted
from airflow_cdc_provider.sources.debezium.recorded_schemas import RecordedSchemas
from airflow_cdc_provider.sources.debezium.registered import RegisteredSchemas
from tests.unit.sources.debezium.avro_messages import (
    DECIMAL,
    ROW,
    framed_key,
    long_numbers,
    rows,
    table_rows,
    with_schema,
)
from tests.unit.sources.debezium.debezium_messages import FEED, Table, column, event, framed, messages, text
from tests.unit.sources.debezium.registry_writers import Registered, as_avro, head, to_avro


def avro(schema: Any, *messages: bytes | None) -> tuple[list[bytes | None], list[bool], dict[str, Any]]:
    """Turn bytes into JSON by their schema."""
    program, shown = compile_avro(json.dumps(schema))
    found, broken = avro_json.avro_to_json(program, *binary_buffer(pa.array(messages, pa.binary())))
    found.validate(full=True)
    return found.to_pylist(), broken.tolist(), dict(shown)


def written(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


@given(st.lists(rows, max_size=5))
def test_what_our_encoder_writes_is_read_back_as_its_json_and_schema(given: list[dict[str, Any]]) -> None:
    schema = replace(schema_of(pa.field("row", ROW, nullable=False)), name="s.Row")
    written_as = avro_of_connect(schema)
    values = pa.array(given, ROW)
    found, broken, shown = avro(
        json.loads(written_as.to_json()), *encoded_as_avro(written_as, values).to_pylist()
    )
    assert not any(broken)
    assert [json.loads(one or b"") for one in found] == [
        json.loads(one) for one in to_json(schema, values).to_pylist()
    ]
    assert shown == json.loads(schema.to_json())


names = st.sampled_from(["a", "b", "c", "d"])


@st.composite
def schemas(draw: st.DrawFn, depth: int = 3) -> Any:
    """Schemas with their values' strategies."""
    kind = draw(st.integers(0, 12 if depth else 7))
    number = draw(st.uuids()).hex
    if kind < 6:
        name = ["boolean", "int", "long", "double", "string", "bytes"][kind]
        values: list[st.SearchStrategy[Any]] = [
            st.booleans(),
            st.integers(-(1 << 31), (1 << 31) - 1),
            long_numbers,
            st.floats(allow_nan=False, allow_infinity=False),
            st.text(),
            st.binary(),
        ]
        return draw(st.sampled_from([name, {"type": name}])), values[kind]
    if kind == 6:
        return {"type": "enum", "name": f"e{number}", "symbols": ["A", "B"]}, st.sampled_from(["A", "B"])
    if kind == 7:
        return {"type": "fixed", "name": f"f{number}", "size": 3}, st.binary(min_size=3, max_size=3)
    inside, values_inside = draw(schemas(depth - 1))
    if kind == 8:
        return {"type": "array", "items": inside}, st.lists(values_inside, max_size=3)
    if kind == 9:
        return {"type": "map", "values": inside}, st.dictionaries(
            st.text(max_size=3), values_inside, max_size=3
        )
    if kind == 10 and not isinstance(inside, list):
        place = draw(st.booleans())
        return (["null", inside] if place else [inside, "null"]), st.none() | values_inside
    fields = draw(st.lists(names, unique=True, max_size=4))
    made = {name: draw(schemas(depth - 1)) for name in fields}
    record = {
        "type": "record",
        "name": f"r{number}",
        "fields": [{"name": name, "type": one} for name, (one, _) in made.items()],
    }
    return record, st.fixed_dictionaries({name: own for name, (_, own) in made.items()})


def plain(value: Any) -> Any:
    """Show a value of fastavro's as JSON has it."""
    import base64

    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list) else value


@given(st.data())
def test_random_values_of_random_schemas_are_those_that_another_library_wrote(data: st.DataObject) -> None:
    schema, values = data.draw(schemas())
    given = data.draw(st.lists(values, max_size=4))
    found, broken, _ = avro(schema, *[written(schema, value) for value in given])
    assert not any(broken)
    assert [json.loads(one or b"") for one in found] == plain(given)


@given(st.data())
def test_messages_that_end_too_early_or_late_or_are_rubbish_leave_nothing(data: st.DataObject) -> None:
    schema, values = data.draw(schemas())
    whole = written(schema, data.draw(values))
    cut = data.draw(st.integers(0, max(0, len(whole) - 1)))
    damaged = whole[:cut] + data.draw(st.binary(min_size=1, max_size=4)) + whole[cut + 1 :]
    found, broken, _ = avro(schema, whole[:cut], whole, whole + b"\0", damaged, None)
    assert broken[0] == bool(whole)
    assert [broken[1], broken[2], broken[4]] == [False, True, False]
    assert [one is None for one in found] == [*broken[:4], True]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("int", b"\x80\x80\x80\x80\x20"),  # 33 bits
        ("long", b"\xff" * 9 + b"\x02"),  # 65 bits
        ("long", b"\xff" * 10 + b"\x01"),
        ("boolean", b"\x02"),
        ("string", b"\x01"),  # a length of -1
        ("string", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, b"\x02"),
        (["null", "int"], b"\x04"),
        (["null", "int"], b"\x01"),
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\x0f\x00"),  # billions of nothing
        ({"type": "array", "items": {"type": "array", "items": "int"}}, b"\x02\x02\x02"),
        ({"type": "array", "items": "int"}, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00"),
        ({"type": "map", "values": "int"}, b"\x02\xffa"),
    ],
)
def test_hostile_bytes_are_broken(schema: Any, message: bytes) -> None:
    found, broken, _ = avro(schema, message)
    assert (found, broken) == ([None], [True])


def _nested(depth: int) -> Any:
    schema: Any = "int"
    for number in range(depth):
        schema = {"type": "record", "name": f"r{number}", "fields": [{"name": "f", "type": schema}]}
    return schema


def _doubling(levels: int) -> Any:
    fields: list[Any] = ["int", "int"]
    for number in range(levels):
        inside = {
            "type": "record",
            "name": f"r{number}",
            "fields": [{"name": f"f{i}", "type": one} for i, one in enumerate(fields)],
        }
        fields = [inside, f"r{number}"]
    return inside


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        '"no.such"',
        '{"type":"record"}',
        json.dumps({"type": "record", "name": "n", "fields": [{"name": "n", "type": ["null", "n"]}]}),
        json.dumps(_nested(100)),
        json.dumps(_doubling(30)),
        "[" * 5000 + "]" * 5000,
        '{"type":"array","items":' * 900 + '"int"' + "}" * 900,
    ],
)
def test_schemas_that_are_none_or_have_no_columns_are_refused(text: str) -> None:
    with pytest.raises(ValueError):  # the only error that a caller must handle
        compile_avro(text)


def test_numbers_that_json_does_not_have_are_text() -> None:
    values = [math.nan, math.inf, -math.inf]
    for kind in ("double", "float"):
        found, _, _ = avro(kind, *[written(kind, value) for value in values])
        assert found == [b'"NaN"', b'"Infinity"', b'"-Infinity"']


def test_logical_types_of_writers_other_than_connect_get_their_columns() -> None:
    given = {
        ("int", "date"): "org.apache.kafka.connect.data.Date",
        ("int", "time-millis"): "org.apache.kafka.connect.data.Time",
        ("long", "time-micros"): "io.debezium.time.MicroTime",
        ("long", "timestamp-millis"): "org.apache.kafka.connect.data.Timestamp",
        ("long", "timestamp-micros"): "io.debezium.time.MicroTimestamp",
    }
    for (kind, logical), name in given.items():
        _, _, shown = avro({"type": kind, "logicalType": logical})
        assert shown["name"] == name
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3}
    _, _, shown = avro(decimal)
    assert (shown["name"], shown["parameters"]) == (
        DECIMAL,
        {"scale": "3", "connect.decimal.precision": "9"},
    )


def test_other_unions_are_structs_with_a_field_for_each_member() -> None:
    record = {"type": "record", "name": "x.R", "fields": [{"name": "v", "type": "int"}]}
    schema = ["null", "int", "string", record]
    found, _, shown = avro(schema, *[written(schema, one) for one in (None, 7, "t", {"v": 1})])
    assert found == [
        b"null",
        b'{"int":7,"string":null,"R":null}',
        b'{"int":null,"string":"t","R":null}',
        b'{"int":null,"string":null,"R":{"v":1}}',
    ]
    assert [(one["field"], one["optional"]) for one in shown["fields"]] == [
        ("int", True),
        ("string", True),
        ("R", True),
    ]


def test_members_of_a_union_with_the_same_last_name_are_distinguished() -> None:
    def record(name: str, field: str) -> dict[str, Any]:
        return {"type": "record", "name": name, "fields": [{"name": field, "type": "int"}]}

    schema = ["null", record("com.a.Address", "x"), record("com.b.Address", "y"), record("com.b.Other", "z")]
    found, broken, shown = avro(schema, b"\x02\x06", b"\x04\x08", b"\x06\x0a")
    assert not any(broken)
    assert [json.loads(one or b"") for one in found] == [
        {"com_a_Address": {"x": 3}, "com_b_Address": None, "Other": None},
        {"com_a_Address": None, "com_b_Address": {"y": 4}, "Other": None},
        {"com_a_Address": None, "com_b_Address": None, "Other": {"z": 5}},
    ]
    assert [one["field"] for one in shown["fields"]] == ["com_a_Address", "com_b_Address", "Other"]
    with pytest.raises(ValueError, match="the same name"):
        avro(["null", record("a.b.C", "x"), record("a_b.C", "y"), record("d.C", "y")])


def converter(registry: Registered) -> FramedConverter:
    return FramedConverter(RegisteredSchemas(registry, "avro"))


def avro_table(registry: Registered) -> Table:
    own = converter(registry)
    return Table(feed=replace(FEED, key_converter=own, value_converter=own))


@given(st.lists(st.tuples(st.sampled_from("crud-"), table_rows()), min_size=1, max_size=8))
def test_the_same_events_as_avro_and_as_json_give_the_same_mirror(steps: list[tuple[str, Any]]) -> None:
    pairs = []
    for op, row in [("c", steps[0][1]), *steps]:
        value = event(op, row, None) if op == "d" else event(op, None, row)
        del value["source"]
        pairs.append((framed_key(row["id"]), None if op == "-" else with_schema(value)))
    plain, registry = Table(), Registered()
    own = avro_table(registry)
    first = plain.take(*pairs)
    second = own.take(
        *[(as_avro(text(key), registry), as_avro(text(value), registry)) for key, value in pairs]
    )
    assert second.schema == first.schema
    assert second.to_pylist() == first.to_pylist()
    # Numbers may be spelled in two ways: 1e7 and 1.0E7. The schemas' names are the same.
    assert own.records[0].drop_columns("payload") == plain.records[0].drop_columns("payload")


@pytest.mark.parametrize(("precision", "scale"), [(3, 5), (3, -2), (0, -2), (3, 3)])
def test_decimals_of_any_scale_are_those_of_json(precision: int, scale: int) -> None:
    parameters = {"scale": str(scale)} | ({"connect.decimal.precision": str(precision)} if precision else {})
    fields = [column("id", "int64"), column("d", "bytes", DECIMAL, **parameters)]
    value = {"before": None, "after": {"id": 1, "d": "ew=="}, "op": "c"}
    op = {"type": "string", "optional": False, "field": "op"}
    shown = framed(value, fields)
    shown["schema"]["fields"].append(op)
    plain, registry = Table(), Registered()
    first = plain.take((framed_key(1), shown))
    # As AvroConverter writes it; a library that refuses such scales writes the same bytes without them.
    decimal = {
        "type": "bytes",
        "scale": scale,
        "precision": precision or 64,
        "connect.version": 1,
        "connect.parameters": parameters,
        "connect.name": DECIMAL,
    }
    record = {
        "type": "record",
        "name": "s.Value",
        "fields": [
            {"name": "id", "type": ["null", "long"], "default": None},
            {"name": "d", "type": ["null", {**decimal, "logicalType": "decimal"}], "default": None},
        ],
    }
    envelope = {
        "type": "record",
        "name": "s.Envelope",
        "fields": [
            {"name": "before", "type": ["null", record]},
            {"name": "after", "type": ["null", "s.Value"]},
            {"name": "op", "type": "string"},
        ],
    }
    number = registry.add("AVRO", json.dumps(envelope))
    message = head(number) + b"\0\x02\x02\x02\x02\x02\x7b\x02c"
    own = avro_table(registry)
    second = own.take((as_avro(text(framed_key(1)), registry), message))
    assert second.schema == first.schema
    assert second.to_pylist() == first.to_pylist()
    assert own.records[0].drop_columns("payload") == plain.records[0].drop_columns("payload")
    assert first.num_rows == 1


def test_each_id_is_requested_once_and_schemas_may_change_in_between() -> None:
    registry = Registered()
    table = avro_table(registry)
    wide = [column("id", "int64"), column("more", "string")]
    op = {"type": "string", "optional": False, "field": "op"}
    pairs = []
    for number in range(6):
        fields, row = (
            ([column("id", "int64")], {"id": number}) if number % 2 else (wide, {"id": number, "more": "m"})
        )
        value = {"before": None, "after": row, "op": "c"}
        shown = framed(value, fields)
        shown["schema"]["fields"].append(op)
        pairs.append((as_avro(text(framed_key(number)), registry), as_avro(text(shown), registry)))
    found = table.take(*pairs)
    assert [row["more"] for row in sorted(found.to_pylist(), key=lambda row: row["id"])] == ["m", None] * 3
    assert set(registry.requested.values()) == {1}
    assert len(registry.requested) == 3


def test_unreadable_messages_are_quarantined_with_position_and_schema() -> None:
    registry = Registered()
    table = avro_table(registry)
    good_key = as_avro(text(framed_key(1)), registry)
    value = {"before": None, "after": {"id": 1}, "op": "c"}
    shown = framed(value, [column("id", "int64")])
    shown["schema"]["fields"].append({"type": "string", "optional": False, "field": "op"})
    good = as_avro(text(shown), registry)
    assert good is not None
    json_schema = registry.add("JSON", "{}")
    nonsense = registry.add("AVRO", "nonsense")
    single = registry.add("AVRO", '"string"')
    strings = registry.add("AVRO", '["null","string"]')
    bad = [
        (good_key, b'{"op":"c"}'),
        (good_key, b"\0\0"),
        (good_key, head(99) + good[5:]),
        (good_key, b"\0\xff\xff\xff\xff"),
        (good_key, good[:-1]),
        (good_key, good + b"\0"),
        (good_key, head(json_schema) + b"{}"),
        (good_key, head(nonsense) + b"{}"),
        (good_key, head(single) + b"\x02a"),
        (good_key, head(single) + b"\x02\xff"),
        (b"{}", good),
        (head(99), good),
    ]
    found = table.take((good_key, good), *bad, (good_key, head(strings) + b"\0"))
    assert found.num_rows == 0  # the last message is a null
    quarantined = [row for row in table.records[0].to_pylist() if row["kind"] == "quarantine"]
    assert [row["reason"].partition(":")[0] for row in quarantined] == [
        "NOT-FRAMED",
        "NOT-FRAMED",
        "UNKNOWN-SCHEMA",
        "UNKNOWN-SCHEMA",
        "MALFORMED",
        "MALFORMED",
        "BAD-SCHEMA",
        "BAD-SCHEMA",
        "MALFORMED",
        "MALFORMED",
        "NOT-FRAMED",
        "UNKNOWN-SCHEMA",
    ]
    assert [row["payload"] for row in quarantined] == [value for _, value in bad]
    assert "partition 0, offset 3, schema 99" in quarantined[2]["reason"]


def test_an_unavailable_registry_fails_the_batch_and_quarantines_nothing() -> None:
    class Down:
        def schema_of(self, schema_id: int) -> RegisteredSchema | None:
            raise TransientError(f"no answer for {schema_id}")

    own = FramedConverter(RegisteredSchemas(Down(), "avro"))
    table = Table(feed=replace(FEED, value_converter=own))
    with pytest.raises(TransientError):
        table.take((framed_key(1), head(1) + b"x"))
    assert not table.records
    assert not table.skipped


def test_a_converter_goes_to_other_processes_without_what_it_compiled() -> None:
    registry = Registered()
    message = to_avro({"type": "string"}, "a", registry)
    own = converter(registry)
    assert own.keys(pa.array([message]))[0].to_pylist() == [b'"a"']
    again = pickle.loads(pickle.dumps(own))
    assert again.keys(pa.array([message]))[0].to_pylist() == [b'"a"']


def test_messages_that_become_too_much_for_one_batch_are_read_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json_writing, "MOST_BYTES", 5000)
    registry = Registered()
    own = converter(registry)
    wide = {
        "type": "record",
        "name": "E",
        "fields": [
            {"name": "op", "type": "string"},
            *({"name": f"column_{i}", "type": ["null", "int"]} for i in range(100)),
        ],
    }
    number = registry.add("AVRO", json.dumps(wide))
    shown = head(number) + b"\x02c" + bytes(100)
    large = head(number) + b"\xc0\x3e" + b"c" * 4000 + bytes(100)
    pairs = [(b'{"id":1}', shown)] * 5 + [(b'{"id":1}', large)] + [(b'{"id":1}', shown)] * 2
    feed = replace(FEED, value_converter=own)
    table = Table(feed=feed)
    found = list(read_parted(messages(pairs), feed, RecordedSchemas(), table.skipped))
    kinds = pa.concat_arrays([one.column("kind") for one in found]).to_pylist()
    assert kinds.count("change") == 7
    assert kinds.count("quarantine") == 1
    offsets = np.concatenate([[one[-1] for one in batch.column("position").to_pylist()] for batch in found])
    assert set(offsets.tolist()) >= set(range(8))


def test_a_large_value_is_read_up_to_the_limit_and_reported_beyond_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json_writing, "MOST_BYTES", 100_000)
    registry = Registered()
    of_text, of_bytes = registry.add("AVRO", '"string"'), registry.add("AVRO", '"bytes"')
    protobuf = registry.add("PROTOBUF", 'syntax = "proto3"; message M { string s = 1; bytes b = 2; }')
    length = b"\xe0\xd4\x03"  # 60,000
    own = converter(registry)
    for number in (of_text, of_bytes):
        texts, faults = own.keys(pa.array([head(number) + b"\xc0\xa9\x07" + b"a" * 60_000]))
        assert faults.tolist() == [SOUND]
        assert len(texts[0].as_py()) == (60_002 if number == of_text else 80_002)
    own = FramedConverter(RegisteredSchemas(registry, "protobuf"))
    for field in (b"\x0a", b"\x12"):
        texts, faults = own.keys(pa.array([head(protobuf) + b"\0" + field + length + b"a" * 60_000]))
        assert faults.tolist() == [SOUND]
        assert len(texts[0].as_py()) > 60_000
    quotes = b'"' * 60_000
    _, faults = own.keys(pa.array([head(protobuf) + b"\0\x0a" + length + quotes]))
    assert faults.tolist() == [LARGE]
    pairs = [(framed_key(1), head(of_text) + b"\xc0\xa9\x07" + quotes)]
    feed = replace(FEED, value_converter=converter(registry))
    (found,) = read_parted(messages(pairs), feed, RecordedSchemas(), Counter())
    assert found.column("kind").to_pylist() == ["quarantine"]
    assert found.column("reason")[0].as_py().startswith("TOO-LARGE: ")


def test_small_messages_do_not_become_large_ones() -> None:
    array = {"type": "array", "items": "null"}
    thousand = b"\xd0\x0f"  # a block of so many elements, which take no bytes
    registry = Registered()
    number = registry.add("AVRO", json.dumps(array))
    given = [head(number) + thousand * count + b"\0" for count in (5, 1000, 10, 100_000)]
    texts, faults = converter(registry).keys(pa.array(given))
    assert faults.tolist() == [SOUND, LARGE, SOUND, LARGE]
    assert [len(one or "") for one in texts.to_pylist()] == [25_001, 0, 50_001, 0]
    names = ";".join(f"int64 name_of_a_column_that_is_long_{i} = {i}" for i in range(1, 1000))
    text = f'syntax = "proto3"; message M {{ repeated N n = 1; }} message N {{ {names}; }}'
    lead = head(registry.add("PROTOBUF", text)) + b"\0"
    own = FramedConverter(RegisteredSchemas(registry, "protobuf"))
    texts, faults = own.keys(pa.array([lead + b"\x0a\0" * count for count in (5, 1000, 6)]))
    assert faults.tolist() == [SOUND, LARGE, SOUND]
    assert [len(json.loads(one or b'{"n":[]}')["n"]) for one in texts.to_pylist()] == [5, 0, 6]


def test_messages_of_many_schemas_are_read_in_parts_where_they_are_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(converters, "MOST_BYTES", 5000)
    registry = Registered()
    numbers = [registry.add("AVRO", json.dumps({"type": "string", "doc": str(i)})) for i in range(5)]
    pairs = [(head(number) + b"\xa0\x1f" + b"a" * 2000, None) for number in numbers]
    feed = replace(FEED, key_converter=converter(registry))
    with pytest.raises(OverflowError):
        feed.key_converter.keys(pa.array([key for key, _ in pairs]))
    assert list(read_parted(messages(pairs), feed, RecordedSchemas(), Table(feed=feed).skipped))


def test_a_connect_schema_without_name_is_a_record_all_the_same() -> None:
    schema = ConnectSchema("struct", fields=(("id", ConnectSchema("int64")),))
    own = avro_of_connect(schema)
    found, _, shown = avro(
        json.loads(own.to_json()), encoded_as_avro(own, pa.array([{"id": 7}])).to_pylist()[0]
    )
    assert found == [b'{"id":7}']
    assert shown["fields"] == [{"type": "int64", "optional": False, "field": "id"}]
