"""A registry that fails as a test wants: a server before a real one, which hands requests through or not."""

from __future__ import annotations

import http.client
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any, Literal, Self

from server_kit import RegistryServer

Trouble = Literal["", "hang_up", "error", "slow", "cut", "page"]
"""What a request meets: nothing; no answer at all; HTTP 503; none within its time; half of one; a page."""

TIMEOUT_SECONDS = 5
"""Bounds sound requests, too, on a machine that has much else to do."""
_UNKNOWN = b'{"error_code":40403,"message":"no such schema"}'


class RegistryProxy:
    """A registry's face.

    Args:
        server: The registry.

    Attributes:
        troubles: What becomes of the next requests, one after the other; those after them are handed through.
        down: Whether no request is answered.
        hidden: Ids that it doesn't know.
    """

    def __init__(self, server: RegistryServer) -> None:
        self.troubles: list[Trouble] = []
        self.down = False
        self.hidden: set[int] = set()
        self._lock = Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, kind, body = proxy._answer(server, self.command, self.path, content, self.headers)
                trouble = proxy._next_trouble()
                if trouble == "slow":
                    time.sleep(TIMEOUT_SECONDS + 1)
                if trouble in ("hang_up", "slow"):
                    self.close_connection = True
                    return
                if trouble == "error":
                    status, kind, body = 503, "text/html", b"<html>try again</html>"
                if trouble == "page":
                    status, kind, body = 200, "text/html", b"<html>maintenance</html>"
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) // 2] if trouble == "cut" else body)
                self.close_connection = trouble == "cut"

            do_POST = do_GET

            def log_message(self, *arguments: Any) -> None:
                del arguments

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._server.server_port}/apis/ccompat/v7"

    @property
    def connection(self) -> dict[str, Any]:
        """Values of a connection of type http, whose client gets each failure."""
        extra = {"path": "/apis/ccompat/v7", "max.retries": 0, "timeout": TIMEOUT_SECONDS}
        return {"host": "127.0.0.1", "port": self._server.server_port, "extra": extra}

    def fail(self, *troubles: Trouble) -> None:
        """Say what becomes of the next requests."""
        with self._lock:
            self.troubles = list(troubles)

    def _next_trouble(self) -> Trouble:
        with self._lock:
            if self.down:
                return "hang_up"
            return self.troubles.pop(0) if self.troubles else ""

    def _answer(
        self, server: RegistryServer, method: str, path: str, content: bytes, headers: Any
    ) -> tuple[int, str, bytes]:
        parts: Sequence[str] = path.partition("?")[0].split("/")
        if parts[-3:-1] == ["schemas", "ids"] and int(parts[-1]) in self.hidden:
            return 404, "application/json", _UNKNOWN
        client = http.client.HTTPConnection(server.host, server.port, timeout=30)
        try:
            named = ("Content-Type", "Accept")
            shown = {name: headers[name] for name in named if headers[name]}
            client.request(method, path, content or None, {**shown, "Accept-Encoding": "identity"})
            answer = client.getresponse()
            kind = answer.getheader("Content-Type") or "application/json"
            return answer.status, kind, answer.read()
        finally:
            client.close()

    def __enter__(self) -> Self:
        Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
