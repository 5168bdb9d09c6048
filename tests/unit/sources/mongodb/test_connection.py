from __future__ import annotations

import json
import logging
import pickle
from typing import Any

import pytest
from bson.timestamp import Timestamp
from pymongo import errors

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, PositionLost, TransientError
from airflow_cdc_provider.sources.backoff import pauses
from airflow_cdc_provider.sources.mongodb import connection
from airflow_cdc_provider.sources.mongodb.connection import ConnectionValues, await_cluster_time
from airflow_cdc_provider.sources.mongodb.driver.server_errors import ServerTimeout, translated
from airflow_cdc_provider.sources.mongodb.options import MongodbAdvanced, MongodbOptions
from airflow_cdc_provider.sources.mongodb.snapshot import SnapshotReader
from server_kit.ports import free_port


def read(**values: Any) -> ConnectionValues:
    return ConnectionValues.read(values, 2.5)


def test_host_and_port_make_a_connection_string() -> None:
    assert read(host="db1", port=27018).host == "mongodb://db1:27018"
    assert read(host="db1,db2:27019", port=27018).host == "mongodb://db1:27018,db2:27019"
    assert read(host="c.example", port=27017, extra={"srv": True}).host == "mongodb+srv://c.example"
    assert read(host="mongodb://x:1/?replicaSet=a", port=5).host == "mongodb://x:1/?replicaSet=a"
    assert read(extra=json.dumps({"secret_uri": "mongodb://y:2"})).host == "mongodb://y:2"


def test_options_come_from_extra_and_credentials_stay_separate() -> None:
    values = read(
        host="h", login="me", password="p@ss/word", schema="users", extra={"replicaSet": "rs0", "ssl": True}
    )
    assert values.options["replicaSet"] == "rs0"
    assert values.options["tls"] is True
    assert values.options["authSource"] == "users"
    assert values.options["serverSelectionTimeoutMS"] == 2500
    assert values.credentials == {"username": "me", "password": "p@ss/word"}
    assert "p@ss" not in values.host + repr(values.options)


@pytest.mark.covers("MDB-CONN-06", "MDB-CONN-11", "MDB-CONN-12")
def test_options_of_the_driver_are_those_of_extra() -> None:
    extra = {
        "heartbeatFrequencyMS": 2000,
        "socketTimeoutMS": 7000,
        "serverSelectionTimeoutMS": 9000,
        "tls": True,
    }
    for given, timeouts in ((extra, (2, 9.0, 7.0)), ({}, (10, 2.5, None))):
        with read(host="h", extra=given).client(connect=False) as client:
            options = client.options
            pool = options.pool_options
            assert options.server_selection_timeout == timeouts[1]
            assert (options.heartbeat_frequency, pool.socket_timeout) == (timeouts[0], timeouts[2])
            assert (pool._ssl_context is not None) == bool(given)


@pytest.mark.covers("MDB-CONN-01")
@pytest.mark.parametrize(
    "values", [{}, {"host": ""}, {"host": "h", "extra": "no json"}, {"host": "h", "extra": "[1]"}]
)
def test_a_connection_without_host_or_with_a_wrong_extra_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        read(**values)


SECRET = "s3cr3t/x"


@pytest.mark.covers("MDB-CONN-01", "MDB-CONN-04")
@pytest.mark.parametrize(
    "values",
    [
        {"host": f"mongodb://me:{SECRET}@h:1/"},
        {"host": f"mongodb://me:{SECRET}"},
        {"host": "h", "login": "me", "password": SECRET, "extra": {"tlsCAFile": "/none"}},
    ],
)
def test_no_text_contains_a_secret(values: dict[str, Any]) -> None:
    values_read = read(**values)
    reader: Any = SnapshotReader(values_read, MongodbOptions())
    assert "s3cr3t" not in repr(values_read) + repr(reader)
    assert pickle.loads(pickle.dumps(reader)) == reader
    with pytest.raises(ConfigurationError) as caught:
        values_read.client()
    chain: BaseException | None = caught.value
    while chain is not None:
        assert SECRET not in str(chain)
        assert "s3cr3t" not in str(chain)
        chain = chain.__cause__


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.OperationFailure("gone", 286), PositionLost),
        (errors.OperationFailure("no", 13), ConfigurationError),
        (errors.OperationFailure("no", 18), ConfigurationError),
        (errors.OperationFailure("size", 10334), ConfigurationError),
        (errors.OperationFailure("token", 260), PositionLost),
        (errors.OperationFailure("token", 280), PositionLost),
        (errors.OperationFailure("token", 50811), ConfigurationError),
        (errors.OperationFailure("stepped down", 189), TransientError),
        (errors.OperationFailure("?", 1, {"errorLabels": ["ResumableChangeStreamError"]}), TransientError),
        (errors.OperationFailure("?", 1), ConfigurationError),
        (errors.ServerSelectionTimeoutError("down"), TransientError),
        (errors.AutoReconnect("lost"), TransientError),
        (errors.ConfigurationError("set name"), ConfigurationError),
    ],
)
def test_errors_have_the_type_for_the_callers_reaction(error: Exception, expected: type[CdcError]) -> None:
    with pytest.raises(expected, match="reading"), translated("reading"):
        raise error


def test_other_errors_pass_as_they_are() -> None:
    with pytest.raises(KeyError), translated("reading"):
        raise KeyError("x")


@pytest.mark.covers("MDB-CONN-01")
def test_options_of_a_connection_string_win() -> None:
    values = read(
        host="mongodb://me:pw@h:1/?connectTimeoutMS=9&appName=mine&ssl=true",
        login="other",
        password="x",
        extra={"connectTimeoutMS": 5, "tls": False, "replicaSet": "rs0"},
    )
    assert "connectTimeoutMS" not in values.options
    assert "tls" not in values.options
    assert (values.options["replicaSet"], values.credentials) == ("rs0", {})
    client = values.client()
    assert client.options.pool_options.connect_timeout == 0.009
    assert client.options.pool_options.appname == "mine"
    assert client.options.server_selection_timeout == 2.5
    client.close()
    assert read(host="mongodb://h:1/?w=1", login="me", password="x").credentials["username"] == "me"


@pytest.mark.covers("MDB-CONN-07")
@pytest.mark.parametrize(
    ("values", "option"),
    [
        ({"host": "h", "extra": {"tls": True}}, ""),
        ({"host": "h", "extra": {"tls": True, "tlsAllowInvalidHostnames": True}}, "tlsAllowInvalidHostnames"),
        ({"host": "mongodb://h/?tls=true&tlsAllowInvalidHostnames=true"}, "tlsAllowInvalidHostnames"),
        ({"host": "h", "extra": {"ssl": True, "allow_insecure": True}}, "tlsInsecure"),
        ({"host": "mongodb://h/?tls=true&tlsInsecure=false"}, ""),
    ],
)
def test_an_unverified_server_is_warned_of_once(
    values: dict[str, Any], option: str, caplog: pytest.LogCaptureFixture
) -> None:
    connection._warn_of.cache_clear()
    values_read = read(**values)
    assert values_read.unverified == option
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            values_read.client().close()
    assert caplog.text.count("identity is not verified") == bool(option)


@pytest.mark.covers("MDB-FAULT-02", "MDB-FAULT-03")
def test_pauses_double_up_to_the_longest() -> None:
    advanced = MongodbAdvanced(connect_attempts=6, connect_backoff_seconds=1, connect_max_backoff_seconds=5)
    assert list(pauses(advanced)) == [1, 2, 4, 5, 5, 5]
    assert list(pauses(MongodbAdvanced(connect_attempts=0))) == []


@pytest.mark.covers("MDB-XE-06")
@pytest.mark.parametrize("error", [errors.NetworkTimeout("late"), errors.OperationFailure("late", 50)])
def test_a_timeout_is_distinguished_from_other_errors(error: Exception) -> None:
    with pytest.raises(ServerTimeout), translated("reading"):
        raise error


@pytest.mark.covers("MDB-FAULT-02")
def test_a_server_that_does_not_answer_is_tried_again_with_growing_pauses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    address = {"host": "127.0.0.1", "port": free_port(), "extra": {"serverSelectionTimeoutMS": 20}}
    advanced = MongodbAdvanced(connect_attempts=4, connect_backoff_seconds=0.05)
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(TransientError, match="the server doesn't respond"),
    ):
        await_cluster_time(ConnectionValues.read(address, 0.02).client(), advanced)
    messages = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert messages == [f"retrying in {pause} s" for pause in ("0.1", "0.1", "0.2", "0.4")]


class OldServer:
    """A server before 4.4.2, without the command hello; it records the commands."""

    read_preference = None

    def __init__(self) -> None:
        self.admin = self
        self.requests: list[str] = []

    def command(self, name: str, **_: Any) -> dict[str, Any]:
        self.requests.append(name)
        if name != "isMaster":
            raise errors.OperationFailure("no such command", 59)
        return {"operationTime": Timestamp(7, 1)}


@pytest.mark.covers("MDB-PERM-02")
def test_a_server_without_hello_gets_the_command_by_its_old_name_only() -> None:
    server = OldServer()
    client: Any = server
    assert connection.cluster_time(client) == Timestamp(7, 1)
    assert server.requests == ["hello", "isMaster"]


@pytest.mark.parametrize("reason", ["certificate has expired", "self-signed certificate"])
def test_a_certificate_that_is_not_accepted_needs_a_change(reason: str) -> None:
    text = f"h:1: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: {reason}"
    with pytest.raises(ConfigurationError, match=f"{reason}.*tlsCAFile"), translated("reading failed"):
        raise errors.ServerSelectionTimeoutError(text)


def test_the_name_of_a_replica_set_is_among_what_to_check() -> None:
    text = 'No replica set members available for replica set name "nope"'
    with pytest.raises(TransientError, match=r'name "nope".*replicaSet'), translated("reading failed"):
        raise errors.ServerSelectionTimeoutError(text)


@pytest.mark.parametrize("option", ["tlsCAFile", "tlsCertificateKeyFile"])
@pytest.mark.parametrize("file", ["/nowhere.pem", __file__])
def test_tls_files_that_cannot_be_used_are_reported(option: str, file: str) -> None:
    values = read(host="h", extra={"tls": True, option: file})
    with pytest.raises(ConfigurationError, match=r"MongoDB connection .*: .*found"):
        values.client()
