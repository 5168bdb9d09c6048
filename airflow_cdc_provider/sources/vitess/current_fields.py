"""Fields of tables that a statement altered without a change after it.

VTGate sends a table's fields before its first change after a statement. Without a change the mirror would
keep the old columns and values. So the start of a copy, which sends the fields, is read after each batch with
such statements.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA, SCHEMA
from airflow_cdc_provider.exceptions import CdcError
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.sources.contract import Plan, ReadMetrics
from airflow_cdc_provider.sources.vitess.connection import ConnectionValues
from airflow_cdc_provider.sources.vitess.ddl import read_statement
from airflow_cdc_provider.sources.vitess.options import VitessOptions
from airflow_cdc_provider.sources.vitess.position import Position
from airflow_cdc_provider.sources.vitess.schema_ids import DDL
from airflow_cdc_provider.sources.vitess.snapshot import RangeReader, SnapshotRange

log = logger(__name__)

_NOTHING: Final = pa.RecordBatch.from_pylist([], CHANGE_SCHEMA)


def with_current_fields(
    plan: Plan, values: ConnectionValues, options: VitessOptions, selects: Callable[[str], bool]
) -> Plan:
    """Return a plan with the fields of selected tables whose last record of it is a statement.

    A table whose fields can't be read has no such record; its next change brings them.
    """
    last: dict[str, str] = {}
    for record in plan.records:
        if record["schema_id"] == DDL:
            keyspace = record["origin"].partition("/")[0]
            statements = read_statement(bytes(record["payload"]).decode(errors="replace"))
            last |= {f"{keyspace}.{one.table}": record["origin"] for one in statements if one.actions}
        elif record["kind"] == SCHEMA:
            last.pop(record["source_table"], None)
    altered = [(table, origin) for table, origin in last.items() if selects(table)]
    if not altered:
        return plan
    advanced = replace(options.advanced, connect_attempts=0)
    reader = RangeReader(values, replace(options, advanced=advanced))
    position = Position.from_offset(plan.end)
    return replace(plan, records=[*plan.records, *_fields(reader, altered, position)])


def _fields(
    reader: RangeReader, altered: Sequence[tuple[str, str]], position: Position
) -> list[dict[str, Any]]:
    found = []
    for table, origin in altered:
        known = position.shards[origin]
        now_us, shard = time.time_ns() // 1000, origin.partition("/")[2]
        part = SnapshotRange(table, now_us, shard, known.gtid, known.epoch, "")
        try:
            found += next(reader.read([part], ReadMetrics()), _NOTHING).to_pylist()
        except CdcError as error:
            log.warning("The fields of %s, which was altered, can't be read yet: %s", table, error)
    return found
