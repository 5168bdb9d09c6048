"""A hostile schema registry: its answers take bounded time and memory, and the error names the registry."""

from __future__ import annotations

import json
import random
import subprocess
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
from airflow_cdc_provider.sources.debezium import protobuf_program, registered
from airflow_cdc_provider.sources.debezium.converters import NOT_LOOKED_UP, WRONG_SCHEMA, Compiled
from airflow_cdc_provider.sources.debezium.registered import RegisteredSchemas, parsed_protobuf
from tests.bounded import bounded
from tests.unit.sources.debezium.registry_writers import Registered

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


OPTIONS = (
    'syntax = "proto2"; import "google/protobuf/descriptor.proto"; message M { optional M m = 1; '
    "optional int32 i = 2; } extend google.protobuf.FieldOptions { optional M x = 50000; } "
)
"""A type of options that has itself as a field."""
LONG = "a" * 1000


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(OPTIONS + f"message A {{ optional int32 a = 1 [(x).{'m.' * 100}i = 1]; }}", id="aborts"),
        pytest.param(
            OPTIONS + f"message A {{ optional int32 a = 1 [(x) = {{ {'m {' * 10_000} {'}' * 10_001}]; }}",
            id="overflows the stack",
        ),
        pytest.param(
            f'syntax = "proto3"; message {LONG} {{ message M {{}} '
            + "".join(f"M a{number} = {number};" for number in range(1, 17_000))
            + "}",
            id="multiplies a name in a file",
        ),
        pytest.param(
            f'syntax = "proto3"; message {LONG * 40} {{ '
            + "".join(f"message A{number} {{}}" for number in range(1_000))
            + "}",
            id="multiplies a name in memory",
        ),
    ],
)
def test_no_text_of_a_schema_ends_or_fills_the_process_that_reads_it(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = _count_processes(monkeypatch)
    registry = Registered()
    hostile = registry.add("PROTOBUF", text)
    sound = registry.add("PROTOBUF", 'syntax = "proto3"; message M { int32 a = 1; }')
    schemas = RegisteredSchemas(registry, "protobuf")
    with bounded(seconds=1):
        found = [schemas.compiled(hostile, path) for path in ((0,), (1,), (0, 0))]
    assert found == [WRONG_SCHEMA] * 3
    assert len(started) == 1, "a schema is compiled once, whatever messages it is for"
    assert isinstance(schemas.compiled(sound, (0,)), Compiled)


@pytest.mark.parametrize("value", ["\\xff\\xff", "\\x12\\x05\\x0a\\x03\\xff\\xff\\xff"])
def test_an_option_of_confluents_number_is_none_of_theirs(value: str) -> None:
    import confluent_kafka.schema_registry.confluent.meta_pb2  # noqa: F401  # registers the option

    registry = Registered()
    number = registry.add(
        "PROTOBUF",
        f"{OPTIONS} extend google.protobuf.FieldOptions {{ optional bytes y = 1088; }} "
        f'message A {{ optional int32 a = 1 [(y) = "{value}"]; }}',
    )
    assert isinstance(RegisteredSchemas(registry, "protobuf").compiled(number, (1,)), Compiled)


def test_a_schema_that_takes_long_is_a_fault_of_its_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    started = _count_processes(monkeypatch)
    monkeypatch.setattr(protobuf_program, "_PROTOC_SECONDS", 0.001)
    registry = Registered()
    slow = [registry.add("PROTOBUF", f'syntax = "proto3"; message M{n} {{}}') for n in range(3)]
    schemas = RegisteredSchemas(registry, "protobuf")
    assert schemas.compiled(slow[0], (0,)) == WRONG_SCHEMA
    monkeypatch.setattr(registered, "_MOST_SECONDS", 0.0)
    assert [schemas.compiled(one, (0,)) for one in slow] == [WRONG_SCHEMA, NOT_LOOKED_UP, NOT_LOOKED_UP]
    assert len(started) == 1


WORDS = [
    *("message", "enum", "oneof", "map<", ">", "{", "}", "[", "]", "=", ";", ",", "1", "0", "-1", "1e999"),
    *("M", "int32", "string", "repeated", "optional", "required", "group G", "extend M", "service S"),
    *("reserved 1 to max", "extensions 1 to max", "option", "(x)", ".", '"', "'", "/*", "//", '"\\xff"'),
    *('import "schema.proto";', 'import public "google/protobuf/any.proto";', "package p;", "default", "\0"),
]


@pytest.mark.parametrize("seed", range(12))
def test_any_text_is_a_schema_or_none(seed: int) -> None:
    rng = random.Random(seed)
    words = list(f"message M {{ {'optional' if seed % 2 else ''} int32 a = 1; M m = 2; }}".split())
    for _ in range(rng.randrange(1, 5)):
        words.insert(rng.randrange(len(words) + 1), rng.choice(WORDS))
    text = f'syntax = "proto{2 + seed % 2}"; {" ".join(words)}'
    with bounded(seconds=1):
        found = parsed_protobuf(RegisteredSchema("PROTOBUF", text))
    assert isinstance(found, str) or "schema.proto" in found


def _count_processes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    started: list[Any] = []
    run = subprocess.run

    def counted(*arguments: Any, **options: Any) -> Any:
        started.append(arguments)
        return run(*arguments, **options)

    monkeypatch.setattr(subprocess, "run", counted)
    return started
