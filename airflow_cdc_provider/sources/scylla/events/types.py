"""CQL values as ScyllaDB's source connector represents them: Arrow columns, Connect names as metadata.

The input are columns of :mod:`airflow_cdc_provider.sources.cql.value_columns`, with timestamps as
milliseconds. Differences from the lake's types:

=================== ================================================================================
CQL                 event
=================== ================================================================================
tinyint, smallint   int8, int16
date                int32 days, ``org.apache.kafka.connect.data.Date``
timestamp           int64 ms, ``org.apache.kafka.connect.data.Timestamp``
time                int64 ns
map                 array of structs ``key``, ``value``, named after both types
tuple               struct ``field_0``, ``field_1`` ..., named after the types
user-defined type   struct with the type's fields; null if no field has a value
=================== ================================================================================

In the log, a non-frozen list is a map keyed by cell ids. Events contain its values in the order of these ids:
by the time of the UUID, then by its other bytes as signed numbers. (The connector compares them with Java's
``UUID.compareTo``, which orders the elements of long lists differently.)
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.arrow_bytes import binary_parts
from airflow_cdc_provider.sources.connect_metadata import CONNECT_NAME
from airflow_cdc_provider.sources.cql.events.scalars import EVENT_SCALARS
from airflow_cdc_provider.sources.cql.lake_types import LakeTypes
from airflow_cdc_provider.sources.cql.schema import CqlType

LAKE: Final = LakeTypes("milliseconds")
"""The representation of values before they are converted to those of events."""

_SCALARS: Final = {**EVENT_SCALARS, "decimal": pa.utf8(), "duration": pa.utf8(), "varint": pa.utf8()}
_NAMES: Final = {
    "date": "org.apache.kafka.connect.data.Date:1",
    "timestamp": "org.apache.kafka.connect.data.Timestamp:1",
}
_NESTED_NAMES: Final = {"list": "List", "set": "Set", "map": "Map", "tuple": "Tuple", "vector": "Vector"}
_UUID_BYTES: Final = 16


def event_field(name: str, cql_type: CqlType, lead: str = "") -> pa.Field:
    """Return the nullable field for values of a type.

    Args:
        name: Its name.
        cql_type: The type; non-frozen types must be passed as frozen ones.
        lead: Prefix of the names of nested struct schemas.
    """
    named = _NAMES.get(cql_type.name, "")
    if cql_type.name in ("tuple", "udt"):
        named = lead + type_name(cql_type)
    return pa.field(name, _type(cql_type, lead), metadata={CONNECT_NAME: named.encode()} if named else None)


def type_name(cql_type: CqlType) -> str:
    """Return the connector's name of a type in schema names."""
    if cql_type.name == "udt":
        return "UDT_" + cql_type.udt.partition(".")[2].replace(".", "_").replace("-", "_")
    if cql_type.parameters:
        return "_".join([_NESTED_NAMES[cql_type.name], *map(type_name, cql_type.parameters)])
    return cql_type.name.upper()


def event_array(column: pa.Array, cql_type: CqlType, target: pa.DataType) -> pa.Array:
    """Convert a column to the representation in events.

    Args:
        column: A result of :class:`~airflow_cdc_provider.sources.cql.value_columns.ValueColumns` with
            :data:`LAKE`; not a slice.
        cql_type: The type of its values.
        target: The type of the field from :func:`event_field`.
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
        children = [event_array(p, t, f.type) for p, t, f in zip(parts, inside, entry, strict=True)]
        entries = pa.StructArray.from_arrays(children, fields=list(entry))
        return pa.Array.from_buffers(target, len(column), buffers[:2], children=[entries])
    if pa.types.is_list(column.type):
        elements = event_array(column.values, inside[0], target.value_type)
        return pa.Array.from_buffers(target, len(column), buffers[:2], children=[elements])
    fields = list(target)
    children = [event_array(column.field(i), t, fields[i].type) for i, t in enumerate(inside)]
    if cql_type.name == "udt":
        empty = np.ones(len(column), np.bool_)
        for child in children:
            empty &= _is_empty(child)
        mask = pa.array(empty | column.is_null().to_numpy(zero_copy_only=False))
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
    return pa.Array.from_buffers(target, len(column), buffers[:1], children=children)


def in_list_order(column: pa.Array, where: str) -> pa.Array:
    """Sort list cells by their ids.

    Args:
        column: Maps with cell ids as binary keys; not a slice.
        where: Which column it is, for errors.

    Returns:
        The sorted column; the input itself if it is sorted already.

    Raises:
        CorruptInput: An id isn't a UUID.
    """
    ids = binary_parts(column.keys)
    count = len(ids.valid)
    if count == 0:
        return column
    sizes = np.diff(ids.offsets)
    if (sizes != _UUID_BYTES).any():
        raise CorruptInput(
            f"{where} has a list cell whose id isn't a UUID",
            expected=f"{_UUID_BYTES} bytes",
            found=f"{sizes[sizes != _UUID_BYTES][0]} bytes",
        )
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


def _is_empty(column: pa.Array) -> Any:
    """Return which values are null or empty collections."""
    empty = column.is_null()
    if pa.types.is_list(column.type):
        empty = pc.or_(empty, pc.equal(pc.list_value_length(column).fill_null(0), 0))
    return empty.to_numpy(zero_copy_only=False)
