"""Settings of the registry's client, and names of subjects: what needs no registry."""

from __future__ import annotations

import pickle
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from airflow_cdc_provider.events.framing import TopicSchema
from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.kafka.registry import (
    RegisteredSchema,
    Registry,
    RegistrySettings,
    RegistryUnavailable,
    RetryTimeouts,
    Subjects,
    client_settings,
)
from server_kit.ports import free_port

VALUE = TopicSchema("shop.orders", "value", "shop.orders.Envelope", "AVRO", '"string"')


def test_address_login_and_tls_come_from_the_connection() -> None:
    connection = {
        "host": "registry",
        "schema": "https",
        "port": 8081,
        "login": "me",
        "password": "hush",
        "extra": {"path": "/apis/ccompat/v7/", "ssl.ca.location": "/ca.pem", "timeout": 3},
    }
    assert client_settings(connection) == {
        "url": "https://registry:8081/apis/ccompat/v7",
        "basic.auth.user.info": "me:hush",
        "ssl.ca.location": "/ca.pem",
        "timeout": 3,
    }
    assert client_settings({"host": "http://r/"})["url"] == "http://r"
    assert client_settings(connection, "https://other")["url"] == "https://other"
    several = {"host": "a, https://b/", "port": 8081, "extra": {"path": "v7"}}
    assert client_settings(several)["url"] == "http://a:8081/v7,https://b:8081/v7"
    token = {"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": "t"}
    assert client_settings({"host": "r", "extra": token})["bearer.auth.token"] == "t"


@pytest.mark.parametrize(
    ("connection", "words"),
    [
        ({}, "the address of the registry is unknown"),
        ({"host": "r", "extra": {"ca": "x"}}, "found 'ca'"),
        ({"host": "r", "extra": {"basic.auth.user.info": "a:hush"}}, "found 'basic.auth.user.info'"),
    ],
)
def test_wrong_connections_are_refused_without_their_secrets(connection: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        client_settings(connection)
    assert "hush" not in str(caught.value)


def test_settings_that_the_client_rejects_are_reported_without_values() -> None:
    settings = {"url": "http://r", "basic.auth.user.info": "hush", "no.such.setting": "hush"}
    with pytest.raises(
        ConfigurationError, match=r"basic\.auth\.user\.info, no\.such\.setting, url"
    ) as caught:
        Registry(RegistrySettings(settings)).schema_id(VALUE)
    assert "hush" not in str(caught.value)
    assert "hush" not in repr(RegistrySettings(settings))


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        ("topic", "shop.orders-value"),
        ("record", "shop.orders.Envelope"),
        ("topic_record", "shop.orders-shop.orders.Envelope"),
    ],
)
def test_subjects_are_named_as_confluents_strategies_do(strategy: Subjects, subject: str) -> None:
    registry = Registry(RegistrySettings({"url": "http://r"}, value_subjects=strategy))
    assert registry.subject(VALUE) == subject
    assert registry.subject(TopicSchema("t", "key", "", "AVRO", '"string"')) == "t-key"


def test_what_is_no_record_names_no_subject() -> None:
    registry = Registry(RegistrySettings({"url": "http://r"}, key_subjects="record"))
    with pytest.raises(ConfigurationError, match=r"publish\.registry\.key_subjects: topic"):
        registry.subject(TopicSchema("t", "key", "", "AVRO", '"string"'))


Answer = tuple[int, dict[str, str], bytes]


class RecordingRegistrar:
    """An HTTP server that gives answers in turn, the last one for good, and keeps the paths asked for."""

    def __init__(self, *answers: Answer) -> None:
        self.asked: list[str] = []
        outer, left = self, list(answers)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path.partition("?")[0])
                status, headers, body = left.pop(0) if len(left) > 1 else left[0]
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def log_message(self, *arguments: Any) -> None:
                del arguments

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.settings = RegistrySettings({"url": f"http://127.0.0.1:{self._server.server_port}"})

    def __enter__(self) -> RecordingRegistrar:
        Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.mark.parametrize("first", ["dead", "failing"])
def test_the_next_address_is_used_when_one_does_not_answer_or_fails(first: str) -> None:
    broken: Answer = (503, {}, b'{"error_code":50301,"message":"starting"}')
    with RecordingRegistrar(FOUND) as good, RecordingRegistrar(broken) as bad:
        dead = f"http://127.0.0.1:{free_port()}" if first == "dead" else bad.settings.urls[0]
        registry = Registry(RegistrySettings({"url": f"{dead}, {good.settings.urls[0]}"}))
        assert [registry.schema_of(number) for number in (7, 8)] == [RegisteredSchema("AVRO", '"string"')] * 2
        assert (len(good.asked), len(bad.asked)) == (2, int(first == "failing"))
        assert pickle.loads(pickle.dumps(registry)).schema_of(9) is not None
        assert len(bad.asked) == int(first == "failing")


def test_an_error_of_several_addresses_names_the_last_one() -> None:
    with RecordingRegistrar(MISSING) as empty:
        urls = [f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"]
        with pytest.raises(RegistryUnavailable, match=urls[1].removeprefix("http://")):
            Registry(RegistrySettings({"url": ",".join(urls)})).schema_of(7)
        lacking = Registry(
            RegistrySettings({"url": f"{empty.settings.urls[0]},{urls[0]}"}), lambda seconds: None
        )
        assert lacking.schema_of(7) is None


MISSING: Answer = (404, {}, b'{"error_code":40403,"message":"Schema 7 not found"}')
FOUND: Answer = (200, {}, b'{"schema":"\\"string\\""}')


def test_lookups_of_an_id_that_a_replica_lacks_are_retried() -> None:
    waited: list[float] = []
    with RecordingRegistrar(MISSING, MISSING, FOUND) as server:
        registry = Registry(server.settings, waited.append)
        assert registry.schema_of(7) == RegisteredSchema("AVRO", '"string"')
        assert registry.schema_of(7) is not None
    assert len(server.asked) == 3
    assert len(waited) == 2
    assert 0 < sum(waited) < 2


def test_ids_that_are_nowhere_are_waited_for_within_bounds() -> None:
    waited: list[float] = []
    with RecordingRegistrar(MISSING) as server:
        registry = Registry(server.settings, waited.append)
        assert registry.schema_of(7) is None
        assert 3 < sum(waited) < 10
        assert len(server.asked) == len(waited) + 1
        assert [registry.schema_of(number) for number in range(8, 50)] == [None] * 42
        assert sum(waited) < 40
        count = len(server.asked)
        assert registry.schema_of(7) is None
        assert len(server.asked) == count


@pytest.mark.parametrize(("seconds", "most"), [(0.0, 1), (1.0, 4), (60.0, 40)])
def test_lookups_of_unknown_ids_are_retried_up_to_the_timeout(seconds: float, most: int) -> None:
    waited: list[float] = []
    with RecordingRegistrar(MISSING) as server:
        registry = Registry(server.settings, waited.append, RetryTimeouts(unknown_seconds=seconds))
        assert registry.schema_of(7) is None
        assert sum(waited) == pytest.approx(seconds)
        assert len(server.asked) == len(waited) + 1 <= most


TROUBLE: Answer = (503, {}, b"<html>the registry starts</html>")


def test_a_registry_in_trouble_is_waited_for_when_a_schema_is_read() -> None:
    waited: list[float] = []
    with RecordingRegistrar(*[TROUBLE] * 6, MISSING, *[TROUBLE] * 2, FOUND) as server:
        settings = replace(server.settings, client={**server.settings.client, "max.retries": 0})
        registry = Registry(settings, waited.append, RetryTimeouts(unavailable_seconds=60))
        assert registry.schema_of(7) == RegisteredSchema("AVRO", '"string"')
        assert len(server.asked) == 10, "after each error another id is asked for"
    with RecordingRegistrar(TROUBLE) as server:
        settings = replace(server.settings, client={**server.settings.client, "max.retries": 0})
        waited.clear()
        with pytest.raises(RegistryUnavailable, match="reports an error: found HTTP 503"):
            Registry(settings, waited.append, RetryTimeouts(unavailable_seconds=3)).schema_of(7)
        assert sum(waited) == pytest.approx(3)
        with pytest.raises(RegistryUnavailable):
            Registry(settings, waited.append).schema_id(VALUE)


@pytest.mark.parametrize(
    "answer",
    [
        (200, {}, b""),
        (200, {}, b"[]"),
        (200, {}, b"{}"),
        (200, {}, b"null"),
        (200, {}, b"<html>"),
        (200, {"Content-Encoding": "gzip"}, b"no gzip"),
        (302, {"Location": "/"}, b""),
    ],
)
def test_an_answer_that_is_not_from_a_registry_is_an_error(answer: Answer) -> None:
    with RecordingRegistrar(answer) as server:
        with pytest.raises(ConfigurationError, match=r"registry at 127\.0\.0\.1"):
            Registry(server.settings).schema_of(7)
        with pytest.raises(ConfigurationError, match=r"registry at 127\.0\.0\.1"):
            Registry(server.settings).schema_id(VALUE)


def test_a_registry_that_is_down_may_be_up_later() -> None:
    settings = {"url": f"http://127.0.0.1:{free_port()}", "max.retries": 0}
    registry = Registry(RegistrySettings({**settings, "basic.auth.user.info": "me:hush"}))
    with pytest.raises(TransientError, match="doesn't answer") as caught:
        registry.schema_id(VALUE)
    assert "hush" not in str(caught.value)
    again = pickle.loads(pickle.dumps(registry))
    with pytest.raises(TransientError, match="doesn't answer"):
        again.schema_id(VALUE)
