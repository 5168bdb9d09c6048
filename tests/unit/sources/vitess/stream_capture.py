"""Captures of scripted streams of Vitess."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pyarrow as pa

from airflow_cdc_provider.changes.record import CHANGE, CHANGE_SCHEMA
from airflow_cdc_provider.sources.contract import ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.vitess.capture import ChangeStream
from airflow_cdc_provider.sources.vitess.connection import ConnectionValues
from airflow_cdc_provider.sources.vitess.options import VitessAdvanced, VitessOptions, VitessStream
from airflow_cdc_provider.sources.vitess.position import Position, ShardPosition
from airflow_cdc_provider.sources.vitess.protocol import RowChange
from airflow_cdc_provider.sources.vitess.reader import SliceReader
from airflow_cdc_provider.sources.vitess.requests import filter_of
from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient
from tests.unit.sources.vitess.fake_vtgate import (
    FakeVtgate,
    Script,
    fields,
    gtid,
    rows,
    transaction,
)

ALL = ReadLimit()
NONE_KNOWN: dict[str, Any] = {"selects": lambda table: True, "is_recorded": lambda table, name: False}


def at(**shards: int | str) -> Position:
    return Position(
        {
            f"shop/{'-80' if name == 'low' else '80-'}": ShardPosition(
                gtid(last) if isinstance(last, int) else last, 1
            )
            for name, last in shards.items()
        }
    )


def options(**stream: Any) -> VitessOptions:
    advanced = VitessAdvanced(connect_attempts=3, connect_backoff_seconds=0.01, stall_timeout_seconds=1.0)
    return VitessOptions(keyspace="shop", stream=VitessStream(**stream), advanced=advanced)


class Capture:
    """A stream of a fake VTGate, and its pauses."""

    def __init__(self, stack: ExitStack, scripts: Sequence[Script], chosen: VitessOptions) -> None:
        self.server = stack.enter_context(FakeVtgate(scripts))
        client = stack.enter_context(VtgateClient(ConnectionValues.read(self.server.connection)))
        self.pauses: list[float] = []
        self.stream = ChangeStream(
            lambda: client, chosen, lambda: filter_of(None), sleep=self.pauses.append, **NONE_KNOWN
        )
        stack.callback(self.stream.close)

    def read(self, start: Position, head: Position, limit: ReadLimit = ALL) -> tuple[pa.Table, Any]:
        plan = self.stream.plan(start, head, limit)
        return records_of(plan.partitions, plan.records), plan


def records_of(slices: Sequence[Any], schema_records: Sequence[Any] = (), *, empty: bool = False) -> pa.Table:
    reader = SliceReader(lambda table: True, empty)
    batches = list(reader.read(slices, ReadMetrics()))
    batches.append(pa.RecordBatch.from_pylist(list(schema_records), schema=CHANGE_SCHEMA))
    return pa.Table.from_batches(batches, schema=CHANGE_SCHEMA)


def changes(records: pa.Table) -> list[tuple[str, str, str]]:
    """Table, origin and value after of each change, as they came."""
    return [
        (r["source_table"], r["origin"], RowChange.FromString(r["payload"]).after.values.decode())
        for r in records.to_pylist()
        if r["kind"] == CHANGE
    ]


def insert(shard: str, key: int, shards: dict[str, int | str], *, with_fields: bool = False) -> list[Any]:
    inside = [fields("item", shard)] if with_fields else []
    return transaction(shard, shards, *inside, rows("item", shard, (None, [str(key), "x"])))


LOW1 = insert("-80", 1, {"-80": 11, "80-": 20}, with_fields=True)
LOW2 = insert("-80", 2, {"-80": 12, "80-": 20})
HIGH1 = insert("80-", 3, {"-80": 12, "80-": 21}, with_fields=True)
START = at(low=10, high=20)
HEAD = at(low=12, high=21)
EXPECTED = [
    ("shop.item", "shop/-80", "1x"),
    ("shop.item", "shop/-80", "2x"),
    ("shop.item", "shop/80-", "3x"),
]
