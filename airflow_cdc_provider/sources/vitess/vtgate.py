"""VTGate as a client sees it: statements, and streams of changes as the bytes that came.

The server's errors become ours by what the caller must do (:func:`.failures.failure`). A client lives in the
process that made it: gRPC's channels don't outlive a fork.

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
_SHOWN: Final = 80


@dataclass(frozen=True)
class Answer:
    """What a statement gave.

    Args:
        fields: Names of the columns.
        rows: Values as the server printed them, None for NULL.
        result: The whole message (``query.QueryResult``).
    """

    fields: tuple[str, ...]
    rows: list[list[bytes | None]]
    result: Any = field(repr=False)

    def texts(self) -> list[list[str]]:
        """Return the rows as texts, NULL as an empty one."""
        return [[(value or b"").decode(errors="replace") for value in row] for row in self.rows]


class VtgateClient:
    """A client of VTGate. Its calls may come from several threads.

    Args:
        values: The connection.
    """

    def __init__(self, values: ConnectionValues) -> None:
        self.values = values
        self._channel = values.channel()
        self._streams: set[RawStream] = set()
        self._lock = threading.Lock()

    def execute(self, sql: str, target: str = "", timeout_seconds: float = DEFAULT_CALL_SECONDS) -> Answer:
        """Run a statement by itself.

        Args:
            sql: The statement.
            target: ``keyspace``, ``keyspace:shard`` or ``keyspace:shard@replica``; empty for none.
            timeout_seconds: When to give up.

        Raises:
            CdcError: By what the caller must do.
        """
        call: Any = self._channel.unary_unary(protocol.service("Execute"))
        with translated(f"VTGate at {self.values.described} doesn't run {_short(sql)}", self.values):
            answer = call(
                execute_request(sql, target, self.values), timeout_seconds, metadata=self.values.metadata
            )
        return read_answer(answer, sql, self.values)

    def vstream(self, request: bytes) -> RawStream:
        """Open a stream of changes.

        Args:
            request: A serialised ``vtgate.VStreamRequest``; the caller's id is added.
        """
        caller = self.values.caller_id
        if caller is not None:
            # Serialised messages one after the other are one message with the fields of both.
            request += protocol.VStreamRequest(caller_id=caller).SerializeToString()
        call: Any = self._channel.unary_stream(protocol.service("VStream"))
        return RawStream(call(request, metadata=self.values.metadata), self)

    def close(self) -> None:
        """End its streams and the channel."""
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.cancel()
        self._channel.close()

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.close()


class RawStream:
    """An open VStream: an iterator of its responses as the bytes that came, each a ``VStreamResponse``.

    It waits without limit; :meth:`cancel` ends it from any thread, after which it gives no more. An error of
    the server comes out of ``next`` as one of ours; the stream is of no use then.
    """

    def __init__(self, call: Any, client: VtgateClient) -> None:
        self._call = call
        self._client = client
        self._cancelled = False
        with client._lock:
            client._streams.add(self)

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> bytes:
        """Wait for the next response.

        Raises:
            CdcError: By what the caller must do.
        """
        try:
            response: bytes = next(self._call)
        except StopIteration:
            self._forget()
            raise
        except grpc.RpcError as error:
            self._forget()
            if self._cancelled:
                raise StopIteration from None
            values = self._client.values
            raise _of_rpc(f"the stream of VTGate at {values.described} ended", error, values) from None
        return response

    def cancel(self) -> None:
        """End it."""
        self._cancelled = True
        self._call.cancel()
        self._forget()

    def _forget(self) -> None:
        with self._client._lock:
            self._client._streams.discard(self)


def execute_request(sql: str, target: str, values: ConnectionValues) -> bytes:
    """Serialise a statement that runs by itself."""
    request = protocol.ExecuteRequest(caller_id=values.caller_id)
    request.session.autocommit = True
    request.session.target_string = target
    request.query.sql = sql
    data: bytes = request.SerializeToString()
    return data


def read_answer(data: bytes, sql: str, values: ConnectionValues) -> Answer:
    """Take an ``ExecuteResponse`` apart.

    Raises:
        CdcError: The statement failed.
    """
    response = protocol.ExecuteResponse.FromString(data)
    if response.HasField("error"):
        code = {c.value[0]: c.name for c in grpc.StatusCode}.get(response.error.code, "UNKNOWN")
        doing = f"VTGate at {values.described} doesn't run {_short(sql)}"
        raise failure(doing, code, response.error.message, values.secrets)
    result = response.result
    return Answer(tuple(f.name for f in result.fields), [_row(row) for row in result.rows], result)


@contextmanager
def translated(doing: str, values: ConnectionValues) -> Iterator[None]:
    """Turn gRPC's errors into ours by what the caller must do.

    Args:
        doing: What was tried, as the beginning of the message.
        values: The connection, whose secrets no text shows.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise _of_rpc(doing, error, values) from None


def _of_rpc(doing: str, error: grpc.RpcError, values: ConnectionValues) -> Exception:
    return failure(doing, error.code().name, error.details() or "", values.secrets)


def _row(row: Any) -> list[bytes | None]:
    values: list[bytes | None] = []
    place = 0
    for length in row.lengths:
        values.append(None if length < 0 else row.values[place : place + length])
        place += max(length, 0)
    return values


def _short(sql: str) -> str:
    return sql if len(sql) <= _SHOWN else sql[:_SHOWN] + "..."
