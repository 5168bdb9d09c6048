"""What can be published after merges, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError


def declared(kind: str = "mongodb", lake: dict[str, Any] | None = None, **publish: Any) -> Connector:
    kafka = {"connection": "k", "mode": "after_merge", **publish.pop("kafka", {})}
    source = {"type": kind, **({"keyspace": "s"} if kind == "vitess" else {})}
    return Connector.from_dict(
        {"name": "shop", "source": source, "lake": lake or {}, "publish": {**publish, "kafka": kafka}}
    )


@pytest.mark.parametrize(
    ("kind", "publish"),
    [
        ("mongodb", {}),
        ("mongodb", {"envelope": "document", "key": "avro"}),
        ("mongodb", {"envelope": "cloudevents"}),
        ("cassandra", {}),
        ("cassandra", {"envelope": "datastax"}),
        ("cassandra", {"envelope": "datastax-cells", "skipped_operations": ["d"]}),
        ("scylla", {"unwrap": {"enabled": True}}),
        ("scylla", {"scylla": {"format": "advanced", "key_placement": ["kafka-key"]}}),
        ("vitess", {"vitess": {"local_vgtid": True}}),
    ],
)
def test_rows_of_mirrors_can_be_published_in_every_envelope_that_shows_them(
    kind: str, publish: dict[str, Any]
) -> None:
    assert declared(kind, **publish).publish.kafka.after_merge


@pytest.mark.parametrize(
    ("kind", "publish", "expected"),
    [
        ("scylla", {"scylla": {"preimages": True}}, "publish.scylla.preimages"),
        ("scylla", {"scylla": {"format": "advanced", "before": "full"}}, "publish.scylla.before"),
        ("scylla", {"scylla": {"format": "advanced", "after": "full"}}, "publish.scylla.after"),
        ("scylla", {"scylla": {"collection_changes": True}}, "publish.scylla.collection_changes"),
        ("scylla", {"scylla": {"source_details": True}}, "publish.scylla.source_details"),
        ("scylla", {"envelope": "cloudevents"}, "publish.envelope: cloudevents"),
        ("vitess", {"envelope": "cloudevents"}, "publish.envelope: cloudevents"),
        ("vitess", {"vitess": {"key_columns": {"s.t": "name"}}}, "publish.vitess.key_columns"),
        ("vitess", {"transactions": True}, "publish.transactions"),
        ("cassandra", {"cassandra": {"before": True}}, "publish.cassandra.before"),
        ("cassandra", {"cassandra": {"order": "write_time"}}, "publish.cassandra.order"),
        ("cassandra", {"envelope": "cloudevents"}, "publish.envelope: cloudevents"),
        ("mongodb", {"kafka": {"slices": 2}}, "publish.kafka.slices"),
        ("mongodb", {"transactions": True}, "publish.transactions"),
        ("mongodb", {"schema_changes": True}, "publish.schema_changes"),
        ("mongodb", {"outbox": {"enabled": True, "tables": ["s.o"]}}, "publish.outbox"),
        ("mongodb", {"skip_unchanged": True}, "publish.skip_unchanged"),
        ("mongodb", {"mongodb": {"resume_token_header": True}}, "publish.mongodb.resume_token_header"),
        ("mongodb", {"mongodb": {"resume_token_field": True}}, "publish.mongodb.resume_token_field"),
        ("cassandra", {"envelope": "datastax", "cassandra": {"reread": True}}, "publish.cassandra.reread"),
        ("cassandra", {"envelope": "datastax", "event_index": True}, "publish.event_index"),
        ("cassandra", {"envelope": "datastax", "skipped_operations": ["d"]}, "publish.skipped_operations"),
    ],
)
def test_options_that_need_changes_are_refused(kind: str, publish: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        declared(kind, **publish)
    publish = {**publish, "kafka": {**publish.get("kafka", {}), "connection": ""}}
    assert declared(kind, **publish), "nothing is published"


def test_rows_without_their_static_columns_are_refused() -> None:
    for envelope in ("datastax", "debezium"):
        with pytest.raises(ConfigurationError, match="requires static columns"):
            declared("cassandra", {"static_columns": "table"}, envelope=envelope)
