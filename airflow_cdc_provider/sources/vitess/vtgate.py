"""Client of VTGate: statements, and streams of changes as raw bytes.

Errors of the server are mapped to exceptions by the required reaction (:func:`.failures.failure`). A client
can only be used in the process that created it: gRPC channels don't survive a fork.

Example::

    values = ConnectionValues.read({"host": "vtgate", "port": 15991})
    with VtgateClient(values) as client:
        shards = client.execute("SHOW VITESS_SHARDS").texts()
        for response in client.vstream(request.SerializeToString()):
            ...
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Self

import grpc

from airflow_cdc_provider.sources.vitess import protocol
from airflow_cdc_provider.sources.vitess.connection import ConnectionValues
from airflow_cdc_provider.sources.vitess.failures import failure

DEFAULT_CALL_SECONDS: Final = 30.0
_MAX_SQL: Final = 80


@dataclass(frozen=True)
class Answer:
    """Result of a statement.

    Args:
        fields: Names of the columns.
        rows: Values as the server printed them, None for NULL.
        result: The whole message (``query.QueryResult``).
    """

    fields: tuple[str, ...]
    rows: list[list[bytes | None]]
    result: Any = field(repr=False)

    def texts(self) -> list[list[str]]:
        """Return the rows as text, NULL as an empty text."""
        return [[(value or b"").decode(errors="replace") for value in row] for row in self.rows]


class VtgateClient:
    """A client of VTGate. Thread-safe.

    Args:
        values: The connection.
    """

    def __init__(self, values: ConnectionValues) -> None:
        self.values = values
        self._channel = values.channel()
        self._streams: set[RawStream] = set()
        self._lock = threading.Lock()

    def execute(self, sql: str, target: str = "", timeout_seconds: float = DEFAULT_CALL_SECONDS) -> Answer:
        """Run a statement in autocommit mode.

        Args:
            sql: The statement.
            target: ``keyspace``, ``keyspace:shard`` or ``keyspace:shard@replica``; empty for none.
            timeout_seconds: Timeout.

        Raises:
            CdcError: The statement failed; the class says whether a retry may help.
        """
        call: Any = self._channel.unary_unary(protocol.service("Execute"))
        with mapped_errors(f"VTGate at {self.values.described} can't run {_short(sql)}"):
            answer = call(
                execute_request(sql, target, self.values), timeout_seconds, metadata=self.values.metadata
            )
        return read_answer(answer, sql, self.values)

    def vstream(self, request: bytes) -> RawStream:
        """Open a stream of changes.

        Args:
            request: A serialised ``vtgate.VStreamRequest``; the caller id is added.
        """
        caller = self.values.caller_id
        if caller is not None:
            # Concatenated messages are one message with the fields of both.
            request += protocol.VStreamRequest(caller_id=caller).SerializeToString()
        call: Any = self._channel.unary_stream(protocol.service("VStream"))
        return RawStream(call(request, metadata=self.values.metadata), self)

    def close(self) -> None:
        """Cancel all streams and close the channel."""
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.cancel()
        self._channel.close()

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the client."""
        self.close()


class RawStream:
    """An open VStream: an iterator of its raw responses, each a ``VStreamResponse``.

    It waits without a timeout; :meth:`cancel` ends it from any thread. ``next`` raises errors of the server
    as :class:`CdcError`; the stream can't be used afterwards.
    """

    def __init__(self, call: Any, client: VtgateClient) -> None:
        self._call = call
        self._client = client
        self._cancelled = False
        with client._lock:
            client._streams.add(self)

    def __iter__(self) -> Self:
        """Return the iterator."""
        return self

    def __next__(self) -> bytes:
        """Wait for the next response.

        Raises:
            CdcError: The stream failed; the class says whether a retry may help.
        """
        try:
            response: bytes = next(self._call)
        except StopIteration:
            self._unregister()
            raise
        except grpc.RpcError as error:
            self._unregister()
            if self._cancelled:
                raise StopIteration from None
            values = self._client.values
            raise _of_rpc(f"the stream of VTGate at {values.described} ended", error) from None
        return response

    def cancel(self) -> None:
        """Cancel the stream."""
        self._cancelled = True
        self._call.cancel()
        self._unregister()

    def _unregister(self) -> None:
        with self._client._lock:
            self._client._streams.discard(self)


def execute_request(sql: str, target: str, values: ConnectionValues) -> bytes:
    """Serialise the request of a statement in autocommit mode."""
    request = protocol.ExecuteRequest(caller_id=values.caller_id)
    request.session.autocommit = True
    request.session.target_string = target
    request.query.sql = sql
    data: bytes = request.SerializeToString()
    return data


def read_answer(data: bytes, sql: str, values: ConnectionValues) -> Answer:
    """Parse an ``ExecuteResponse``.

    Raises:
        CdcError: The statement failed.
    """
    response = protocol.parse(protocol.ExecuteResponse, data)
    if response.HasField("error"):
        code = {c.value[0]: c.name for c in grpc.StatusCode}.get(response.error.code, "UNKNOWN")
        doing = f"VTGate at {values.described} can't run {_short(sql)}"
        raise failure(doing, code, response.error.message)
    result = response.result
    return Answer(tuple(f.name for f in result.fields), [_row(row) for row in result.rows], result)


@contextmanager
def mapped_errors(doing: str) -> Iterator[None]:
    """Map gRPC's errors to exceptions by the required reaction.

    Args:
        doing: The failed operation, as the start of the message.

    Raises:
        CdcError: A gRPC call failed.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise _of_rpc(doing, error) from None


def _of_rpc(doing: str, error: grpc.RpcError) -> Exception:
    return failure(doing, error.code().name, error.details() or "")


def _row(row: Any) -> list[bytes | None]:
    values: list[bytes | None] = []
    offset = 0
    for length in row.lengths:
        values.append(None if length < 0 else row.values[offset : offset + length])
        offset += max(length, 0)
    return values


def _short(sql: str) -> str:
    return sql if len(sql) <= _MAX_SQL else sql[:_MAX_SQL] + "..."
