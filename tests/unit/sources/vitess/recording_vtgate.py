"""A minimal VTGate that records requests and returns configured responses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import grpc

from airflow_cdc_provider.sources.vitess import protocol


class RecordingVtgate:
    """Serves ``Execute`` and ``VStream`` on a free port.

    Args:
        refuses: A status code and a text with which all calls fail.
        answer: Returns the response of a statement.
        responses: Responses of a stream before it ends.
        waits: Called at the end of a stream.
        tls: Key and certificate; None for plaintext.
    """

    def __init__(
        self,
        *,
        refuses: tuple[grpc.StatusCode, str] | None = None,
        answer: Callable[[str, str], Any] = lambda sql, target: protocol.ExecuteResponse(),
        responses: Sequence[bytes] = (),
        waits: Callable[[], object] = lambda: None,
        tls: grpc.ServerCredentials | None = None,
    ) -> None:
        self.metadata: list[dict[str, str]] = []
        self.statements: list[tuple[str, str]] = []
        self.callers: list[Any] = []
        self.streams: list[Any] = []
        self._refuses = refuses
        self._answer = answer
        self._responses = responses
        self._waits = waits
        self._server = grpc.server(ThreadPoolExecutor(4))
        handlers: dict[str, Any] = {
            "Execute": grpc.unary_unary_rpc_method_handler(self._execute),
            "VStream": grpc.unary_stream_rpc_method_handler(self._vstream),
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("vtgateservice.Vitess", handlers),)
        )
        address = "127.0.0.1:0"
        self.port = (
            self._server.add_secure_port(address, tls) if tls else self._server.add_insecure_port(address)
        )

    @property
    def connection(self) -> dict[str, Any]:
        """Values of an Airflow connection to it."""
        return {"host": "127.0.0.1", "port": self.port}

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()

    def _met(self, context: grpc.ServicerContext) -> None:
        self.metadata.append({name: str(value) for name, value in context.invocation_metadata()})
        if self._refuses is not None:
            context.abort(*self._refuses)

    def _execute(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        request = protocol.ExecuteRequest.FromString(data)
        self.statements.append((request.query.sql, request.session.target_string))
        self.callers.append(request.caller_id)
        self._met(context)
        response: bytes = self._answer(request.query.sql, request.session.target_string).SerializeToString()
        return response

    def _vstream(self, data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        request = protocol.VStreamRequest.FromString(data)
        self.streams.append(request)
        self.callers.append(request.caller_id)
        self._met(context)
        yield from self._responses
        self._waits()


def table(names: Sequence[str], *rows: Sequence[str | bytes | None]) -> Any:
    """Return the response of a statement.

    Args:
        names: Columns.
        *rows: Values, None for NULL.
    """
    response = protocol.ExecuteResponse()
    for name in names:
        response.result.fields.add(name=name)
    for row in rows:
        values = [value.encode() if isinstance(value, str) else value for value in row]
        response.result.rows.add(
            lengths=[-1 if value is None else len(value) for value in values],
            values=b"".join(value or b"" for value in values),
        )
    return response


def failed(code: grpc.StatusCode, message: str) -> Any:
    """Return the response of a failed statement."""
    response = protocol.ExecuteResponse()
    response.error.code = code.value[0]
    response.error.message = message
    return response
