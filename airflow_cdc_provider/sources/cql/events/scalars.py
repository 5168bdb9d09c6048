"""Arrow types of CQL scalars in events that are common to all connectors; each overrides its differences."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

EVENT_SCALARS: Final = {
    "ascii": pa.utf8(),
    "bigint": pa.int64(),
    "blob": pa.binary(),
    "boolean": pa.bool_(),
    "counter": pa.int64(),
    "custom": pa.binary(),
    "date": pa.int32(),
    "double": pa.float64(),
    "empty": pa.binary(),
    "float": pa.float32(),
    "inet": pa.utf8(),
    "int": pa.int32(),
    "smallint": pa.int16(),
    "text": pa.utf8(),
    "time": pa.int64(),
    "timestamp": pa.int64(),
    "timeuuid": pa.utf8(),
    "tinyint": pa.int8(),
    "uuid": pa.utf8(),
}
"""By CQL name: dates are days, times ns, timestamps ms. Without decimal, duration and varint."""
