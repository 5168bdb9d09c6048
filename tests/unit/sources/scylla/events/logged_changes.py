"""Logged changes of ScyllaDB, and the events that are built from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.sources.scylla.events.records import ScyllaRecords
from airflow_cdc_provider.sources.scylla.events.tables import LogSchemas
from server_kit.scylla.log_rows import Change
from server_kit.scylla.statements import DeleteRow, Insert, SetWhole, Statement, Update
from tests.unit.server_kit.scylla.item import ITEM, T, i, server, t
from tests.unit.sources.scylla.logged import changes, record_of_change, schema_payload

SHOP, ROW = (i(7),), (i(1),)

INSERT = Insert(SHOP, ROW, {"name": t("tea"), "qty": None})
UPDATE = Update(SHOP, ROW, (SetWhole("qty", i(3)),))
DELETE = DeleteRow(SHOP, ROW)
NOW_NS = 1_700_000_009_123_456_789


def connector(**publish: Any) -> Connector:
    publish_options = {"topic_prefix": "my", **publish}
    return Connector.from_dict({"name": "shop", "source": {"type": "scylla"}, "publish": publish_options})


def logged(*statements: Statement, **cdc: Any) -> list[Change]:
    database = server(**cdc)
    return [c for n, statement in enumerate(statements) for c in database.execute(statement, at=T + n)]


def made(
    given: Sequence[Change], skipped: SkippedRecords | None = None, **publish: Any
) -> list[dict[str, Any]]:
    """Return the records of changes of item."""
    schemas = LogSchemas([("shop.item", 0, schema_payload(ITEM))])
    maker = ScyllaRecords(connector(**publish), NOW_NS, schemas, skipped or SkippedRecords(strict=True))
    rows = (record_of_change(ITEM, change, SHOP) for change in given)
    return list(maker.build(changes(rows)).to_pylist())


def records(
    given: Sequence[Change], skipped: SkippedRecords | None = None, **publish: Any
) -> list[dict[str, Any]]:
    """Return the records of changes of item: key and value as JSON."""
    return [
        {"key": json.loads(row["key"]), "value": row["value"] and json.loads(row["value"])}
        for row in made(given, skipped, **publish)
    ]
