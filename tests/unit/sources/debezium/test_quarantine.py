"""Messages whose schemas the registry learns of later become what they would have become at once."""

from __future__ import annotations

import pickle
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, TransientError
from airflow_cdc_provider.kafka.consumer import MessageRange
from airflow_cdc_provider.kafka.registry import RegisteredSchema, Registry
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.options import parse
from airflow_cdc_provider.sources.contract import ReadMetrics
from airflow_cdc_provider.sources.debezium import avro_program, registered
from airflow_cdc_provider.sources.debezium.options import DebeziumOptions
from airflow_cdc_provider.sources.debezium.position import encode_positions
from airflow_cdc_provider.sources.debezium.quarantine import UnknownSchemaReader
from airflow_cdc_provider.sources.debezium.reader import SliceReader, TopicSlice
from airflow_cdc_provider.sources.debezium.source import DebeziumSource
from airflow_cdc_provider.sources.registry import source_plugin
from tests.unit.kafka.fake_consumer import FakeConsumer, FakeMessage, end_at
from tests.unit.sources.debezium.debezium_messages import column, event, everything, framed, text
from tests.unit.sources.debezium.registry_writers import Registered, as_avro

TOPIC = "server.shop.orders"
FIELDS = [column("id", "int64"), column("name", "string")]
KEY = {"type": "struct", "fields": [{"type": "int64", "optional": False, "field": "id"}], "name": "s.Key"}


class Late(Registered):
    """A registry that answers for an id when it has available of it."""

    def __init__(self) -> None:
        super().__init__()
        self.available: set[int] = set()
        self.error: CdcError | None = None

    def schema_of(self, schema_id: int) -> RegisteredSchema | None:
        if self.error is not None:
            self.requested[schema_id] += 1
            raise self.error
        found = super().schema_of(schema_id)
        return found if schema_id in self.available else None


def with_op(content: Any) -> Any:
    """Write an envelope whose schema has the operation, too."""
    found = framed(content, FIELDS)
    found["schema"]["fields"].append({"type": "string", "optional": False, "field": "op"})
    return found


def messages(registry: Registered, key_converter: str) -> list[FakeMessage]:
    """Some rows, a tombstone, and a value that has no id."""
    found = []
    events = [
        (1, event("c", None, {"id": 1, "name": "é"})),
        (2, event("r", None, {"id": 2, "name": None})),
        (1, event("u", None, {"id": 1, "name": "b"})),
        (2, None),
        (3, event("d", {"id": 3, "name": "c"}, None)),
    ]
    for number, (row, content) in enumerate(events):
        key: Any = {"schema": KEY, "payload": {"id": row}}
        value = None if content is None else as_avro(text(with_op(content)), registry)
        shown = as_avro(text(key), registry) if key_converter == "avro" else text(key)
        found.append(FakeMessage(100 + number, value, shown))
    found.append(FakeMessage(105, b"\1rubbish", found[0].name))
    return found


def reader_of(registry: Registered, key_converter: str, strict: bool = False) -> SliceReader:
    options = {
        "topics": [r"server\..*"],
        "key_converter": key_converter,
        "value_converter": "avro",
        "registry": {"url": "http://r"},
        "advanced": {"strict": strict},
    }
    some = messages(registry, key_converter)
    return SliceReader(
        ClientSettings({"bootstrap.servers": "localhost:1"}),
        parse(DebeziumOptions, options, "source"),
        everything,
        registry=registry,
        build=FakeConsumer([[*some, end_at(106)]]),
    )


PART = TopicSlice(MessageRange(TOPIC, 2, 100, 106), 7, 3, "shop.orders", 1_700_000_000_000_123)


def read(registry: Registered, key_converter: str) -> pa.Table:
    return pa.Table.from_batches(reader_of(registry, key_converter).read([PART], ReadMetrics()))


def again(registry: Registered, key_converter: str, records: pa.Table, strict: bool = False) -> pa.Table:
    reader = UnknownSchemaReader(reader_of(registry, key_converter, strict), {TOPIC: 3})
    return pa.Table.from_batches(
        [made for some in records.to_batches(max_chunksize=4) for made in reader(some)]
    )


def in_order(records: pa.Table) -> list[dict[str, Any]]:
    """Sort records; several may have the same schema."""
    rows = {(row["position"], row["kind"]): row for row in records.to_pylist()}
    seen: set[str] = set()
    found = []
    for place in sorted(rows):
        row = rows[place]
        if row["kind"] == "schema":
            if row["schema_id"] in seen:
                continue
            seen.add(row["schema_id"])
        found.append(row)
    return found


@pytest.mark.parametrize("key_converter", ["avro", "json"])
def test_messages_of_unknown_schemas_become_later_what_they_would_have_been_at_once(
    key_converter: str,
) -> None:
    known = Late()
    known.available = {1, 2}
    expected = read(known, key_converter)
    kinds = expected["kind"].to_pylist()
    assert (kinds.count("change"), kinds.count("quarantine"), kinds.count("schema")) == (5, 1, 1)

    late = Late()
    quarantined = read(late, key_converter).filter(pc.equal(read(late, key_converter)["kind"], "quarantine"))
    at_once = read(late, key_converter).filter(pc.equal(read(late, key_converter)["kind"], "change"))
    assert quarantined.num_rows == (6 if key_converter == "avro" else 5), (
        "a tombstone needs no schema but its key's"
    )
    assert in_order(again(late, key_converter, quarantined)) == in_order(quarantined), "nothing is known yet"

    late.available = {1, 2}
    landed = pa.concat_tables([again(late, key_converter, quarantined), at_once])
    assert in_order(landed) == in_order(expected)


def test_records_quarantined_for_another_reason_are_unchanged_even_if_strict() -> None:
    late = Late()
    late.available = {2}  # that of keys
    some = read(late, "avro")
    quarantined = some.filter(pc.equal(some["kind"], "quarantine"))
    found = again(late, "avro", quarantined, strict=True)
    assert in_order(found) == in_order(quarantined)
    reasons = {row["reason"].partition(":")[0] for row in quarantined.to_pylist()}
    assert reasons == {"UNKNOWN-SCHEMA", "NOT-FRAMED"}


@pytest.mark.parametrize("error", [TransientError("it doesn't answer"), ConfigurationError("it refuses us")])
def test_a_failing_registry_is_queried_once_and_records_are_unchanged(error: CdcError) -> None:
    late = Late()
    quarantined = read(late, "avro")
    late.error = error
    late.requested.clear()
    reader = UnknownSchemaReader(reader_of(late, "avro"), {})
    assert in_order(pa.Table.from_batches(reader(quarantined.combine_chunks().to_batches()[0]))) == in_order(
        quarantined
    )
    assert sum(late.requested.values()) == 1


def test_an_unavailable_registry_is_queried_once_per_task_for_any_number_of_batches() -> None:
    late = Late()
    quarantined = read(late, "avro")
    late.error = TransientError("it doesn't answer")
    late.requested.clear()
    reader = UnknownSchemaReader(reader_of(late, "avro"), {})
    batches = quarantined.combine_chunks().to_batches(max_chunksize=3)
    assert len(batches) == 2
    for _ in range(2):
        found = pa.Table.from_batches([made for some in batches for made in reader(some)])
        assert in_order(found) == in_order(quarantined)
        assert sum(late.requested.values()) == 1
    assert "_task_reader" not in vars(pickle.loads(pickle.dumps(reader))), "the next task queries again"


def test_what_was_captured_at_many_moments_is_read_together_and_keeps_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = Late()
    some = read(late, "avro").combine_chunks()
    count = 300
    row = some.filter(pc.equal(some["kind"], "quarantine")).slice(0, 1)
    moments = [1_700_000_000_000_123 + 1_000_001 * number for number in range(count)]
    quarantined = pa.concat_tables([row] * count).combine_chunks()
    for name, values in (
        ("position", encode_positions(7, np.arange(count))),
        ("captured_at", pa.array(moments).cast(quarantined.schema.field("captured_at").type)),
        ("committed_at", pa.nulls(count, quarantined.schema.field("committed_at").type)),
    ):
        quarantined = quarantined.set_column(
            quarantined.schema.get_field_index(name), quarantined.schema.field(name), values
        )
    late.available = {1, 2}
    late.requested.clear()
    compiled: list[str] = []
    compile_avro = avro_program.compile_avro

    def counted(schema: str, references: list[str]) -> Any:
        compiled.append(schema)
        return compile_avro(schema, references)

    monkeypatch.setattr(registered, "compile_avro", counted)

    reader = UnknownSchemaReader(reader_of(late, "avro"), {TOPIC: 3})
    batches = [made for some in quarantined.to_batches(max_chunksize=100) for made in reader(some)]
    assert len(batches) == 3, "one for each that was given"
    assert len(compiled) == sum(late.requested.values()) == 2, "each schema once in a task"
    found = pa.Table.from_batches(batches)
    changes = found.filter(pc.equal(found["kind"], "change")).sort_by("position")
    assert changes["captured_at"].cast(pa.int64()).to_pylist() == moments
    schemas = found.filter(pc.equal(found["kind"], "schema")).sort_by("position")
    assert schemas["captured_at"].cast(pa.int64()).to_pylist() == [moments[0]], "recorded once by a task"
    dated = schemas["committed_at"].cast(pa.int64()).to_pylist()
    assert dated == [moments[0] // 1000 * 1000]


@pytest.mark.parametrize(("partitions", "reason"), [(1, "LATE-TRUNCATE"), (3, "TRUNCATE")])
def test_a_late_truncate_is_never_applied_and_no_longer_retried(partitions: int, reason: str) -> None:
    late = Late()
    value = as_avro(text(with_op(event("t"))), late)
    build = FakeConsumer([[FakeMessage(100, value, None), end_at(101)]])
    reader = replace(reader_of(late, "json"), build=build)
    part = replace(PART, range=MessageRange(TOPIC, 2, 100, 101), partitions=partitions)
    quarantined = pa.Table.from_batches(reader.read([part], ReadMetrics()))
    assert [row["reason"].partition(":")[0] for row in quarantined.to_pylist()] == ["UNKNOWN-SCHEMA"]

    late.available = {1}
    again = UnknownSchemaReader(reader, {TOPIC: partitions})
    (before,) = quarantined.to_pylist()
    (found,) = pa.Table.from_batches(again(quarantined.to_batches()[0])).to_pylist()
    assert found["reason"].partition(":")[0] == reason
    position = "(topic server.shop.orders, partition 2, offset 100, schema 1)"
    assert found["reason"].endswith(position)
    same = [name for name in before if name != "reason"]
    assert [found[name] for name in same] == [before[name] for name in same]
    late.requested.clear()
    assert (
        pa.Table.from_batches(again(pa.RecordBatch.from_pylist([found], schema=quarantined.schema))).num_rows
        == 1
    )
    assert not late.requested


def test_what_is_older_than_deletions_are_remembered_is_given_up_unless_the_registry_fails() -> None:
    late = Late()
    quarantined = read(late, "avro")
    captured_us = PART.captured_us
    found = quarantined

    def codes(given_up_before_us: int, records: pa.Table = quarantined) -> Counter[str]:
        reader = UnknownSchemaReader(reader_of(late, "avro"), {TOPIC: 3}, given_up_before_us)
        again = pickle.loads(pickle.dumps(reader))(records.combine_chunks().to_batches()[0])
        nonlocal found
        found = pa.Table.from_batches(again)
        kept = [row for row in found.to_pylist() if row["kind"] == "quarantine"]
        return Counter(row["reason"].partition(":")[0] for row in kept)

    waiting = codes(0)
    assert waiting["UNKNOWN-SCHEMA"]
    assert codes(captured_us) == waiting
    late.error = TransientError("it doesn't answer")
    assert codes(captured_us + 1) == waiting, "it may have them"
    late.error = None
    late.available = {1, 2}
    assert codes(captured_us + 1)["SCHEMA-GIVEN-UP"] == 0, "no deletion was forgotten so far"
    late.available = set()
    given_up = Counter({name.replace("UNKNOWN-SCHEMA", "SCHEMA-GIVEN-UP"): n for name, n in waiting.items()})
    assert codes(captured_us + 1) == given_up

    late.available = {1, 2}
    late.requested.clear()
    assert codes(captured_us + 1, found) == given_up, "deletions may be forgotten by now"
    assert not late.requested


def test_sources_give_up_what_is_older_than_the_lake_remembers_deletions() -> None:
    options = {"topics": ["t"], "value_converter": "avro", "registry": {"url": "http://r"}}
    declared = {"name": "shop", "source": {"type": "debezium", **options}}
    connector = Connector.from_dict({**declared, "lake": {"tombstone_retention_seconds": 60}})
    made = source_plugin(connector.type).source(connector, {"extra": {"bootstrap.servers": "localhost:1"}})
    assert isinstance(made, DebeziumSource)
    assert not made.may_become_readable("SCHEMA-GIVEN-UP")
    before = time.time()
    reader = made.quarantine_reader()
    assert isinstance(reader, UnknownSchemaReader)
    assert before - 60 - 1 < reader.given_up_before_us / 1_000_000 <= time.time() - 60


def test_only_sources_with_a_registry_wait_for_schemas() -> None:
    def source(**more: Any) -> DebeziumSource:
        options = parse(DebeziumOptions, {"topics": ["t"], **more}, "source")
        return DebeziumSource(options, {"extra": {"bootstrap.servers": "localhost:1"}}, everything)

    framed_source = source(value_converter="avro", registry={"url": "http://r"})
    assert framed_source.may_become_readable("UNKNOWN-SCHEMA")
    assert not framed_source.may_become_readable("MALFORMED")
    assert not source().may_become_readable("UNKNOWN-SCHEMA")
    reader = pickle.loads(pickle.dumps(framed_source.quarantine_reader()))
    assert isinstance(reader, UnknownSchemaReader)
    assert isinstance(reader.reader.registry, Registry)
    assert reader.reader.registry.patience.unknown_seconds == 0
