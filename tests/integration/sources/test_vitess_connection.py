"""Connections to a real VTGate: with and without a login, with TLS, and what it ends them for."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, PositionLost, TransientError
from airflow_cdc_provider.sources.vitess import protocol
from airflow_cdc_provider.sources.vitess.connection import ConnectionValues
from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient
from server_kit import VitessServer
from server_kit.vitess import Keyspace

pytestmark = pytest.mark.integration

WRONG = "not-the-password"


def client(connection: dict[str, Any], **changes: Any) -> VtgateClient:
    return VtgateClient(ConnectionValues.read({**connection, **changes}))


def stream_from(
    gtid: str = "current", *, keyspace: str = "lookup", shard: str = "0", heartbeat: int = 0
) -> bytes:
    request = protocol.VStreamRequest(tablet_type=protocol.TABLET_TYPES["PRIMARY"])
    request.vgtid.shard_gtids.add(keyspace=keyspace, shard=shard, gtid=gtid)
    request.flags.heartbeat_interval = heartbeat
    data: bytes = request.SerializeToString()
    return data


def first_position(vtgate: VtgateClient) -> str:
    stream = vtgate.vstream(stream_from())
    for response in stream:
        for event in protocol.VStreamResponse.FromString(response).events:
            if event.HasField("vgtid"):
                stream.cancel()
                position: str = event.vgtid.shard_gtids[0].gtid
                return position
    raise AssertionError("the stream gave no position")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[VitessServer, Path]]:
    """A server that requires a login and TLS, with VTGate's default keepalive policy."""
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*arguments: str) -> None:
        done = subprocess.run(
            ["openssl", *arguments], cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    new = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2")
    openssl(*new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=the authority")
    name = ("-subj", "/CN=vtgate.test", "-addext", "subjectAltName=DNS:vtgate.test")
    openssl(*new, "-keyout", "key.pem", "-out", "cert.pem", *name, "-CA", "ca.pem", "-CAkey", "ca.key")
    options = ["--grpc-cert", str(folder / "cert.pem"), "--grpc-key", str(folder / "key.pem")]
    tls = {"tls_ca_file": str(folder / "ca.pem"), "tls_server_name": "vtgate.test"}
    with VitessServer(keyspaces=[Keyspace("lookup")], auth=True, options=options, extra=tls) as server:
        yield server, folder


@pytest.mark.covers("VIT-CON-04", "VIT-CON-05")
def test_vtgate_without_a_plugin_needs_no_login_and_no_mysql_account(vitess_server: VitessServer) -> None:
    values = ConnectionValues.read(vitess_server.connection)
    assert values.metadata == ()
    with VtgateClient(values) as vtgate:
        assert ["lookup/0"] in vtgate.execute("SHOW VITESS_SHARDS").texts()
        assert first_position(vtgate).startswith("MySQL56/")
    with client(vitess_server.connection, login="anybody", password="anything") as vtgate:
        assert vtgate.execute("SELECT 1").rows == [[b"1"]]


@pytest.mark.covers("VIT-CON-03")
def test_login_is_sent_with_statements_and_streams(secured: tuple[VitessServer, Path]) -> None:
    server, _ = secured
    with client(server.connection) as vtgate:
        assert vtgate.execute("SELECT 1").rows == [[b"1"]]
        assert first_position(vtgate).startswith("MySQL56/")
    for login, reported in (
        ({"login": "", "password": ""}, "UNAUTHENTICATED"),
        ({"password": WRONG}, "PERMISSION"),
    ):
        with client(server.connection, **login) as vtgate:
            with pytest.raises(ConfigurationError, match=reported) as of_statement:
                vtgate.execute("SELECT 1")
            with pytest.raises(ConfigurationError, match=reported) as of_stream:
                next(vtgate.vstream(stream_from()))
            assert WRONG not in f"{of_statement.value} {of_stream.value}"


def test_server_that_no_authority_vouches_for_is_refused(secured: tuple[VitessServer, Path]) -> None:
    server, folder = secured
    wrong = {**server.connection["extra"], "tls_server_name": "another.test"}
    own = {"tls_ca_file": str(folder / "ca.pem")}
    refused: list[tuple[dict[str, Any], type[CdcError]]] = [
        (wrong, ConfigurationError),
        (own, ConfigurationError),  # it has no name of the server either
        ({"tls": True}, ConfigurationError),
        ({}, TransientError),
    ]
    for extra, error in refused:
        with client(server.connection, extra=extra) as vtgate, pytest.raises(error, match="UNAVAILABLE"):
            vtgate.execute("SELECT 1", timeout_seconds=5)


@pytest.mark.covers("VIT-CON-08")
def test_keepalive_pings_an_idle_stream_at_its_interval(vitess_server: VitessServer) -> None:
    """VTGate ends connections that are pinged more often than each 10 s: this one is pinged each second."""
    with client(vitess_server.connection, extra={"keepalive_seconds": 1}) as vtgate:
        began = time.monotonic()
        with pytest.raises(TransientError, match=r"[Tt]oo.many.pings|ENHANCE_YOUR_CALM"):
            for _ in vtgate.vstream(stream_from()):
                pass
        assert 2 < time.monotonic() - began < 30


def test_stream_without_keepalive_stays_open_in_silence(vitess_server: VitessServer) -> None:
    with client(vitess_server.connection) as vtgate:
        stream = vtgate.vstream(stream_from())
        ended = threading.Event()

        def read() -> None:
            list(stream)
            ended.set()

        threading.Thread(target=read, daemon=True).start()
        assert not ended.wait(6)
        stream.cancel()
        assert ended.wait(10)


@pytest.mark.covers("VIT-CON-10")
def test_row_above_the_limit_ends_the_stream_with_the_settings_name(vitess_server: VitessServer) -> None:
    vitess_server.define("lookup", "CREATE TABLE con_large (id bigint PRIMARY KEY, data longblob)")
    with client(vitess_server.connection, extra={"max_message_bytes": 4 << 20}) as vtgate:
        start = first_position(vtgate)
        with vitess_server.connect("lookup") as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO con_large VALUES (1, REPEAT('x', 5000000))")
        with pytest.raises(ConfigurationError, match=r"larger than allowed.*max_message_bytes"):
            list(vtgate.vstream(stream_from(start)))
    with vitess_server.client() as vtgate:
        stream = vtgate.vstream(stream_from(start))
        assert any(len(response) > 5_000_000 for response in stream)
        stream.cancel()


@pytest.mark.covers("VIT-CON-11")
def test_calls_go_round_several_vtgates(vitess_server: VitessServer) -> None:
    """The two addresses are one VTGate behind relays that count connections."""
    with Relay(vitess_server.port) as first, Relay(vitess_server.port) as second:
        hosts = {"host": f"127.0.0.1:{first.port},127.0.0.1:{second.port}"}
        with client(vitess_server.connection, **hosts) as vtgate:
            vtgate.execute("SELECT 1")
            assert (first.connections, second.connections) == (1, 0)
        with client(vitess_server.connection, **hosts, extra={"load_balancing": "round_robin"}) as vtgate:
            deadline = time.monotonic() + 10
            while (first.connections, second.connections) != (2, 1) and time.monotonic() < deadline:
                vtgate.execute("SELECT 1")
            assert (first.connections, second.connections) == (2, 1)
            second.close()  # the other one serves on
            with contextlib.suppress(TransientError):  # of a call that was on its way to the closed one
                vtgate.execute("SELECT 1")
            for _ in range(4):
                vtgate.execute("SELECT 1")


def test_servers_errors_are_ours_by_type(vitess_server: VitessServer) -> None:
    with vitess_server.client() as vtgate:
        with pytest.raises(ConfigurationError, match="node doesn't exist"):
            next(vtgate.vstream(stream_from(keyspace="nowhere")))
        with pytest.raises(PositionLost, match="-40, not found in the lookup keyspace"):
            next(vtgate.vstream(stream_from(shard="-40")))
        with pytest.raises(ConfigurationError, match="could not decode position"):
            list(vtgate.vstream(stream_from("rubbish")))
        with pytest.raises(ConfigurationError, match="INVALID_ARGUMENT"):
            next(vtgate.vstream(b""))
        with pytest.raises(ConfigurationError, match="can't run SELEKT"):
            vtgate.execute("SELEKT 1")
    wrong_port = {"port": vitess_server.web_port}
    with client(vitess_server.connection, **wrong_port) as vtgate, pytest.raises(TransientError):
        vtgate.execute("SELECT 1", timeout_seconds=5)


class Relay:
    """Hands bytes on to a port of this machine, and counts connections."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.connections = 0
        self._open: list[socket.socket] = []

    def __enter__(self) -> Relay:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for end in [self._listener, *self._open]:
            with contextlib.suppress(OSError):  # the peer has disconnected
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._open.clear()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # closed
            far = socket.create_connection(("127.0.0.1", self._target))
            self.connections += 1
            self._open += [near, far]
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._hand_on, args=(source, target), daemon=True).start()

    @staticmethod
    def _hand_on(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed
            while data := source.recv(1 << 16):
                target.sendall(data)
