"""CQL types, their native bytes, and the order that the database gives values.

Values are native bytes everywhere in the imitation, as they travel in the protocol: nothing is rounded or
normalised on the way from a statement to a log row. The order is that of the types' comparators
(``types/types.cc`` in ScyllaDB, ``AbstractType.compare`` in Cassandra), which decides about clustering,
about sorted collections and about which values are one key.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

Native = bytes | None
SortKey = tuple[Any, ...]

SIGNED_NUMBERS = frozenset({"bigint", "int", "smallint", "tinyint", "time", "timestamp", "varint"})


@dataclass(frozen=True)
class CqlType:
    """A type of CQL.

    Args:
        name: Its name; ``udt`` for a user-defined type.
        parameters: Types inside: of elements, of key and value, of fields.
        frozen: Whether a collection or user-defined type is one cell; meaningless for others.
        fields: Names of a user-defined type's fields.
        udt_name: The name of a user-defined type, without its keyspace.
    """

    name: str
    parameters: tuple[CqlType, ...] = ()
    frozen: bool = False
    fields: tuple[str, ...] = ()
    udt_name: str = ""

    @property
    def multi_cell(self) -> bool:
        """Whether a column of this type has a cell for each element or field."""
        return self.name in ("list", "set", "map", "udt") and not self.frozen

    @property
    def as_frozen(self) -> CqlType:
        """This type as one cell."""
        return CqlType(self.name, self.parameters, True, self.fields, self.udt_name)

    def cql(self, keyspace: str) -> str:
        """Write it as CQL does, user-defined types with their keyspace."""
        if self.name == "udt":
            text = f"{quoted(keyspace)}.{quoted(self.udt_name)}"
        elif self.parameters:
            text = f"{self.name}<{', '.join(p.cql(keyspace) for p in self.parameters)}>"
        else:
            text = self.name
        return f"frozen<{text}>" if self.frozen else text


def quoted(name: str) -> str:
    """Write a name as CQL."""
    return '"' + name.replace('"', '""') + '"'


def pack_parts(values: Iterable[Native]) -> bytes:
    """Join values as tuples and user-defined types do: int32 length, -1 for null, then the bytes."""
    return b"".join(struct.pack(">i", -1) if v is None else struct.pack(">i", len(v)) + v for v in values)


def unpack_parts(data: bytes) -> list[Native]:
    """Split what :func:`pack_parts` joined."""
    found: list[Native] = []
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from(">i", data, at)
        at += 4
        found.append(None if length < 0 else data[at : at + length])
        at += max(length, 0)
    return found


def pack_elements(values: Sequence[bytes]) -> bytes:
    """Make a frozen list or set; a set's elements must be in order."""
    return struct.pack(">i", len(values)) + pack_parts(values)


def pack_pairs(pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Make a frozen map; its keys must be in order."""
    return struct.pack(">i", len(pairs)) + pack_parts(part for pair in pairs for part in pair)


def unpack_elements(data: bytes) -> list[bytes]:
    """Split a frozen list or set; of a map it gives keys and values by turns."""
    return [part or b"" for part in unpack_parts(data[4:])]


def unpack_pairs(data: bytes) -> list[tuple[bytes, bytes]]:
    """Split a frozen map."""
    parts = unpack_elements(data)
    return list(zip(parts[::2], parts[1::2], strict=True))


def sort_key(cql_type: CqlType, value: Native) -> SortKey:
    """Return what orders values of a type: smaller, equal and greater as the type's comparator says.

    Null comes first, then the empty value.
    """
    if value is None:
        return (0,)
    if not value:
        return (1,)
    name, inside = cql_type.name, cql_type.parameters
    if name in SIGNED_NUMBERS:
        return (2, int.from_bytes(value, "big", signed=True))
    if name in ("float", "double"):
        return (2, *_float_key(value))
    if name == "decimal":
        (scale,) = struct.unpack_from(">i", value)
        sign, digits, _ = Decimal(int.from_bytes(value[4:], "big", signed=True)).as_tuple()
        return (2, Decimal((sign, digits, -scale)))
    if name == "timeuuid":
        return (2, *timeuuid_key(value))
    if name == "uuid":
        version = value[6] >> 4
        return (2, version, _time_bits(value) if version == 1 else value[:8], value[8:])
    if name in ("list", "set"):
        return (2, *(sort_key(inside[0], part) for part in unpack_elements(value)))
    if name == "map":
        types = (inside[0], inside[1])
        return (2, *(sort_key(types[n % 2], part) for n, part in enumerate(unpack_elements(value))))
    if name in ("tuple", "udt"):
        parts = unpack_parts(value)
        parts += [None] * (len(inside) - len(parts))
        return (2, *(sort_key(t, part) for t, part in zip(inside, parts, strict=True)))
    return (2, value)  # text, blob, boolean, inet, date: by unsigned bytes


def timeuuid_key(value: bytes) -> tuple[bytes, tuple[int, ...]]:
    """Order timeuuids: by the 60 bits of the time, then by the other eight bytes as signed ones."""
    return (_time_bits(value), struct.unpack(">8b", value[8:]))


def _time_bits(value: bytes) -> bytes:
    return bytes([value[6] & 0x0F]) + value[7:8] + value[4:6] + value[:4]


def _float_key(value: bytes) -> tuple[int, float, int]:
    (number,) = struct.unpack(">d" if len(value) == 8 else ">f", value)
    if math.isnan(number):  # all NaNs are one, and the greatest
        return (1, 0.0, 0)
    return (0, number, 0 if value[0] & 0x80 else 1)
