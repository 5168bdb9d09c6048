"""ScyllaDB's imitation under a connector's jobs: its declaration, and mirrors against the model."""

from __future__ import annotations

import time
from typing import Any

from airflow_cdc_provider.jobs.spec import JobResult
from airflow_cdc_provider.sources.cql.system_schema import load
from server_kit.scylla import PAIR, ImitatedScylla, SystemKeyspaces
from server_kit.scylla.base_table import BaseTable
from tests.integration.jobs.shop import Shop
from tests.unit.sources.cql.lake_values import comparable_pylist, expected_value


def imitated(shop: Shop, names: SystemKeyspaces, **settings: Any) -> ImitatedScylla:
    """Begin a cluster in a shop's keyspace."""
    cluster = ImitatedScylla(shop.session, shop.keyspace, names=names, **settings)
    cluster.create()
    cluster.create_type(PAIR)
    return cluster


def declare(shop: Shop, names: SystemKeyspaces, **more: Any) -> None:
    """Declare a connector of the imitation's tables; what is written can be read a second later."""
    source = {
        "type": "scylla",
        "consistency": "ONE",
        "confidence_window_seconds": 1,
        "query_window_seconds": 5,
        **more.pop("source", {}),
        "advanced": {
            "distributed_keyspace": names.distributed,
            "system_keyspace": names.system,
            "schema_keyspace": names.schema,
            "generation_poll_seconds": 0,
        },
    }
    shop.declaration["source"] = source
    shop.declare(**more)


def settled(shop: Shop) -> JobResult:
    """Sync once what was written is older than the declared confidence window of a second."""
    time.sleep(1.2)
    return shop.stage("sync")


def assert_mirror_equals_model(shop: Shop, name: str, base: BaseTable) -> int:
    """Compare a mirror with what the model's SELECT shows; return the number of rows."""
    schema = load(shop.session, [shop.keyspace]).tables[shop.table_name(name)]
    types = {column.name: column.type for column in schema.columns}
    mirror = shop.mirror(name).drop("_cdc").toArrow().combine_chunks()
    assert set(mirror.column_names) == set(types)
    columns = sorted(types)
    found = [comparable_pylist(mirror[column].combine_chunks()) for column in columns]
    shown_rows = base.select(int(time.time()))
    expected = [[expected_value(types[column], row.get(column)) for row in shown_rows] for column in columns]
    assert sorted(map(repr, zip(*found, strict=True))) == sorted(map(repr, zip(*expected, strict=True)))
    return mirror.num_rows
