"""A table that is created takes no topic, nor the names of its schemas, from another one, nor silences it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.connect import STRING, struct
from airflow_cdc_provider.events.encoder import Destination, Envelope
from airflow_cdc_provider.events.framing import TopicSchema
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.events.transforms.pieces import Piece
from airflow_cdc_provider.exceptions import ConfigurationError, SchemaRejected
from airflow_cdc_provider.jobs.publishing import topic_owners as owners_module
from airflow_cdc_provider.jobs.publishing.origins.changes import Changes
from airflow_cdc_provider.jobs.publishing.topic_owners import MOST_STORED, topic_owners
from airflow_cdc_provider.jobs.resuming.progress import Progress, SnapshotProgress
from airflow_cdc_provider.kafka.positions import PublishPosition
from airflow_cdc_provider.sources.encoding import clash_of, encoded_events, topic_of_table
from tests.bounded import bounded

SOURCES = ("mongodb", "vitess", "scylla", "cassandra")
ENCODINGS: Mapping[str, dict[str, Any]] = {
    "json": {},
    "avro": {"key": "avro", "value": "avro", "schemas": True},
    "protobuf": {"key": "protobuf", "value": "protobuf", "schemas": True},
}


def connector_of(source: str = "mongodb", **publish: Any) -> Connector:
    kafka = {"connection": "kafka", **publish.pop("kafka", {})}
    own = {"keyspace": "k"} if source == "vitess" else {}
    declared = {"name": "p", "source": {"type": source, **own}, "publish": {**publish, "kafka": kafka}}
    return Connector.from_dict(declared)


class OneTopic:
    """A topic naming strategy."""

    def data_change_topic(self, *_: str) -> str:
        return "all"


class Registry:
    """Keeps the topics that it was asked about."""

    def __init__(self) -> None:
        self.topics: list[str] = []

    def schema_id(self, schema: TopicSchema) -> int:
        self.topics.append(schema.topic)
        return 7


def piece_of(connector: Connector, tables: Sequence[str]) -> Piece:
    """Return an event of each table, in this order."""
    keys = pa.StructArray.from_arrays([pa.array(tables)], ["id"])
    schema = struct("Key", ("id", STRING))
    destinations = []
    for table in tables:
        topic = topic_of_table(connector, table)
        destinations.append(
            Destination(topic, schema.named(f"{topic}.Key"), schema.named(f"{topic}.Value"), table=table)
        )
    rows, none = np.arange(len(tables)), np.zeros(len(tables), np.bool_)
    return Piece(Envelope(destinations, rows, keys, keys, none), rows)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("newcomer_first", [False, True])
def test_a_newcomers_records_are_dead_letters_and_the_owners_go_on(
    source: str, encoding: str, newcomer_first: bool
) -> None:
    connector = connector_of(source, topic_delimiter="_", **ENCODINGS[encoding])
    owner, newcomer = "a.b_c", "a_b.c"
    registry = Registry()
    tables = [newcomer, owner] if newcomer_first else [owner, newcomer]
    (name,) = {topic_of_table(connector, table) for table in tables}

    found = encoded_events(connector, [piece_of(connector, tables)], registry, {name: owner})

    assert found["row"].to_pylist() == [0, 1], "in their order"
    faults = dict(zip(tables, found["fault"].to_pylist(), strict=True))
    assert faults[owner] is None
    assert owner in faults[newcomer] and newcomer in faults[newcomer]
    if encoding != "json":
        alone = Registry()
        encoded_events(connector, [piece_of(connector, [owner])], alone)
        assert registry.topics == alone.topics, "no schema of the newcomer is registered"


def test_without_dead_letters_a_newcomer_is_an_error() -> None:
    connector = connector_of(kafka={"on_record_error": "fail"})
    with pytest.raises(SchemaRejected, match=r"acme_1\.t and acme!1\.t would share"):
        encoded_events(connector, [piece_of(connector, ["acme!1.t"])], None, {"p.acme_1.t": "acme_1.t"})


@pytest.mark.parametrize(
    ("publish", "tables", "clash"),
    [
        ({}, ["acme_1.t", "acme!1.t"], True),
        ({}, ["acme_1.t", "acme-1.t"], False),
        ({"value": "avro"}, ["acme_1.t", "acme-1.t"], True),
        ({"value": "avro", "schema_names": "avro_unicode"}, ["acme_1.t", "acme-1.t"], False),
        ({}, ["s." + "x" * 260, "s." + "x" * 261], True),
        ({"topic_delimiter": "_"}, ["a.b_c", "a_b.c"], True),
        ({"topic_pattern": "{database}_{table}"}, ["a.b_c", "a_b.c"], True),
        ({"topic_pattern": "{prefix}.{table}"}, ["a.t", "b.t"], False),  # meant to be shared
        ({"topic_pattern": "{prefix}.{table}"}, ["a.t!", "b.t_"], True),
        ({"topic_pattern": "{prefix}"}, ["a.t", "b.u"], False),
        ({"topic_naming": f"{__name__}:OneTopic"}, ["a.t", "b.u"], False),
    ],
)
def test_tables_clash_if_their_topics_do_though_the_declaration_does_not_join_them(
    publish: dict[str, Any], tables: list[str], clash: bool
) -> None:
    connector, owners = connector_of(**publish), dict[str, str]()
    first, second = (clash_of(connector, table, owners) for table in tables)
    assert first is None
    assert (second is not None) == clash


@pytest.mark.parametrize(
    ("pattern", "table"),
    [
        ("{database}.{table}", "p.cdc-positions"),
        ("{database}-{table}", "p.signal"),
        ("{prefix}.{table}", "any.transaction"),
        ("{database}.{table}", "__debezium-heartbeat.p"),
        ("{table}", "a.news"),
        ("{database}", "p.t"),
    ],
)
def test_no_table_writes_to_the_connectors_own_topics(pattern: str, table: str) -> None:
    declared: dict[str, Any] = {
        "name": "p",
        "source": {"type": "mongodb"},
        "signals": {"channels": ["kafka"]},
        "notifications": {"channels": ["sink"], "topic": "news"},
        "publish": {
            "kafka": {"connection": "kafka"},
            "topic_pattern": pattern,
            "transactions": True,
            "schema_changes": True,
            "schema_changes_topic": "x",
        },
    }
    if pattern == "{database}":
        declared["source"] = {"type": "vitess", "keyspace": "k"}
        del declared["publish"]["schema_changes_topic"]
    connector = Connector.from_dict(declared)
    (fault,) = encoded_events(connector, [piece_of(connector, [table])])["fault"].to_pylist()
    assert "is that of the connector's" in fault
    (fault,) = encoded_events(connector, [piece_of(connector, ["shop.orders"])])["fault"].to_pylist()
    assert fault is None


@pytest.mark.parametrize(
    "transform",
    [
        {"type": "rename_topic", "regex": r"([^.]+)\.([^.]+)\.(.*)", "replacement": "$3"},
        {"type": "route", "topic": "'p.cdc-positions'"},
    ],
)
@pytest.mark.parametrize("table", ["x.p-signal", "x.p.cdc-positions"])
def test_no_table_writes_to_the_connectors_own_topics_after_transforms(
    transform: dict[str, Any], table: str
) -> None:
    declared: dict[str, Any] = {
        "name": "p",
        "source": {"type": "mongodb"},
        "signals": {"channels": ["kafka"]},
        "publish": {"kafka": {"connection": "kafka"}, "transforms": [transform]},
    }
    connector = Connector.from_dict(declared)
    tables = ["y.orders", table] if transform["type"] == "rename_topic" else [table]
    found = encoded_events(connector, [piece_of(connector, [*tables, *tables])], Registry())
    assert found["row"].to_pylist() == list(range(2 * len(tables))), "in their order"
    for name, fault in zip([*tables, *tables], found["fault"].to_pylist(), strict=True):
        assert (fault is not None) == (name == table)
        assert fault is None or "is that of the connector's" in fault
    declared["publish"]["kafka"]["on_record_error"] = "fail"
    with pytest.raises(ConfigurationError, match="is that of the connector's"):
        encoded_events(Connector.from_dict(declared), [piece_of(connector, tables)])


def decided(
    connector: Connector, known: Sequence[str], tables: Sequence[str], first: Mapping[str, int]
) -> dict[str, str]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owners_module, "_first_recorded", lambda changes: first)
        changes: Any = None
        return topic_owners(connector, changes, known, tables)


NAMES = st.sampled_from(["a!b.t", "a_b.t", "a b.t", "c.t_1", "c.t?1", "d.e"])
TABLES = st.lists(NAMES, unique=True, min_size=1)


@given(TABLES, TABLES, st.data())
def test_who_owned_a_topic_owns_it_whatever_is_created(
    before: list[str], created: list[str], data: st.DataObject
) -> None:
    connector = connector_of()
    times = st.integers(0, 100)
    first = {table: data.draw(times) for table in before}
    owners = decided(connector, (), before, first)
    known = list(owners.values())
    later = dict.fromkeys({*before, *created}, 101) | first
    if data.draw(st.booleans()) and known:  # evidence that expired, or that a snapshot replaced
        later |= dict.fromkeys(known, 200)
    undisputed = {topic_of_table(connector, table): table for table in before}
    again = decided(connector, known, data.draw(st.permutations(sorted({*before, *created}))), later)

    for name, owner in again.items():
        assert owner == owners.get(name, undisputed.get(name, owner)), "who was first stays first"
    assert all(owner in {*before, *created} for owner in again.values())


def test_a_position_has_a_bounded_number_of_owners_and_keeps_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owners_module, "_first_recorded", lambda changes: {})
    tables = [f"{name}{number}.t" for number in range(3 * MOST_STORED) for name in ("x_", "x!")]
    origin = origin_of([*tables, "victim_.t", "victim!.t"], known_before=[])
    with bounded(seconds=2, mebibytes=64):
        stored = origin.survey(0, ("victim_.t",))
    assert len(stored) == MOST_STORED
    assert stored[0] == "victim_.t"
    later = origin_of(["victim_.t", "victim!.t", "new_.t", "new!.t"], known_before=[]).survey(0, stored[1:])
    assert len(later) == MOST_STORED
    assert {"victim!.t", "new!.t"} < {*later}, "the others' tables are gone"
    position = PublishPosition("p", 1, owners=stored)
    assert PublishPosition.from_json(position.to_json()) == position
    assert b"owners" not in PublishPosition("p", 1).to_json()


def origin_of(recorded: Sequence[str], known_before: Sequence[str], **publish: Any) -> Changes:
    """Return an origin of records of some tables; others were copied before."""
    snapshots = {table: SnapshotProgress(True, started_us=1) for table in known_before}
    state = SimpleNamespace(batch=9, offset=Progress(snapshots=snapshots).to_offset())
    pending = lambda *_: Rows(recorded)  # noqa: E731
    stores: Any = SimpleNamespace(changes=SimpleNamespace(state=lambda: state, pending=pending))
    job: Any = SimpleNamespace(connector=connector_of(**publish), spec=SimpleNamespace(tables=()))
    source: Any = None
    return Changes(job, stores, source, SkippedRecords(strict=False))


class Rows(list[str]):
    """Records of these tables, as a data frame."""

    def select(self, *_: str) -> Rows:
        return self

    def distinct(self) -> Rows:
        return self

    def collect(self) -> list[dict[str, Any]]:
        return [{"kind": record.CHANGE, "source_table": table} for table in self]


def test_a_newcomer_that_is_captured_first_in_a_run_does_not_own_the_topic_of_a_copied_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = {"acme_1.t": 1, "acme!1.t": 5}
    monkeypatch.setattr(owners_module, "_first_recorded", lambda changes: first)
    origin = origin_of(["acme!1.t"], ["acme_1.t"])
    stored = origin.survey(8)
    assert stored == ("acme_1.t",)
    assert origin.owners == {"p.acme_1.t": "acme_1.t"}

    first["acme_1.t"] = 9  # copied again, and its older records expired
    later = origin_of(["acme!1.t", "acme_1.t"], ["acme!1.t", "acme_1.t"])
    assert later.survey(8, stored) == stored
    assert later.owners == {"p.acme_1.t": "acme_1.t"}, "it is in the position"
    assert later.survey(9, stored) == stored, "without new batches"


def test_an_owner_without_a_snapshot_is_found_by_its_older_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners_module, "_first_recorded", lambda changes: {"acme_1.t": 1, "acme!1.t": 5})
    origin = origin_of([], [])
    recorded = {8: "acme!1.t", 0: "acme_1.t"}
    monkeypatch.setattr(
        Changes,
        "_recorded",
        lambda self, after: {(record.CHANGE, table) for batch, table in recorded.items() if batch >= after},
    )
    assert origin.survey(8) == ("acme_1.t",)


def test_a_dead_letter_of_a_clash_takes_as_many_numbers_as_the_records_would() -> None:
    connector = connector_of()
    piece = piece_of(connector, ["acme!1.t"])
    deleted = replace(piece, envelope=replace(piece.envelope, tombstone=np.ones(1, np.bool_)))
    counts = [
        encoded_events(connector, [deleted], None, dict(owners)).num_rows
        for owners in ({}, {"p.acme_1.t": "acme_1.t"})
    ]
    assert counts == [2, 2], "a run that resumes within a batch counts records"
