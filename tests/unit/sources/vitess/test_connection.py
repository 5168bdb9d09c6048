from __future__ import annotations

import json
import pickle
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, PositionLost, TransientError
from airflow_cdc_provider.sources.vitess import protocol
from airflow_cdc_provider.sources.vitess.connection import ConnectionValues
from airflow_cdc_provider.sources.vitess.failures import StaleTabletSchema, failure
from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient
from tests.unit.sources.vitess.recording_vtgate import RecordingVtgate, failed, table

HEADER = "hEad3r-of-a-login"
PASSWORD = "p@ss word"


def read(**values: Any) -> ConnectionValues:
    return ConnectionValues.read(values)


@pytest.mark.covers("VIT-CON-01")
def test_missing_host_is_reported_by_the_options_name() -> None:
    for values in ({}, {"host": ""}, {"host": " , "}):
        with pytest.raises(ConfigurationError, match=r"no host \(database\.hostname\)"):
            read(**values)


@pytest.mark.covers("VIT-CON-02")
def test_default_port_is_15991() -> None:
    assert read(host="vtgate").addresses == (("vtgate", 15991),)
    assert read(host="vtgate", port=33).target() == "dns:///vtgate:33"
    assert read(host="a:1, b", port="33").addresses == (("a", 1), ("b", 33))
    assert read(host="[::1]").target() == "dns:///[::1]:15991"
    with pytest.raises(
        ConfigurationError,
        match="invalid port for host b in the Vitess connection: expected a number, found 'x'",
    ):
        read(host="b:x")


def test_settings_are_those_of_extra_and_a_connector_wins() -> None:
    extra = json.dumps({"keepalive_seconds": 30, "max_message_bytes": 1000, "load_balancing": "round_robin"})
    values = read(host="h", extra=extra)
    options = dict(values.channel_options)
    assert options["grpc.keepalive_time_ms"] == 30_000
    assert options["grpc.max_receive_message_length"] == 1000
    assert options["grpc.lb_policy_name"] == "round_robin"
    declared = ConnectionValues.read({"host": "h", "extra": extra}, {"max_message_bytes": 5, "headers": ""})
    assert dict(declared.channel_options)["grpc.max_receive_message_length"] == 5


def test_defaults_are_those_of_vitess() -> None:
    options = dict(read(host="h").channel_options)
    assert options["grpc.max_receive_message_length"] == 17 << 20
    assert options["grpc.lb_policy_name"] == "pick_first"
    assert "grpc.keepalive_time_ms" not in options
    assert read(host="h").metadata == ()
    assert read(host="h").caller_id is None


@pytest.mark.covers("VIT-CON-11")
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"extra": {"load_balancing": "grpclb"}}, "one of pick_first, round_robin, found grpclb"),
        ({"extra": {"max_message_bytes": "lots"}}, "invalid value for max_message_bytes: expected a number"),
        ({"extra": {"keepalive_seconds": -1}}, "invalid value for keepalive_seconds"),
        ({"extra": {"headers": "a"}}, "expected name:value,name:value"),
        ({"extra": {"headers": {"a b": "c"}}}, "invalid name of a header"),
        ({"extra": {"caller_id": {"user": "x"}}}, "principal, component, subcomponent"),
        ({"extra": {"tls_key_file": "/k"}}, "tls_cert_file and tls_key_file"),
        ({"extra": {"tls": False, "tls_ca_file": "/k"}}, "disables TLS"),
        ({"extra": {"tsl": True}}, "unknown settings: tsl"),
        ({"extra": "{"}, "extra isn't valid JSON"),
        ({"extra": [1]}, "a JSON object"),
        ({"password": "x"}, "a password but no login"),
    ],
)
def test_invalid_settings_are_reported(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read(host="h", **values)


def test_files_of_tls_are_read_and_missing_ones_named(tmp_path: Path) -> None:
    missing = read(host="h", extra={"tls_ca_file": str(tmp_path / "ca.pem")})
    with pytest.raises(ConfigurationError, match=r"ca\.pem can't be read.*No such file"):
        missing.channel()
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(ConfigurationError, match="isn't a PEM file"):
        missing.channel()
    named = read(host="a,b", extra={"tls": True})
    assert "grpc.ssl_target_name_override" not in dict(named.channel_options)


def test_several_hosts_are_looked_up_as_one_target() -> None:
    assert read(host="127.0.0.1:1,localhost:2").target().startswith("ipv4:127.0.0.1:1,127.0.0.1:2")
    with pytest.raises(TransientError, match=r"host nowhere\.invalid can't be resolved"):
        read(host="127.0.0.1,nowhere.invalid").target()


@pytest.mark.covers("VIT-CON-03", "VIT-CON-09", "VIT-CON-12")
def test_each_call_carries_login_headers_and_caller() -> None:
    extra = {
        "headers": "x-Env:prod, x-team:data",
        "caller_id": {"principal": "orders", "component": "airflow", "subcomponent": "dag"},
    }
    with RecordingVtgate() as vtgate:
        values = read(**vtgate.connection, login="cdc", password=PASSWORD, extra=extra)
        with VtgateClient(values) as client:
            client.execute("SELECT 1", "shop:-80")
            request = protocol.VStreamRequest(tablet_type=2)
            assert list(client.vstream(request.SerializeToString())) == []
    for met in vtgate.metadata:
        assert {
            "username": "cdc",
            "password": PASSWORD,
            "x-env": "prod",
            "x-team": "data",
        }.items() <= met.items()
    assert vtgate.statements == [("SELECT 1", "shop:-80")]
    assert vtgate.streams[0].tablet_type == 2
    assert [(c.principal, c.component, c.subcomponent) for c in vtgate.callers] == [
        ("orders", "airflow", "dag")
    ] * 2


def test_rows_are_bytes_and_none() -> None:
    answer = table(["id", "note"], ["1", None], ["", b"\xff"])
    with (
        RecordingVtgate(answer=lambda sql, target: answer) as vtgate,
        VtgateClient(read(**vtgate.connection)) as client,
    ):
        got = client.execute("SELECT * FROM t")
    assert got.fields == ("id", "note")
    assert got.rows == [[b"1", None], [b"", b"\xff"]]
    assert got.texts() == [["1", ""], ["", "�"]]


def test_failed_statement_is_an_error_by_its_code() -> None:
    answers = {
        "a": failed(grpc.StatusCode.INVALID_ARGUMENT, "syntax error"),
        "b": failed(grpc.StatusCode.UNAVAILABLE, "no healthy tablet"),
    }
    with (
        RecordingVtgate(answer=lambda sql, target: answers[sql]) as vtgate,
        VtgateClient(read(**vtgate.connection)) as client,
    ):
        with pytest.raises(ConfigurationError, match="can't run a: found INVALID_ARGUMENT: syntax error"):
            client.execute("a")
        with pytest.raises(TransientError, match="no healthy tablet"):
            client.execute("b")


@pytest.mark.covers("VIT-CON-10")
def test_message_above_the_limit_names_the_setting() -> None:
    with RecordingVtgate(responses=[b"small", b"x" * 5000]) as vtgate:
        values = read(**vtgate.connection, extra={"max_message_bytes": 4096})
        with VtgateClient(values) as client:
            stream = client.vstream(b"")
            assert next(stream) == b"small"
            with pytest.raises(
                ConfigurationError, match=r"message is larger than allowed.*max_message_bytes"
            ):
                next(stream)
    with (
        RecordingVtgate(responses=[b"x" * (16 << 20), b"x" * ((17 << 20) + 1)]) as vtgate,
        VtgateClient(read(**vtgate.connection)) as client,
    ):
        stream = client.vstream(b"")
        assert len(next(stream)) == 16 << 20, "VTGate's own limit"
        with pytest.raises(ConfigurationError, match="max_message_bytes"):
            next(stream)


def test_cancelled_stream_ends_for_the_thread_that_reads_it() -> None:
    forever = threading.Event()
    with RecordingVtgate(responses=[b"one"], waits=forever.wait) as vtgate:
        with VtgateClient(read(**vtgate.connection)) as client:
            stream = client.vstream(b"")
            got: list[bytes] = []
            reader = threading.Thread(target=lambda: got.extend(stream))
            reader.start()
            while not got:
                reader.join(0.01)
            stream.cancel()
            reader.join(10)
            assert not reader.is_alive()
            assert got == [b"one"]
        forever.set()


def test_closed_client_ends_its_streams() -> None:
    forever = threading.Event()
    with RecordingVtgate(responses=[b"one"], waits=forever.wait) as vtgate:
        client = VtgateClient(read(**vtgate.connection))
        stream = client.vstream(b"")
        assert next(stream) == b"one"
        client.close()
        assert list(stream) == []
        forever.set()


def test_unreachable_server_is_transient_and_no_message_contains_a_secret() -> None:
    refusal = (grpc.StatusCode.PERMISSION_DENIED, f"user cdc with {PASSWORD} and {HEADER} is refused")
    with RecordingVtgate(refuses=refusal) as vtgate:
        values = read(
            **vtgate.connection, login="cdc", password=PASSWORD, extra={"headers": f"auth:{HEADER}"}
        )
        with VtgateClient(values) as client:
            for call in (lambda: client.execute("x"), lambda: next(client.vstream(b""))):
                with pytest.raises(ConfigurationError, match=r"with \*\*\* and \*\*\* is refused") as caught:
                    call()
                assert PASSWORD not in str(caught.value) + repr(values)
                assert caught.value.__cause__ is None
                assert caught.value.__suppress_context__
    with VtgateClient(values) as client, pytest.raises(TransientError, match="UNAVAILABLE"):
        client.execute("x")


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        ("UNAVAILABLE", "no shard gave an event", TransientError),
        ("UNKNOWN", "vstream ended unexpectedly", TransientError),
        ("ABORTED", "", TransientError),
        ("CANCELLED", "timed out while waiting for skew", TransientError),
        ("DEADLINE_EXCEEDED", "", TransientError),
        ("INTERNAL", "not all journaling participants", TransientError),
        ("RESOURCE_EXHAUSTED", "pool is full", TransientError),
        ("FAILED_PRECONDITION", "operation not allowed in state NOT_SERVING", TransientError),
        ("UNKNOWN", "cannot determine table columns for evolve: event has [8 3]", StaleTabletSchema),
        ("UNKNOWN", "failed to reload schema after DDL encountered in stream", StaleTabletSchema),
        ("RESOURCE_EXHAUSTED", "Received message larger than max (5 vs. 4)", ConfigurationError),
        (
            "RESOURCE_EXHAUSTED",
            "rpc error: grpc: trying to send message larger than max (17 vs. 16)",
            ConfigurationError,
        ),
        ("INTERNAL", "could not decode position rubbish", ConfigurationError),
        ("UNKNOWN", "table nosuch is not present in the database", ConfigurationError),
        ("UNKNOWN", "Query was empty: failed to build table replication plan", ConfigurationError),
        ("UNKNOWN", "node doesn't exist: keyspaces/x", ConfigurationError),
        ("UNKNOWN", "stream needs a position or a table to copy", ConfigurationError),
        ("UNAUTHENTICATED", "username and password must be provided", ConfigurationError),
        ("PERMISSION_DENIED", "auth failure", ConfigurationError),
        ("INVALID_ARGUMENT", "vgtid must have at least one value", ConfigurationError),
        ("UNIMPLEMENTED", "unknown service", ConfigurationError),
        ("UNKNOWN", "GTIDSet Mismatch", PositionLost),
        ("UNKNOWN", "target: shop.-80: vttablet: lost: table purged_GTIDSet", TransientError),
        ("UNKNOWN", "the source purged required binary logs (errno 1236)", PositionLost),
        ("FAILED_PRECONDITION", "shard provided in VGTID, -80, not found in the shop keyspace", PositionLost),
    ],
)
def test_errors_have_a_class_by_the_required_reaction(code: str, text: str, kind: type[CdcError]) -> None:
    error = failure("reading", code, text)
    assert type(error) is kind
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (kind, str(error))


@pytest.mark.parametrize(
    "cause",
    [
        "SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: certificate has expired: OK",
        "Custom verification check failed with error: UNAUTHENTICATED: Hostname Verification Check failed",
    ],
)
def test_a_certificate_that_is_not_accepted_needs_a_change(cause: str) -> None:
    error = failure("reading", "UNAVAILABLE", f"failed to connect to all addresses; last error: {cause}")
    assert isinstance(error, ConfigurationError)
    assert "tls_ca_file" in error.remedy
