"""Whose changes a changes table holds: what a connector may change, and what makes it another one."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.resuming.identity import identity_of, require_own
from airflow_cdc_provider.jobs.resuming.progress import Progress

MONGODB: dict[str, Any] = {
    "name": "shop",
    "source": {"type": "mongodb", "conn_id": "mongodb_shop", "scope": "database", "target": "shop"},
    "lake": {"namespace": "bronze"},
}
CASSANDRA: dict[str, Any] = {
    "name": "shop",
    "source": {"type": "cassandra", "conn_id": "nodes", "cdc_raw": "/landing/shop"},
    "lake": {"namespace": "bronze"},
}
VITESS: dict[str, Any] = {
    "name": "shop",
    "source": {"type": "vitess", "conn_id": "vtgate", "keyspace": "shop"},
    "lake": {"namespace": "bronze"},
}


def changed(declaration: dict[str, Any], **source: Any) -> dict[str, Any]:
    return {**declaration, "source": {**declaration["source"], **source}}


def stored(declaration: dict[str, Any]) -> Progress:
    """Return what a connector's changes table holds, as it comes back from there."""
    identity = identity_of(Connector.from_dict(declaration))
    return Progress.from_offset(Progress({"stream": {"v": 1}}, identity=identity).to_offset())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (MONGODB, {**MONGODB, "tables": [r"shop\.orders"], "exclude_tables": ["shop.x"]}),
        (MONGODB, {**MONGODB, "snapshot": {"mode": "never"}, "publish": {"envelope": "document"}}),
        (MONGODB, {**MONGODB, "publish": {"topic_prefix": "shop"}}),
        (MONGODB, {**MONGODB, "lake": {"namespace": "bronze", "retention_seconds": 60}}),
        (MONGODB, changed(MONGODB, full_document="none", stream={"oversize": "fail"}, batch=["shop.view"])),
        (CASSANDRA, changed(CASSANDRA, cdc_raw="/other/mount")),
        (CASSANDRA, {**CASSANDRA, "tables": ["shop.orders"]}),
        (VITESS, changed(VITESS, tablet_type="REPLICA", shards=["-80"])),
    ],
)
def test_what_is_captured_and_how_may_change_at_any_time(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    require_own(Connector.from_dict(after), stored(before))


@pytest.mark.covers("VIT-FLT-12")
@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            MONGODB,
            changed(MONGODB, conn_id="mongodb_crm"),
            "conn_id mongodb_shop, found .*mongodb_crm",
        ),
        (MONGODB, changed(MONGODB, target="crm"), "source.target shop, found source.target crm"),
        (MONGODB, changed(MONGODB, scope="collection", target="shop.orders"), "source.scope database"),
        (MONGODB, {**MONGODB, "publish": {"topic_prefix": "crm"}}, "publish.topic_prefix shop, found .* crm"),
        (MONGODB, CASSANDRA, "source.type mongodb"),
        (
            CASSANDRA,
            changed(CASSANDRA, conn_id="others"),
            "source.conn_id nodes, found .*others",
        ),
        (
            changed(CASSANDRA, conn_id=""),
            changed(CASSANDRA, conn_id="", cdc_raw="/b"),
            "cdc_raw /landing",
        ),
        (VITESS, changed(VITESS, conn_id="others"), "source.conn_id vtgate, found .*others"),
        (VITESS, changed(VITESS, keyspace="crm"), "source.keyspace shop, found source.keyspace crm"),
        (VITESS, {**VITESS, "publish": {"topic_prefix": "crm"}}, "publish.topic_prefix shop, found .* crm"),
        ({**MONGODB, "name": "a-b"}, {**MONGODB, "name": "a_b"}, "name a-b, publish.topic_prefix a-b"),
    ],
)
def test_a_connector_of_another_source_is_refused_with_both_ways_on(
    first: dict[str, Any], second: dict[str, Any], message: str
) -> None:
    connector = Connector.from_dict(second)
    assert connector.changes_table == Connector.from_dict(first).changes_table
    with pytest.raises(
        ConfigurationError, match=rf"{connector.changes_table} holds .*{message}.*offsets adopt"
    ):
        require_own(connector, stored(first))


def test_a_table_from_before_identities_belongs_to_its_next_job() -> None:
    require_own(
        Connector.from_dict(MONGODB), Progress.from_offset(Progress({"stream": {"v": 1}}).to_offset())
    )


def test_what_stands_with_the_offset_comes_back_from_it() -> None:
    written = Progress(
        {"stream": {"v": 1}},
        identity=identity_of(Connector.from_dict(MONGODB)),
        arrivals=0,
        ended={"shop.gone": 7},
    )
    assert Progress.from_offset(written.to_offset()) == written
    assert Progress.from_offset(Progress().to_offset()) == Progress()
