"""Connections: settings of the gRPC channel to VTGate, from the values of an Airflow connection.

The connection type is ``cdc_vitess``. Its fields are host (one VTGate, or several separated by commas, each
with an optional port), port (15991), login and password (sent as metadata with every call, for VTGate's
static authentication; not sent without a login), and in ``extra``:

==============================  ====================================================================
``tls``                         whether to use TLS; any other ``tls_`` setting enables it
``tls_ca_file``                 PEM file of the CA of VTGate's certificate; default: gRPC's CAs
``tls_cert_file``               PEM file of the client's certificate, for mutual TLS
``tls_key_file``                its private key
``tls_server_name``             the name in the certificates, if it differs from the host. Without it, each
                                VTGate's certificate has to name its own host
``headers``                     metadata for proxies: ``{"name": "value"}``, or ``name:value,name:value``
``keepalive_seconds``           interval of pings on an idle connection; 0: none. VTGate closes connections
                                that ping more often than it allows
                                (``--grpc-server-keepalive-enforcement-policy-min-time``)
``max_message_bytes``           the largest accepted message, 17 MiB
``load_balancing``              policy for several VTGates: ``pick_first`` or ``round_robin``
``caller_id``                   caller in VTGate's logs and access lists: a principal, or ``{"principal":
                                ..., "component": ..., "subcomponent": ...}``
``vtctld_host``                 a vtctld that provides the first position instead of VTGate
``vtctld_port``                 its gRPC port, 15999
``vtctld_login``                its user, if it requires a login
``vtctld_password``             that user's password
==============================  ====================================================================

Error messages contain neither the password nor the values of headers.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, repeat
from typing import Any, Final

import grpc
from grpc.experimental import ChannelOptions

from airflow_cdc_provider.connection_settings import flag, read_file
from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.masking import remember
from airflow_cdc_provider.sources.vitess import protocol

DEFAULT_PORT: Final = 15991
DEFAULT_VTCTLD_PORT: Final = 15999
DEFAULT_MESSAGE_BYTES: Final = 17 << 20
"""What VTGate sends by default, ``--grpc-max-message-size`` of 16 MiB, and a margin."""
_CONNECT_SECONDS: Final = 5.0
_HEALTH: Final = "/grpc.health.v1.Health/Check"
_POLICIES: Final = ("pick_first", "round_robin")
_SETTINGS: Final = frozenset(
    {
        "tls",
        "tls_ca_file",
        "tls_cert_file",
        "tls_key_file",
        "tls_server_name",
        "headers",
        "keepalive_seconds",
        "max_message_bytes",
        "load_balancing",
        "caller_id",
        "vtctld_host",
        "vtctld_port",
        "vtctld_login",
        "vtctld_password",
    }
)


@dataclass(frozen=True)
class Tls:
    """TLS settings: paths of PEM files, empty for none."""

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files.

        Raises:
            ConfigurationError: A file can't be read.
        """
        ca = _pem(self.ca_file, "tls_ca_file")
        cert, key = _pem(self.cert_file, "tls_cert_file"), _pem(self.key_file, "tls_key_file")
        return grpc.ssl_channel_credentials(ca, key, cert)


@dataclass(frozen=True)
class Vtctld:
    """A vtctld's gRPC address, and the login to send with each call."""

    host: str
    port: int = DEFAULT_VTCTLD_PORT
    login: str = ""
    password: str = field(default="", repr=False)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of every call."""
        return (("username", self.login), ("password", self.password)) if self.login else ()

    def channel(self, values: ConnectionValues) -> grpc.Channel:
        """Open a channel, with the TLS settings of VTGate's connection.

        Raises:
            ConfigurationError: A TLS file can't be read.
        """
        target = f"dns:///{self.host}:{self.port}"
        options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
        if values.tls is None:
            return grpc.insecure_channel(target, options)
        return grpc.secure_channel(target, values.tls.credentials(), options)


@dataclass(frozen=True)
class ConnectionValues:
    """Settings of a client. The ``repr`` contains no secrets.

    Args:
        addresses: VTGates, each a host and a port.
        login: User name, empty for none.
        password: The user's password.
        tls: TLS settings; None for a plaintext connection.
        headers: Metadata of every call.
        keepalive_seconds: Interval of pings on an idle connection; 0: none.
        max_message_bytes: The largest accepted message.
        load_balancing: Policy for several VTGates.
        caller: Principal, component and subcomponent.
        vtctld: Provides the first position; None: VTGate does.
    """

    addresses: tuple[tuple[str, int], ...]
    login: str = ""
    password: str = field(default="", repr=False)
    tls: Tls | None = None
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    keepalive_seconds: float = 0.0
    max_message_bytes: int = DEFAULT_MESSAGE_BYTES
    load_balancing: str = "pick_first"
    caller: tuple[str, str, str] = ("", "", "")
    vtctld: Vtctld | None = None

    @classmethod
    def read(
        cls, connection: Mapping[str, Any], declared: Mapping[str, Any] | None = None
    ) -> ConnectionValues:
        """Read an Airflow connection's values.

        Args:
            connection: The values.
            declared: Settings of the connector by the names of ``extra``; they take precedence. None and
                empty values are ignored.

        Raises:
            ConfigurationError: The host is missing, or a setting is invalid or unknown.
        """
        remember(connection)
        extra = _extra(connection.get("extra"))
        extra |= {name: value for name, value in (declared or {}).items() if value not in (None, "", {})}
        if unknown := sorted(set(extra) - _SETTINGS):
            raise ConfigurationError(
                f"the Vitess connection's extra has unknown settings: {', '.join(unknown)}",
                expected=f"some of {', '.join(sorted(_SETTINGS))}",
            )
        login = str(connection.get("login") or "")
        password = str(connection.get("password") or "")
        if password and not login:
            raise ConfigurationError("the Vitess connection has a password but no login", expected="both")
        return cls(
            _addresses(str(connection.get("host") or ""), connection.get("port")),
            login,
            password,
            _tls(extra),
            _headers(extra.get("headers")),
            _number(extra, "keepalive_seconds", 0.0),
            int(_number(extra, "max_message_bytes", DEFAULT_MESSAGE_BYTES)) or DEFAULT_MESSAGE_BYTES,
            _policy(str(extra.get("load_balancing") or _POLICIES[0])),
            _caller(extra.get("caller_id")),
            _vtctld(extra),
        )

    @property
    def described(self) -> str:
        """The addresses as text for messages."""
        return ", ".join(f"{host}:{port}" for host, port in self.addresses)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of every call."""
        login = (("username", self.login), ("password", self.password)) if self.login else ()
        return (*login, *self.headers)

    @property
    def channel_options(self) -> list[tuple[str, Any]]:
        """Options of a gRPC channel."""
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", self.max_message_bytes),
            ("grpc.lb_policy_name", self.load_balancing),
            ("grpc.primary_user_agent", "airflow-cdc-provider"),
            # Environment variables for web proxies don't apply to databases.
            ("grpc.enable_http_proxy", 0),
            # A failed channel must not pass its reconnect backoff on to the next one.
            ("grpc.use_local_subchannel_pool", 1),
            # The reader of a stream gets messages without an intermediate gRPC thread, which is a third
            # cheaper.
            (ChannelOptions.SingleThreadedUnaryStream, 1),
        ]
        if self.keepalive_seconds:
            options += [
                ("grpc.keepalive_time_ms", int(self.keepalive_seconds * 1000)),
                ("grpc.http2.max_pings_without_data", 0),
            ]
        if self.tls and self.tls.server_name:
            options.append(("grpc.ssl_target_name_override", self.tls.server_name))
        return options

    @property
    def caller_id(self) -> Any:
        """The caller id as a message; None if it isn't set."""
        if not any(self.caller):
            return None
        principal, component, subcomponent = self.caller
        return protocol.CallerID(principal=principal, component=component, subcomponent=subcomponent)

    def target(self) -> str:
        """Return the gRPC target. Several hosts are resolved now.

        Raises:
            TransientError: A host can't be resolved.
        """
        if len(self.addresses) == 1:
            return "dns:///{}:{}".format(*self.addresses[0])
        found: list[Any] = []
        for host, port in self.addresses:
            try:
                found += socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except OSError as error:
                raise TransientError(f"host {host} can't be resolved", found=str(error.strerror)) from error
        kind = min(entry[0] for entry in found)  # prefer IPv4: a channel can't mix both
        addresses = [entry[4] for entry in found if entry[0] == kind]
        if kind == socket.AF_INET:
            return "ipv4:" + ",".join(f"{address[0]}:{address[1]}" for address in addresses)
        return "ipv6:" + ",".join(f"[{address[0]}]:{address[1]}" for address in addresses)

    def channel(self) -> grpc.Channel | Channels:
        """Open a channel; it connects at its first call.

        Raises:
            ConfigurationError: A TLS file can't be read.
        """
        if self.tls is None:
            return grpc.insecure_channel(self.target(), self.channel_options)
        credentials = self.tls.credentials()
        if len(self.addresses) == 1 or self.tls.server_name:
            return grpc.secure_channel(self.target(), credentials, self.channel_options)
        each = [replace(self, addresses=(address,)).target() for address in self.addresses]
        channels = [grpc.secure_channel(target, credentials, self.channel_options) for target in each]
        return Channels(channels, rotate=self.load_balancing == "round_robin")


class Channels:
    """Channels to several VTGates with TLS: gRPC would verify all of them by one name.

    Args:
        channels: One for each.
        rotate: Whether calls take turns; otherwise each goes to the first one that is connected.
    """

    def __init__(self, channels: Sequence[grpc.Channel], *, rotate: bool) -> None:
        self._channels = channels
        self._turns = count() if rotate else repeat(0)

    def unary_unary(self, method: str) -> Any:
        """Return a call of one of the VTGates."""
        return self._connected().unary_unary(method)

    def unary_stream(self, method: str) -> Any:
        """Return a call of one of the VTGates."""
        return self._connected().unary_stream(method)

    def close(self) -> None:
        """Close all channels."""
        for channel in self._channels:
            channel.close()

    def _connected(self) -> grpc.Channel:
        """Return the first channel that connects; if none does, the first one, whose call fails."""
        turn = next(self._turns) % len(self._channels)
        order = [*self._channels[turn:], *self._channels[:turn]]
        return next(filter(_connects, order), order[0])


def _connects(channel: grpc.Channel) -> bool:
    """Return whether a server answers, be it that it doesn't know the call or requires a login."""
    call: Any = channel.unary_unary(_HEALTH)
    try:
        call(b"", timeout=_CONNECT_SECONDS)
    except grpc.RpcError as error:
        return error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    return True


def _extra(value: Any) -> dict[str, Any]:
    try:
        extra = json.loads(value) if isinstance(value, str) and value else value or {}
    except json.JSONDecodeError as error:
        raise ConfigurationError("the connection's extra isn't valid JSON") from error
    if not isinstance(extra, Mapping):
        raise ConfigurationError("invalid value for the connection's extra", expected="a JSON object")
    return {name: value for name, value in extra.items() if value not in (None, "")}


def _addresses(hosts: str, port: Any) -> tuple[tuple[str, int], ...]:
    if not hosts.strip(", "):
        raise ConfigurationError(
            "the Vitess connection has no host (database.hostname)",
            expected="the host of a VTGate, or several separated by commas",
            remedy="change the Airflow connection",
        )
    found = []
    for part in hosts.split(","):
        host, colon, own = part.strip().rpartition(":")
        if not colon or part.strip().endswith("]"):
            host, own = part.strip(), ""
        try:
            number = int(own or port or DEFAULT_PORT)
        except ValueError:
            raise ConfigurationError(
                f"invalid port for host {host} in the Vitess connection",
                expected="a number",
                found=repr(own or port),
            ) from None
        found.append((host, number))
    return tuple(found)


def _tls(extra: Mapping[str, Any]) -> Tls | None:
    files = {
        name.removeprefix("tls_"): str(value) for name, value in extra.items() if name.startswith("tls_")
    }
    if not flag(extra, "tls", default=bool(files)):
        if files:
            raise ConfigurationError(
                "the Vitess connection disables TLS",
                expected=f"none of the settings {', '.join(sorted(files))}",
            )
        return None
    if bool(files.get("cert_file")) != bool(files.get("key_file")):
        raise ConfigurationError(
            "a client certificate needs its key", expected="both tls_cert_file and tls_key_file"
        )
    return Tls(**files)


def _pem(path: str, setting: str) -> bytes | None:
    if not path:
        return None
    data = read_file(path, setting)
    if b"-----BEGIN " not in data:
        raise ConfigurationError(f"{path} isn't a PEM file", expected="-----BEGIN ...")
    return data


def _headers(value: Any) -> tuple[tuple[str, str], ...]:
    if not value:
        return ()
    if isinstance(value, Mapping):
        pairs: Sequence[tuple[str, str]] = [(str(name), str(text)) for name, text in value.items()]
    else:
        parts = [part.partition(":") for part in str(value).split(",") if part.strip()]
        if any(not colon for _, colon, _ in parts):
            raise ConfigurationError("invalid value for headers", expected="name:value,name:value")
        pairs = [(name, text) for name, _, text in parts]
    cleaned = tuple((name.strip().lower(), text.strip()) for name, text in pairs)
    for name, _ in cleaned:
        if not name or not all(c.isascii() and (c.isalnum() or c in "-_.") for c in name):
            raise ConfigurationError(
                "invalid name of a header", expected="letters, digits, - _ and .", found=repr(name)
            )
    return cleaned


def _number(extra: Mapping[str, Any], name: str, default: float) -> float:
    value = extra.get(name, default)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1
    if number < 0 or isinstance(value, bool):
        raise ConfigurationError(f"invalid value for {name}", expected="a number from 0", found=repr(value))
    return number


def _policy(value: str) -> str:
    if value not in _POLICIES:
        raise ConfigurationError(
            "invalid value for load_balancing", expected=f"one of {', '.join(_POLICIES)}", found=value
        )
    return value


def _vtctld(extra: Mapping[str, Any]) -> Vtctld | None:
    host, login, password = (str(extra.get(f"vtctld_{name}") or "") for name in ("host", "login", "password"))
    if not host:
        if found := sorted(name for name in extra if name.startswith("vtctld_")):
            raise ConfigurationError(
                f"the Vitess connection has {', '.join(found)} but no vtctld_host", expected="both"
            )
        return None
    if password and not login:
        raise ConfigurationError(
            "the Vitess connection has a vtctld_password but no vtctld_login", expected="both"
        )
    port = int(_number(extra, "vtctld_port", DEFAULT_VTCTLD_PORT)) or DEFAULT_VTCTLD_PORT
    return Vtctld(host, port, login, password)


def _caller(value: Any) -> tuple[str, str, str]:
    names = ("principal", "component", "subcomponent")
    if not value:
        return ("", "", "")
    if isinstance(value, str) and not value.startswith("{"):
        return (value, "", "")
    parts = json.loads(value) if isinstance(value, str) else value
    if not isinstance(parts, Mapping) or set(parts) - set(names):
        raise ConfigurationError(
            "invalid value for caller_id", expected=f"a principal, or some of {', '.join(names)}"
        )
    principal, component, subcomponent = (str(parts.get(name) or "") for name in names)
    return (principal, component, subcomponent)
