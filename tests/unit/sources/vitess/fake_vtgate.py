"""A fake VTGate that replays scripts and records requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

import grpc

from airflow_cdc_provider.sources.vitess import protocol
from airflow_cdc_provider.sources.vitess.protocol import (
    EVENT_TYPES,
    ExecuteRequest,
    ExecuteResponse,
    VEvent,
    VStreamRequest,
    VStreamResponse,
)


@dataclass(frozen=True)
class Fails:
    """The stream ends with an error."""

    code: grpc.StatusCode
    text: str


class Waits:
    """The stream sends nothing more until the client disconnects."""


Step = bytes | Fails | Waits
Script = Sequence[Step] | Callable[[Any], Iterable[Step]]


class FakeVtgate:
    """Replays one script per VStream call, in order; the last one repeatedly.

    Args:
        scripts: Responses of each call; a function receives the request.
        answers: Rows of a statement by a text that it contains.
    """

    def __init__(
        self, scripts: Sequence[Script], answers: Mapping[str, Sequence[tuple[str, ...]]] | None = None
    ) -> None:
        self.requests: list[Any] = []
        self.statements: list[str] = []
        self._scripts = list(scripts)
        self._answers = answers or {}
        self._ending = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        handlers: dict[str, Any] = {
            "VStream": grpc.unary_stream_rpc_method_handler(self._stream),
            "Execute": grpc.unary_unary_rpc_method_handler(self._execute),
        }
        name = protocol.service("").strip("/")
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        self.port = self._server.add_insecure_port("127.0.0.1:0")

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._server.stop(0).wait()

    @property
    def connection(self) -> dict[str, Any]:
        return {"host": "127.0.0.1", "port": self.port, "extra": {"max_message_bytes": 64 << 20}}

    def _stream(self, request: bytes, context: Any) -> Iterator[bytes]:
        parsed = VStreamRequest.FromString(request)
        script = self._scripts[min(len(self.requests), len(self._scripts) - 1)]
        self.requests.append(parsed)
        for step in script(parsed) if callable(script) else script:
            if isinstance(step, Fails):
                context.abort(step.code, step.text)
            elif isinstance(step, Waits):
                while context.is_active() and not self._ending.wait(0.01):
                    pass
            else:
                yield step

    def _execute(self, request: bytes, context: Any) -> bytes:
        del context
        sql = ExecuteRequest.FromString(request).query.sql
        self.statements.append(sql)
        response = ExecuteResponse()
        for part, rows in self._answers.items():
            if part in sql:
                for row in rows:
                    values = [value.encode() for value in row]
                    response.result.rows.add(lengths=[len(v) for v in values], values=b"".join(values))
        return bytes(response.SerializeToString())


def gtid(last: int, server: str = "aa") -> str:
    """A GTID set of one server with all transactions up to one."""
    return f"MySQL56/{server * 4}-{server * 2}-{server * 2}-{server * 2}-{server * 6}:1-{last}"


def vgtid(shards: dict[str, int | str], keyspace: str = "shop") -> Any:
    """A VGTID by the number of each shard's last transaction."""
    message = protocol.VGtid()
    for shard, last in shards.items():
        text = gtid(last) if isinstance(last, int) else last
        message.shard_gtids.add(keyspace=keyspace, shard=shard, gtid=text)
    return message


def event(kind: str, shard: str = "", keyspace: str = "shop", **members: Any) -> Any:
    """An event of a shard; without a shard it has no keyspace either."""
    return VEvent(type=EVENT_TYPES[kind], shard=shard, keyspace=keyspace if shard else "", **members)


def fields(table: str, shard: str, columns: Sequence[str] = ("id", "name")) -> Any:
    """A FIELD event of a table with a number as its key, and texts."""
    message = protocol.FieldEvent(table_name=f"shop.{table}", keyspace="shop", shard=shard)
    for number, name in enumerate(columns):
        message.fields.add(
            name=name,
            type=265 if number == 0 else 6165,
            table=table,
            database=f"vt_shop_{shard}",
            flags=3 if number == 0 else 0,
            column_type="bigint" if number == 0 else "varchar(20)",
            charset=63 if number == 0 else 255,
        )
    return event("FIELD", shard, field_event=message)


def row(values: Sequence[str]) -> Any:
    """A row message."""
    coded = [value.encode() for value in values]
    return protocol.Row(lengths=[len(v) for v in coded], values=b"".join(coded))


def rows(table: str, shard: str, *changes: tuple[Sequence[str] | None, Sequence[str] | None]) -> Any:
    """A ROW event of changes, each a row before and one after."""
    message = protocol.RowEvent(table_name=f"shop.{table}", keyspace="shop", shard=shard)
    for before, after in changes:
        change = message.row_changes.add()
        if before is not None:
            change.before.CopyFrom(row(before))
        if after is not None:
            change.after.CopyFrom(row(after))
    return event("ROW", shard, row_event=message, timestamp=1_700_000_000)


def journal(shard: str, participants: Sequence[str], targets: Mapping[str, int], number: int = 7) -> Any:
    """A JOURNAL event of a reshard, with the last transaction of each target."""
    message = protocol.Journal(id=number, migration_type=1)
    for one in participants:
        message.participants.add(keyspace="shop", shard=one)
    for target, last in targets.items():
        message.shard_gtids.add(keyspace="shop", shard=target, gtid=gtid(last))
    return event("JOURNAL", shard, journal=message)


def transaction(shard: str, shards: dict[str, int | str], *inside: Any) -> list[Any]:
    """BEGIN, what is inside, VGTID, COMMIT."""
    return [
        event("BEGIN", shard, timestamp=1_700_000_000),
        *inside,
        event("VGTID", shard, vgtid=vgtid(shards)),
        event("COMMIT", shard, timestamp=1_700_000_000),
    ]


def response(*events: Any) -> bytes:
    """A response of some events."""
    return bytes(VStreamResponse(events=events).SerializeToString())
