"""Counts the fields of documents: each name with each type, its frequency and its first index.

Kernels walk over the bytes once; the work in Python is per distinct field, not per document. Fields of nested
documents are counted up to a depth; those of documents in arrays are not. A binary UUID (subtype 4, 16 bytes)
counts as a separate type, as in columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from airflow_cdc_provider.formats import bson
from airflow_cdc_provider.formats.bson import BINARY, DOCUMENT, name_end, value_end
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, walker

UUID: Final = 0x20
"""Type number of a binary UUID. BSON has no such type."""

TYPE_NAMES: Final[Mapping[int, str]] = {
    bson.DOUBLE: "double",
    bson.STRING: "string",
    bson.DOCUMENT: "object",
    bson.ARRAY: "array",
    bson.BINARY: "binData",
    UUID: "uuid",
    bson.UNDEFINED: "undefined",
    bson.OBJECT_ID: "objectId",
    bson.BOOLEAN: "bool",
    bson.DATE: "date",
    bson.NULL: "null",
    bson.REGEX: "regex",
    bson.DB_POINTER: "dbPointer",
    bson.CODE: "javascript",
    bson.SYMBOL: "symbol",
    bson.CODE_WITH_SCOPE: "javascriptWithScope",
    bson.INT32: "int",
    bson.TIMESTAMP: "timestamp",
    bson.INT64: "long",
    bson.DECIMAL128: "decimal",
    bson.MIN_KEY: "minKey",
    bson.MAX_KEY: "maxKey",
}
"""MongoDB's own type names, as for ``$type``, plus ``uuid``."""

MOST_FIELDS: Final = 20_000
"""Maximum number of distinct fields and types. Documents that are used as maps can have more."""

_FIRST_CAPACITY: Final = 256


@dataclass(frozen=True)
class FieldCount:
    """One field with one type.

    Args:
        path: Member names that lead to it. Bytes that are not UTF-8 are replaced by U+FFFD.
        kind: BSON type, or :data:`UUID`.
        count: Number of documents with the field; members with a repeated name count each.
        first_index: Smallest index of the field in its documents.
    """

    path: tuple[str, ...]
    kind: int
    count: int
    first_index: int


@dataclass(frozen=True)
class FieldTally:
    """The fields of documents.

    Args:
        fields: Each field with each of its types, in the order of their first appearance.
        whole: Whether all fields are included; False if there are more than :data:`MOST_FIELDS`.
    """

    fields: Sequence[FieldCount]
    whole: bool


def tally_fields(data: Bytes, starts: Ints, ends: Ints, *, depth: int = 1) -> FieldTally:
    """Count fields by name and type.

    Args:
        data: The buffer.
        starts: First byte of each document, -1 for none. Broken ones are counted up to the fault.
        ends: Byte after each.
        depth: 1: top-level fields; 2: also fields of nested documents; and so on.
    """
    capacity = _FIRST_CAPACITY
    while True:
        table = np.zeros((capacity, _COLUMNS), np.int64)
        slots = np.full(4 * capacity, -1, np.int64)
        frames = np.zeros((depth, 3), np.int64)
        distinct, whole = _tally(data, starts, ends, depth, table, slots, frames)
        if whole or capacity >= MOST_FIELDS:
            break
        capacity = min(4 * capacity, MOST_FIELDS)
    paths: list[tuple[str, ...]] = []
    for owner, start, size in table[:distinct, [_OWNER, _NAME, _SIZE]].tolist():
        name = data[start : start + size].tobytes().decode(errors="replace")
        paths.append((*(paths[owner] if owner >= 0 else ()), name))
    fields = [
        FieldCount(path, int(kind), int(count), int(first_index))
        for path, (kind, count, first_index) in zip(
            paths, table[:distinct, [_KIND, _COUNT, _INDEX]].tolist(), strict=True
        )
    ]
    return FieldTally(fields, bool(whole))


# Columns of the table of fields.
_OWNER: Final = 0
_NAME: Final = 1
_SIZE: Final = 2
_KIND: Final = 3
_COUNT: Final = 4
_INDEX: Final = 5
_COLUMNS: Final = 6

# Columns of a frame: a document that is being walked.
_LIMIT: Final = 0
_OF: Final = 1
_MEMBERS: Final = 2


@walker
def _tally(
    data: Bytes, starts: Ints, ends: Ints, depth: int, table: Ints, slots: Ints, frames: Ints
) -> tuple[Int, Int]:
    """Fill the table; return the number of its rows that are used, and whether all fields fit."""
    used = np.int64(0)
    whole = True
    for row in range(len(starts)):
        if starts[row] < 0 or value_end(data, DOCUMENT, starts[row], ends[row]) != ends[row]:
            continue
        level = 0
        frames[0, _LIMIT] = ends[row] - 1
        frames[0, _OF] = -1
        frames[0, _MEMBERS] = 0
        pos = starts[row] + 4
        while True:
            limit = frames[level, _LIMIT]
            if pos >= limit:
                if level == 0:
                    break
                level -= 1
                pos = limit + 1
                continue
            stop = name_end(data, pos + 1, limit)
            after = value_end(data, np.int64(data[pos]), stop + 1, limit) if stop >= 0 else stop
            if after < 0:
                break
            kind = np.int64(data[pos])
            if kind == BINARY and after - stop == 22 and data[stop + 5] == 4:
                kind = np.int64(UUID)
            field, slot = _field(data, pos + 1, stop, frames[level, _OF], kind, table, slots)
            if field < 0 and used < len(table):
                field = used
                slots[slot] = used
                table[used, _OWNER] = frames[level, _OF]
                table[used, _NAME] = pos + 1
                table[used, _SIZE] = stop - pos - 1
                table[used, _KIND] = kind
                table[used, _INDEX] = frames[level, _MEMBERS]
                used += 1
            if field < 0:
                whole = False
            else:
                table[field, _COUNT] += 1
                table[field, _INDEX] = min(table[field, _INDEX], frames[level, _MEMBERS])
            frames[level, _MEMBERS] += 1
            if kind == DOCUMENT and level + 1 < depth and field >= 0:
                level += 1
                frames[level, _LIMIT] = after - 1
                frames[level, _OF] = field
                frames[level, _MEMBERS] = 0
                pos = stop + 5
            else:
                pos = after
    return used, whole


@walker
def _field(
    data: Bytes, start: int, stop: int, owner: int, kind: int, table: Ints, slots: Ints
) -> tuple[Int, Int]:
    """Return the row of a field, -1 for a new field, and its slot."""
    prime = np.uint64(1099511628211)
    digest = (np.uint64(14695981039346656037) ^ np.uint64(owner + 1)) * prime
    digest = (digest ^ np.uint64(kind)) * prime
    for i in range(start, stop):
        digest = (digest ^ np.uint64(data[i])) * prime
    digest ^= digest >> np.uint64(32)
    slot = np.int64(digest % np.uint64(len(slots)))
    size = stop - start
    while slots[slot] >= 0:
        field = slots[slot]
        if table[field, _KIND] == kind and table[field, _OWNER] == owner and table[field, _SIZE] == size:
            first = table[field, _NAME]
            same = True
            for i in range(size):
                if data[start + i] != data[first + i]:
                    same = False
                    break
            if same:
                return field, slot
        slot = (slot + 1) % len(slots)
    return np.int64(-1), slot
