"""Which batches of the changes table may go."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_cdc_provider.changes.fence import Fence
from airflow_cdc_provider.changes.record import CHANGE, SNAPSHOT
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.maintain import last_expirable_batch
from airflow_cdc_provider.jobs.spark.session import build_lake
from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.lake.mirror import Mirror, MirrorState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

NOW_US = time.time_ns() // 1000
DAY_US = 86_400_000_000


@dataclass
class Store:
    """As much of a connector's lake as maintaining needs."""

    connector: Connector
    changes: ChangesTable
    lake: Any

    def states(self, **fences: tuple[Fence, ...]) -> dict[str, MirrorState]:
        """Return states of mirrors that have merged all batches, by table."""
        merged = MirrorState(self.changes.state().head, self.changes.state().batch)
        return {f"k.{table}": replace(merged, fences=of) for table, of in fences.items()}

    def last_expirable(self, states: dict[str, MirrorState]) -> int:
        """Return the last batch that may expire."""
        return last_expirable_batch(self.connector, self.changes, states)

    def capture(self, *changes: tuple[str, str], kind: str = CHANGE) -> None:
        """Commit a batch with changes of tables and origins."""
        rows = [
            {
                "source_table": f"k.{table}",
                "kind": kind,
                "origin": origin,
                "position": b"\x01",
                "captured_at": datetime.now(UTC),
            }
            for table, origin in changes
        ]
        self.changes.append_batch(None, {}, self.changes.state(), extra_rows=rows)


@pytest.fixture
def store(spark: SparkSession) -> Store:
    name = f"maintain{random.randrange(10**9)}"
    connector = Connector.from_dict(
        {
            "name": name,
            "source": {"type": "cassandra", "cdc_raw": "/nowhere"},
            "tables": [r"k\..*"],
            "lake": {"catalog": "lake", "namespace": name},
        }
    )
    lake = build_lake(spark, connector)
    lake.create_namespace(connector.namespace)
    return Store(connector, ChangesTable(lake, connector), lake)


def test_batches_wait_for_a_node_whose_record_of_the_last_truncate_is_missing(store: Store) -> None:
    store.capture(("t", "a"))
    store.capture(("t", "b"), ("t", "a"))
    store.capture(("t", "a"))
    own = Fence(NOW_US, "a", b"\x01", NOW_US)

    assert store.last_expirable(store.states(t=(own,))) == 1
    both = (own, Fence(NOW_US, "b", b"\x01", NOW_US))
    assert store.last_expirable(store.states(t=both)) == 3
    assert store.last_expirable(store.states(t=(), u=(own,))) == 3


def test_a_record_that_never_comes_is_not_waited_for_for_ever(store: Store) -> None:
    store.capture(("t", "b"))
    at = NOW_US - 11 * DAY_US

    assert store.last_expirable(store.states(t=(Fence(at, "a", b"\x01", at),))) == 1


def test_rows_read_before_the_first_truncate_wait_for_nothing(store: Store) -> None:
    store.capture(("t", ""), kind=SNAPSHOT)

    assert store.last_expirable(store.states(t=(Fence(NOW_US, "a", b"\x01", NOW_US),))) == 1


def test_batches_wait_for_tables_that_have_something_to_merge_and_for_no_others(store: Store) -> None:
    store.capture(("t", "a"))
    store.capture(("u", "a"))
    states = store.states(t=(), u=())

    assert store.last_expirable({**states, "k.u": replace(states["k.u"], merged_through=1)}) == 1
    assert store.last_expirable({**states, "k.t": replace(states["k.t"], merged_through=1)}) == 2
    assert store.last_expirable({}) == -1


def test_fences_stay_with_the_mirror(store: Store) -> None:
    mirror = Mirror(store.lake, f"{store.connector.namespace}.k_t")
    mirror.prepare(pa.schema([pa.field("id", pa.int32())]))
    fences = (Fence(NOW_US, "a", b"\x01\xff", NOW_US + 5), Fence(NOW_US, "b", b"", NOW_US))
    before = mirror.state()

    mirror.table.commit(before.head, properties=replace(before, fences=fences).properties())

    assert mirror.state().fences == fences
