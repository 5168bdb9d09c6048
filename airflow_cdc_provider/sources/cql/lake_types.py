"""The lake type of each CQL type, documented in docs/types-cassandra.md.

Nothing is rounded: types without an exact lake type are text (varint, decimal, duration), or the database's
bytes for callers that convert them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

from airflow_cdc_provider.changes import column_names
from airflow_cdc_provider.sources.cql.schema import CqlType, TableSchema

Timestamps = Literal["timestamp", "milliseconds"]
NativeType = Literal["varint", "decimal", "duration"]

SCALARS: Final = {
    "ascii": pa.string(),
    "bigint": pa.int64(),
    "blob": pa.binary(),
    "boolean": pa.bool_(),
    "counter": pa.int64(),
    "custom": pa.binary(),
    "date": pa.date32(),
    "decimal": pa.string(),
    "double": pa.float64(),
    "duration": pa.string(),
    "empty": pa.binary(),
    "float": pa.float32(),
    "inet": pa.string(),
    "int": pa.int32(),
    "smallint": pa.int32(),
    "text": pa.string(),
    "time": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timeuuid": pa.string(),
    "tinyint": pa.int32(),
    "uuid": pa.string(),
    "varint": pa.string(),
}


@dataclass(frozen=True)
class LakeTypes:
    """Choices of lake types.

    Args:
        timestamps: ``timestamp``: microseconds, UTC; values beyond some 292,277 years from 1970 are out of
            range and fail the projection. ``milliseconds``: int64, every value of CQL.
        native: Those of varint, decimal and duration to return as the bytes that the database stores
            (:mod:`.exact_values` decodes them) instead of as text.
    """

    timestamps: Timestamps = "timestamp"
    native: tuple[NativeType, ...] = ()

    def of(self, cql_type: CqlType) -> pa.DataType:
        """Return the lake type of a CQL type."""
        if cql_type.name == "timestamp" and self.timestamps == "milliseconds":
            return pa.int64()
        if cql_type.name in self.native:
            return pa.binary()
        if cql_type.name in SCALARS:
            return SCALARS[cql_type.name]
        inside = [self.of(p) for p in cql_type.parameters]
        if cql_type.name == "map":
            if is_lake_map(cql_type):
                return pa.map_(inside[0], inside[1])
            entry = pa.struct([pa.field("key", inside[0]), pa.field("value", inside[1])])
            return pa.list_(pa.field("element", entry))
        if cql_type.name in ("list", "set", "vector"):
            return pa.list_(pa.field("element", inside[0]))
        names = column_names.distinct_fields(field_names(cql_type))
        return pa.struct([pa.field(n, t) for n, t in zip(names, inside, strict=True)])

    def schema(self, table: TableSchema) -> pa.Schema:
        """Return a table's columns, by their names at the source."""
        return pa.schema([pa.field(c.name, self.of(c.type)) for c in table.columns])


def is_lake_map(cql_type: CqlType) -> bool:
    """Return whether a map is a map in the lake too: Spark rejects keys that contain a map."""
    return not _contains_map(cql_type.parameters[0])


def field_names(cql_type: CqlType) -> tuple[str, ...]:
    """Return the names of a struct's fields: a UDT's own, ``field1`` and so on for a tuple's."""
    return cql_type.fields or tuple(f"field{i}" for i in range(1, len(cql_type.parameters) + 1))


def _contains_map(cql_type: CqlType) -> bool:
    return cql_type.name == "map" or any(_contains_map(p) for p in cql_type.parameters)
