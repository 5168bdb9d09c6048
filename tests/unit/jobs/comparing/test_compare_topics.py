"""Rows of topics against rows of mirrors: what counts as equal, and which differences are reported."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from airflow_cdc_provider.changes.contribution import LIVE_ROW_SCHEMA
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.comparing import topics as stage
from airflow_cdc_provider.jobs.comparing.topics import compare_rows, require_comparable, topics_of_table
from airflow_cdc_provider.sources.debezium.states import write_states
from airflow_cdc_provider.sources.row_events import as_json


def live(rows: dict[str, str]) -> pa.Table:
    """Rows by key, as JSON texts."""
    states = write_states(
        pa.array([""] * len(rows), pa.string()), pa.array([t.encode() for t in rows.values()], pa.binary())
    )
    columns = {"key": pa.array([key.encode() for key in rows], pa.binary()), "state": states}
    arrays = [columns.get(one.name, pa.nulls(len(rows), one.type)) for one in LIVE_ROW_SCHEMA]
    return pa.table(arrays, schema=LIVE_ROW_SCHEMA)


def counts(topic: dict[str, str], mirror: dict[str, str]) -> tuple[int, int, int, int]:
    found = compare_rows(live(topic), live(mirror))
    return found.equal, found.only_left, found.only_right, found.different


@pytest.mark.parametrize("most", [500, 0])
def test_rows_are_equal_whoever_wrote_their_json(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(stage, "_MOST_MEMBERS", most)
    assert counts({"1": '{"a": 1, "b": {"c": [1, 2]}}'}, {"1": '{"a":1,"b":{"c":[1,2]}}'}) == (1, 0, 0, 0)
    assert counts({"1": r'{"a":"\u00e9"}'}, {"1": '{"a":"é"}'}) == (1, 0, 0, 0)
    assert counts({}, {}) == (0, 0, 0, 0)
    assert counts({"1": "{}"}, {"1": "{}"}) == (1, 0, 0, 0)
    assert counts({"1": '{"a":1}', "2": "{}"}, {"1": '{"a":2}', "3": "{}"}) == (0, 1, 1, 1)
    assert counts({"1": '{"a":null}'}, {"1": "{}"}) == (0, 0, 0, 1), "null is not nothing"


def test_samples_name_keys_and_members_and_show_no_value() -> None:
    found = compare_rows(
        live({'{"id":1}': '{"a":1,"card":"4111"}', '{"id":2}': '{"a":"secret"}'}),
        live({'{"id":1}': '{"a":1,"card":"4222"}', '{"id":3}': '{"a":"other"}'}),
    )
    assert list(found.samples) == [
        {"key": '{"id":2}', "only": "left"},
        {"key": '{"id":3}', "only": "right"},
        {"key": '{"id":1}', "columns": ["card"]},
    ]
    assert not any(value in json.dumps(found.samples) for value in ("4111", "4222", "secret", "other"))


def connector(source: dict[str, Any], **publish: Any) -> Connector:
    return Connector.from_dict({"name": "shop", "source": source, "publish": publish})


MONGODB = {"type": "mongodb"}
VITESS = {"type": "vitess", "keyspace": "shop"}
SCYLLA = {"type": "scylla"}


@pytest.mark.parametrize(
    ("source", "publish", "message"),
    [
        ({"type": "cassandra"}, {"envelope": "cloudevents"}, "events of this form don't contain rows"),
        ({"type": "cassandra"}, {"key": "string"}, "topics in this form can't be compared"),
        (SCYLLA, {"scylla": {"format": "advanced"}}, "don't distinguish a null from an unchanged column"),
        (SCYLLA, {"scylla": {"flatten_columns": True}}, "don't distinguish a null from an unchanged"),
        (SCYLLA, {"unwrap": {"enabled": True}}, "events of this form don't contain rows"),
        ({"type": "debezium", "topics": "a"}, {}, "events of source debezium can't be compared"),
        (MONGODB, {"envelope": "cloudevents"}, "events of this form don't contain rows"),
        (VITESS, {"value": "protobuf", "protobuf_nullables": "plain"}, "don't distinguish a null from 0"),
        (MONGODB, {"value": "bytes"}, "topics in this form can't be compared"),
    ],
)
def test_events_that_do_not_contain_rows_are_refused(
    source: dict[str, Any], publish: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        require_comparable(connector(source, **publish))
    require_comparable(connector(VITESS))


def test_topics_are_named_as_publishing_does_unless_others_are_given() -> None:
    mine = connector(MONGODB, topic_prefix="store")
    assert topics_of_table(mine, "shop.orders", {}) == ["store.shop.orders"]
    assert topics_of_table(mine, "shop.orders", {"topic_prefix": "debezium"}) == ["debezium.shop.orders"]
    assert topics_of_table(mine, "shop.orders", {"topics": {"shop.orders": ["x", "y"]}}) == ["x", "y"]
    assert topics_of_table(mine, "shop.orders", {"topics": {"shop.orders": "x"}}) == ["x"]
    without_prefix = connector(
        VITESS, topic_prefix="v", vitess={"topic_prefix": "own", "topic_prefix_excluded_tables": ["shop.a"]}
    )
    assert topics_of_table(without_prefix, "shop.a", {}) == ["v.shop.a"]
    assert topics_of_table(without_prefix, "shop.b", {}) == ["own.shop.b"]


def test_the_other_side_is_written_with_rows_alone() -> None:
    plain = as_json(
        connector(MONGODB, schemas=True, transactions=True, skipped_operations=["r"], key="string")
    )
    assert (plain.publish.key, plain.publish.value, plain.publish.schemas) == ("string", "json", False)
    assert (plain.publish.transactions, plain.publish.skipped_operations) == (False, ())
