"""Our transforms against Kafka Connect's and Debezium's own, recorded by ``tools/record_transforms.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_cdc_provider.events.encoder import Converters
from airflow_cdc_provider.events.transforms.chain import Chain
from airflow_cdc_provider.events.transforms.pieces import encode_pieces
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from tests.unit.events.transforms.connect_records import pieces_of

FIXTURE = json.loads((Path(__file__).parents[3] / "fixtures/transforms/connect.json").read_text())


def _made(properties: dict[str, str], records: list[dict[str, Any]]) -> list[dict[str, Any] | None]:
    """Return what becomes of each record; None if it is dropped."""
    declared = {
        "connector.class": "io.debezium.connector.vitess.VitessConnector",
        "topic.prefix": "shop",
        "vitess.keyspace": "shop",
        **properties,
    }
    chain = Chain(from_debezium(declared).connector.publish.transforms)
    encoded = encode_pieces(chain.apply(pieces_of(records)), Converters(schemas=True))
    made: list[dict[str, Any] | None] = [None] * len(records)
    for record in encoded.to_pylist():
        made[record["row"]] = record
    return made


@pytest.mark.parametrize("case", FIXTURE["cases"], ids=lambda case: case["name"])
def test_records_are_what_kafka_connects_own_transforms_make_of_them(case: dict[str, Any]) -> None:
    records = [FIXTURE["records"][number] for number in case["records"]]
    made = _made(case["properties"], records)
    assert [one is None for one in made] == [one is None for one in case["results"]]
    for ours, theirs in zip(made, case["results"], strict=True):
        if ours is None:
            continue
        assert ours["topic"] == theirs["topic"]
        assert ours["partition"] == theirs["partition"]
        assert ours["key"] == theirs["key"]
        assert ours["value"] == theirs["value"]
        headers = [[name, json.loads(text)] for name, text in json.loads(f"[{ours['headers']}]")]
        assert headers == [[name, json.loads(text)["payload"]] for name, text in theirs["headers"]]
