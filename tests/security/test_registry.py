"""A hostile schema registry: its answers take bounded time and memory, and the error names the registry."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count, islice
from threading import Event, Thread
from typing import Any

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.kafka import registry as registries
from airflow_cdc_provider.kafka.registry import Registry, RegistrySettings
from tests.bounded import bounded

Answer = Callable[[BaseHTTPRequestHandler, Event], None]
FRESH = count()
MEBIBYTE = b" " * (1 << 20)


def headed(handler: BaseHTTPRequestHandler, status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()


def body(status: int, text: bytes, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler, ended: Event) -> None:
        headed(handler, status, Content_Length=str(len(text)), **headers)
        handler.wfile.write(text)

    return answer


def endless(handler: BaseHTTPRequestHandler, ended: Event) -> None:
    headed(handler)
    while not ended.is_set():
        handler.wfile.write(MEBIBYTE)


def dripping(handler: BaseHTTPRequestHandler, ended: Event) -> None:
    headed(handler)
    while not ended.wait(0.02):
        handler.wfile.write(b" ")


def referring(handler: BaseHTTPRequestHandler, ended: Event) -> None:
    """Each schema refers to ten more, without end."""
    references = [{"name": name, "subject": name, "version": 1} for name in map(str, islice(FRESH, 10))]
    found = {"subject": "s", "version": 1, "id": 1, "schema": '"x"' + " " * 200_000, "references": references}
    body(200, json.dumps(found).encode())(handler, ended)


@pytest.fixture
def serving() -> Iterator[Callable[[Answer], RegistrySettings]]:
    ended, servers = Event(), []

    def serve(answer: Answer) -> RegistrySettings:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                try:
                    answer(self, ended)
                except ConnectionError:
                    return

            do_POST = do_GET

            def log_message(self, *arguments: Any) -> None:
                del arguments

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return RegistrySettings({"url": f"http://127.0.0.1:{server.server_port}", "max.retries": 0})

    yield serve
    ended.set()
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(endless, id="endless"),
        pytest.param(dripping, id="dripping"),
        pytest.param(referring, id="referring"),
        pytest.param(body(200, b"[" * 200_000), id="nested"),
        pytest.param(body(200, b'{"schema":' + b'{"a":' * 200_000), id="nested-objects"),
        pytest.param(body(200, b'{"id":' + b"9" * 20_000 + b',"schema":"x"}'), id="digits"),
        pytest.param(body(200, b"\x1f\x8b" + bytes(100), Content_Encoding="gzip"), id="compressed"),
        pytest.param(body(302, b"", Location="http://169.254.169.254/latest"), id="redirected"),
        pytest.param(body(200, b'{"schema":["x"],"references":[{"name":{}}]}'), id="wrong-types"),
        pytest.param(
            body(200, b'{"version":1,"schema":"x","references":[{"name":7,"subject":"s","version":1}]}'),
            id="wrong-names",
        ),
        pytest.param(body(400, b'{"error_code":42,"message":"' + b"x" * 1_000_000 + b'"}'), id="long-error"),
    ],
)
def test_an_answer_takes_bounded_time_and_memory(
    serving: Callable[[Answer], RegistrySettings], answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registries, "_ANSWER_SECONDS", 0.5)
    registry = Registry(serving(answer), sleep=lambda seconds: None)
    started = time.monotonic()
    with (
        bounded(seconds=3, mebibytes=128),
        pytest.raises(ConfigurationError, match=r"registry at 127\.0\.0\.1") as caught,
    ):
        registry.schema_of(7)
    assert time.monotonic() - started < 5
    assert len(str(caught.value)) < 2_000
