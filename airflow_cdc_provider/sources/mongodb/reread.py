"""Documents read again by their keys, as of one cluster time.

A key tells an ``_id`` up to what the server's index takes for the same, so a value made of it finds the one
document that there is. One that isn't there any more is told too: its record has no payload.
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
from airflow_cdc_provider.sources.mongodb import bson
from airflow_cdc_provider.sources.mongodb.bson import as_bytes, value_end
from airflow_cdc_provider.sources.mongodb.connection import cluster_time
from airflow_cdc_provider.sources.mongodb.position import LAST_INDEX, ORIGIN
from airflow_cdc_provider.sources.mongodb.raw_cursor import RawCursor
from airflow_cdc_provider.sources.mongodb.records import positions, snapshot_records
from airflow_cdc_provider.sources.mongodb.snapshot import read_concern

_KEYS_AT_ONCE: Final = 1000
REREAD_NUMBER: Final = 2**32 - 1
"""Stands in positions for the number of a snapshot's range; no snapshot has so many."""

_LARGEST_EXPONENT: Final = 6111


def read_keys(
    client: MongoClient, table: str, keys: Sequence[bytes], *, exact: bool, comment: str
) -> Iterator[pa.RecordBatch]:
    """Read documents of a collection again.

    Args:
        client: Connected to one server.
        table: ``database.collection``.
        keys: Canonical keys (:mod:`.identity`).
        exact: Read as of one moment, not of it or later.
        comment: Names the cursor at the server.

    Yields:
        A batch of one record for each key, in their order: the document, or none.

    Raises:
        CdcError: The server can't be reached, or refuses.
    """
    database, _, collection = table.partition(".")
    done = 0
    for first in range(0, len(keys), _KEYS_AT_ONCE):
        some = keys[first : first + _KEYS_AT_ONCE]
        now = cluster_time(client)
        at = (now.time << 32) | now.inc
        command = {
            "find": collection,
            "filter": RawBSONDocument(_among([id_of_key(key) for key in some])),
            "readConcern": read_concern(at, exact=exact),
            "comment": comment,
        }
        cursor = RawCursor(
            client, database, command, _KEYS_AT_ONCE, f"documents of {table} can't be read again"
        )
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
        for number, key in enumerate(some):
            yield found[key] if key in found else _gone(table, key, at, done + number)
        done += len(some)


def _gone(table: str, key: bytes, at: int, number: int) -> pa.RecordBatch:
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


def _among(ids: Sequence[bytes]) -> bytes:
    """Write ``{_id: {$in: [...]}}`` of documents ``{_id: value}``."""
    members = bytearray()
    for number, document in enumerate(ids):
        value = document[9:-1]
        members += document[4:5] + str(number).encode() + b"\0" + value
    array = _document(bytes(members))
    return _document(b"\x03_id\0" + _document(b"\x04$in\0" + array))


def id_of_key(key: bytes) -> bytes:
    """Return BSON of ``{_id: value}`` with a value that the server's index takes for that of a key.

    Raises:
        CorruptInput: It is no key.
    """
    value, end = _value(key, key[0], 1)
    if end != len(key):
        raise CorruptInput("this is no key of a document", found=key.hex())
    return _document(key[:1] + b"_id\0" + value)


def _value(key: bytes, kind: int, at: int) -> tuple[bytes, int]:
    """Read a value of a type from its place in a key; return its BSON and the place after it."""
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
        raise CorruptInput("this is no key of a document", found=key.hex())
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
    """Write a finite decimal: sign, exponent and coefficient, as the key has them, in its own form."""
    negative, exponent = payload[0], int.from_bytes(payload[1:5], "little", signed=True)
    coefficient = int.from_bytes(payload[5:21], "big")
    while exponent > _LARGEST_EXPONENT:
        coefficient, exponent = 10 * coefficient, exponent - 1
    biased = exponent + 6176
    return ((negative << 127) | (biased << 113) | coefficient).to_bytes(16, "little")


def _document(members: bytes) -> bytes:
    return struct.pack("<i", len(members) + 5) + members + b"\0"
