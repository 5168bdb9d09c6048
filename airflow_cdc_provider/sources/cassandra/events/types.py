"""CQL values in the format of Debezium's Cassandra connector: Arrow columns with Connect names as metadata.

The input is the columns of a projection (:mod:`airflow_cdc_provider.sources.cql.projection`, timestamps in
milliseconds). Differences from the lake's types:

=================== ================================================================================
CQL                 event
=================== ================================================================================
tinyint, smallint   int8, int16
date                int32 days, ``io.debezium.time.Date``
timestamp           int64 ms, ``io.debezium.time.Timestamp``
decimal             ``double``: **rounded**, as by Debezium's default; ``string``: digits without
                    exponent; ``precise``: scale and number, ``io.debezium.data.VariableScaleDecimal``
varint              ``long``: the low 64 bits, as by Debezium's default; ``string``: digits;
                    ``precise``: the number's bytes, ``org.apache.kafka.connect.data.Decimal``
duration            int64 ns with months of 30 days, ``io.debezium.time.NanoDuration``
inet                text with a slash before the address
uuid, timeuuid      text, ``io.debezium.data.Uuid``
tuple, UDT          struct; Debezium can't read tables with UDTs
frozen<...>         as the same type unfrozen; Debezium documents bytes, its code (3.4) writes arrays and
                    maps. ``bytes``: the value as Cassandra stores it
=================== ================================================================================

Exact values are in the mirror. Precise values are optional here; Debezium's schema forbids null, so it fails
on deletions in tables with such columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.sources.connect_metadata import CONNECT_DOC, CONNECT_NAME, CONNECT_PARAMETERS
from airflow_cdc_provider.sources.cql.events.scalars import EVENT_SCALARS
from airflow_cdc_provider.sources.cql.exact_values import decimals, integers, low_64_bits
from airflow_cdc_provider.sources.cql.lake_types import LakeTypes, NativeType, field_names
from airflow_cdc_provider.sources.cql.schema import CqlType, TableSchema

Decimals = Literal["double", "precise", "string"]
Varints = Literal["long", "precise", "string"]
Frozen = Literal["structured", "bytes"]

_FROZEN_TYPES: Final = ("list", "set", "map", "udt")

_SCALARS: Final = {**EVENT_SCALARS, "duration": pa.int64()}
_NAMES: Final = {
    "date": "io.debezium.time.Date:1",
    "duration": "io.debezium.time.NanoDuration:1",
    "timestamp": "io.debezium.time.Timestamp:1",
    "timeuuid": "io.debezium.data.Uuid:1",
    "uuid": "io.debezium.data.Uuid:1",
}
_JAVA_TYPES: Final = {
    "ascii": "AsciiType",
    "bigint": "LongType",
    "blob": "BytesType",
    "boolean": "BooleanType",
    "counter": "CounterColumnType",
    "date": "SimpleDateType",
    "decimal": "DecimalType",
    "double": "DoubleType",
    "duration": "DurationType",
    "empty": "EmptyType",
    "float": "FloatType",
    "inet": "InetAddressType",
    "int": "Int32Type",
    "list": "ListType",
    "map": "MapType",
    "set": "SetType",
    "smallint": "ShortType",
    "text": "UTF8Type",
    "time": "TimeType",
    "timestamp": "TimestampType",
    "timeuuid": "TimeUUIDType",
    "tinyint": "ByteType",
    "tuple": "TupleType",
    "uuid": "UUIDType",
    "varint": "IntegerType",
    "vector": "VectorType",
}
_VARIABLE_SCALE: Final = "io.debezium.data.VariableScaleDecimal:1"
_FIXED_SCALE: Final = "org.apache.kafka.connect.data.Decimal:1"
_PRECISE_DECIMAL: Final = pa.struct(
    [pa.field("scale", pa.int32(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
)
_MOST_PLAIN_DIGITS: Final = 100_000
"""A decimal with more zeros keeps its exponent: a few bytes can encode one with 2**31 zeros."""
_PACKAGE: Final = "org.apache.cassandra.db.marshal."
_DURATION_UNITS_NS: Final = {
    "y": 360 * 86_400_000_000_000,
    "mo": 30 * 86_400_000_000_000,
    "w": 7 * 86_400_000_000_000,
    "d": 86_400_000_000_000,
    "h": 3_600_000_000_000,
    "m": 60_000_000_000,
    "s": 1_000_000_000,
    "ms": 1_000_000,
    "us": 1000,
    "ns": 1,
}
_DURATION_PART: Final = re.compile(r"(?<!\d)(\d+)(mo|ms|us|ns|y|w|d|h|m|s)")


@dataclass(frozen=True)
class EventTypes:
    """Types of columns in events.

    Args:
        decimals: Form of decimals (``decimal.handling.mode``).
        varints: Form of varints (``varint.handling.mode``).
        frozen: Form of frozen collections and UDTs: structured as in the table above, or the value's bytes.
    """

    decimals: Decimals = "double"
    varints: Varints = "long"
    frozen: Frozen = "structured"

    def event_schema(self, schema: TableSchema) -> TableSchema:
        """Return the table with the column types of events; nested types are unchanged."""
        if self.frozen == "structured":
            return schema
        columns = (
            replace(column, type=CqlType("blob"))
            if column.type.frozen and column.type.name in _FROZEN_TYPES
            else column
            for column in schema.columns
        )
        return replace(schema, columns=tuple(columns))

    @property
    def lake(self) -> LakeTypes:
        """Lake types of the projections that :meth:`array` converts."""
        native: dict[NativeType, bool] = {
            "decimal": self.decimals == "precise",
            "varint": self.varints != "string",
        }
        return LakeTypes("milliseconds", tuple(name for name, wanted in native.items() if wanted))

    def field(self, name: str, cql_type: CqlType) -> pa.Field:
        """Return the event field of a CQL type."""
        metadata: dict[bytes, bytes] = {}
        connect_name = self._names.get(cql_type.name, "")
        if cql_type.name == "tuple":
            parts = (_java_class(p).removesuffix("Type") for p in cql_type.parameters)
            connect_name = "".join(parts) + "Tuple"
        elif cql_type.name == "udt":
            connect_name = cql_type.udt
        if connect_name:
            metadata[CONNECT_NAME] = connect_name.encode()
        if connect_name == _VARIABLE_SCALE:
            metadata[CONNECT_DOC] = b"Variable scaled decimal"
        elif connect_name == _FIXED_SCALE:
            metadata[CONNECT_PARAMETERS] = b"scale=0"
        return pa.field(name, self._type(cql_type), metadata=metadata or None)

    @cached_property
    def _names(self) -> Mapping[str, str]:
        precise = {"decimal": (self.decimals, _VARIABLE_SCALE), "varint": (self.varints, _FIXED_SCALE)}
        return {**_NAMES, **{n: connect for n, (mode, connect) in precise.items() if mode == "precise"}}

    @cached_property
    def _scalars(self) -> Mapping[str, pa.DataType]:
        decimal = {"double": pa.float64(), "precise": _PRECISE_DECIMAL, "string": pa.utf8()}
        varint = {"long": pa.int64(), "precise": pa.binary(), "string": pa.utf8()}
        return {**_SCALARS, "decimal": decimal[self.decimals], "varint": varint[self.varints]}

    def _type(self, cql_type: CqlType) -> pa.DataType:
        if cql_type.name in self._scalars:
            return self._scalars[cql_type.name]
        inside = cql_type.parameters
        if cql_type.name == "map" and pa.types.is_map(self.lake.of(cql_type)):
            key, value = self.field("key", inside[0]), self.field("value", inside[1])
            return pa.map_(key.with_nullable(False), value)
        if cql_type.name == "map":
            entry = pa.struct([self.field("key", inside[0]), self.field("value", inside[1])])
            return pa.list_(pa.field("element", entry))
        if cql_type.name in ("list", "set", "vector"):
            return pa.list_(self.field("element", inside[0]))
        return pa.struct([self.field(n, t) for n, t in zip(field_names(cql_type), inside, strict=True)])

    def array(self, column: pa.Array, cql_type: CqlType) -> pa.Array:
        """Convert a column of a projection to its event form.

        Args:
            column: From a projection with :attr:`lake`; whole, not a slice.
            cql_type: The type of its values.

        Returns:
            The converted column.
        """
        name, inside, target = cql_type.name, cql_type.parameters, self._type(cql_type)
        if name == "decimal":
            return _DECIMALS[self.decimals](column)
        if name == "varint":
            return _VARINTS[self.varints](column)
        if name in self._scalars:
            return _scalar(name, column, target)
        buffers = column.buffers()
        if pa.types.is_map(column.type):
            keys, values = self.array(column.keys, inside[0]), self.array(column.items, inside[1])
            entries = pa.StructArray.from_arrays([keys, values], fields=[target.key_field, target.item_field])
            return pa.Array.from_buffers(target, len(column), buffers[:2], children=[entries])
        if name == "map":
            entry = column.values
            parts = [self.array(entry.field(i), inside[i]) for i in range(2)]
            entries = pa.StructArray.from_arrays(parts, fields=list(target.value_type))
            return pa.Array.from_buffers(target, len(column), buffers[:2], children=[entries])
        if pa.types.is_list(column.type):
            elements = self.array(column.values, inside[0])
            return pa.Array.from_buffers(target, len(column), buffers[:2], children=[elements])
        children = [self.array(column.field(i), t) for i, t in enumerate(inside)]
        return pa.Array.from_buffers(target, len(column), buffers[:1], children=children)


def _scalar(name: str, column: pa.Array, target: pa.DataType) -> pa.Array:
    if name == "duration":
        return pa.array([_nanoseconds(text) for text in column.to_pylist()], target)
    if name == "inet":
        return pc.binary_join_element_wise("/", column, "")
    if name == "date":
        return column.view(target)
    return column.cast(target)


def java_type(cql_type: CqlType, *, descending: bool = False) -> str:
    """Return a type's name in the format of ``AbstractType.toString``, for events of range deletions."""
    text = _PACKAGE + _java_class(cql_type)
    if cql_type.parameters and cql_type.name != "udt":
        text += "(" + ",".join(java_type(p) for p in cql_type.parameters) + ")"
        if cql_type.frozen and cql_type.name in ("list", "set", "map"):
            text = f"{_PACKAGE}FrozenType({text})"
    return f"{_PACKAGE}ReversedType({text})" if descending else text


def _java_class(cql_type: CqlType) -> str:
    return _JAVA_TYPES.get(cql_type.name) or cql_type.udt.rpartition(".")[2]


def _doubles(column: pa.Array) -> pa.Array:
    try:
        return column.cast(pa.float64())
    except pa.ArrowInvalid:  # out of range of a double
        return pa.array([None if text is None else float(text) for text in column.to_pylist()], pa.float64())


def _precise_decimals(column: pa.Array) -> pa.Array:
    scales, numbers = decimals(column)
    return pa.StructArray.from_arrays([scales, numbers], fields=list(_PRECISE_DECIMAL), mask=scales.is_null())


def _plain_texts(column: pa.Array) -> pa.Array:
    return pa.array([None if text is None else _plain_text(text) for text in column.to_pylist()], pa.utf8())


def _plain_text(text: str) -> str:
    """Format a decimal like ``BigDecimal.toPlainString``."""
    if "E" not in text or abs(int(text.partition("E")[2])) > _MOST_PLAIN_DIGITS:
        return text
    return f"{Decimal(text):f}"


def _wrap(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _nanoseconds(text: str | None) -> int | None:
    """Add up the parts of a duration in CQL's format."""
    if text is None:
        return None
    total = sum(int(n) * _DURATION_UNITS_NS[unit] for n, unit in _DURATION_PART.findall(text))
    return _wrap(-total if text.startswith("-") else total)


_DECIMALS: Final[Mapping[Decimals, Callable[[pa.Array], pa.Array]]] = {
    "double": _doubles,
    "precise": _precise_decimals,
    "string": _plain_texts,
}
_VARINTS: Final[Mapping[Varints, Callable[[pa.Array], pa.Array]]] = {
    "long": low_64_bits,
    "precise": integers,
    "string": lambda column: column,
}


def empty_of(field: pa.Field) -> Any:
    """Return the empty list or map of a field as a scalar."""
    return pa.scalar([], field.type)
