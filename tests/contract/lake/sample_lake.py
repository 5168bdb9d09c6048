"""A small lake with every kind of table, its content as text, and the same lake made of that text."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.contribution import SPARK_DDL, unresolved_keys
from airflow_cdc_provider.changes.fence import Fence
from airflow_cdc_provider.changes.static_columns import StaticColumns
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.channels.notification_table import TableChannel
from airflow_cdc_provider.jobs.merging.decode import FAULT_TYPE
from airflow_cdc_provider.jobs.merging.quarantine import Quarantine
from airflow_cdc_provider.jobs.publishing.targets.dead_letters import DeadLetters
from airflow_cdc_provider.jobs.publishing.targets.pulsar_position import PulsarPosition, PulsarPositionTable
from airflow_cdc_provider.jobs.resuming.progress import Progress, SnapshotProgress
from airflow_cdc_provider.jobs.resuming.snapshot_requests import (
    SignalRecord,
    SignalState,
    SnapshotRequest,
    TableCopy,
)
from airflow_cdc_provider.kafka.positions import PublishPosition
from airflow_cdc_provider.lake import layout
from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.lake.iceberg import IcebergLake
from airflow_cdc_provider.lake.mirror import Mirror, MirrorState, StaticColumnsState
from airflow_cdc_provider.lake.table import Head
from airflow_cdc_provider.notifications.notification import Notification
from airflow_cdc_provider.sources.cassandra.source import CassandraSource
from airflow_cdc_provider.sources.cql.snapshot import SnapshotRange

RECORDED = Path(__file__).parents[2] / "fixtures" / "lake" / "layout.json"
"""A lake of the present layout, as text."""

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
CLOCK = ("captured_at", "seen_at", "cdc.committed_at")
"""Columns and properties that hold the time at which something was written: no two lakes agree on them."""

RANGE = SnapshotRange("shop.orders", -5, 7, "", "node", b"\x01")
PROGRESS = Progress(
    source={"node": {"v": 1, "segment": 7, "position": 4096}},
    snapshots={
        "shop.orders": SnapshotProgress(
            done=False,
            position="01",
            origin="node",
            replace=True,
            ranges=CassandraSource.planned_ranges.to_json([RANGE]),
            committed=3,
            started_us=1_700_000_000_000_000,
            other_positions={"other": "02"},
        ),
        "shop.items": SnapshotProgress(done=True, started_us=5, lost_us=9, lost="a segment", tolerated=True),
    },
    signals=SignalState(
        requests=(
            SnapshotRequest("s1", "incremental", "file", 11, (TableCopy("shop.orders", started=True),)),
        ),
        records=(SignalRecord("s1", "execute-snapshot", "file", 11, "running", "incremental: shop.orders"),),
        read_batch=1,
        chunks=2,
        positions={"kafka": {"offset": 3}},
    ),
    identity={"name": "shop", "source": "cassandra"},
    arrivals=1,
    ended={"shop.old": 1},
)
CHANGE = {
    "source_table": "shop.orders",
    "kind": record.CHANGE,
    "origin": "node",
    "position": b"\x00\x07",
    "generation": 0,
    "key": b"k",
    "version": b"v",
    "committed_at": MOMENT,
    "captured_at": MOMENT,
    "transaction": "t1",
    "schema_id": "a1",
    "payload": b"\xff\x00native",
}
CHANGES = [
    CHANGE,
    {**CHANGE, "kind": record.SNAPSHOT, "position": b"\x01", "transaction": None, "request": "s1"},
    {
        **CHANGE,
        "kind": record.QUARANTINE,
        "position": b"\x02",
        "schema_id": None,
        "reason": "unknown-table: a",
    },
]
MIRROR_STATE = MirrorState(
    Head(None),
    merged_through=1,
    fences=(Fence(5, "node", b"p", 6),),
    memory={"last_id": 3, "columns": {"k": 1, "s": 2, "v": 3}},
    next_expiry=1_800_000_000,
    unresolved_keys=1,
    unresolved_since=1,
    snapshot_started_us=8,
    rows=1,
    offset={"node": {"v": 1}},
    static_columns_commit="commit-1",
)
STATIC_COLUMNS_STATE = StaticColumnsState(Head(None), "commit-1", 1, 1_900_000_000)
STANDING = PulsarPosition("shop-1", PublishPosition("shop", 1, records=2, now_ns=3, form="f", state="{}"))
_COLUMNS = pa.schema([pa.field("k", pa.int32()), pa.field("s", pa.string()), pa.field("v", pa.float64())])
_STATIC_COLUMNS = StaticColumns(("k",), ("s",))


class SampleLake:
    """The tables of a connector ``shop`` in a namespace.

    Args:
        lake: The lake.
        namespace: An empty namespace.
    """

    def __init__(self, lake: IcebergLake, namespace: str) -> None:
        self.lake = lake
        self.namespace = namespace
        self.changes = ChangesTable(
            lake,
            Connector.from_dict(
                {
                    "name": "shop",
                    "source": {"type": "cassandra", "conn_id": "unused"},
                    "lake": {"namespace": namespace},
                }
            ),
        )
        self.mirror = Mirror(lake, f"{namespace}.orders", static_columns_table=True)
        self.quarantine = Quarantine(lake.table(f"{namespace}.shop_quarantine", layout.QUARANTINE))
        self.dead_letters = DeadLetters(
            lake.spark, lake.table(f"{namespace}.shop_dead_letters", layout.DEAD_LETTERS)
        )
        self.published = PulsarPositionTable(lake.table(f"{namespace}.shop_published", layout.PUBLISHED))

    def write(self) -> None:
        """Write content into every table by the provider's own code."""
        state = self.changes.state()
        self.changes.append_batch(None, PROGRESS.to_offset(), state, extra_rows=CHANGES)
        self._write_mirror()
        spark = self.lake.spark
        fault = {**CHANGE, "reason": "bad-utf8: column v", "request": None}
        faults = pa.table(
            {"source_table": ["shop.orders"], "fault": pa.array([fault], FAULT_TYPE)},
        )
        self.quarantine.add(spark.createDataFrame(faults))
        records = pa.table(
            {
                "topic": ["shop.orders"],
                "key": [b"k"],
                "value": pa.array([None], pa.binary()),
                "headers": ["[]"],
            }
        )
        self.dead_letters.add(records, np.array([4]), 1, pa.chunked_array([["too large"]]))
        notifications = TableChannel(self.lake, f"{self.namespace}.shop_notifications")
        notifications.send(
            Notification("n1", "STARTED", "Initial Snapshot", {"connector_name": "shop"}, 1000)
        )
        notifications.flush()
        self.published.store(STANDING)

    def _write_mirror(self) -> None:
        spark, mirror = self.lake.spark, self.mirror
        mirror.create(_COLUMNS, _STATIC_COLUMNS)
        unresolved = unresolved_keys(pa.array([b"k"], pa.binary()), 1)
        mirror.tombstones.append(spark.createDataFrame(pa.Table.from_batches([unresolved]), SPARK_DDL))
        own = (b"id", b"k", b"c", 5, b"v", b"state", 1_800_000_000)
        assert mirror.static_columns is not None
        rows = spark.createDataFrame([(1, "static", own)], mirror.static_columns.schema())
        mirror.static_columns.commit(
            mirror.static_columns.head(), append=rows, properties=STATIC_COLUMNS_STATE.properties()
        )
        rows = spark.createDataFrame([(1, 2.5, own)], mirror.table.schema())
        mirror.table.commit(mirror.table.head(), append=rows, properties=MIRROR_STATE.properties())


def dump(lake: IcebergLake, namespace: str) -> dict[str, Any]:
    """Describe every table of a namespace: columns, partitions, ``cdc.*`` properties and rows.

    Values of :data:`CLOCK` are left out; binary values are in base64.
    """
    listed = lake.spark.sql(f"SHOW TABLES IN {lake.catalog}.{namespace}").collect()
    return {
        name: _described(lake, f"{namespace}.{name}") for name in sorted(row["tableName"] for row in listed)
    }


def rebuild(lake: IcebergLake, namespace: str, described: Mapping[str, Any]) -> None:
    """Create tables from what :func:`dump` described, by Spark alone."""
    from pyspark.sql.types import StructType

    for name, table in described.items():
        target = f"{lake.catalog}.{namespace}.{name}"
        partitions = f"PARTITIONED BY ({', '.join(table['partitions'])})" if table["partitions"] else ""
        properties = ", ".join(f"'{key}'='{value}'" for key, value in table["properties"].items())
        schema = StructType.fromDDL(table["columns"])
        head = f"CREATE TABLE {target} ({table['columns']}) USING iceberg"
        lake.spark.sql(f"{head} {partitions} TBLPROPERTIES ({properties})")
        rows = [_value(row, schema) for row in table["rows"]]
        writer = lake.spark.createDataFrame(rows, schema).coalesce(1).writeTo(target)
        for key, value in table["commit"].items():
            writer = writer.option(f"snapshot-property.{key}", value)
        writer.append()


def _described(lake: IcebergLake, name: str) -> dict[str, Any]:
    table = lake.table(name)
    loaded = table.load()
    rows = [_text(row, row.__fields__) for row in table.read().collect()]
    properties = dict(loaded.properties())
    return {
        "columns": table.schema().toDDL(),
        "partitions": [field.name() for field in loaded.spec().fields()],
        "properties": {key: value for key, value in sorted(properties.items()) if key.startswith("cdc.")},
        "commit": {key: value for key, value in table.head().properties.items() if key not in CLOCK},
        "rows": sorted(rows, key=lambda row: json.dumps(row, sort_keys=True)),
    }


def _text(value: Any, fields: Any = None) -> Any:
    if fields is not None:
        return {
            name: _text(value[name], getattr(value[name], "__fields__", None))
            for name in fields
            if name not in CLOCK
        }
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, datetime) else value


def _value(row: Any, kind: Any) -> Any:
    """Return a value of a type from its text; a moment that isn't there is now."""
    name = kind.typeName()
    if name == "struct":
        return {
            field.name: MOMENT if field.name in CLOCK else _value(row[field.name], field.dataType)
            for field in kind
        }
    if row is None:
        return None
    if name == "binary":
        return base64.b64decode(row)
    return datetime.fromisoformat(row) if name == "timestamp" else row
