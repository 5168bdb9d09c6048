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

from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.kafka import registry_answers
from airflow_cdc_provider.kafka.registry import (
    RegisteredSchema,
    Registry,
    RegistrySettings,
    RetryTimeouts,
    UnreadableSchema,
)
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
    monkeypatch.setattr(registry_answers, "_ANSWER_SECONDS", 0.5)
    registry = Registry(serving(answer), sleep=lambda seconds: None)
    started = time.monotonic()
    with (
        bounded(seconds=3, mebibytes=128),
        pytest.raises(ConfigurationError, match=r"registry at 127\.0\.0\.1") as caught,
    ):
        registry.schema_of(7)
    assert time.monotonic() - started < 5
    assert len(str(caught.value)) < 2_000


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(endless, id="endless"),
        pytest.param(dripping, id="dripping"),
        pytest.param(body(200, b"\x1f\x8b" + bytes(100), Content_Encoding="gzip"), id="compressed"),
        pytest.param(body(302, b"", Location="/"), id="redirected"),
        pytest.param(body(200, b"[" * 50_000), id="nested"),
        pytest.param(body(200, b'{"access_token":"' + b"x" * (64 << 10) + b'"}'), id="large"),
        pytest.param(body(200, b'{"access_token":"a\\nb","expires_in":9}'), id="no-header"),
        pytest.param(body(200, b'{"access_token":{"a":[]},"expires_in":"x"}'), id="wrong-types"),
    ],
)
def test_an_answer_of_the_issuer_of_tokens_takes_bounded_time_and_memory(
    serving: Callable[[Answer], RegistrySettings], answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_answers, "_ANSWER_SECONDS", 0.2)
    reached: list[int] = []

    def registry(handler: BaseHTTPRequestHandler, ended: Event) -> None:
        reached.append(sum(map(len, handler.headers.values())))
        body(200, b'{"schema":')(handler, ended)

    issuer = {
        f"bearer.auth.{name}": "x" for name in ("logical.cluster", "client.id", "client.secret", "scope")
    }
    issuer |= {
        "bearer.auth.issuer.endpoint.url": str(serving(answer).client["url"]),
        "bearer.auth.credentials.source": "OAUTHBEARER",
    }
    settings = RegistrySettings({**serving(registry).client, **issuer})
    with bounded(seconds=2, mebibytes=64), pytest.raises((ConfigurationError, TransientError)) as caught:
        Registry(settings, lambda seconds: None, RetryTimeouts(0)).schema_of(7)
    assert len(str(caught.value)) < 2_000
    assert all(size < 2_000 for size in reached)


UNKNOWN = body(404, b'{"error_code":40403,"message":"Schema not found"}')
SOUND = body(200, b'{"schema":"\\"string\\""}')
DENIED = body(403, b'{"error_code":40301,"message":"User is denied operation Read on Subject"}')


def silent(handler: BaseHTTPRequestHandler, ended: Event) -> None:
    handler.close_connection = True


def by_path(**answers: Answer) -> Answer:
    """Answer for ids: ``_7`` for id 7, ``root`` for the root, ``others`` for the rest."""

    def answer(handler: BaseHTTPRequestHandler, ended: Event) -> None:
        path = handler.path.partition("?")[0].rstrip("/")
        name = f"_{path.rpartition('/')[2]}" if path else "root"
        answers.get(name, answers["others"])(handler, ended)

    return answer


FAULTS = [
    *(
        pytest.param(body(status, b'{"error_code":1}'), id=str(status))
        for status in (400, 401, 403, 418, 429)
    ),
    *(pytest.param(body(status, b"<html>"), id=str(status)) for status in (404, 500, 503)),
    pytest.param(silent, id="silent"),
    pytest.param(endless, id="endless"),
    pytest.param(dripping, id="dripping"),
    pytest.param(body(200, b"[" * 200_000), id="nested"),
    pytest.param(body(200, b"<html>"), id="html"),
    pytest.param(body(302, b"", Location="/"), id="redirected"),
    pytest.param(
        body(200, b'{"schema":"x","references":[{"name":"a","subject":"s","version":1}]}'), id="references"
    ),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_one_schema_is_one_of_its_messages_alone(
    serving: Callable[[Answer], RegistrySettings], fault: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_answers, "_ANSWER_SECONDS", 0.2)
    settings = serving(by_path(_7=fault, _1=endless, _8=SOUND, others=UNKNOWN))
    for ids in ((7, 8), (8, 7)):
        registry = Registry(settings, lambda seconds: None, RetryTimeouts(0))
        found = {one: registry.schema_of(one) for one in ids}
        assert isinstance(found[7], UnreadableSchema)
        assert found[8] == RegisteredSchema("AVRO", '"string"')


def test_a_login_that_may_read_some_schemas_reads_these(
    serving: Callable[[Answer], RegistrySettings],
) -> None:
    """It may be denied an id that isn't there, too."""
    settings = serving(by_path(_8=SOUND, root=body(200, b"{}"), others=DENIED))
    registry = Registry(settings, lambda seconds: None, RetryTimeouts(0))
    assert registry.schema_of(7) == UnreadableSchema(denied=True)
    assert registry.schema_of(8) == RegisteredSchema("AVRO", '"string"')


@pytest.mark.parametrize(
    ("others", "root", "error"),
    [
        (body(401, b"{}"), body(200, b"{}"), ConfigurationError),
        (DENIED, DENIED, ConfigurationError),
        (body(500, b"{}"), body(200, b"{}"), TransientError),
        (silent, body(200, b"{}"), TransientError),
        (body(200, b"{}"), body(200, b"{}"), ConfigurationError),
    ],
)
def test_a_registry_that_answers_for_no_schema_ends_the_run(
    serving: Callable[[Answer], RegistrySettings], others: Answer, root: Answer, error: type[Exception]
) -> None:
    registry = Registry(serving(by_path(root=root, others=others)), lambda seconds: None, RetryTimeouts(0))
    with pytest.raises(error):
        registry.schema_of(7)
