"""Cursors that return raw reply bytes.

:class:`RawCursor` runs commands itself to access the reply's bytes: PyMongo's own raw batches create a Python
object for every document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import MongoClient, errors
from pymongo.client_session import ClientSession

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.bson import (
    ARRAY,
    DOCUMENT,
    INT32,
    INT64,
    TIMESTAMP,
    Spans,
    as_bytes,
    find,
    read_i32,
    read_u64,
    split_array,
)
from airflow_cdc_provider.formats.kernels import Bytes
from airflow_cdc_provider.sources.mongodb.driver.server_errors import translated

_RAW: Final = CodecOptions(document_class=RawBSONDocument)


@dataclass(frozen=True)
class RawBatch:
    """One reply of a cursor.

    Args:
        data: The reply's bytes.
        documents: Spans of its documents.
        resume_token: BSON of the newest token of a change stream, else empty.
        operation_time: The server's time of the reply, None if the reply has none.
    """

    data: Bytes
    documents: Spans
    resume_token: bytes
    operation_time: Timestamp | None


class RawCursor:
    """A server cursor that returns raw reply bytes. It is bound to one server and has its own session.

    Args:
        client: Connected to the one server (see :func:`..connection.pinned_client`).
        database: Database of the command.
        command: ``aggregate`` or ``find`` with all its options.
        batch_size: Documents per reply.
        message: Message of errors.
        largest_batch: Maximum batch size, which doubles with each reply; 0: always ``batch_size``.

    Raises:
        CdcError: The command failed.
    """

    def __init__(
        self,
        client: MongoClient,
        database: str,
        command: Mapping[str, Any],
        batch_size: int,
        message: str,
        *,
        largest_batch: int = 0,
    ) -> None:
        self._database = client[database]
        self._batch_size = batch_size
        self._largest_batch = max(batch_size, largest_batch)
        self._message = message
        self._cursor_id = 0
        self._collection = ""
        with translated(message):
            self._session: ClientSession = client.start_session(causal_consistency=False)
            self._first: RawBatch | None = self._run(dict(command), b"firstBatch")

    @property
    def alive(self) -> bool:
        """Whether the cursor may return more replies."""
        return self._first is not None or self._cursor_id != 0

    def next(self, wait_ms: int | None = None) -> RawBatch:
        """Return the next reply.

        Args:
            wait_ms: How long a change stream may wait for new events; None for other cursors.

        Raises:
            CdcError: The command failed; the cursor can't be used any more.
        """
        if self._first is not None:
            first, self._first = self._first, None
            return first
        command: dict[str, Any] = {"getMore": self._cursor_id, "collection": self._collection}
        command["batchSize"] = self._batch_size
        if wait_ms is not None:
            command["maxTimeMS"] = wait_ms
        with translated(self._message):
            batch = self._run(command, b"nextBatch")
        self._batch_size = min(2 * self._batch_size, self._largest_batch)
        return batch

    def refresh(self) -> None:
        """Refresh the cursor's session on the server. Thread-safe.

        Raises:
            CdcError: The command failed.
        """
        with translated(self._message):
            self._database.client.admin.command("refreshSessions", [self._session.session_id])

    def close(self) -> None:
        """Close the cursor on the server; failures are ignored, as the server expires it."""
        if self._cursor_id:
            command = {"killCursors": self._collection, "cursors": [self._cursor_id]}
            self._cursor_id = 0
            try:
                self._database.command(command, session=self._session)
            except errors.PyMongoError:
                return
        self._session.end_session()

    def _run(self, command: Mapping[str, Any], batch_name: bytes) -> RawBatch:
        reply = self._database.command(
            dict(command),
            codec_options=_RAW,
            session=self._session,
            read_preference=self._database.read_preference,
        )
        raw = reply.raw
        data = as_bytes(raw)
        kind, start, end = _member(data, 0, len(data), b"cursor")
        if kind != DOCUMENT:
            raise ConfigurationError(self._message, expected="a reply with a cursor")
        self._cursor_id = _integer(data, start, end, b"id")
        namespace = _text(data, start, end, b"ns")
        self._collection = namespace.partition(".")[2]
        kind, array_start, array_end = _member(data, start, end, batch_name)
        documents = split_array(data, array_start, array_end) if kind == ARRAY else split_array(data, 0, 0)
        token_kind, token_start, token_end = _member(data, start, end, b"postBatchResumeToken")
        token = raw[token_start:token_end] if token_kind == DOCUMENT else b""
        kind, time_start, _ = _member(data, 0, len(data), b"operationTime")
        time = as_timestamp(int(read_u64(data, time_start))) if kind == TIMESTAMP else None
        return RawBatch(data, documents, bytes(token), time)


def as_timestamp(value: int) -> Timestamp:
    """Return a timestamp from its 64 bits, seconds in the upper half."""
    return Timestamp(value >> 32, value & 0xFFFF_FFFF)


def _member(data: Bytes, start: int, end: int, name: bytes) -> tuple[int, int, int]:
    kind, first, after = find(data, start, end, np.frombuffer(name, np.uint8))
    return int(kind), int(first), int(after)


def _integer(data: Bytes, start: int, end: int, name: bytes) -> int:
    kind, first, _ = _member(data, start, end, name)
    if kind == INT64:
        return int(np.int64(read_u64(data, first)))
    return int(read_i32(data, first)) if kind == INT32 else 0


def _text(data: Bytes, start: int, end: int, name: bytes) -> str:
    kind, first, after = _member(data, start, end, name)
    return data[first + 4 : after - 1].tobytes().decode() if kind == 0x02 else ""
