"""Mirrors of ScyllaDB's tables, by jobs on Spark: what the imitation logs becomes what its tables show."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_cdc_provider.sources.cql.system_schema import load
from server_kit.scylla import PAIR, CdcOptions, ImitatedScylla, Preimage, SystemKeyspaces, Turmoil, draw_table
from server_kit.scylla.base_table import BaseTable
from tests.integration.jobs.shop import Shop
from tests.unit.sources.cql.lake_values import comparable_pylist, shown

pytestmark = pytest.mark.integration


@pytest.fixture
def names(cassandra_session: Any, keyspace: str) -> Iterator[SystemKeyspaces]:
    names = SystemKeyspaces(*(f"{keyspace}_{part}" for part in ("distributed", "system", "schema")))
    yield names
    for name in (names.distributed, names.system, names.schema):
        cassandra_session.execute(f"DROP KEYSPACE IF EXISTS {name}")


def declare(shop: Shop, names: SystemKeyspaces, **more: Any) -> None:
    shop.declaration["source"] = {
        "type": "scylla",
        "consistency": "ONE",
        "confidence_window_seconds": 1,
        "query_window_seconds": 5,
        "advanced": {
            "distributed_keyspace": names.distributed,
            "system_keyspace": names.system,
            "schema_keyspace": names.schema,
            "generation_poll_seconds": 0,
        },
    }
    shop.declare(**more)


def assert_mirror_equals_model(shop: Shop, name: str, base: BaseTable) -> int:
    """Compare a mirror with what the model's SELECT shows; return the number of rows."""
    schema = load(shop.session, [shop.keyspace]).tables[shop.table_name(name)]
    types = {column.name: column.type for column in schema.columns}
    mirror = shop.mirror(name).drop("_cdc").toArrow().combine_chunks()
    assert set(mirror.column_names) == set(types)
    columns = sorted(types)
    found = [comparable_pylist(mirror[column].combine_chunks()) for column in columns]
    shown_rows = base.select(int(time.time()))
    expected = [[shown(types[column], row.get(column)) for row in shown_rows] for column in columns]
    assert sorted(map(repr, zip(*found, strict=True))) == sorted(map(repr, zip(*expected, strict=True)))
    return mirror.num_rows


@pytest.mark.parametrize(
    ("seed", "tablets", "mode", "options"),
    [
        (41, 0, "never", CdcOptions()),
        (42, 4, "initial", CdcOptions(preimage=Preimage.FULL, postimage=True)),
    ],
)
def test_the_mirror_equals_the_table_after_random_requests(
    shop: Shop, names: SystemKeyspaces, seed: int, tablets: int, mode: str, options: CdcOptions
) -> None:
    cluster = ImitatedScylla(shop.session, shop.keyspace, tablets=tablets, seed=seed, names=names)
    cluster.create()
    cluster.create_type(PAIR)
    turmoil = Turmoil(cluster, random.Random(seed), events=0.06, short_ttls=False)
    for number in range(3):
        turmoil.add(draw_table(turmoil.chance, shop.keyspace, f"t{number}", cdc=options))
    declare(shop, names, snapshot={"mode": mode})
    rows = 0
    for requests in (60, 120):
        turmoil.run(requests)
        turmoil.settle()
        time.sleep(2.1)
        result = shop.stage("sync")
        assert result.ok, result.error
        for name, base in cluster.tables.items():
            rows += assert_mirror_equals_model(shop, name, base)
    assert turmoil.done["streams"]
    assert rows > 20
    assert not shop.changes("quarantine").count()
