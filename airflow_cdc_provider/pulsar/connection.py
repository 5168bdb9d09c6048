"""Connections to brokers: one socket each, with a handshake, requests and responses.

A connection is only open while records are sent, not while events are built. So a broker's pings are only
answered while a response is awaited.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from contextlib import suppress
from typing import Final

from airflow_cdc_provider.connection_settings import check_files
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.protobuf_wire import Value, message, read_message
from airflow_cdc_provider.pulsar import wire
from airflow_cdc_provider.pulsar.errors import BrokersUnavailable, error_of
from airflow_cdc_provider.pulsar.settings import Address, ClientSettings

_REDIRECTS: Final = 20
_RECEIVE_BYTES: Final = 1 << 16
_LARGEST_COMMAND: Final = 64 << 20

Command = tuple[int, dict[int, int | bytes]]
"""Type and fields of a command."""


class Connection:
    """One connection to one broker.

    Args:
        address: The broker.
        settings: Login, TLS, timeouts.
        proxied: Behind a proxy: the target broker, ``host:port``.

    Raises:
        BrokersUnavailable: It doesn't answer.
        ConfigurationError: The login or TLS is invalid.
    """

    def __init__(self, address: Address, settings: ClientSettings, proxied: str = "") -> None:
        self.address = address
        self._settings = settings
        self._received = bytearray()
        self._requests = 0
        self._socket = _connect(address, settings)
        try:
            fields: dict[int, Value] = {1: "airflow-cdc-provider", 4: wire.PROTOCOL_VERSION}
            if settings.token:
                fields |= {5: "token", 3: settings.token}
            if proxied:
                fields[6] = proxied
            self.send(wire.command(wire.CONNECT, fields))
            kind, found = self.receive()
            if kind != wire.CONNECTED:
                raise _failure(found, f"connecting to {address}")
            self.max_message_bytes = _number(found, 3) or 5 << 20
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self._socket.close()

    def send(self, frames: bytes) -> None:
        """Send frames.

        Raises:
            BrokersUnavailable: The connection is lost.
        """
        try:
            self._socket.settimeout(self._settings.timeout_seconds)
            self._socket.sendall(frames)
        except OSError as error:
            raise BrokersUnavailable(f"connection to broker {self.address} lost", found=str(error)) from None

    def receive(self) -> Command:
        """Return the next command other than those that maintain the connection.

        Raises:
            BrokersUnavailable: None arrived in time, the connection is lost, or the data is no command.
        """
        deadline = time.monotonic() + self._settings.timeout_seconds
        while True:
            kind, fields = self._next(deadline)
            if kind == wire.PING:
                self.send(wire.command(wire.PONG, {}))
            elif kind == wire.AUTH_CHALLENGE:
                # A renewed token is used by the next job; this one sends the token that it has.
                response = message({1: "token", 2: self._settings.token})
                self.send(wire.command(wire.AUTH_RESPONSE, {2: response, 3: wire.PROTOCOL_VERSION}))
            elif kind != wire.PONG:
                return kind, fields

    def request(
        self, kind: int, fields: dict[int, Value], request_field: int, response: int, doing: str
    ) -> dict[int, int | bytes]:
        """Send a request and return its response. No message may be waiting for a receipt.

        Args:
            kind: Type of the request.
            fields: Its fields, except the request id.
            request_field: Number of the field for the request id.
            response: Type of the response.
            doing: The operation, for error messages.

        Returns:
            The fields of the response.

        Raises:
            CdcError: The broker rejects it, or doesn't answer.
        """
        self._requests += 1
        self.send(wire.command(kind, {**fields, request_field: self._requests}))
        answer, found = self.receive()
        if answer == wire.ERROR:
            raise error_of(_number(found, 2), _text(found, 3), doing)
        if answer != response:
            raise BrokersUnavailable(
                f"{doing} failed", expected=f"command {response}", found=f"command {answer}"
            )
        return found

    def _next(self, deadline: float) -> Command:
        while True:
            if len(self._received) >= 4:
                size = struct.unpack_from(">I", self._received)[0]
                if size > _LARGEST_COMMAND:
                    raise BrokersUnavailable(f"{self.address} sent an invalid Pulsar command")
                if len(self._received) >= 4 + size:
                    frame = bytes(self._received[4 : 4 + size])
                    del self._received[: 4 + size]
                    return self._command(frame)
            left = deadline - time.monotonic()
            if left <= 0:
                raise BrokersUnavailable(
                    f"broker {self.address} doesn't answer",
                    expected=f"within {self._settings.timeout_seconds} s",
                )
            self._socket.settimeout(left)
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except TimeoutError:
                continue
            except OSError as error:
                raise BrokersUnavailable(
                    f"connection to broker {self.address} lost", found=str(error)
                ) from None
            if not data:
                raise BrokersUnavailable(f"connection to broker {self.address} lost", found="it was closed")
            self._received += data

    def _command(self, frame: bytes) -> Command:
        try:
            size = struct.unpack_from(">I", frame)[0]
            fields = read_message(frame[4 : 4 + size])
            kind = fields[1]
            body = fields.get(kind, b"") if isinstance(kind, int) else b""
            if not isinstance(kind, int) or not isinstance(body, bytes):
                raise ValueError("no type")
            return kind, read_message(body)
        except (struct.error, ValueError, KeyError) as error:
            raise BrokersUnavailable(
                f"{self.address} sent an invalid Pulsar command", found=str(error)
            ) from None


class Brokers:
    """Looks up the broker of each topic, and keeps a connection to each.

    Args:
        settings: Client settings.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._first = Address.of(settings.service_url)
        self._open: dict[tuple[Address, str], Connection] = {}

    def close(self) -> None:
        """Close all connections."""
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    def partitions(self, topic: str) -> int:
        """Return the number of a topic's partitions, 0 if it isn't partitioned.

        Raises:
            CdcError: The broker rejects the request, or doesn't answer.
        """
        doing = f"describing topic {topic}"
        first = self._to(self._first)
        found = first.request(wire.PARTITIONS, {1: topic}, 2, wire.PARTITIONS_RESPONSE, doing)
        if _number(found, 3) == 1:
            raise error_of(_number(found, 4), _text(found, 5), doing)
        return _number(found, 1)

    def of_topic(self, topic: str) -> Connection:
        """Return a connection to the broker that serves a topic.

        Raises:
            CdcError: As in :meth:`partitions`.
        """
        doing = f"looking up the broker of topic {topic}"
        connection, authoritative = self._to(self._first), 0
        for _ in range(_REDIRECTS):
            fields: dict[int, Value] = {1: topic, 3: authoritative}
            found = connection.request(wire.LOOKUP, fields, 2, wire.LOOKUP_RESPONSE, doing)
            answer = _number(found, 3)
            if answer == 2:
                raise error_of(_number(found, 6), _text(found, 7), doing)
            url = _text(found, 2 if self._first.tls else 1)
            if not url:
                raise ConfigurationError(
                    f"{doing} failed",
                    expected="a broker with TLS" if self._first.tls else "a broker without TLS",
                    remedy="correct service_url in the connection's extra",
                )
            address = Address.of(url)
            if address.tls != self._first.tls:
                raise ConfigurationError(
                    f"{doing} failed: the broker names another one with and without TLS",
                    expected="an address with TLS" if self._first.tls else "an address without TLS",
                    found=url,
                )
            proxied = str(address) if _number(found, 8) else ""
            connection = self._to(self._first if proxied else address, proxied)
            if answer == 1:
                return connection
            authoritative = _number(found, 5)
        raise BrokersUnavailable(f"{doing} failed", found="too many redirects between brokers")

    def _to(self, address: Address, proxied: str = "") -> Connection:
        key = address, proxied
        if key not in self._open:
            self._open[key] = Connection(address, self._settings, proxied)
        return self._open[key]


def _connect(address: Address, settings: ClientSettings) -> socket.socket:
    context: ssl.SSLContext | None = None
    if address.tls:
        check_files(vars(settings), "tls_ca_file", "tls_certificate_file", "tls_key_file")
        try:
            context = ssl.create_default_context(cafile=settings.tls_ca_file or None)
            if settings.tls_certificate_file:
                context.load_cert_chain(settings.tls_certificate_file, settings.tls_key_file or None)
        except OSError as error:
            raise ConfigurationError(
                "the Pulsar connection's certificates can't be read",
                found=str(error),
                expected="PEM files that the job can read",
            ) from None
    try:
        raw = socket.create_connection((address.host, address.port), settings.timeout_seconds)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return context.wrap_socket(raw, server_hostname=address.host) if context else raw
    except ssl.SSLCertVerificationError as error:
        raise ConfigurationError(
            f"the certificate of {address} isn't trusted",
            found=error.verify_message,
            remedy="name the authority in tls_ca_file of the connection's extra",
        ) from None
    except OSError as error:
        raise BrokersUnavailable(f"broker {address} can't be reached", found=str(error)) from None


def _failure(found: dict[int, int | bytes], doing: str) -> Exception:
    return error_of(_number(found, 2), _text(found, 3), doing)


def _number(fields: dict[int, int | bytes], number: int) -> int:
    value = fields.get(number, 0)
    return value if isinstance(value, int) else 0


def _text(fields: dict[int, int | bytes], number: int) -> str:
    value = fields.get(number, b"")
    return value.decode(errors="replace") if isinstance(value, bytes) else ""
