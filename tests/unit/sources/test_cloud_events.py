"""CloudEvents of Cassandra and ScyllaDB, for which Debezium's converter has none."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from tests.unit.sources.cassandra.events.cassandra_recordings import printed, values
from tests.unit.sources.scylla.events.logged_changes import DELETE, INSERT, UPDATE, logged, records


def require_cloud_events(events: list[dict[str, Any]], plain: list[dict[str, Any]], kind: str) -> None:
    """Fail unless these are the plain events as CloudEvents, each with an id of its own."""
    assert len({event["id"] for event in events}) == len(plain) == len(events)
    for event, shown in zip(events, plain, strict=True):
        assert event["source"].startswith(f"/debezium/{kind}/")
        assert event["type"] == f"io.debezium.connector.{kind}.DataChangeEvent"
        assert (event["specversion"], event["datacontenttype"]) == ("1.0", "application/json")
        assert event["iodebeziumop"] == shown["op"]
        assert event["iodebeziumtsms"] == str(shown["source"]["ts_ms"])
        assert event["data"] == {name: shown[name] for name in ("before", "after") if name in shown}
        assert all(name.isalnum() for name in event)


@pytest.mark.parametrize("node_header", [True, False])
def test_events_of_cassandra(node_header: bool) -> None:
    choices: dict[str, Any] = {"cassandra": {"node_header": node_header}}
    made = values(printed(envelope="cloudevents", **choices))
    require_cloud_events(made, values(printed(**choices)), "cassandra")
    assert made[0]["id"].startswith("name:p;file:CommitLog-")
    assert (";node:" in made[0]["id"]) == node_header
    with_schemas = values(printed(envelope="cloudevents", schemas=True, **choices))
    assert [event["data"]["payload"] for event in with_schemas] == [event["data"] for event in made]


def test_events_of_scylladb() -> None:
    changes = logged(INSERT, UPDATE, DELETE)
    made = [row["value"] for row in records(changes, envelope="cloudevents") if row["value"]]
    plain = [row["value"] for row in records(changes) if row["value"]]
    require_cloud_events(made, plain, "scylla")
    assert made[0]["id"].startswith("name:my;stream:c0")
    assert [name for name, value in made[0].items() if name.startswith("iodebeziumtx") and value] == []


def test_the_documented_source_block_has_no_attributes() -> None:
    publish = {"envelope": "cloudevents", "cassandra": {"source": "documented"}}
    with pytest.raises(ConfigurationError, match=r"expected publish\.cassandra\.source: current"):
        Connector.from_dict({"name": "c", "source": {"type": "cassandra"}, "publish": publish})
