"""Declaration, offsets and small decisions of the source, without a broker."""

from __future__ import annotations

import json
import pickle
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.cli.offline_commands import rows
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError, PositionLost
from airflow_cdc_provider.hooks._of_connector import hook_for
from airflow_cdc_provider.kafka.consumer import MessageRange
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.options import parse
from airflow_cdc_provider.sources.contract import Offset, ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.debezium.connect_schema import ConnectField, name_of, row_schema, type_table
from airflow_cdc_provider.sources.debezium.options import DebeziumOptions
from airflow_cdc_provider.sources.debezium.position import (
    PartitionPosition,
    encode_position,
    encode_positions,
    from_offset,
    origin_of,
    to_offset,
)
from airflow_cdc_provider.sources.debezium.reader import SliceReader, TopicSlice, table_of
from airflow_cdc_provider.sources.debezium.source import DebeziumSource
from airflow_cdc_provider.sources.registry import source_plugin
from airflow_cdc_provider.tasks.lineage import source_namespace
from tests.conftest import ROOT
from tests.unit.kafka.fake_consumer import FakeConsumer, FakeMessage
from tests.unit.sources.debezium.debezium_messages import event, everything

DECLARATION: dict[str, Any] = {
    "name": "shop",
    "source": {"type": "debezium", "conn_id": "kafka_shop", "topics": r"server\..*"},
}


def declared(**other: Any) -> Connector:
    return Connector.from_dict({**DECLARATION, **other})


def test_a_declaration_builds_the_source_and_names_its_hook() -> None:
    connector = declared()
    assert connector.to_dict()["source"]["topics"] == [r"server\..*"]
    source = source_plugin(connector.type).source(connector, {"extra": {"bootstrap.servers": "localhost:1"}})
    assert isinstance(source, DebeziumSource)
    assert source.has_schema_history
    assert source.feed_is_complete
    assert isinstance(pickle.loads(pickle.dumps(source.reader())), SliceReader)
    assert source.tables() == []
    assert hook_for(connector).accepted_types == ("kafka",)
    with pytest.raises(ConfigurationError, match="ad-hoc snapshot"):
        source.plan_snapshot("shop.orders")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": {"type": "debezium", "topics": []}}, "at least one topic"),
        ({"source": {"type": "debezium", "topics": ["("]}}, "regular expressions"),
        ({"source": {**DECLARATION["source"], "start": "2026-01-01"}}, "a timestamp with a time zone"),
        (
            {"source": {**DECLARATION["source"], "advanced": {"consumer": {"sasl.password": "x"}}}},
            "belongs in the connection",
        ),
        (
            {"source": {**DECLARATION["source"], "envelope": "unwrapped", "tables_from": "source"}},
            "tables_from: topic",
        ),
        ({"snapshot": {"mode": "always"}}, "doesn't support snapshots"),
        ({"snapshot": {"on_lost_position": "snapshot"}}, "doesn't support snapshots"),
        ({"publish": {"topic_prefix": "x"}}, "doesn't support publishing"),
    ],
)
def test_what_topics_can_not_do_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        declared(**change)


@pytest.mark.parametrize(
    ("topic", "table"),
    [
        ("server.shop.orders", "shop.orders"),
        ("server.d.dbo.orders", "d.dbo.orders"),
        ("shop.orders", "shop.orders"),
        ("orders", "topics.orders"),
    ],
)
def test_a_topic_names_its_table(topic: str, table: str) -> None:
    assert table_of(topic) == table


def test_offsets_come_back_and_others_are_refused() -> None:
    positions = {"a.b/0": PartitionPosition(3, 1, "id"), "a/b/10": PartitionPosition(0)}
    assert from_offset(to_offset(positions)) == positions
    for wrong in (
        {"a": {"v": 1, "offset": 1}},
        {"a/0": {"v": 2, "offset": 1}},
        {"a/0": {"v": 1, "offset": -1}},
        {"a/0": {"v": 1, "offset": 1 << 63}},
        {"a/0": {"v": 1, "offset": 1, "epoch": 1 << 32}},
        {"a/²": {"v": 1, "offset": 1}},
    ):
        with pytest.raises(ConfigurationError, match="invalid offset"):
            from_offset(wrong)


def test_positions_of_topics_that_are_not_selected_stay_as_they_are() -> None:
    offset = {"server.s.a/0": 5, "server.s.b/0": 7, "other.s.c/0": 8}
    start = to_offset({origin: PartitionPosition(at, epoch=2) for origin, at in offset.items()})
    head = to_offset({"server.s.a/0": PartitionPosition(9)})

    def source(tables_from: str) -> DebeziumSource:
        connector = declared(source={**DECLARATION["source"], "tables_from": tables_from}, tables=[r"s\.a"])
        found = source_plugin("debezium").source(connector, {})
        assert isinstance(found, DebeziumSource)
        found._opened_cluster = Namespace(begins=lambda partitions: dict.fromkeys(partitions, 0))  # type: ignore[assignment]
        return found

    selective = source("topic")
    end = from_offset(selective.plan(start, head, ReadLimit()).end)
    assert {origin: (at.offset, at.epoch) for origin, at in end.items()} == {
        "server.s.a/0": (9, 2), "server.s.b/0": (7, 2), "other.s.c/0": (8, 2)
    }  # fmt: skip
    assert selective.resumes_tables
    # Topics with several tables are read on, whatever tables are selected.
    assert not source("source").resumes_tables
    with pytest.raises(PositionLost, match=r"server\.s\.b/0 was deleted"):
        source("source").plan(start, head, ReadLimit())


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1)), min_size=2))
def test_positions_are_ordered_as_epochs_and_offsets(positions: list[tuple[int, int]]) -> None:
    written = [encode_positions(epoch, np.array([offset]))[0].as_py() for epoch, offset in positions]
    assert written == [encode_position(*position) for position in positions]
    assert sorted(written) == [encode_position(*position) for position in sorted(positions)]


def test_rows_before_and_after_have_one_schema() -> None:
    fields = [{"type": "int32", "field": "id", "optional": False}]
    sides = [
        {"type": "struct", "field": side, "fields": fields, "optional": True} for side in ("before", "after")
    ]
    names = {name_of({**side}) for side in sides}
    assert len(names) == 1
    assert row_schema({"type": "struct", "fields": sides}, unwrapped=False) == sides[1]
    with pytest.raises(ValueError, match="type nonsense"):
        ConnectField.of({"type": "nonsense"})


def test_the_page_has_the_table_of_types() -> None:
    assert type_table() in (ROOT / "docs" / "source-debezium.md").read_text()


def test_lineage_names_the_brokers() -> None:
    connection = {"extra": {"bootstrap.servers": "one:9092, two:9092"}}
    assert source_namespace(declared(), connection) == "kafka://one:9092"


def test_there_are_no_recordings_of_topics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    declaration = tmp_path / "shop.yaml"
    declaration.write_text(json.dumps(DECLARATION))
    arguments = Namespace(connector=str(declaration), input="x", schema="", at=None, table="")
    with pytest.raises(SystemExit):
        rows(arguments)
    assert "topics have no recordings" in capsys.readouterr().err


def test_large_messages_are_read_in_portions() -> None:
    value = json.dumps(event("c", None, {"id": 1, "text": "x" * (9 << 20)})).encode()
    script = [[FakeMessage(n, value) for n in range(8)]]
    settings = ClientSettings({"bootstrap.servers": "localhost:1"})
    options = parse(DebeziumOptions, {"topics": ["t"]}, "source")
    reader = SliceReader(settings, options, everything, build=FakeConsumer(script))
    part = TopicSlice(MessageRange("server.shop.t", 0, 0, 8), 0, 1, "shop.t", 0)
    batches = list(reader.read([part], ReadMetrics()))
    assert [batch.column("kind").to_pylist().count("change") for batch in batches] == [3, 3, 2]
    assert sum(batch.column("kind").to_pylist().count("schema") for batch in batches) == 1


@dataclass
class Cluster:
    """Topics of one partition or several; a message is its number, which counts up over all topics."""

    logs: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    kept_from: dict[tuple[str, int], int] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    written: int = 0

    def create(self, topic: str, partitions: int) -> None:
        self.delete(topic)
        self.written += 1
        self.ids[topic] = f"id{self.written}"
        for number in range(partitions):
            self.logs[topic, number], self.kept_from[topic, number] = [], 0

    def delete(self, topic: str) -> None:
        self.ids.pop(topic, None)
        for one in [one for one in self.logs if one[0] == topic]:
            del self.logs[one], self.kept_from[one]

    def write(self, topic: str, key: int) -> None:
        partitions = [one for one in self.logs if one[0] == topic]
        if partitions:
            self.written += 1
            self.logs[partitions[key % len(partitions)]].append(self.written)

    def expire(self, topic: str) -> None:
        self.kept_from |= {one: len(log) for one, log in self.logs.items() if one[0] == topic}

    def begins(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return {one: self.kept_from[one] for one in partitions}

    def head(self) -> Offset:
        return to_offset(
            {
                origin_of(*one): PartitionPosition(len(log), 0, self.ids[one[0]])
                for one, log in self.logs.items()
            }
        )


TOPICS = ("server.s.a", "server.s.b", "server.s.c", "server.s.calm")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "write", "create", "delete", "expire", "read"]),
        st.sampled_from(TOPICS),
        st.integers(1, 3),
    ),
    max_size=40,
)


@given(STEPS, st.integers(1, 5))
def test_topics_that_lose_messages_are_read_on_in_order_and_stop_no_other(
    steps: list[tuple[str, str, int]], at_once: int
) -> None:
    cluster, offset, found = Cluster(), None, dict[str, list[tuple[int, tuple[int, int]]]]()
    for topic in TOPICS:
        cluster.create(topic, 1)
    for what, topic, number in [*steps, ("read", "", 0)]:
        if what == "read":
            offset = read_all(cluster, offset, found, at_once)
        elif what == "write":
            cluster.write(topic, number)
        elif topic != "server.s.calm":
            getattr(cluster, what)(topic, *([number] if what == "create" else []))
    for topic, messages in found.items():
        written = [message for message, _ in messages]
        assert len(set(written)) == len(written), "once"
        by_age = [version for _, version in sorted(messages)]
        epochs = [epoch for epoch, _ in by_age]
        assert epochs == sorted(epochs), topic
    calm = [message for message, _ in found.get("server.s.calm", [])]
    assert sorted(calm) == cluster.logs["server.s.calm", 0]
    for (topic, _), log in cluster.logs.items():
        left = log[cluster.kept_from[topic, _] :]
        assert set(left) <= {message for message, _ in found.get(topic, [])}


def read_all(
    cluster: Cluster,
    offset: Offset | None,
    found: dict[str, list[tuple[int, tuple[int, int]]]],
    at_once: int,
) -> Offset | None:
    """Read to the head as a capture does, and note the version of each message."""
    source = source_plugin("debezium").source(declared(), {})
    assert isinstance(source, DebeziumSource)
    source._opened_cluster = cluster  # type: ignore[assignment]
    for _ in range(1000):
        try:
            plan = source.plan(offset, cluster.head(), ReadLimit(changes=at_once))
        except PositionLost as lost:
            assert lost.tables
            assert "s.calm" not in lost.tables
            continue
        for part in plan.partitions:
            log = cluster.logs[part.range.topic, part.range.partition]
            found.setdefault(part.range.topic, []).extend(
                (log[at], (part.epoch, at)) for at in range(part.range.start, part.range.end)
            )
        offset = plan.end
        if plan.at_head:
            return offset
    raise AssertionError("it never ends")
