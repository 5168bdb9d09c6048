"""The change record: one source-native unit, as readers emit it and the changes table keeps it.

A reader yields Arrow record batches of :data:`CHANGE_SCHEMA`; the changes table adds the column ``batch``.
Nothing here needs Spark or a database driver.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

CHANGE: Final = "change"
SNAPSHOT: Final = "snapshot"
SCHEMA: Final = "schema"
TRUNCATE: Final = "truncate"
DROP: Final = "drop"
SNAPSHOT_END: Final = "snapshot_end"
TRANSACTION: Final = "transaction"
HEARTBEAT: Final = "heartbeat"
SIGNAL: Final = "signal"
OFFSET: Final = "offset"
QUARANTINE: Final = "quarantine"

STATIC: Final = "static"
"""Reason of a record of kind ``snapshot`` that has static columns."""

DATA_KINDS: Final = (CHANGE, SNAPSHOT)
"""Kinds whose payload decodes to contributions."""

FENCE_KINDS: Final = (TRUNCATE, DROP, SNAPSHOT_END)
"""Kinds that can raise a table's generation: see :mod:`airflow_cdc_provider.changes.fence`."""

LAST_MOMENT_US: Final = 253_402_300_799_999_999
"""The end of the year 9999, in us. Python and Spark have no times after it, but clients may send some."""

_TIMESTAMP = pa.timestamp("us", tz="UTC")

CHANGE_SCHEMA: Final = pa.schema(
    [
        pa.field("source_table", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("origin", pa.string()),
        pa.field("position", pa.binary()),
        pa.field("generation", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("version", pa.binary()),
        pa.field("committed_at", _TIMESTAMP),
        pa.field("captured_at", _TIMESTAMP),
        pa.field("transaction", pa.string()),
        pa.field("schema_id", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("request", pa.string()),
        pa.field("payload", pa.binary()),
    ]
)
"""Columns of a change record. All are nullable, as Spark requires. Which ones a kind fills:

``source_table``  ``keyspace.table`` or ``db.collection``; null for records that belong to no table.
``kind``          one of the constants above.
``origin``        the ordered feed inside the source: a Cassandra node's host id, ``stream``.
``position``      memcmp-sortable and unique within its origin.
``generation``    0 unless the source sets it; fences raise it at decode.
``key``           canonical bytes of the primary (cell-level: partition) key; null for records of many keys.
``version``       memcmp-sortable; null where each cell has its own.
``committed_at``  the source's clock (Cassandra: the write time, which clients choose); null if it reports
                  none.
``captured_at``   this process's clock when the record was read.
``transaction``   the source's transaction id, if any.
``schema_id``     names the schema that decodes the payload where the payload doesn't: a Cassandra table's id.
``reason``        why a record of kind ``quarantine`` is one: ``CODE: text``; ``static`` for a record of kind
                  ``snapshot`` that is no row, but the static columns of its partition; else null.
``request``       the id of the signal that requested a record of an incremental snapshot; null for others.
``payload``       the native bytes.
"""

TABLE_SCHEMA: Final = pa.schema([pa.field("batch", pa.int64()), *CHANGE_SCHEMA])
"""Columns of the changes table: the commit number, then the record."""

SPARK_DDL: Final = (
    "source_table string, kind string, origin string, position binary, generation bigint, key binary, "
    "version binary, committed_at timestamp, captured_at timestamp, transaction string, schema_id string, "
    "reason string, request string, payload binary"
)
"""The record as Spark DDL, in the same order as :data:`CHANGE_SCHEMA`."""


def change_batch(count: int, **columns: Any) -> pa.RecordBatch:
    """Build a batch of :data:`CHANGE_SCHEMA`.

    Args:
        count: Number of records.
        columns: By column, an array, or one value for all records; times are in µs since 1970. Other columns
            are null, but ``generation`` is 0.
    """
    values = {"generation": 0, **columns}
    return pa.RecordBatch.from_arrays(
        [_column(values.get(field.name), field.type, count) for field in CHANGE_SCHEMA], schema=CHANGE_SCHEMA
    )


def _column(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    if isinstance(value, pa.Array):
        return value.cast(kind)
    return pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)
