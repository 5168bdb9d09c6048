"""Shards with tablets during a reshard."""

from __future__ import annotations

import pytest

from airflow_cdc_provider.sources.vitess.tablets import Tablet, shards_in_reshard


@pytest.mark.parametrize(
    ("shards", "turning"),
    [
        ((), []),
        (("0",), []),
        (("-80", "80-"), []),
        (("-80", "80-", "-40", "40-80"), ["-40", "-80", "40-80"]),  # a split
        (("-80", "80-", "-"), ["-", "-80", "80-"]),  # a merge
        (("-55", "55-aa", "aa-"), []),
        (("0", "-80", "80-"), ["-80", "0", "80-"]),  # an unsharded keyspace becomes a sharded one
    ],
)
def test_shards_that_share_keys_are_in_a_reshard(shards: tuple[str, ...], turning: list[str]) -> None:
    tablets = [Tablet("z", "shop", shard, kind, "SERVING", "z-1") for shard in shards for kind in ("P", "R")]
    assert shards_in_reshard(tablets) == [f"shop/{shard}" for shard in turning]
