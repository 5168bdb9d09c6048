from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from pymongo import errors

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, PositionLost, TransientError
from airflow_cdc_provider.sources.mongodb.connection import ConnectionValues, translated
from airflow_cdc_provider.sources.mongodb.snapshot import range_reader


def read(**values: Any) -> ConnectionValues:
    return ConnectionValues.read(values, 2.5)


def test_host_and_port_make_a_connection_string() -> None:
    assert read(host="db1", port=27018).host == "mongodb://db1:27018"
    assert read(host="db1,db2:27019", port=27018).host == "mongodb://db1:27018,db2:27019"
    assert read(host="c.example", port=27017, extra={"srv": True}).host == "mongodb+srv://c.example"
    assert read(host="mongodb://x:1/?replicaSet=a", port=5).host == "mongodb://x:1/?replicaSet=a"
    assert read(extra=json.dumps({"uri": "mongodb://y:2"})).host == "mongodb://y:2"


def test_options_come_from_extra_and_credentials_stay_apart() -> None:
    values = read(
        host="h", login="me", password="p@ss/word", schema="users", extra={"replicaSet": "rs0", "ssl": True}
    )
    assert values.options["replicaSet"] == "rs0"
    assert values.options["tls"] is True
    assert values.options["authSource"] == "users"
    assert values.options["serverSelectionTimeoutMS"] == 2500
    assert values.credentials == {"username": "me", "password": "p@ss/word"}
    assert "p@ss" not in values.host + repr(values.options)


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


@pytest.mark.parametrize(
    "values", [{}, {"host": ""}, {"host": "h", "extra": "no json"}, {"host": "h", "extra": "[1]"}]
)
def test_a_connection_without_host_or_with_a_wrong_extra_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        read(**values)


SECRET = "s3cr3t/x"


@pytest.mark.parametrize(
    "values",
    [
        {"host": f"mongodb://me:{SECRET}@h:1/"},
        {"host": f"mongodb://me:{SECRET}"},
        {"host": "h", "login": "me", "password": SECRET, "extra": {"noSuchOption": 1, "tlsCAFile": "/none"}},
    ],
)
def test_no_text_shows_a_secret(values: dict[str, Any]) -> None:
    made = read(**values)
    reader: Any = range_reader(made, 10)
    assert "s3cr3t" not in repr(made) + repr(reader)
    assert pickle.loads(pickle.dumps(reader)).args == reader.args
    with pytest.raises(ConfigurationError) as caught:
        made.client()
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
        (errors.OperationFailure("token", 260), ConfigurationError),
        (errors.OperationFailure("stepped down", 189), TransientError),
        (errors.OperationFailure("?", 1, {"errorLabels": ["ResumableChangeStreamError"]}), TransientError),
        (errors.OperationFailure("?", 1), ConfigurationError),
        (errors.ServerSelectionTimeoutError("down"), TransientError),
        (errors.AutoReconnect("lost"), TransientError),
        (errors.ConfigurationError("set name"), ConfigurationError),
    ],
)
def test_errors_say_what_the_caller_must_do(error: Exception, expected: type[CdcError]) -> None:
    with pytest.raises(expected, match="reading"), translated("reading"):
        raise error


def test_other_errors_pass_as_they_are() -> None:
    with pytest.raises(KeyError), translated("reading"):
        raise KeyError("x")
