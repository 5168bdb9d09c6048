"""CQL values as ScyllaDB's source connector shows them: Arrow columns, Connect's names as metadata.

Starting point are the columns of :mod:`airflow_cdc_provider.sources.cql.value_columns`, with timestamps as
milliseconds. What differs from the lake's types:

=================== ================================================================================
CQL                 event
=================== ================================================================================
tinyint, smallint   int8, int16
date                int32 days, ``org.apache.kafka.connect.data.Date``
timestamp           int64 ms, ``org.apache.kafka.connect.data.Timestamp``
time                int64 ns
map                 array of structs ``key``, ``value``, whose name tells both types
tuple               struct ``field_0``, ``field_1`` ..., likewise
user-defined type   struct with its own fields; null where no field has a value
=================== ================================================================================

A list that isn't frozen is a map by the ids of its cells in the log; events have its values, in the order of
these ids: by the time of the UUID, then by its other bytes as signed numbers. (The connector compares them as
Java's ``UUID.compareTo`` does, which puts the elements of long lists into another order.)
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.sources.connect_metadata import CONNECT_NAME
from airflow_cdc_provider.sources.cql.buffers import binary_parts
from airflow_cdc_provider.sources.cql.event_scalars import EVENT_SCALARS
from airflow_cdc_provider.sources.cql.lake_types import LakeTypes
from airflow_cdc_provider.sources.cql.schema import CqlType

LAKE: Final = LakeTypes("milliseconds")
"""How values are shown before they become those of events."""

_SCALARS: Final = {**EVENT_SCALARS, "decimal": pa.utf8(), "duration": pa.utf8(), "varint": pa.utf8()}
_NAMES: Final = {
    "date": "org.apache.kafka.connect.data.Date:1",
    "timestamp": "org.apache.kafka.connect.data.Timestamp:1",
}
_NESTED_NAMES: Final = {"list": "List", "set": "Set", "map": "Map", "tuple": "Tuple", "vector": "Vector"}
_UUID_BYTES: Final = 16


def is_scalar(cql_type: CqlType) -> bool:
    """Tell whether a type is none of collections, tuples and user-defined types."""
    return not cql_type.parameters


def event_field(name: str, cql_type: CqlType, lead: str = "") -> pa.Field:
    """Return the field that shows values of a type; it may be null.

    Args:
        name: Its name.
        cql_type: The type; of columns that aren't frozen as of frozen ones.
        lead: Begins the names of schemas of structs inside.
    """
    named = _NAMES.get(cql_type.name, "")
    if cql_type.name in ("tuple", "udt"):
        named = lead + type_name(cql_type)
    return pa.field(name, _type(cql_type, lead), metadata={CONNECT_NAME: named.encode()} if named else None)


def type_name(cql_type: CqlType) -> str:
    """Name a type as the connector does in names of schemas."""
    if cql_type.name == "udt":
        return "UDT_" + cql_type.udt.partition(".")[2].replace(".", "_").replace("-", "_")
    if cql_type.parameters:
        return "_".join([_NESTED_NAMES[cql_type.name], *map(type_name, cql_type.parameters)])
    return cql_type.name.upper()


def shown(column: pa.Array, cql_type: CqlType, target: pa.DataType) -> pa.Array:
    """Show a column as events do.

    Args:
        column: As :class:`~airflow_cdc_provider.sources.cql.value_columns.ValueColumns` makes it with
            :data:`LAKE`: whole, not a slice.
        cql_type: The type of its values.
        target: The type of the field that :func:`event_field` gives.
    """
    inside = cql_type.parameters
    if not inside:
        return column.view(target) if cql_type.name == "date" else column.cast(target)
    buffers = column.buffers()
    if cql_type.name == "map":
        entry = target.value_type
        if pa.types.is_map(column.type):
            parts = [column.keys, column.items]
        else:
            parts = [column.values.field(0), column.values.field(1)]
        children = [shown(p, t, f.type) for p, t, f in zip(parts, inside, entry, strict=True)]
        entries = pa.StructArray.from_arrays(children, fields=list(entry))
        return pa.Array.from_buffers(target, len(column), buffers[:2], children=[entries])
    if pa.types.is_list(column.type):
        elements = shown(column.values, inside[0], target.value_type)
        return pa.Array.from_buffers(target, len(column), buffers[:2], children=[elements])
    fields = list(target)
    children = [shown(column.field(i), t, fields[i].type) for i, t in enumerate(inside)]
    if cql_type.name == "udt":
        empty = np.ones(len(column), np.bool_)
        for child in children:
            empty &= _says_nothing(child)
        mask = pa.array(empty | column.is_null().to_numpy(zero_copy_only=False))
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
    return pa.Array.from_buffers(target, len(column), buffers[:1], children=children)


def in_list_order(column: pa.Array) -> pa.Array:
    """Sort the cells of lists by their ids.

    Args:
        column: Maps whose keys are ids of cells as bytes: whole, not a slice.

    Returns:
        The same; what was in order already is not copied.
    """
    ids = binary_parts(column.keys)
    count = len(ids.valid)
    if count == 0:
        return column
    raw = np.frombuffer(ids.data[ids.offsets[0] : ids.offsets[-1]], np.uint8).reshape(count, _UUID_BYTES)
    words = raw.view(">u8").astype(np.uint64).reshape(count, 2)
    high = words[:, 0]
    # 32 bits of the time from its lowest, 16 of its middle, 4 of the version, 12 of its highest.
    time = (
        ((high & np.uint64(0xFFF)) << np.uint64(48))
        | (((high >> np.uint64(16)) & np.uint64(0xFFFF)) << np.uint64(32))
        | (high >> np.uint64(32))
    )
    rest = words[:, 1] ^ np.uint64(0x8080808080808080)
    offsets = np.asarray(column.offsets)
    owner = np.repeat(np.arange(len(column)), np.diff(offsets))
    order = np.lexsort((rest, time, owner))
    if np.array_equal(order, np.arange(count)):
        return column
    taken = pa.array(order)
    entries = pa.StructArray.from_arrays(
        [column.keys.take(taken), column.items.take(taken)],
        fields=[column.type.key_field, column.type.item_field],
    )
    return pa.Array.from_buffers(column.type, len(column), column.buffers()[:2], children=[entries])


def _type(cql_type: CqlType, lead: str) -> pa.DataType:
    inside = cql_type.parameters
    match cql_type.name:
        case "list" | "set" | "vector":
            return pa.list_(event_field("element", inside[0], lead))
        case "map":
            parts = [event_field(n, t, lead) for n, t in zip(("key", "value"), inside, strict=True)]
            named = f"{lead}MapEntry_{type_name(inside[0])}_{type_name(inside[1])}"
            entry = pa.field("element", pa.struct(parts), False, {CONNECT_NAME: named.encode()})
            return pa.list_(entry)
        case "tuple":
            return pa.struct([event_field(f"field_{i}", t, lead) for i, t in enumerate(inside)])
        case "udt":
            return pa.struct([event_field(n, t, lead) for n, t in zip(cql_type.fields, inside, strict=True)])
    return _SCALARS[cql_type.name]


def _says_nothing(column: pa.Array) -> Any:
    """Tell which values are null or collections without elements."""
    nothing = column.is_null()
    if pa.types.is_list(column.type):
        nothing = pc.or_(nothing, pc.equal(pc.list_value_length(column).fill_null(0), 0))
    return nothing.to_numpy(zero_copy_only=False)
