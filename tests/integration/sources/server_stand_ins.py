"""Stand-ins for servers that can't be had here: a proxy before a mongod that changes its answers.

Of mongos: ``hello`` returns no set, no members and no primary. Of Amazon DocumentDB: an empty batch of a
change stream has no token. Everything else goes through as it is.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

import bson
from bson.codec_options import CodecOptions, DatetimeConversion

_HEADER = struct.Struct("<iiii")
_OP_REPLY, _OP_MSG = 1, 2013
_EXACT: CodecOptions[Any] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
_OF_A_SET = (
    "setName",
    "setVersion",
    "hosts",
    "primary",
    "me",
    "secondary",
    "electionId",
    "lastWrite",
    "topologyVersion",  # a server that has one streams its answers
)


Answer = dict[str, Any]


class StandIn:
    """Listens on :attr:`port` until it is closed.

    Args:
        server: Host and port of the mongod behind it.
        change: Changes an answer in place.
    """

    def __init__(self, server: tuple[str, int], change: Callable[[Answer], None]) -> None:
        self._server = server
        self._change = change
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End it, and all connections through it."""
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            self._open += [client, server]
            threading.Thread(target=self._pass_on, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(server, client, True), daemon=True).start()

    def _pass_on(self, giver: socket.socket, taker: socket.socket, replies: bool) -> None:
        with contextlib.suppress(OSError):
            while header := _exactly(giver, _HEADER.size):
                size, request, answers, code = _HEADER.unpack(header)
                body = _exactly(giver, size - _HEADER.size)
                if replies:
                    body = self._changed(code, body)
                taker.sendall(_HEADER.pack(_HEADER.size + len(body), request, answers, code) + body)
        for one in (giver, taker):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _changed(self, code: int, body: bytes) -> bytes:
        lead = {_OP_REPLY: 20, _OP_MSG: 5}.get(code)
        if lead is None or (code == _OP_MSG and body[4:5] != b"\0"):
            return body
        answer: Answer = bson.decode(body[lead:], _EXACT)
        before = bson.encode(answer, codec_options=_EXACT)
        self._change(answer)
        after = bson.encode(answer, codec_options=_EXACT)
        return body if before == after else body[:lead] + after


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            return b""
        data += part
    return data


def as_mongos(answer: Answer) -> None:
    """Answer ``hello`` as mongos does."""
    if "maxWireVersion" in answer:
        for name in _OF_A_SET:
            answer.pop(name, None)
        answer["msg"] = "isdbgrid"


def as_documentdb(answer: Answer) -> None:
    """Give no token with an empty batch."""
    cursor = answer.get("cursor", {})
    if not (cursor.get("firstBatch") or cursor.get("nextBatch")):
        cursor.pop("postBatchResumeToken", None)
