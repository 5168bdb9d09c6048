"""Events of recorded VStreams, byte for byte against what Debezium 3.5 made of the same messages."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from tests.unit.sources.vitess.events.vitess_recordings import FIXTURES, declared, records

NAMES = ("default", "tx", "txordered", "unsharded", "strconnect", "dblnano", "iso", "micros")
MADE_AT = re.compile(r'"ts_ms":\d+,"ts_us":\d+,"ts_ns":\d+\}(\}?)$')
RUN_ID = "__debezium.context.runId"


def debeziums(name: str) -> list[str]:
    """Return the recorded lines of Debezium's events, each as it was written."""
    return (
        gzip.decompress((FIXTURES / "events" / f"{name}.events.jsonl.gz").read_bytes()).decode().splitlines()
    )


@pytest.mark.recorded
@pytest.mark.covers(
    "VIT-TOP-01",
    "VIT-TOP-07",
    "VIT-NAM-01",
    "VIT-EVT-01",
    "VIT-EVT-02",
    "VIT-EVT-03",
    "VIT-EVT-04",
    "VIT-EVT-05",
    "VIT-EVT-06",
    "VIT-EVT-08",
    "VIT-EVT-09",
    "VIT-EVT-11",
    "VIT-EVT-13",
    "VIT-EVT-14",
    "VIT-TXN-01",
    "VIT-TXN-02",
    "VIT-TXN-03",
    "VIT-TXN-05",
    "VIT-TXN-06",
    "VIT-TYP-01",
    "VIT-TYP-02",
    "VIT-TYP-03",
    "VIT-TYP-04",
    "VIT-TYP-05",
    "VIT-TYP-06",
    "VIT-TYP-07",
    "VIT-TYP-08",
    "VIT-TYP-09",
    "VIT-TYP-10",
    "VIT-TYP-11",
    "VIT-TYP-12",
    "VIT-TYP-13",
    "VIT-TYP-14",
    "VIT-TYP-15",
    "VIT-TYP-18",
    "VIT-TYP-23",
    "VIT-TYP-24",
    "VIT-TYP-25",
    "VIT-TYP-27",
    "VIT-TYP-28",
)
@pytest.mark.parametrize("name", NAMES)
def test_events_are_those_of_debezium_byte_for_byte(name: str) -> None:
    found = records(declared(name), FIXTURES / "vstream" / f"{name}.vstream")
    expected = debeziums(name)

    assert len(found) == len(expected)
    for ours, line in zip(found, expected, strict=True):
        theirs = json.loads(line)
        assert ours["topic"] == theirs["topic"]
        headers = {name: json.loads(text) for name, text in ours["headers"]}
        assert headers.pop(RUN_ID, None) or not theirs["headers"]
        assert headers == {n: h["payload"] for n, h in theirs["headers"].items() if n != RUN_ID}
        written = f'"key":{ours["key"] or "null"},"value":{ours["value"] or "null"}' + "}"
        if theirs["value"] and "source" in theirs["value"]["payload"]:
            written, recorded = (MADE_AT.sub(r"\1", text.removesuffix("}")) for text in (written, line))
            assert recorded.endswith(written)
        else:
            assert line.endswith(written)


@pytest.mark.recorded
@pytest.mark.covers("VIT-SCO-09")
def test_tables_that_match_no_included_expression_as_a_whole_have_no_events() -> None:
    included = from_debezium(
        {
            "connector.class": "io.debezium.connector.vitess.VitessConnector",
            "topic.prefix": "cdc",
            "vitess.keyspace": "shop",
            "table.include.list": r"shop\.item,shop\.types_.*,order,shop\.evolv",
        }
    ).connector
    chosen = Connector.from_dict({**declared("default").to_dict(), "tables": list(included.tables)})

    found = records(chosen, FIXTURES / "vstream" / "default.vstream")

    topics = Counter(json.loads(line)["topic"] for line in debeziums("default"))
    expected = {t: n for t, n in topics.items() if t == "cdc.shop.item" or "types_" in t}
    assert Counter(record["topic"] for record in found) == expected


@pytest.mark.recorded
@pytest.mark.covers("VIT-EVT-13")
@pytest.mark.parametrize("name", ["default", "unsharded"])
def test_without_schemas_the_payload_alone_is_written(name: str) -> None:
    found = records(declared(name, schemas=False), FIXTURES / "vstream" / f"{name}.vstream")

    for ours, line in zip(found, debeziums(name), strict=True):
        theirs = json.loads(line)
        for side in ("key", "value"):
            payload = theirs[side] and theirs[side]["payload"]
            written = ours[side] and json.loads(ours[side])
            for value in (payload, written):
                if value and "source" in value:
                    value.update(ts_ms=0, ts_us=0, ts_ns=0)
            assert written == payload
