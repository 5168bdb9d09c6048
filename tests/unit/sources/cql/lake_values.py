"""The expected lake values of native values, computed without our kernels."""

from __future__ import annotations

import ipaddress
import struct
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa

from airflow_cdc_provider.sources.cql.json_text import value_to_json
from airflow_cdc_provider.sources.cql.lake_types import field_names, is_lake_map
from airflow_cdc_provider.sources.cql.schema import CqlType
from tests.unit.sources.cql.cql_values import Native, split, vector_parts


def expected_value(cql_type: CqlType, value: Native) -> Any:  # one branch per type
    """Return a value in the form of ``comparable_pylist``: dates as days, timestamps as microseconds."""
    if value is None:
        return None
    name, inside = cql_type.name, cql_type.parameters
    if name in ("ascii", "text"):
        return value.decode()
    if name in ("blob", "custom"):
        return value
    if not value:
        return None
    if name in ("int", "smallint", "tinyint", "bigint", "time", "counter"):
        return int.from_bytes(value, "big", signed=True)
    if name == "timestamp":
        return int.from_bytes(value, "big", signed=True) * 1000
    if name == "date":
        return int.from_bytes(value, "big") - (1 << 31)
    if name == "boolean":
        return value != b"\0"
    if name in ("float", "double"):
        return struct.unpack(">f" if name == "float" else ">d", value)[0]
    if name in ("uuid", "timeuuid"):
        return str(uuid.UUID(bytes=value))
    if name == "varint":
        return str(int.from_bytes(value, "big", signed=True))
    if name == "decimal":
        sign, digits, _ = Decimal(int.from_bytes(value[4:], "big", signed=True)).as_tuple()
        return str(Decimal((sign, digits, -struct.unpack_from(">i", value)[0])))
    if name == "inet":
        address = ipaddress.ip_address(value)
        if isinstance(address, ipaddress.IPv4Address):
            return str(address)
        mapped = address.ipv4_mapped
        return str(mapped) if mapped else ":".join(f"{int(g, 16):x}" for g in address.exploded.split(":"))
    if name == "duration":
        return value_to_json(cql_type, value)[1:-1]
    if name in ("list", "set"):
        return [expected_value(inside[0], v) for v in split(value[4:])]
    if name == "vector":
        return [expected_value(inside[0], v) for v in vector_parts(cql_type, value)]
    if name == "map":
        parts = split(value[4:])
        entries = [
            (expected_value(inside[0], k), expected_value(inside[1], v))
            for k, v in zip(parts[::2], parts[1::2], strict=True)
        ]
        return entries if is_lake_map(cql_type) else [{"key": k, "value": v} for k, v in entries]
    parts = split(value)[: len(inside)]
    parts += [None] * (len(inside) - len(parts))
    names = field_names(cql_type)
    return {n: expected_value(t, v) for n, t, v in zip(names, inside, parts, strict=True)}


def comparable_pylist(array: Any) -> Any:
    """Convert dates and timestamps to numbers, as they exceed Python's types."""
    kind = array.type
    if pa.types.is_date32(kind):
        return array.view(pa.int32()).to_pylist()
    if pa.types.is_timestamp(kind):
        return array.view(pa.int64()).to_pylist()
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        if pa.types.is_map(kind):
            inside = list(zip(comparable_pylist(array.keys), comparable_pylist(array.items), strict=True))
        else:
            inside = comparable_pylist(array.values)
        offsets = array.offsets.to_pylist()
        return [
            inside[a:b] if ok else None
            for a, b, ok in zip(offsets, offsets[1:], array.is_valid().to_pylist(), strict=False)
        ]
    if pa.types.is_struct(kind):
        fields = {kind.field(i).name: comparable_pylist(array.field(i)) for i in range(kind.num_fields)}
        return [
            {n: f[i] for n, f in fields.items()} if ok else None
            for i, ok in enumerate(array.is_valid().to_pylist())
        ]
    return array.to_pylist()
