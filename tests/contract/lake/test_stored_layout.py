"""What is stored in a lake: written as recorded, read as recorded, and refused in any other layout.

``layout.json`` is a lake of the present layout. A test here fails when a change of the code changes what is
stored: then raise the layout's version, say in docs/design/stored-layout.md what differs, and record the lake
again with ``python -m tools.record_layout``.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import Any

import pytest

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.lake.iceberg import IcebergLake
from airflow_cdc_provider.sources.cassandra.source import CassandraSource
from tests.contract.lake import sample_lake
from tests.contract.lake.sample_lake import RECORDED, SampleLake, dump, rebuild

pytestmark = pytest.mark.integration


@pytest.fixture
def lake(catalogs: Any) -> IcebergLake:
    """One catalog: what is stored doesn't depend on it."""
    return IcebergLake(catalogs, "memory")


@pytest.fixture
def recorded(lake: IcebergLake) -> SampleLake:
    """The recorded lake, rebuilt without the provider's code."""
    namespace = f"n{uuid.uuid4().hex[:8]}"
    lake.create_namespace(namespace)
    rebuild(lake, namespace, json.loads(RECORDED.read_text()))
    return SampleLake(lake, namespace)


def test_tables_are_stored_as_recorded(lake: IcebergLake) -> None:
    namespace = f"n{uuid.uuid4().hex[:8]}"
    SampleLake(lake, namespace).write()
    assert dump(lake, namespace) == json.loads(RECORDED.read_text())


def test_a_recorded_lake_is_read_and_continued(recorded: SampleLake) -> None:
    state = recorded.changes.state()
    assert state.batch == 1
    progress = Progress.from_offset(state.offset)
    assert progress == sample_lake.PROGRESS
    stored = progress.snapshots["shop.orders"].ranges
    assert CassandraSource.planned_ranges.take(stored, 1) == ([sample_lake.RANGE], ())
    pending = recorded.changes.pending(0, 1).select("kind", "reason", "request").collect()
    assert sorted(map(tuple, pending), key=str) == [
        (record.CHANGE, None, None),
        (record.QUARANTINE, "unknown-table: a", None),
        (record.SNAPSHOT, None, "s1"),
    ]

    mirror = recorded.mirror.state()
    static_columns = mirror.static_columns
    assert static_columns is not None
    assert (
        replace(static_columns, head=sample_lake.STATIC_COLUMNS_STATE.head)
        == sample_lake.STATIC_COLUMNS_STATE
    )
    assert (
        replace(mirror, head=sample_lake.MIRROR_STATE.head, static_columns=None) == sample_lake.MIRROR_STATE
    )
    assert [row["key"] for row in recorded.mirror.unresolved_keys(mirror).collect()] == [b"k"]

    assert recorded.quarantine.counts() == {"shop.orders": 1}
    assert recorded.published.read() == sample_lake.STANDING

    after = recorded.changes.append_batch(None, progress.to_offset(), state, extra_rows=sample_lake.CHANGES)
    assert (after.batch, after.appended) == (2, 3)


@pytest.mark.parametrize(
    ("version", "problem", "remedy"),
    [
        ("changes/99", "was written by a newer release", "upgrade the provider"),
        ("changes/1", "was written by an older release", "take new snapshots"),
        (None, "was written by an older release", "take new snapshots"),
        ("mirror/2", "holds mirror, not changes", "a namespace, of its own"),
    ],
)
def test_a_table_of_another_layout_is_refused(
    recorded: SampleLake, version: str | None, problem: str, remedy: str
) -> None:
    table = recorded.changes.table
    change = (
        f"SET TBLPROPERTIES ('cdc.layout'='{version}')" if version else "UNSET TBLPROPERTIES ('cdc.layout')"
    )
    recorded.lake.spark.sql(f"ALTER TABLE {table.sql_name} {change}")
    with pytest.raises(ConfigurationError, match=problem) as refused:
        recorded.changes.state()
    assert remedy in str(refused.value)
    with pytest.raises(ConfigurationError, match=problem):
        table.read()
