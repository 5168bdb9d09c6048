"""The tablets' own heartbeats, which a server of its own is to write."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from typing import Any

import pytest

from airflow_cdc_provider.changes.record import CHANGE
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from airflow_cdc_provider.sources.contract import ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.vitess.options import VitessOptions
from airflow_cdc_provider.sources.vitess.protocol import RowChange
from airflow_cdc_provider.sources.vitess.source import VitessSource
from server_kit import VitessServer

pytestmark = pytest.mark.integration

LEAST = {
    "connector.class": "io.debezium.connector.vitess.VitessConnector",
    "name": "beats",
    "topic.prefix": "beats",
    "vitess.keyspace": "shop",
}


@pytest.mark.covers("VIT-HBT-03", "VIT-MET-04")
def test_rows_of_the_tablets_heartbeats_are_streamed_if_enabled() -> None:
    with VitessServer(options=("--heartbeat-enable", "--heartbeat-interval", "250ms")) as server:
        server.define("shop", "create table item (id bigint primary key)", shard_by={"item": "id"})

        def captured(**properties: str) -> tuple[list[dict[str, Any]], Counter[str]]:
            connector = from_debezium({**LEAST, **properties}).connector
            assert isinstance(connector.source, VitessOptions)
            metrics = ReadMetrics()
            with closing(VitessSource(connector.source, server.connection, connector.selects)) as source:
                start = source.start()
                time.sleep(1)  # some heartbeats
                with server.connect("shop").cursor() as cursor:
                    cursor.execute("insert into item (id) values (%s)", (time.time_ns(),))
                plan = source.plan(start, source.head(), ReadLimit())
                batches = list(source.reader().read(plan.partitions, metrics))
            rows = [row for batch in batches for row in batch.to_pylist() if row["kind"] == CHANGE]
            return rows, metrics.counts

        without, _ = captured()
        beating, counts = captured(**{"vitess.stream.keyspace.heartbeats": "true"})
        excluded, left = captured(
            **{"vitess.stream.keyspace.heartbeats": "true", "table.include.list": r"shop\.item"}
        )

    assert {row["source_table"] for row in without} == {"shop.item"}
    assert {row["source_table"] for row in beating} == {"shop.item", "shop.heartbeat"}
    beats = [row for row in beating if row["source_table"] == "shop.heartbeat"]
    assert len(beats) > 2
    assert all(RowChange.FromString(row["payload"]).HasField("after") for row in beats)
    assert counts["filtered"] == 0
    assert {row["source_table"] for row in excluded} == {"shop.item"}
    assert left["filtered"] > 2, "what the server sent and the list leaves out"
