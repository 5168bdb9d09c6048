"""Choices of Debezium's events for Cassandra, on its own recording."""

from __future__ import annotations

import base64
import io
import json
import shutil
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider import __version__
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from airflow_cdc_provider.sources.cassandra.events.envelope import split_path
from airflow_cdc_provider.sources.registry import source_plugin
from tests.unit.sources.cassandra.events.cassandra_recordings import FIXTURES, FOLDER, NOW_NS, printed, values


def ops(**publish: Any) -> str:
    return "".join(value["op"] for value in values(printed(**publish)))


@pytest.mark.recorded
@pytest.mark.covers("CAS-EVT-04", "CAS-D3X-10")
def test_operations_are_debeziums_own_or_those_of_its_other_connectors() -> None:
    own = ops()
    assert set(own) == set("iudr")
    assert ops(cassandra={"operations": "common"}) == own.translate(str.maketrans("ir", "ct"))


@pytest.mark.recorded
@pytest.mark.covers("CAS-CFG-31", "CAS-D3X-18")
@pytest.mark.parametrize(
    ("operations", "left"), [(["c"], "udr"), (["i"], "udr"), (["u", "d"], "ir"), (["r"], "iud"), ([], "iudr")]
)
def test_skipped_operations_are_left_out_and_counted(operations: list[str], left: str) -> None:
    skipped = SkippedRecords(strict=False)
    kept = "".join(value["op"] for value in values(printed(skipped, skipped_operations=operations)))
    assert set(kept) == set(left)
    assert len(kept) + skipped.by_kind.total() == len(ops())


@pytest.mark.recorded
@pytest.mark.covers("CAS-D3X-18")
def test_truncations_have_no_event_and_are_counted() -> None:
    skipped = SkippedRecords(strict=False)
    printed(skipped, folder=FIXTURES / "A" / "v7-plain", skipped_operations=["t"])
    ((kind, table),) = skipped.removed
    assert (kind, "trunc" in table) == ("truncate", True)
    (reported,) = skipped.report()
    assert reported.startswith(f"TRUNCATE of {table}: no event deletes their rows")


@pytest.mark.recorded
@pytest.mark.covers("CAS-CFG-33")
def test_the_newest_segment_may_be_read_alone() -> None:
    folder = FIXTURES / "A" / "v7-plain"
    newest = max(folder.glob("cdc_raw/*.log.gz")).name.removesuffix(".gz")
    every = [value["source"] for value in values(printed(folder=folder))]
    alone = [
        value["source"]
        for value in values(printed(folder=folder, source={"advanced": {"latest_segment_only": True}}))
    ]
    assert alone == [source for source in every if source["file"] == newest]
    assert 0 < len(alone) < len(every)
    connector = Connector.from_dict(
        {"name": "p", "source": {"type": "cassandra", "advanced": {"latest_segment_only": True}}}
    )
    with pytest.raises(ConfigurationError, match="a job would lose changes"):
        source_plugin(connector.type).source(connector, {})


@pytest.mark.recorded
@pytest.mark.covers("CAS-EVT-06", "CAS-EVT-07", "CAS-READ-04")
def test_the_documented_source_block_has_its_nine_fields() -> None:
    events = values(printed(source={"cluster": "blue"}, cassandra={"source": "documented"}))
    for event, current in zip(events, values(printed()), strict=True):
        source = event["source"]
        assert list(source) == [
            "version",
            "connector",
            "cluster",
            "snapshot",
            "keyspace",
            "table",
            "file",
            "pos",
            "ts_ms",
        ]
        assert (source["cluster"], source["snapshot"]) == ("blue", False)
        assert source["ts_ms"] == current["source"]["ts_us"]  # microseconds, as its page shows
        assert (source["file"], source["pos"]) == (current["source"]["file"], current["source"]["pos"])


@pytest.mark.recorded
@pytest.mark.covers("CAS-D3X-08")
def test_the_current_source_block_has_the_write_time_in_three_units() -> None:
    for event in values(printed()):
        source = event["source"]
        assert source["ts_ns"] == source["ts_us"] * 1000
        assert source["ts_ms"] == source["ts_us"] // 1000


@pytest.mark.recorded
@pytest.mark.covers("CAS-TOPIC-02", "CAS-EVT-03")
def test_prefix_and_table_name_topics_and_schemas() -> None:
    for event in printed(schemas=True, topic_prefix="blue"):
        topic = event["topic"]
        prefix, keyspace, table = topic.split(".")
        key, value = json.loads(event["key"])["schema"], json.loads(event["value"])
        assert (prefix, keyspace) == ("blue", "shop_e")
        assert value["payload"]["source"]["table"] == table
        assert value["payload"]["source"]["name"] == "blue"
        assert key["name"] == f"io.debezium.connector.cassandra.{topic}.Key"
        assert value["schema"]["name"] == f"io.debezium.connector.cassandra.{topic}.Envelope"
        assert "before" not in value["payload"]


@pytest.mark.recorded
@pytest.mark.covers("CAS-D3X-11")
def test_topics_may_be_named_otherwise() -> None:
    assert {event["topic"] for event in printed(topic_delimiter="-")} == {
        "p-shop_e-scalars",
        "p-shop_e-colls",
        "p-shop_e-clustered",
    }
    named = printed(topic_pattern="data-{database}.{table}_{prefix}")
    assert named[0]["topic"] == "data-shop_e.scalars_p"
    for pattern in ("data", "{keyspace}", "{table} x"):
        with pytest.raises(ConfigurationError, match="topic_pattern: expected"):
            printed(topic_pattern=pattern)


@pytest.mark.recorded
@pytest.mark.covers("CAS-CFG-28", "CAS-EVT-02")
def test_columns_left_out_of_values_stay_in_keys() -> None:
    excluded = ["shop_e.clustered.c1", "shop_e.clustered.v", "shop_e.colls.m"]
    pairs = zip(printed(exclude_columns=excluded), printed(), strict=True)
    left_out = 0
    for event, whole in pairs:
        assert event["key"] == whole["key"]
        value, full = json.loads(event["value"]), json.loads(whole["value"])
        names = [name.rpartition(".")[2] for name in excluded if name.split(".")[1] in event["topic"]]
        for name in names:
            if value["op"] in ("i", "u") or name == "c1":
                assert value["after"][name] is None
            left_out += value["after"][name] != full["after"][name]
            full["after"][name] = value["after"][name]
        assert value == full
    assert left_out > 20


def test_columns_left_out_have_no_value_in_deletions_either() -> None:
    for event in values(printed(exclude_columns=["shop_e.clustered.v"])):
        cell = event["after"].get("v")
        assert cell is None or cell["value"] is None


@pytest.mark.recorded
@pytest.mark.covers("CAS-CFG-28")
def test_a_field_of_a_user_defined_type_is_left_out_alone() -> None:
    folder = FIXTURES / "datastax-A"

    def first(**publish: Any) -> dict[str, Any]:
        events = [e for e in printed(folder=folder, **publish) if e["topic"].endswith("nested")]
        after: dict[str, Any] = values(events)[0]["after"]
        return after

    whole, part = first(), first(exclude_columns=["shop_f.nested.a.zip", "shop_f.nested.p.home.street"])
    assert (whole["a"]["value"]["zip"], part["a"]["value"]["zip"]) == (-5, None)
    assert (whole["p"]["value"]["home"]["street"], part["p"]["value"]["home"]["street"]) == ("s", None)
    assert part["p"]["value"]["home"]["zip"] == whole["p"]["value"]["home"]["zip"]
    assert part["l"] == whole["l"]
    with pytest.raises(ConfigurationError, match=r"excluded field a\.zap doesn't exist"):
        first(exclude_columns=["shop_f.nested.a.zap"])


def with_statement(folder: Path, statement: str) -> Path:
    """Copy a recording whose schema has one more statement."""
    shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
    schema = folder / "schema.cql"
    schema.write_text(f"{schema.read_text()}\n{statement};\n")
    return folder


def test_a_dropped_column_may_be_excluded_and_converted(tmp_path: Path) -> None:
    folder = with_statement(tmp_path, "ALTER TABLE shop_e.colls DROP m")
    scales = {"type": f"{__name__}:times", "columns": r"shop_e\.colls\.m", "factor": 2}

    events = printed(
        folder=folder, exclude_columns=["shop_e.colls.m"], cassandra={"converters": {"scales": scales}}
    )

    assert {event["topic"] for event in events} == {event["topic"] for event in printed()}
    assert not any("m" in value["after"] for value in values(events) if value["source"]["table"] == "colls")


@given(
    st.lists(st.sampled_from(["a", "b", "a.b", "a.b.c", "b.c"]), unique=True), st.sampled_from(["a", "a.b"])
)
def test_excluded_columns_and_fields_may_have_dots(fields: list[str], column: str) -> None:
    names = [column, "d"]
    for field in ["", *fields]:
        found = split_path(f"{column}{'.' if field else ''}{field}".split("."), names)
        assert found[0] == column
        assert ".".join(found[1:]) == field
        if field:
            assert split_path(found[1:], fields)[0] == field


@pytest.mark.parametrize(
    ("excluded", "message"),
    [
        ("shop_e.none.v", "whose table is not captured"),
        ("shop_e.colls.none", "excluded column none doesn't exist"),
        ("colls.m", "expected keyspace.table.column, or"),
    ],
)
def test_columns_that_are_not_there_are_refused(excluded: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        printed(exclude_columns=[excluded])


@pytest.mark.recorded
@pytest.mark.covers("CAS-READ-03")
def test_events_of_one_change_share_its_place_and_are_numbered() -> None:
    numbers: dict[tuple[str, int, str], list[int]] = {}
    for event in printed(folder=FIXTURES / "A" / "v7-plain", event_index=True):
        source = json.loads(event["value"])["source"]
        place = (source["file"], source["pos"], source["table"])
        numbers.setdefault(place, []).append(int(dict(event["headers"])["cdc.index"]))
    assert max(map(len, numbers.values())) > 2
    for found in numbers.values():  # more than one change of a table may be in one entry
        assert found[0] == 0
        assert all(b in (0, a + 1) for a, b in pairwise(found))


@pytest.mark.recorded
@pytest.mark.covers("CAS-D3X-07")
@pytest.mark.parametrize(
    ("modes", "decimal", "varint"),
    [
        ({}, 1.2345678901234567e19, -1),
        (
            {"decimals": "string", "varints": "string"},
            "12345678901234567890.123",
            "-170141183460469231731687303715884105729",
        ),
        (
            {"decimals": "precise", "varints": "precise"},
            {"scale": 3, "value": "Ap1Ctk52cUJEyw=="},
            "/3////////////////////8=",
        ),
    ],
)
def test_numbers_beyond_javas_are_shown_as_chosen(modes: dict[str, str], decimal: Any, varint: Any) -> None:
    after = values(printed(cassandra=modes))[0]["after"]
    assert (after["c_decimal"]["value"], after["c_varint"]["value"]) == (decimal, varint)


@pytest.mark.recorded
@pytest.mark.covers("CAS-D3X-12")
def test_avro_holds_what_json_shows() -> None:
    pairs = list(zip(printed(key="avro", value="avro", schemas=True), printed(), strict=True))
    for event, shown in pairs:
        for side in ("key", "value"):
            schema = fastavro.parse_schema(event[f"{side}_schema"])
            stream = io.BytesIO(base64.b64decode(event[side]))
            record = fastavro.schemaless_reader(stream, schema, None)
            assert not stream.read()
            assert as_shown(record) == json.loads(shown[side])
    assert len(pairs) == 35


def as_shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: as_shown(member) for name, member in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict) and set(value[0]) == {"key", "value"}:
        return {entry["key"]: entry["value"] for entry in value}
    if value == []:
        return value
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


@pytest.mark.recorded
@pytest.mark.covers("CAS-D3X-12", "CAS-CFG-30")
def test_names_are_made_fit_for_avro_where_it_is_written() -> None:
    event = printed(key="avro", value="avro", schemas=True, topic_prefix="my-prefix")[0]
    assert event["topic"].startswith("my-prefix.")
    assert event["key_schema"]["namespace"] == "io.debezium.connector.cassandra.my_prefix.shop_e.scalars"
    with pytest.raises(ConfigurationError, match="'my-prefix' is not a valid Avro name"):
        printed(key="avro", topic_prefix="my-prefix", schema_names="none")
    shown = json.loads(printed(schemas=True, topic_prefix="my-prefix")[0]["key"])["schema"]["name"]
    assert shown == "io.debezium.connector.cassandra.my-prefix.shop_e.scalars.Key"


@pytest.mark.recorded
@pytest.mark.covers("CAS-D3X-12")
def test_fields_are_renamed_on_request() -> None:
    event = printed(schemas=True, field_names="avro_unicode")[0]
    value = json.loads(event["value"])
    assert value["payload"]["ts_u005fms"] == NOW_NS // 1_000_000
    assert value["payload"]["after"]["c_u005fint"] == {"value": -7, "deletion_u005fts": None, "set": True}
    assert [field["field"] for field in value["schema"]["fields"]][:2] == ["ts_u005fms", "op"]


@pytest.mark.recorded
@pytest.mark.covers(
    "DSX-EVT-01", "DSX-EVT-03", "DSX-EVT-05", "DSX-EVT-08", "DSX-EVT-10", "CAS-EVT-06", "CAS-EVT-07"
)
def test_cells_as_datastaxs_documents_show_them() -> None:
    skipped = SkippedRecords(strict=False)
    events = printed(skipped, envelope="datastax-cells", schemas=True)
    payloads = []
    for event in events:
        key, value = json.loads(event["key"]), json.loads(event["value"])
        name = f"io.datastax.connector.cassandra.{event['topic']}"
        assert (key["schema"]["name"], value["schema"]["name"]) == (f"{name}.Key", f"{name}.Envelope")
        after = next(f for f in value["schema"]["fields"] if f["field"] == "after")
        assert after["name"] == f"{name}.Value"
        assert all(
            [m["field"] for m in c["fields"]] == ["value", "deletion_ts", "set"] for c in after["fields"]
        )
        payloads.append(value["payload"])
    assert {payload["op"] for payload in payloads} == set("cud")
    assert {payload["source"]["version"] for payload in payloads} == {__version__}
    assert skipped.by_kind["range deletion"] == ops().count("r") > 0
    update = payloads[2]
    assert update["op"] == "u"
    assert update["after"]["c_ascii"] is None  # unchanged
    assert update["after"]["c_int"]["value"] == 5
    delete = next(payload for payload in payloads if payload["op"] == "d")
    ended_ms = delete["source"]["ts_ms"] // 1000  # that has us
    assert delete["after"]["k"] == {"value": 1, "deletion_ts": ended_ms, "set": True}
    assert not any(cell for name, cell in delete["after"].items() if name != "k")


@pytest.mark.recorded
def test_ranges_are_among_datastaxs_cells_on_request() -> None:
    events = values(printed(envelope="datastax-cells", cassandra={"ranges": True}))
    ranges = [event["after"] for event in events if event["op"] == "t"]
    assert len(ranges) == ops().count("r")
    assert all(after["_range_start"] and after["_range_end"] for after in ranges)
    with pytest.raises(ConfigurationError, match=r"cassandra\.ranges has no effect in envelope debezium"):
        printed(cassandra={"ranges": True})


@pytest.mark.recorded
@pytest.mark.covers("CAS-EVT-14", "CAS-EVT-18")
def test_deletions_are_in_the_columns_as_in_debeziums_code_or_in_the_key_as_documented() -> None:
    events = printed(cassandra={"deletions": "keys"})
    triples = list(zip(map(key_names, events), values(printed()), values(events), strict=True))
    deletes = [found for found in triples if found[1]["op"] == "d"]
    assert deletes
    for keys, code, documented in deletes:
        (ended_us,) = {c["deletion_ts"] for c in code["after"].values() if c and c["deletion_ts"] is not None}
        cells = {name: cell for name, cell in documented["after"].items() if cell}
        assert set(cells) <= keys
        assert {cell["deletion_ts"] for cell in cells.values()} == {ended_us // 1000}
    for _, code, documented in triples:
        if code["op"] in ("i", "u"):
            for cell in filter(None, code["after"].values()):
                if cell.get("deletion_ts") is not None:
                    cell["deletion_ts"] //= 1000
            assert documented == code


def key_names(event: dict[str, Any]) -> set[str]:
    return set(json.loads(event["key"]))


@pytest.mark.parametrize(
    "publish",
    [{"envelope": "datastax"}, {"exclude_columns": ["a.b.c"]}, {"cassandra": {"source": "documented"}}],
)
def test_choices_of_cassandras_events_are_refused_elsewhere(publish: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"option publish\.[\w: -]+ is not supported for source"):
        Connector.from_dict({"name": "p", "source": {"type": "mongodb"}, "publish": publish})


def times(column: pa.Array, settings: Mapping[str, Any]) -> pa.Array:
    """Multiply whole numbers: a converter as a user would write it."""
    return pc.multiply(column.cast(pa.int64()), settings["factor"])


def times_text(column: pa.Array, settings: Mapping[str, Any]) -> pa.Array:
    return times(column, {"factor": int(settings["factor"])})


def shorter(column: pa.Array, settings: Mapping[str, Any]) -> pa.Array:
    return column.slice(1)


def converted(**more: Any) -> list[dict[str, Any]]:
    converter = {"type": f"{__name__}:times", "columns": r"shop_e\.scalars\.(k|c_int)", "factor": 100, **more}
    return printed(schemas=True, cassandra={"converters": {"cents": converter}})


@pytest.mark.recorded
@pytest.mark.covers("CAS-TYPE-27")
def test_columns_are_shown_by_a_converter_of_ones_own() -> None:
    event = converted(schema_name="shop.Cents")[0]
    key, value = json.loads(event["key"]), json.loads(event["value"])
    assert key["payload"] == {"k": 100}
    assert key["schema"]["fields"] == [
        {"type": "int64", "optional": True, "name": "shop.Cents", "field": "k"}
    ]
    assert value["payload"]["after"]["c_int"]["value"] == -700
    assert value["payload"]["after"]["c_smallint"]["value"] == 300
    untouched = [e for e in converted() if "scalars" not in e["topic"]]
    assert untouched == [e for e in printed(schemas=True) if "scalars" not in e["topic"]]


@pytest.mark.recorded
@pytest.mark.covers("CAS-CFG-16")
def test_converters_are_named_in_debeziums_file_with_their_settings() -> None:
    properties = {
        "connector.class": "io.debezium.connector.cassandra.Cassandra5Connector",
        "topic.prefix": "p",
        "key.converter.schemas.enable": "true",
        "converters": "cents, first",
        "cents.type": f"{__name__}:times_text",
        "cents.columns": r"shop_e\.scalars\.(k|c_int)",
        "cents.factor": "100",
        "first.type": f"{__name__}:times_text",
        "first.columns": r"shop_e\.scalars\.c_smallint",
        "first.factor": "2",
    }
    converters = from_debezium(properties).connector.publish.cassandra.converters

    value = json.loads(printed(schemas=False, cassandra={"converters": converters})[0]["value"])

    assert value["after"]["k"]["value"] == 100
    assert value["after"]["c_int"]["value"] == -700
    assert value["after"]["c_smallint"]["value"] == 600


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"type": "none.such:thing"}, r"converter cents can't be loaded.*none\.such"),
        ({"type": f"{__name__}:none"}, "converter cents can't be loaded"),
        ({"type": "times"}, r"expected package\.module:function"),
        ({"columns": "("}, "are not a valid expression"),
        ({"columns": ""}, "has no columns"),
        ({"columns": "c_int"}, "converter cents matches no captured column.*found 'c_int'"),
    ],
)
def test_converters_that_are_wrong_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        converted(**more)


def test_a_converter_that_loses_values_is_reported() -> None:
    skipped = SkippedRecords(strict=False)
    converter = {"type": f"{__name__}:shorter", "columns": ".*c_int"}
    printed(skipped, cassandra={"converters": {"short": converter}})
    assert any("converter short doesn't return a column" in place for place in skipped.undecodable)
