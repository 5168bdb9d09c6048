"""The field ``before`` of events, on recordings: what stood of a row when its change came."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from tests.unit.sources.cassandra.events.cassandra_recordings import FIXTURES, FOLDER, printed, values

BEFORE = {"before": True}
WORKLOAD = FIXTURES / "A" / "v7-plain"


def of_one_row(events: list[dict[str, Any]]) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
    """Yield the values of each row's events, by topic and key, tombstones left out."""
    rows: dict[Any, list[dict[str, Any]]] = {}
    for event in events:
        if event["value"] is not None:
            rows.setdefault((event["topic"], event["key"]), []).append(json.loads(event["value"]))
    yield from rows.items()


@pytest.mark.parametrize("folder", [FOLDER, WORKLOAD])
def test_without_the_option_events_have_no_before_and_with_it_nothing_else_changes(folder: Path) -> None:
    plain, asked = printed(folder=folder), printed(folder=folder, cassandra=BEFORE)
    assert len(plain) == len(asked) > 20
    for one, other in zip(plain, asked, strict=True):
        value = json.loads(other["value"])
        assert list(value) == ["ts_ms", "op", "source", "before", "after"]
        del value["before"]
        assert json.dumps(value) == json.dumps(json.loads(one["value"]))
        assert {**one, "value": ""} == {**other, "value": ""}


def test_the_before_image_of_a_row_has_all_earlier_changes() -> None:
    """Write times of this recording only rise, so the last written cell is the one that stands."""
    checked = 0
    for (topic, _), events in of_one_row(printed(cassandra=BEFORE)):
        if not topic.endswith("scalars"):
            continue
        assert events[0]["before"] is None
        standing: dict[str, Any] = {}
        for event in events:
            before, after = event["before"], event["after"]
            shown = {name: cell["value"] for name, cell in (before or {}).items() if cell}
            assert shown == {name: value for name, value in standing.items() if value is not None}
            if event["op"] == "d":
                standing = {}
                continue
            standing |= {name: cell["value"] for name, cell in after.items() if cell}
            checked += before is not None
    assert checked >= 2


def test_excluded_columns_are_in_no_before_image() -> None:
    exclude = ["shop_e.scalars.c_int", "shop_e.clustered.v"]
    events = values(printed(cassandra=BEFORE, exclude_columns=exclude))
    befores = [value["before"] for value in events if value["before"]]
    assert befores
    assert not any(before.get("c_int") or before.get("v") for before in befores)
    assert any(
        before.get("c_int") for before in (v["before"] or {} for v in values(printed(cassandra=BEFORE)))
    )


def test_schemas_of_json_and_avro_describe_before() -> None:
    for event in values(printed(schemas=True, cassandra=BEFORE)):
        fields = {field["field"]: field for field in event["schema"]["fields"]}
        assert list(fields) == ["ts_ms", "op", "source", "before", "after"]
        before, after = fields["before"], fields["after"]
        assert (before["optional"], before["name"], after["optional"]) == (True, "before", False)
        assert before["fields"] == after["fields"][: len(before["fields"])]
        assert list(event["payload"]) == list(fields)
    as_json = values(printed(cassandra=BEFORE))
    encoded = printed(key="avro", value="avro", schemas=True, cassandra=BEFORE)
    seen = 0
    for event, plain in zip(encoded, as_json, strict=True):
        schema = fastavro.parse_schema(event["value_schema"])
        read: Any = fastavro.schemaless_reader(io.BytesIO(base64.b64decode(event["value"])), schema, None)
        assert (read["before"] is None) == (plain["before"] is None)
        if read["before"]:
            seen += 1
            for name, cell in plain["before"].items():
                assert (read["before"][name] is None) == (cell is None)
    assert seen > 3


@pytest.mark.parametrize("envelope", ["datastax", "datastax-cells"])
def test_other_envelopes_have_no_such_choice(envelope: str) -> None:
    with pytest.raises(ConfigurationError, match=r"publish\.cassandra\.before has no effect in envelope"):
        Connector.from_dict(
            {
                "name": "p",
                "source": {"type": "cassandra"},
                "publish": {"envelope": envelope, "cassandra": BEFORE},
            }
        )
