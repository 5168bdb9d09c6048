"""What a capture would have stored of changes that the imitation logged, for tests of decoding and events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.sources.cql import schema as cql
from airflow_cdc_provider.sources.cql.schema import TableSchema, number_columns, order_columns
from airflow_cdc_provider.sources.scylla.codec import ScyllaCodec, recall_scylla_codec
from airflow_cdc_provider.sources.scylla.payload import LOG_ROW_TTL, Position, schema_digest
from server_kit.scylla.cluster import LoggedChange
from server_kit.scylla.log_rows import Change
from server_kit.scylla.schemas import log_columns
from server_kit.scylla.tables import Column, Delta, Table
from server_kit.scylla.timeuuids import EPOCH_TICKS
from server_kit.scylla.values import CqlType
from tests.oracles.scylla_payload import change_payload

TABLE_ID = "5a1c395e4b0d11efb1a1325096b39f47"
OTHER_ID = "6a1c395e4b0d11efb1a1325096b39f47"
GENERATION_MS = 1_600_000_000_000
STREAM = bytes.fromhex("c000000000000000aacd159e24000051")

LogRow = Mapping[str, bytes | None]
"""A log row as column values in native bytes; what is null may be left out."""


def cql_type(kind: CqlType, keyspace: str) -> cql.CqlType:
    """Return a type of the imitation as the package has it: inside another type everything is frozen."""
    inside = tuple(cql_type(p.as_frozen if p.name in _FREEZABLE else p, keyspace) for p in kind.parameters)
    udt = f"{keyspace}.{kind.udt_name}" if kind.name == "udt" else ""
    return cql.CqlType(
        kind.name, inside, kind.frozen and kind.name in _FREEZABLE, fields=kind.fields, udt=udt
    )


_FREEZABLE = ("list", "set", "map", "udt")


def table_schema(table: Table, table_id: str = TABLE_ID) -> TableSchema:
    """Return what ``system_schema`` says of a base table."""

    def columns(given: Iterable[Column], kind: cql.ColumnKind) -> list[cql.Column]:
        keyed = kind in ("partition_key", "clustering")
        return [
            cql.Column(
                c.name,
                kind,
                number if keyed else -1,
                cql_type(c.type, table.keyspace),
                c.name in table.descending,
            )
            for number, c in enumerate(given)
        ]

    found = [
        *columns(table.partition, "partition_key"),
        *columns(table.clustering, "clustering"),
        *columns(table.static_columns, "static"),
        *columns(table.regular, "regular"),
    ]
    return number_columns(TableSchema(table.keyspace, table.name, table_id, order_columns(found)))


def schema_payload(table: Table, table_id: str = TABLE_ID) -> bytes:
    """Write the record of kind ``schema`` of a table's log."""
    logged = [(name, kind.cql(table.keyspace)) for name, kind in log_columns(table)]
    base = (*table.partition, *table.clustering, *table.static_columns, *table.regular)
    types: dict[str, list[list[str]]] = {}
    for column in base:
        _note_types(column.type, table.keyspace, types)
    return json.dumps(
        {
            "v": 1,
            "keyspace": table.keyspace,
            "table": table.name,
            "id": table_id,
            "partition_key": [c.name for c in table.partition],
            "clustering": [
                [c.name, "desc" if c.name in table.descending else "asc"] for c in table.clustering
            ],
            "static": [c.name for c in table.static_columns],
            "columns": [*logged[:6], (LOG_ROW_TTL, "int"), *sorted(logged[6:])],
            "base": {c.name: c.type.cql(table.keyspace) for c in base},
            "types": types,
            "log_ttl": table.cdc.ttl,
            "delta": "keys" if table.cdc.delta is Delta.KEYS else "full",
        }
    ).encode()


def codec_of(table: Table, *versions: Table, schema: TableSchema | None = None) -> ScyllaCodec:
    """Make the codec of a table as it is now, that knows its log and those of former versions of it."""
    payloads = map(schema_payload, (table, *versions))
    return recall_scylla_codec(schema or table_schema(table), {schema_digest(p): p for p in payloads}, None)


def change_record(
    table: Table,
    rows: Sequence[LogRow],
    *,
    read_at: int | None = None,
    life_seconds: int | None = None,
    table_id: str = TABLE_ID,
) -> dict[str, object]:
    """Write the record of one change.

    Args:
        table: The base table.
        rows: Its log rows.
        read_at: When they were read, epoch seconds.
        life_seconds: What was left of their own life then.
        table_id: The table's id.
    """
    schema = schema_payload(table, table_id)
    names = [name for name, _ in json.loads(schema)["columns"]]
    life = None if life_seconds is None else life_seconds.to_bytes(4, "big", signed=True)
    position = Position(GENERATION_MS, _known(rows[0], "cdc$time"), _known(rows[0], "cdc$stream_id"))
    return {
        "source_table": table.full_name,
        "kind": "change",
        "origin": f"{table.full_name}/0",
        "position": position.pack(),
        "generation": 0,
        "captured_at": None if read_at is None else datetime.fromtimestamp(read_at, UTC),
        "schema_id": schema_digest(schema),
        "payload": change_payload(
            [[life if n == LOG_ROW_TTL else row.get(n) for n in names] for row in rows]
        ),
    }


def changes(records: Iterable[Mapping[str, object]]) -> pa.RecordBatch:
    """Put records together as the changes table hands them out."""
    (batch,) = (
        pa.Table.from_pylist([dict(record) for record in records], CHANGE_SCHEMA)
        .combine_chunks()
        .to_batches()
    ) or [pa.RecordBatch.from_pylist([], CHANGE_SCHEMA)]
    return batch


def logged_rows(logged: LoggedChange) -> list[LogRow]:
    """Return the rows of a change as column values."""
    return [logged.columns(number) for number in range(len(logged.change.rows))]


def record_of(logged: LoggedChange) -> dict[str, object]:
    """Write the record of a change that the imitation logged."""
    return change_record(logged.table, logged_rows(logged))


def time_uuid(microseconds: int) -> bytes:
    """Make ``cdc$time``: all its random bytes are 0x80."""
    ticks = microseconds * 10 + EPOCH_TICKS
    low, middle, high = ticks & 0xFFFFFFFF, ticks >> 32 & 0xFFFF, ticks >> 48 | 0x1000
    return low.to_bytes(4, "big") + middle.to_bytes(2, "big") + high.to_bytes(2, "big") + b"\x80" * 8


def record_of_change(table: Table, change: Change, partition: Sequence[bytes]) -> dict[str, Any]:
    """Write the record of a change that the model made of one partition, in :data:`STREAM`."""
    return record_of(LoggedChange(table, tuple(partition), STREAM, time_uuid(change.time), change))


def payloads(records: Iterable[Mapping[str, Any]]) -> pa.Array:
    """Put the payloads of records into a column."""
    return pa.array([record["payload"] for record in records], pa.binary())


def _note_types(kind: CqlType, keyspace: str, types: dict[str, list[list[str]]]) -> None:
    for inside in kind.parameters:
        _note_types(inside, keyspace, types)
    if kind.name == "udt":
        fields = zip(kind.fields, kind.parameters, strict=True)
        types[kind.udt_name] = [[name, inside.cql(keyspace)] for name, inside in fields]


def _known(row: LogRow, name: str) -> bytes:
    value = row.get(name)
    assert value is not None
    return value
