from __future__ import annotations

import base64
import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import bson
import pytest

from airflow_cdc_provider.cli import offline_commands
from tests.unit.migration.documented import CASSANDRA_EXAMPLE


def insert(number: int) -> bytes:
    return bson.encode(
        {
            "operationType": "insert",
            "clusterTime": bson.Timestamp(1, number),
            "ns": {"db": "shop", "coll": "c"},
            "documentKey": {"_id": number},
            "fullDocument": {"_id": number},
        }
    )


def arguments(tmp_path: Path, data: bytes, *, strict: bool = False) -> Namespace:
    connector = tmp_path / "shop.yaml"
    connector.write_text(
        f"name: shop\nsource: {{type: mongodb, advanced: {{strict: {str(strict).lower()}}}}}\n"
    )
    stream = tmp_path / "stream.bson"
    stream.write_bytes(data)
    return Namespace(
        connector=str(connector),
        input=str(stream),
        from_lake=False,
        after_batch=0,
        table="",
        schema="",
        at=1_800_000_000,
    )


def test_events_are_lines_of_json(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    offline_commands.events(arguments(tmp_path, insert(1) + insert(2)))
    out, err = capfdbinary.readouterr()
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["key"] for record in records] == ['{"id":"1"}', '{"id":"2"}']
    assert list(records[0]) == ["topic", "partition", "key", "value", "headers"]
    assert json.loads(records[0]["value"])["ts_ms"] == 1_800_000_000_000
    assert err == b""


def test_broken_places_are_counted_on_stderr(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    broken = b"\xff".join(insert(number) for number in range(30))
    offline_commands.events(arguments(tmp_path, broken))
    out, err = capfdbinary.readouterr()
    assert len(out.splitlines()) == 30
    lines = err.decode().splitlines()
    assert lines[0].startswith(f"undecodable: {tmp_path / 'stream.bson'} at byte {len(insert(0))}: ")
    assert lines[-2:] == ["undecodable: and 9 more", "summary: 29 records of the input could not be decoded"]


def test_strict_ends_with_exit_code_1(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    with pytest.raises(SystemExit) as ended:
        offline_commands.events(arguments(tmp_path, insert(1) + b"\xff" + insert(2), strict=True))
    assert ended.value.code == 1
    err = capfdbinary.readouterr().err.decode()
    assert err.startswith("error: [CDC-CORRUPT-INPUT] ")
    assert err.count("\n") == 1


@pytest.mark.recorded
@pytest.mark.covers("CAS-DEPLOY-03")
def test_debeziums_own_example_runs_on_local_files(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    recording = Path(__file__).parents[2] / "fixtures" / "cassandra" / "debezium-A"
    connector = tmp_path / "cdc.properties"
    connector.write_text(CASSANDRA_EXAMPLE)
    schema = str(recording / "schema.cql")
    offline_commands.events(
        Namespace(
            connector=str(connector),
            input=str(recording / "cdc_raw"),
            from_lake=False,
            after_batch=0,
            table="",
            schema=schema,
            at=1_800_000_000,
        )
    )
    out, err = capfdbinary.readouterr()
    records = [json.loads(line) for line in out.splitlines()]
    assert len(records) == 35
    assert {record["topic"].split(".")[0] for record in records} == {"test_prefix"}
    assert base64.b64decode(records[0]["key"]) == b"\x02\x02"  # the key 1 in Avro, in a union with null
    assert b"/usr/local/etc/cassandra/cassandra.yaml does not exist" in err


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"input": "", "from_lake": False}, "either --input PATH or --from-lake is required"),
        ({"from_lake": True}, "either --input PATH or --from-lake is required"),
        ({"table": "shop.c"}, "require --from-lake"),
        ({"after_batch": 3}, "require --from-lake"),
        ({"input": "", "from_lake": True, "schema": "schema.cql"}, "--schema is only for recordings"),
    ],
)
def test_arguments_that_would_be_ignored_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: dict[str, Any], words: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        offline_commands.events(Namespace(**{**vars(arguments(tmp_path, insert(1))), **given}))
    assert words in capsys.readouterr().err
