"""Builders of Vitess records for tests: fields, statements and changes as a capture creates them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from airflow_cdc_provider.changes.record import CHANGE, CHANGE_SCHEMA, SCHEMA
from airflow_cdc_provider.sources.vitess.protocol import FieldEvent, Row, RowChange
from airflow_cdc_provider.sources.vitess.schema_ids import DDL, schema_id

TABLE = "shop.t"
START = datetime(2026, 1, 1, tzinfo=UTC)
NUMBERS = {
    "tinyint": 257,
    "int": 263,
    "bigint": 265,
    "decimal": 18,
    "varchar": 6165,
    "text": 6163,
    "json": 2078,
}
NUMBERS |= {
    "timestamp": 2061,
    "tinytext": 6163,
    "mediumtext": 6163,
    "enum": 2074,
    "set": 2075,
    "datetime": 2064,
    "date": 2062,
    "float": 1035,
    "varbinary": 10262,
}

Text = str | bytes | None


def fields(columns: Mapping[str, str], key: Sequence[str] = ("id",), *, as_text: bool = True) -> Any:
    """Build a FieldEvent of names and SQL types; ``not null`` and ``unique`` are flags."""
    event = FieldEvent(table_name=TABLE, keyspace="shop", shard="-80", enum_set_string_values=as_text)
    for name, words in columns.items():
        plain = words.replace(" not null", "").replace(" unique", "")
        flags = (
            (1 if " not null" in words else 0) | (4 if " unique" in words else 0) | (3 if name in key else 0)
        )
        number = NUMBERS[plain.split("(")[0].split()[0]]
        charset = 255 if number in (6165, 6163, 2074, 2075) else 63
        event.fields.add(name=name, type=number, column_type=plain, charset=charset, flags=flags)
    return event


def row(values: Sequence[Text]) -> Any:
    raws = [value.encode() if isinstance(value, str) else value for value in values]
    return Row(
        lengths=[-1 if raw is None else len(raw) for raw in raws], values=b"".join(r or b"" for r in raws)
    )


def change(before: Sequence[Text] | None, after: Sequence[Text] | None) -> Any:
    return RowChange(
        before=None if before is None else row(before), after=None if after is None else row(after)
    )


def place(rank: int, number: int = 0, epoch: int = 1) -> bytes:
    return epoch.to_bytes(4, "big") + rank.to_bytes(8, "big") + number.to_bytes(4, "big")


def record(
    kind: str, payload: Any, name: str | None, position: bytes, shard: str, **more: Any
) -> dict[str, Any]:
    moment = START + timedelta(seconds=int.from_bytes(position[4:12], "big"))
    data = payload if payload is None or isinstance(payload, bytes) else payload.SerializeToString()
    found = {
        "source_table": TABLE,
        "kind": kind,
        "origin": f"shop/{shard}",
        "position": position,
        "generation": 0,
        "version": position[:16],
        "committed_at": moment,
        "captured_at": moment,
        "schema_id": name,
        "payload": data,
    }
    return {**found, **more}


def seen(event: Any, rank: int, shard: str = "-80") -> dict[str, Any]:
    """Build the record of fields first seen after a transaction of a shard."""
    return record(SCHEMA, event, schema_id(event), place(rank, 0xFFFFFFFF), shard)


def ran(statement: str, rank: int, shard: str = "-80") -> dict[str, Any]:
    """Build the record of a statement."""
    return record(SCHEMA, statement.encode(), DDL, place(rank), shard, source_table=None)


def changed(event: Any, message: Any, rank: int, shard: str = "-80", number: int = 0) -> dict[str, Any]:
    """Build the record of a change."""
    return record(CHANGE, message, schema_id(event), place(rank, number), shard)


def batch(records: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(one) for one in records], CHANGE_SCHEMA)
