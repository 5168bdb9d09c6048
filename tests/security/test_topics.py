"""Hostile messages of a source topic: quarantined, in bounded memory, and of no concern to other topics."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.kafka.consumer import MessageRange
from airflow_cdc_provider.kafka.registry import RegisteredSchema, UnreadableSchema
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.options import parse
from airflow_cdc_provider.sources.contract import ReadLimit, ReadMetrics, SchemaLimit
from airflow_cdc_provider.sources.debezium import recorded_schemas
from airflow_cdc_provider.sources.debezium.capture import plan_batch
from airflow_cdc_provider.sources.debezium.converters import UNKNOWN_ID, FramedConverter
from airflow_cdc_provider.sources.debezium.options import DebeziumOptions
from airflow_cdc_provider.sources.debezium.position import PartitionPosition
from airflow_cdc_provider.sources.debezium.quarantine import UnknownSchemaReader
from airflow_cdc_provider.sources.debezium.reader import SliceReader, TopicSlice, read_parted
from airflow_cdc_provider.sources.debezium.recorded_schemas import (
    LEARNED,
    MOST_SCHEMAS,
    RecordedSchema,
    RecordedSchemas,
)
from airflow_cdc_provider.sources.debezium.records import Feed
from airflow_cdc_provider.sources.debezium.registered import MOST_UNREADABLE, RegisteredSchemas
from airflow_cdc_provider.sources.debezium.schema_history import MOST_COLUMNS, TableRows, owners
from airflow_cdc_provider.sources.debezium.source import DebeziumSource
from airflow_cdc_provider.sources.schema_history import counted_before
from tests.bounded import bounded
from tests.unit.kafka.fake_consumer import FakeConsumer, FakeMessage, end_at
from tests.unit.sources.debezium.debezium_messages import (
    FEED,
    Table,
    column,
    event,
    everything,
    feed_of,
    framed,
    messages,
    rows,
    text,
)
from tests.unit.sources.debezium.registry_writers import head

ROW = text(event("c", None, {"id": 1})) or b""
AVRO_EVENT = json.dumps(
    {
        "type": "record",
        "name": "E",
        "fields": [
            {
                "name": "after",
                "type": {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]},
            },
            {"name": "op", "type": "string"},
        ],
    }
)


class CountingRegistry:
    """Has schema 7; denies 8, and can't give 9."""

    def __init__(self) -> None:
        self.requested: Counter[int] = Counter()

    def schema_of(self, schema_id: int) -> RegisteredSchema | UnreadableSchema | None:
        self.requested[schema_id] += 1
        if schema_id in (8, 9):
            return UnreadableSchema(denied=schema_id == 8)
        return RegisteredSchema("AVRO", AVRO_EVENT) if schema_id == 7 else None


def avro_row(number: int) -> bytes:
    return head(7) + bytes([2 * number]) + b"\x02c"


def read(feed: Feed, *pairs: tuple[Any, Any], known: RecordedSchemas | None = None) -> pa.Table:
    return pa.Table.from_batches(
        read_parted(messages(pairs), feed, known or RecordedSchemas(), Counter()), CHANGE_SCHEMA
    )


def codes(found: pa.Table) -> Counter[str]:
    """Count the codes of quarantined records, and the kinds of the others."""
    code = pc.replace_substring_regex(found["reason"], ":(?s:.)*", "")
    return Counter(pc.coalesce(code, found["kind"]).to_pylist())


def test_messages_of_schemas_that_the_registry_does_not_give_are_quarantined_alone() -> None:
    registry = CountingRegistry()
    feed = replace(FEED, value_converter=FramedConverter(RegisteredSchemas(registry, "avro")))
    pairs = [({"id": one}, head(one) + b"x") for one in (8, 9, 10)] + [({"id": 1}, avro_row(1))]
    found = read(feed, *pairs)
    assert codes(found) == {"UNKNOWN-SCHEMA": 3, "change": 1, "schema": 1}
    reasons = [reason for reason in found["reason"].to_pylist() if reason]
    assert "denies access" in reasons[0]
    assert "error, too large or malformed" in reasons[1]


def test_ids_that_the_registry_does_not_have_cost_a_bounded_number_of_lookups() -> None:
    registry = CountingRegistry()
    feed = replace(FEED, value_converter=FramedConverter(RegisteredSchemas(registry, "avro")))
    read(feed, ({"id": 1}, avro_row(1)))
    pairs = [({"id": one}, head(one) + b"x") for one in range(1000, 11_000)]
    feed = replace(FEED, value_converter=FramedConverter(RegisteredSchemas(registry, "avro")))
    with bounded(seconds=2):
        found = read(feed, ({"id": 1}, avro_row(1)), *pairs)
    assert codes(found) == {"UNKNOWN-SCHEMA": 10_000, "change": 1, "schema": 1}
    assert registry.requested.total() == MOST_UNREADABLE + 2

    options = {
        "topics": [r".*"],
        "value_converter": "avro",
        "registry": {"url": "http://r"},
    }
    reader = SliceReader(
        ClientSettings({"bootstrap.servers": "localhost:1"}),
        parse(DebeziumOptions, options, "source"),
        everything,
        registry=registry,
    )
    other = read(feed_of("server.shop.other", value_converter=feed.value_converter), ({"id": 1}, head(5)))
    late = read(
        feed_of("z.shop.z", value_converter=FramedConverter(RegisteredSchemas(NoSchema(), "avro"))),
        (
            {"id": 1},
            avro_row(1),
        ),
    )
    waiting = pa.concat_tables(
        [one.filter(pc.equal(one["kind"], "quarantine")) for one in (found, other, late)]
    )
    registry.requested.clear()
    again = UnknownSchemaReader(reader, {})
    released = pa.Table.from_batches([one for batch in waiting.to_batches(1000) for one in again(batch)])
    assert codes(released) == {"UNKNOWN-SCHEMA": 10_001, "change": 1, "schema": 1}
    assert registry.requested.total() == MOST_UNREADABLE + 2, "each topic has its own bound"


class NoSchema:
    def schema_of(self, schema_id: int) -> None:
        return None


def test_a_message_above_the_limit_is_quarantined_by_its_position() -> None:
    large, key = FakeMessage(7, bytes(40 << 20)), FakeMessage(8, ROW, bytes(40 << 20))
    script = [[FakeMessage(6, ROW), large, key, FakeMessage(9, ROW), FakeMessage(10, None, bytes(40 << 20))]]
    declared = {"topics": "server.shop.orders", "advanced": {"max_message_bytes": 39 << 20}}
    reader = SliceReader(
        ClientSettings({"bootstrap.servers": "localhost:1"}),
        parse(DebeziumOptions, declared, "source"),
        everything,
        build=FakeConsumer([*script, [end_at(11)]]),
    )
    part = TopicSlice(MessageRange("server.shop.orders", 0, 6, 11), 0, 1, "shop.orders", 0)
    with bounded(seconds=1, mebibytes=16):
        found = pa.Table.from_batches(reader.read([part], ReadMetrics()))
    assert codes(found) == {"TOO-LARGE": 3, "change": 2, "schema": 1}
    quarantined = found.filter(pc.equal(found["kind"], "quarantine"))
    assert quarantined["payload"].null_count == quarantined["key"].null_count == 3
    assert [one[-1] for one in quarantined["position"].to_pylist()] == [7, 8, 10]
    assert "offset 7" in quarantined["reason"][0].as_py()


def schema_of(*names: str) -> Any:
    return framed(
        event("c", None, {"id": 1}), [column("id", "int64"), *(column(name, "string") for name in names)]
    )


@pytest.mark.parametrize("size", [900_000, 1_100_000, 5_000_000])
def test_a_schema_has_a_largest_size(size: int) -> None:
    found = read(FEED, ({"id": 1}, schema_of("n" * size)), ({"id": 2}, schema_of("a")))
    refused = {"BAD-SCHEMA": 1} if size > 1 << 20 else {}
    assert codes(found) == {"change": 2 - len(refused), "schema": 2 - len(refused), **refused}


def test_schemas_of_a_table_and_of_a_topic_are_bounded() -> None:
    known = RecordedSchemas()
    of_table = read(FEED, *(({"id": 1}, schema_of(f"c{one}")) for one in range(1_500)), known=known)
    assert codes(of_table) == {"change": 1_000, "schema": 1_000, "TOO-MANY-SCHEMAS": 500}
    assert codes(read(FEED, ({"id": 1}, schema_of("c7")), known=known)) == {"change": 1}
    other = replace(FEED, table="shop.other")
    assert codes(read(other, ({"id": 1}, schema_of("c7")), known=known)) == {"change": 1, "schema": 1}

    full = RecordedSchemas()
    assert sum(full.add(("t", "a", f"{n}"), 1 << 19) for n in range(100)) == 15, "of together 8 MiB"
    known = RecordedSchemas()
    tables = sum(known.add(("t", f"db.{one}", ""), 0) for one in range(100_000))
    assert 50_000 < tables < 70_000, "a record takes more than its schema"
    assert known.add(("u", "db.1", ""), 0), "another topic has its own bound"
    assert RecordedSchemas({("t", "a", "1"): 64 << 20, ("u", "a", "1"): 1}).full_topics == ["t"]


def recorded_in(batch: int, records: pa.Table, *before: pa.Table) -> pa.Table:
    """Return records as the changes table has them, with those of earlier batches."""
    return pa.concat_tables([*before, records.append_column("batch", pa.repeat(batch, records.num_rows))])


def learned(recorded: pa.Table, limits: Sequence[SchemaLimit] = DebeziumSource.schema_limits) -> pa.Table:
    """Return what the driver reads of recorded schemas, as Spark selects it."""
    with duckdb.connect(config={"threads": 1}) as connection:
        for limit in limits:
            connection.register("recorded", recorded)
            query = f"SELECT *, {counted_before(limit)} AS before FROM recorded"
            columns = ", ".join(recorded.column_names)
            recorded = connection.sql(f"SELECT {columns} FROM ({query}) WHERE before < {limit.most}").arrow()
            recorded = recorded if isinstance(recorded, pa.Table) else recorded.read_all()
    return recorded.drop_columns(["batch"]).cast(CHANGE_SCHEMA)


def sizes(records: pa.Table) -> dict[RecordedSchema, int]:
    return {
        (one["origin"].partition("/")[0], one["source_table"], one["schema_id"]): len(one["payload"])
        for one in records.select(["origin", "source_table", "schema_id", "payload"]).to_pylist()
    }


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 6), st.integers(1, 30), st.integers(1, 3), st.booleans())
@example(4, 150, 15, True)
@example(4, 40, 12, False)
def test_schemas_are_bounded_over_all_slices_and_batches(
    slices: int, schemas: int, tables: int, same: bool
) -> None:
    """Every slice records as many schemas as it may, in each of the batches of a backlog."""
    limits = [replace(one, most=one.most >> 6) if one.most > MOST_SCHEMAS else one for one in LEARNED]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(recorded_schemas, "_MOST_TABLE_BYTES", 8 << 14)
        patched.setattr(recorded_schemas, "_MOST_TOPIC_BYTES", 64 << 14)
        bounded_over_slices(limits, slices, schemas, tables, same=same)


def bounded_over_slices(
    limits: Sequence[SchemaLimit], slices: int, schemas: int, tables: int, *, same: bool
) -> None:
    recorded = recorded_in(0, CHANGE_SCHEMA.empty_table())
    known: dict[RecordedSchema, int] = {}
    payload = bytes(1 << 13)
    for batch in range(1, 4):
        added: list[dict[str, Any]] = []
        for number in range(slices):
            seen = RecordedSchemas(known)
            own = "" if same else f"{batch} {number} "
            for n in range(schemas):
                table, name = f"table{n % tables}", f"{own}{n}"
                if ("t", table, name) not in seen and seen.add(("t", table, name), len(payload)):
                    at = {"position": bytes([batch, n]), "origin": f"t/{number}", "captured_at": batch}
                    added.append({"source_table": table, "schema_id": name, "payload": payload, **at})
        recorded = recorded_in(batch, pa.Table.from_pylist(added, CHANGE_SCHEMA), recorded)
        before, known = known, sizes(learned(recorded, limits))
        assert before.items() <= known.items(), "what was read once is read always"
    of_tables = Counter[str]()
    for (_, table, _), size in known.items():
        of_tables[table] += size
    assert max(of_tables.values()) <= (8 << 14) + len(payload)
    assert of_tables.total() <= (64 << 14) + len(payload)
    assert learned(recorded, limits).num_rows == len(known), "once, however many slices recorded it"
    further = {(topic, table) for topic, table, _ in sizes(recorded).keys() - known.keys()}
    assert not any(RecordedSchemas(known).add((*one, "further"), 0) for one in further), (
        "of what is beyond the most, no later batch records any more"
    )
    if same and schemas <= 10 * tables and schemas <= 100:
        assert len(known) == schemas


def test_schemas_of_a_sound_topic_are_recorded_by_each_slice_and_read_once() -> None:
    """A topic of many tables, of which one has a wide row, in as many slices as it has partitions."""
    declared = {"topics": ".*", "tables_from": "source"}
    connection = {"extra": {"bootstrap.servers": "localhost:1"}}
    source = DebeziumSource(parse(DebeziumOptions, declared, "source"), connection, everything)
    names = [f"column_{one}" for one in range(30)]
    script: list[FakeMessage] = []
    for n in range(200):
        content = schema_of(*(names if n else [f"{one}_{'x' * 100}" for one in range(4_000)]))
        content["payload"]["source"] |= {"db": "shop", "table": f"t{n}"}
        script.append(FakeMessage(n, text(content), b'{"id":1}'))
    recorded = recorded_in(0, CHANGE_SCHEMA.empty_table())
    for batch in range(1, 3):
        reader, metrics = source.reader(), ReadMetrics()
        added: list[pa.Table] = []
        for partition in range(8):
            part = TopicSlice(MessageRange("all", partition, 0, 200), 0, 600, "", 0, slices=600)
            own = replace(reader, build=FakeConsumer([script, [end_at(200)]]))
            found = pa.Table.from_batches(own.read([part], metrics))
            assert codes(found) == {"change": 200, **({"schema": 200} if batch == 1 else {})}
            added.append(found.filter(pc.equal(found["kind"], "schema")))
        recorded = recorded_in(batch, pa.concat_tables(added), recorded)
        assert source.on_batch_read(metrics) == (batch == 1)
        source.learn(learned(recorded))
    assert recorded.num_rows == 8 * 200
    assert len(source._records) == len(source.tables()) == 200
    assert {one["origin"] for one in source._records} == {"all/0"}, "the first one of each"
    assert not any("schemas" in one for one in source.schema_findings())


def test_a_batch_knows_the_schemas_and_lookups_of_earlier_ones() -> None:
    declared = {"topics": ".*", "value_converter": "avro", "registry": {"url": "http://r"}}
    connection = {"extra": {"bootstrap.servers": "localhost:1"}}
    source = DebeziumSource(parse(DebeziumOptions, declared, "source"), connection, everything)
    registry = CountingRegistry()
    metrics = ReadMetrics()
    for batch in range(5):
        reader = replace(source.reader(), registry=registry)
        metrics = ReadMetrics()
        for partition in range(50):
            first = 1000 * (1 + 50 * batch + partition)
            script = [[FakeMessage(n, head(first + n) + b"x") for n in range(1, 31)], [end_at(31)]]
            part = TopicSlice(MessageRange("a.b.c", partition, 1, 31), 0, 50, "b.c", 0, slices=50)
            own = replace(reader, build=FakeConsumer(script))
            assert codes(pa.Table.from_batches(own.read([part], metrics))) == {"UNKNOWN-SCHEMA": 30}
        assert source.on_batch_read(metrics)
    assert registry.requested.total() == 5 * 50 * 10, "ten ids in each slice of a batch, none of them twice"

    source._looked_up = {}
    for _ in range(3):
        metrics = ReadMetrics()
        for partition in range(50):
            script = [[FakeMessage(1, head(5) + b"x"), FakeMessage(2, avro_row(1))], [end_at(3)]]
            part = TopicSlice(MessageRange("a.b.c", partition, 1, 3), 0, 50, "b.c", 0, slices=50)
            own = replace(source.reader(), registry=registry, build=FakeConsumer(script))
            found = codes(pa.Table.from_batches(own.read([part], metrics)))
            assert (found["UNKNOWN-SCHEMA"], found["change"]) == (1, 1), "one id in all slices costs little"
        source.on_batch_read(metrics)
    assert registry.requested[5] == 50, "it isn't looked up again"
    _, other = replace(source.reader(), registry=registry).converters("other")
    assert isinstance(other, FramedConverter)
    assert other.schemas.compiled(5) == UNKNOWN_ID, "another topic has its own"


def test_sound_ids_are_looked_up_however_many_others_a_topic_has() -> None:
    """A registry whose oldest schemas were deleted, and a topic that is read from its beginning."""
    declared = {"topics": ".*", "value_converter": "avro", "registry": {"url": "http://r"}}
    connection = {"extra": {"bootstrap.servers": "localhost:1"}}
    source = DebeziumSource(parse(DebeziumOptions, declared, "source"), connection, everything)
    registry = CountingRegistry()

    def batch(*values: bytes, slices: int = 1) -> pa.Table:
        pairs = [FakeMessage(n, value, b'{"id":1}') for n, value in enumerate(values)]
        build = FakeConsumer([pairs, [end_at(len(pairs))]])
        part = TopicSlice(MessageRange("a.b.c", 0, 0, len(pairs)), 0, slices, "b.c", 0, slices=slices)
        metrics = ReadMetrics()
        reader = replace(source.reader(), registry=registry, build=build)
        found = pa.Table.from_batches(reader.read([part], metrics))
        source.on_batch_read(metrics)
        return found

    dead = [head(one) + b"x" for one in range(1000, 1000 + MOST_UNREADABLE)]
    assert codes(batch(*dead)) == {"UNKNOWN-SCHEMA": MOST_UNREADABLE}
    for slices in (1, 100):
        found = batch(*dead, avro_row(1), slices=slices)
        assert codes(found) == {"UNKNOWN-SCHEMA": MOST_UNREADABLE, "change": 1, "schema": 1}
    for first in range(2000, 20_000, 200):
        found = batch(*(head(first + n) + b"x" for n in range(200)), avro_row(1), slices=100)
        assert codes(found)["change"] == 1, "what the registry had once is read"
    assert registry.requested.total() - registry.requested[7] == MOST_UNREADABLE + 90 * 10


def test_each_retry_looks_up_other_ids_and_gives_up_none_that_it_did_not() -> None:
    declared = {"topics": ".*", "value_converter": "avro", "registry": {"url": "http://r"}}
    options = parse(DebeziumOptions, declared, "source")
    reader = SliceReader(ClientSettings({"bootstrap.servers": "b:1"}), options, everything)
    none = replace(FEED, value_converter=FramedConverter(RegisteredSchemas(NoSchema(), "avro")))
    waiting = read(
        none, *(({"id": 1}, head(one) + b"x") for one in range(1000, 1300)), ({"id": 1}, avro_row(1))
    )
    waiting = waiting.combine_chunks()
    for run in range(1, 500):
        registry = CountingRegistry()
        again = UnknownSchemaReader(replace(reader, registry=registry), {}, 0 if run < 100 else 1 << 60)
        waiting = pa.Table.from_batches(again(waiting.to_batches()[0])).combine_chunks()
        found = codes(waiting)
        assert registry.requested.total() <= MOST_UNREADABLE + 1
        if run >= 100 and not found["UNKNOWN-SCHEMA"]:
            break
    assert found == {"SCHEMA-GIVEN-UP": 300, "change": 1, "schema": 1}


def test_a_plan_says_how_many_slices_share_a_topic() -> None:
    target = {
        f"{topic}/{n}": PartitionPosition(2, 0, "")
        for topic, count in (("a", 600), ("b", 1))
        for n in range(count)
    }
    options = parse(DebeziumOptions, {"topics": ".*"}, "source")
    plan = plan_batch({}, target, dict.fromkeys(target, 0), options, ReadLimit())
    assert Counter((one.range.topic, one.slices) for one in plan.partitions) == {("a", 600): 600, ("b", 1): 1}


def test_columns_of_schemas_are_bounded_and_the_rest_is_kept() -> None:
    table = Table()
    names = [f"c{one}" for one in range(MOST_COLUMNS + 100)]
    with bounded(seconds=8, mebibytes=512):
        content = schema_of(*names)
        content["payload"]["after"] = {"id": 1, names[0]: "first", names[-1]: "last"}
        shown = table.take(({"id": 1}, content))
    assert shown.num_columns == MOST_COLUMNS + 1
    assert rows(shown)[1] == {names[0]: "first", "_rest": f'{{"{names[-1]}":"last"}}'}


def of_topics(tables: Iterable[tuple[str, str, int]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for topic, name, time in tables:
        feed = replace(FEED, topic=topic, captured_us=time)
        found += read(feed, ({"id": 1}, schema_of(name))).filter(pc.field("kind") == "schema").to_pylist()
    return found


@given(st.permutations([("a.evil", "x", 20), ("server.shop.orders", "y", 10), ("z.shop.orders", "z", 30)]))
@settings(max_examples=6)
def test_the_first_topic_of_a_table_keeps_it(order: list[tuple[str, str, int]]) -> None:
    found = of_topics(order)
    assert owners(found) == {"shop.orders": "server.shop.orders"}
    assert list(TableRows.of("shop.orders", found).columns) == ["id", "y"]
    at_once = of_topics((topic, name, 10) for topic, name, _ in order)
    assert owners(at_once)["shop.orders"] == "server.shop.orders", (
        "the topic of its name, if several are first"
    )


@pytest.mark.parametrize("value", [schema_of("x"), None, event("d", {"id": 1}, None), event("t"), ROW])
def test_what_another_topic_has_of_a_table_is_quarantined(value: Any) -> None:
    feed = replace(FEED, topic="a.evil", owners={"shop.orders": "server.shop.orders"})
    found = read(feed, ({"id": 1}, value))
    assert codes(found) == {"OTHER-TOPIC": 1}
    assert (found["payload"][0].as_py() is None) == (value is None), "it is kept whole"

    own = read(FEED, ({"id": 1}, schema_of("y")))
    table = Table()
    table.merge(own.combine_chunks().to_batches()[0])
    if value != event("t"):  # a reader that begins at once with the owner's
        early = read(replace(feed, owners={}), ({"id": 1}, value)).combine_chunks().to_batches()[0]
        assert rows(table.merge(early)) == {1: {}}
        assert [reason.partition(":")[0] for reason in table.reasons] == ["OTHER-TOPIC"]


def test_a_released_message_does_not_take_a_table_from_its_topic() -> None:
    """Its schema became known later than the table of another topic, though it was captured before."""
    earlier = replace(FEED, topic="a.evil", captured_us=1, is_late=True, owners={"shop.orders": FEED.topic})
    assert codes(read(earlier, ({"id": 1}, schema_of("x")))) == {"OTHER-TOPIC": 1}
