"""Schema discovery: the columns of a sample of a real collection, pasted into a declaration."""

from __future__ import annotations

import json
import random
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from bson import Int64

from airflow_cdc_provider.cli import live_commands
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.sources.mongodb.codec import MongodbCodec
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.mongodb.schema_sample import describe, sample_schema

if TYPE_CHECKING:
    from pymongo import MongoClient

    from server_kit import MongoServer

pytestmark = pytest.mark.integration


@pytest.fixture
def database(mongo_client: MongoClient) -> Iterator[Any]:
    name = f"s{random.randrange(10**9)}"
    yield mongo_client[name]
    mongo_client.drop_database(name)


@pytest.mark.covers("MDB-XA-06")
def test_a_sample_gives_columns_with_their_types_and_conflicts(
    mongo_server: MongoServer,
    database: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    orders = [{"_id": n, "number": n, "ship": {"city": "Kyiv", "zip": n}, "tags": ["a"]} for n in range(90)]
    orders += [{"_id": n, "number": Int64(n), "ship": None, "note": None} for n in range(90, 99)]
    database.orders.insert_many([*orders, {"_id": "x", "number": "many", "o'clock": True}])
    database.empty.insert_one({"_id": 1})
    extra = {"replicaSet": "rs0"}
    monkeypatch.setenv(
        "AIRFLOW_CONN_MONGODB_SCHEMA",
        json.dumps(
            {"conn_type": "cdc_mongodb", "host": mongo_server.host, "port": mongo_server.port, "extra": extra}
        ),
    )
    file = tmp_path / "shop.yaml"
    source = {"type": "mongodb", "conn_id": "mongodb_schema"}
    file.write_text(json.dumps({"name": "shop", "source": source, "tables": [rf"{database.name}\..*"]}))

    live_commands.schema(Namespace(connector=str(file), table="", sample=1000, seconds=30.0, depth=2))

    printed = capsys.readouterr().out
    assert f"# {database.name}.orders: 100 documents\n" in printed
    assert "'number': 'number bigint'  # int 90, long 9, string 1; conflict: string" in printed
    assert "'ship': 'ship json'  # object 90, null 9" in printed
    columns = yaml.safe_load(printed)["columns"]
    assert columns[f"{database.name}.orders"] == {
        "number": "number bigint",
        "ship": "ship json",
        "ship_city": "ship.city string",
        "ship_zip": "ship.zip int",
        "tags": "tags json",
        "note": "note json",
        "o'clock": "o'clock boolean",
    }
    assert columns[f"{database.name}.empty"] == {}
    pasted = Connector.from_dict({"name": "shop", "source": {**source, "columns": columns}})
    assert isinstance(pasted.source, MongodbOptions)
    codec = MongodbCodec.of(f"{database.name}.orders", pasted.source)
    assert codec.mirror_schema().names[2:] == list(columns[f"{database.name}.orders"])


@pytest.mark.covers("MDB-XA-06")
def test_size_and_time_of_a_sample_have_limits(mongo_client: MongoClient, database: Any) -> None:
    database.things.insert_many([{"_id": n, "v": n} for n in range(3000)])
    database.command(
        "create",
        "slow",
        viewOn="things",
        pipeline=[
            {
                "$match": {
                    "$expr": {
                        "$function": {"body": "function() {sleep(5); return true;}", "args": [], "lang": "js"}
                    }
                }
            }
        ],
    )

    few = sample_schema(mongo_client, f"{database.name}.things", size=50, seconds=60, depth=1)
    late = sample_schema(mongo_client, f"{database.name}.slow", size=3000, seconds=0.5, depth=1)

    assert (few.documents, few.complete, sum(one.count for one in few.fields)) == (50, True, 100)
    assert not late.complete
    assert late.documents < 3000
    assert "the time limit was reached" in next(describe(late))
