"""A broker in a thread: stores what producers send, drops repetitions, and goes away on demand."""

from __future__ import annotations

import socket
import struct
import threading
from collections import defaultdict
from contextlib import suppress
from types import TracebackType
from typing import Self

from airflow_cdc_provider.formats.protobuf_wire import read_message
from airflow_cdc_provider.pulsar import wire


class FakeBroker:
    """A broker.

    Args:
        deduplicates: Whether it drops repetitions.
        dies_after: How many more messages it stores before it closes the connection; None: any number.

    Attributes:
        stored: By topic, sequence ids and keys of messages.
        schemas: By topic, the schemas that producers were opened with.
        tokens: That clients showed.
    """

    def __init__(self, *, deduplicates: bool = True, dies_after: int | None = None) -> None:
        self.deduplicates = deduplicates
        self.dies_after = dies_after
        self.stored: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
        self.schemas: dict[str, list[bytes]] = defaultdict(list)
        self.tokens: list[bytes] = []
        self.partitions: dict[str, int] = {}
        self.refuses: int | None = None
        self._last: dict[tuple[str, bytes], int] = {}
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"pulsar://127.0.0.1:{self._server.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(5)

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                with client, suppress(EOFError, OSError):
                    self._talk(client)

    def _talk(self, client: socket.socket) -> None:
        producers: dict[int, tuple[str, bytes]] = {}
        data = client.makefile("rb")
        with data:
            while True:
                head = data.read(4)
                if len(head) < 4:
                    return
                frame = data.read(struct.unpack(">I", head)[0])
                (size,) = struct.unpack_from(">I", frame)
                command = read_message(frame[4 : 4 + size])
                kind = command[1]
                assert isinstance(kind, int)
                body = command[kind]
                assert isinstance(body, bytes)
                answer = self._answer(kind, read_message(body), frame[4 + size :], producers)
                if answer is None:
                    return
                client.sendall(wire.command(wire.PING, {}) + answer)

    def _answer(
        self, kind: int, fields: dict[int, int | bytes], rest: bytes, producers: dict[int, tuple[str, bytes]]
    ) -> bytes | None:
        topic = fields[1].decode() if isinstance(fields.get(1), bytes) else ""  # type: ignore[union-attr]
        if kind == wire.CONNECT:
            if isinstance(token := fields.get(3), bytes):
                self.tokens.append(token)
            return wire.command(wire.CONNECTED, {1: "fake", 2: 19, 3: 5 << 20})
        if kind == wire.PARTITIONS:
            return wire.command(
                wire.PARTITIONS_RESPONSE, {1: self.partitions.get(topic, 0), 2: fields[2], 3: 0}
            )
        if kind == wire.LOOKUP:
            return wire.command(wire.LOOKUP_RESPONSE, {1: self.url, 3: 1, 4: fields[2]})
        if kind == wire.PRODUCER:
            if self.refuses is not None:
                return wire.command(wire.ERROR, {1: fields[3], 2: self.refuses, 3: "refused"})
            name, number, schema = fields[4], fields[2], fields[7]
            assert isinstance(name, bytes)
            assert isinstance(number, int)
            assert isinstance(schema, bytes)
            producers[number] = topic, name
            self.schemas[topic].append(schema)
            last = self._last.get((topic, name), -1) & (1 << 64) - 1
            return wire.command(wire.PRODUCER_SUCCESS, {1: fields[3], 2: name, 3: last, 4: b"\0" * 8})
        if kind == wire.CLOSE_PRODUCER:
            return wire.command(wire.SUCCESS, {1: fields[2]})
        if kind == wire.SEND:
            return self._store(fields, rest, producers)
        return b""

    def _store(
        self, fields: dict[int, int | bytes], rest: bytes, producers: dict[int, tuple[str, bytes]]
    ) -> bytes | None:
        if self.dies_after is not None:
            self.dies_after -= 1
            if self.dies_after < 0:
                self.dies_after = None
                return None
        number, sequence = fields[1], fields[2]
        assert isinstance(number, int)
        assert isinstance(sequence, int)
        topic, name = producers[number]
        (size,) = struct.unpack_from(">I", rest)
        key = read_message(rest[4 : 4 + size])[6]
        assert isinstance(key, bytes)
        if not self.deduplicates or sequence > self._last.get((topic, name), -1):
            self.stored[topic].append((sequence, key))
            if self.deduplicates:
                self._last[topic, name] = sequence
        return wire.command(wire.SEND_RECEIPT, {1: number, 2: sequence})
