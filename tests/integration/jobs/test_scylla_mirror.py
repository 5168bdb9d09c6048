"""Mirrors of ScyllaDB's tables, by jobs on Spark: what the imitation logs becomes what its tables show."""

from __future__ import annotations

import random
import time

import pytest

from server_kit.scylla import CdcOptions, Preimage, SystemKeyspaces, Turmoil, draw_table
from tests.integration.jobs.imitated import assert_mirror_equals_model, declare, imitated
from tests.integration.jobs.shop import Shop

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("seed", "tablets", "mode", "options"),
    [
        pytest.param(41, 0, "never", CdcOptions(), marks=pytest.mark.long),
        (42, 4, "initial", CdcOptions(preimage=Preimage.FULL, postimage=True)),
    ],
)
def test_the_mirror_equals_the_table_after_random_requests(
    shop: Shop, names: SystemKeyspaces, seed: int, tablets: int, mode: str, options: CdcOptions
) -> None:
    cluster = imitated(shop, names, tablets=tablets, seed=seed)
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
