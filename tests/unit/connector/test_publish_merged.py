"""What can be published after merges, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError


def declared(kind: str = "mongodb", lake: dict[str, Any] | None = None, **publish: Any) -> Connector:
    kafka = {"connection": "k", "what": "after_merge", **publish.pop("kafka", {})}
    return Connector.from_dict(
        {"name": "shop", "source": {"type": kind}, "lake": lake or {}, "publish": {**publish, "kafka": kafka}}
    )


def test_rows_of_mongodb_and_whole_rows_of_cassandra_can_be_published() -> None:
    assert declared().publish.kafka.after_merge
    assert declared(envelope="document", key="avro").publish.kafka.after_merge
    assert declared("cassandra", envelope="datastax").publish.kafka.after_merge


@pytest.mark.parametrize(
    ("kind", "publish", "told"),
    [
        ("scylla", {}, "rows of mirrors of source scylla"),
        ("cassandra", {}, "this envelope doesn't have"),
        ("mongodb", {"kafka": {"slices": 2}}, "publish.kafka.slices"),
        ("mongodb", {"transactions": True}, "publish.transactions"),
        ("mongodb", {"schema_changes": True}, "publish.schema_changes"),
        ("mongodb", {"outbox": {"enabled": True, "tables": ["s.o"]}}, "publish.outbox"),
        ("mongodb", {"skip_unchanged": True}, "publish.skip_unchanged"),
        ("mongodb", {"mongodb": {"token_header": True}}, "publish.mongodb.token_header"),
        ("cassandra", {"envelope": "datastax", "cassandra": {"reread": True}}, "publish.cassandra.reread"),
        ("cassandra", {"envelope": "datastax", "event_index": True}, "publish.event_index"),
        ("cassandra", {"envelope": "datastax", "skipped_operations": ["d"]}, "publish.skipped_operations"),
    ],
)
def test_what_only_changes_tell_is_refused(kind: str, publish: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        declared(kind, **publish)
    publish = {**publish, "kafka": {**publish.get("kafka", {}), "connection": ""}}
    assert declared(kind, **publish), "nothing is published"


def test_rows_without_their_static_columns_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="with their static columns"):
        declared("cassandra", {"statics": "table"}, envelope="datastax")
