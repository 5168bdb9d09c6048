"""Re-reads documents by their keys, at one cluster time.

A key identifies an ``_id`` up to equality in the server's index, so a value built from it finds the document.
A deleted document is reported too: its record has no payload.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA, SNAPSHOT
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats import bson
from airflow_cdc_provider.formats.bson import as_bytes, value_end
from airflow_cdc_provider.sources.mongodb.connection import cluster_time
from airflow_cdc_provider.sources.mongodb.driver.raw_cursor import RawCursor
from airflow_cdc_provider.sources.mongodb.key_ranges import read_concern
from airflow_cdc_provider.sources.mongodb.position import LAST_INDEX, ORIGIN
from airflow_cdc_provider.sources.mongodb.records import positions, snapshot_records

_KEYS_AT_ONCE: Final = 1000
REREAD_NUMBER: Final = 2**32 - 1
"""Takes the place of a snapshot range's number in positions; no snapshot has so many ranges."""

_LARGEST_EXPONENT: Final = 6111


def read_keys(
    client: MongoClient, table: str, keys: Sequence[bytes], *, exact: bool, comment: str
) -> Iterator[pa.RecordBatch]:
    """Re-read documents of a collection.

    Args:
        client: Connected to one server.
        table: ``database.collection``.
        keys: Canonical keys (:mod:`.decoding.identity`).
        exact: Whether to read at exactly one cluster time, not at it or later.
        comment: Comment that identifies the cursor on the server.

    Yields:
        A batch of one record for each key, in their order: the document, or no payload.

    Raises:
        CdcError: The server is unreachable, or refuses the read.
    """
    database, _, collection = table.partition(".")
    done = 0
    for first in range(0, len(keys), _KEYS_AT_ONCE):
        batch = keys[first : first + _KEYS_AT_ONCE]
        now = cluster_time(client)
        at = (now.time << 32) | now.inc
        command = {
            "find": collection,
            "filter": RawBSONDocument(_id_filter([id_of_key(key) for key in batch])),
            "readConcern": read_concern(at, exact=exact),
            "comment": comment,
        }
        cursor = RawCursor(client, database, command, _KEYS_AT_ONCE, f"documents of {table} can't be re-read")
        found: dict[bytes, pa.RecordBatch] = {}
        while cursor.alive:
            reply = cursor.next()
            records = snapshot_records(
                reply.data,
                reply.documents,
                table=table,
                time=at,
                number=REREAD_NUMBER,
                first_row=done,
                captured_us=time.time_ns() // 1000,
            )
            done += len(records)
            found |= {key: records.slice(n, 1) for n, key in enumerate(records.column("key").to_pylist())}
        cursor.close()
        for number, key in enumerate(batch):
            yield found[key] if key in found else _deleted(table, key, at, done + number)
        done += len(batch)


def _deleted(table: str, key: bytes, at: int, number: int) -> pa.RecordBatch:
    version = positions(np.array([at]), np.array([LAST_INDEX])).tobytes()
    row = {
        "source_table": table,
        "kind": SNAPSHOT,
        "origin": ORIGIN,
        "position": version + struct.pack(">II", REREAD_NUMBER, number),
        "generation": 0,
        "key": key,
        "version": version,
        "captured_at": time.time_ns() // 1000,
    }
    return pa.RecordBatch.from_pylist([row], schema=CHANGE_SCHEMA)


def _id_filter(ids: Sequence[bytes]) -> bytes:
    """Return ``{_id: {$in: [...]}}`` for documents ``{_id: value}``."""
    members = bytearray()
    for number, document in enumerate(ids):
        value = document[9:-1]
        members += document[4:5] + str(number).encode() + b"\0" + value
    array = _document(bytes(members))
    return _document(b"\x03_id\0" + _document(b"\x04$in\0" + array))


def id_of_key(key: bytes) -> bytes:
    """Return BSON of ``{_id: value}`` with a value that the server's index treats as equal to a key's.

    Raises:
        CorruptInput: Not a valid key.
    """
    value, end = _value(key, key[0], 1)
    if end != len(key):
        raise CorruptInput("not a valid document key", found=key.hex())
    return _document(key[:1] + b"_id\0" + value)


def _value(key: bytes, kind: int, at: int) -> tuple[bytes, int]:
    """Read a value of a type at an offset of a key; return its BSON and the offset after it."""
    if kind in (bson.DOUBLE, bson.INT64):
        return key[at : at + 8][::-1], at + 8
    if kind == bson.DECIMAL128:
        return _decimal(key[at : at + 21]), at + 21
    if kind in (bson.DOCUMENT, bson.ARRAY):
        return _members(key, at, named=kind == bson.DOCUMENT)
    if kind == bson.CODE_WITH_SCOPE:
        scope = at + 4 + int.from_bytes(key[at : at + 4], "little")
        document, end = _members(key, scope, named=True)
        value = key[at:scope] + document
        return struct.pack("<i", 4 + len(value)) + value, end
    end = value_end(as_bytes(key), kind, at, len(key))
    if end < 0:
        raise CorruptInput("not a valid document key", found=key.hex())
    return key[at:end], int(end)


def _members(key: bytes, at: int, *, named: bool) -> tuple[bytes, int]:
    members = bytearray()
    number = 0
    while key[at]:
        kind = key[at]
        name = str(number).encode()
        after = at + 1
        if named:
            after = key.index(0, after) + 1
            name = key[at + 1 : after - 1]
        value, at = _value(key, kind, after)
        members += bytes([kind]) + name + b"\0" + value
        number += 1
    return _document(bytes(members)), at + 1


def _decimal(payload: bytes) -> bytes:
    """Encode a finite decimal from the sign, exponent and coefficient in a key."""
    negative, exponent = payload[0], int.from_bytes(payload[1:5], "little", signed=True)
    coefficient = int.from_bytes(payload[5:21], "big")
    while exponent > _LARGEST_EXPONENT:
        coefficient, exponent = 10 * coefficient, exponent - 1
    biased = exponent + 6176
    return ((negative << 127) | (biased << 113) | coefficient).to_bytes(16, "little")


def _document(members: bytes) -> bytes:
    return struct.pack("<i", len(members) + 5) + members + b"\0"
