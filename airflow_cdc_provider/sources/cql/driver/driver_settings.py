"""Settings of the driver: from a connection's extra, and from a file of the DataStax Java driver.

Debezium's option for such a file, an ``application.conf`` (:mod:`.hocon`), is
``cassandra.driver.config.file``; here it is the extra ``driver_config_file``. Settings with a counterpart in
the Python driver are applied; all others are rejected by name, so that none is silently ignored. The
connection's own values take precedence.

An error contains the name of a setting, never the value of a secret one.
"""

from __future__ import annotations

import difflib
import re
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final

from airflow_cdc_provider.connection_settings import FLAG, parse_flag, read_file
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.masking import remember
from airflow_cdc_provider.sources.cql.driver.hocon import parse_hocon
from airflow_cdc_provider.sources.cql.driver.tls import SETTINGS as TLS_SETTINGS

_FILE: Final = "driver_config_file"
_COMPRESSIONS: Final = ("none", "lz4", "snappy")
_PROTOCOLS: Final = (3, 4, 5)


def _seconds(value: object) -> float:
    """Parse a duration of the Java driver, in milliseconds if it has no unit."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(value).strip())
    if match is None or match[2] not in _UNITS:
        raise ValueError("a duration such as 500 ms or 5 seconds")
    return float(match[1]) * _UNITS[match[2]]


_UNITS: Final = {
    **dict.fromkeys(("", "ms", "milli", "millis", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
}


def _positive(value: object) -> float:
    number = float(str(value))
    if not number > 0 or number == float("inf"):
        raise ValueError
    return number


def _not_negative(value: object) -> float:
    return 0.0 if float(str(value)) == 0 else _positive(value)


def _whole(value: object) -> int:
    number = int(str(value))
    if number < 1:
        raise ValueError
    return number


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def _compression(value: object) -> str:
    if str(value).lower() not in _COMPRESSIONS:
        raise ValueError
    return str(value).lower()


def _protocol(value: object) -> int:
    number = int(str(value).upper().removeprefix("V"))
    if number not in _PROTOCOLS:
        raise ValueError
    return number


_PARSERS: Final[Mapping[str, tuple[Callable[[object], Any], str]]] = {
    "request_timeout_seconds": (_positive, "seconds above 0"),
    "connect_timeout_seconds": (_positive, "seconds above 0"),
    "control_timeout_seconds": (_positive, "seconds above 0"),
    "heartbeat_interval_seconds": (_not_negative, "seconds, 0 for no heartbeats"),
    "heartbeat_timeout_seconds": (_positive, "seconds above 0"),
    "consistency": (_text, "a consistency level for reads"),
    "page_size": (_whole, "a positive integer"),
    "compression": (_compression, f"one of {', '.join(_COMPRESSIONS)}"),
    "protocol_version": (_protocol, f"one of {', '.join(map(str, _PROTOCOLS))}"),
    "tcp_keepalive": (parse_flag, FLAG),
    "tcp_nodelay": (parse_flag, FLAG),
    "tls": (parse_flag, FLAG),
    "tls_check_hostname": (parse_flag, FLAG),
}
"""Parser and expected value of each driver setting in the extra."""

EXTRAS: Final = frozenset(
    {
        *_PARSERS,
        _FILE,
        "local_datacenter",
        *TLS_SETTINGS,
        "keystore_password",
        "key_password",
    }
)
"""All allowed settings of a connection's extra."""

_DEFAULT_CLASSES: Final = {
    "basic.load-balancing-policy.class": ("DefaultLoadBalancingPolicy", "DcInferringLoadBalancingPolicy"),
    "advanced.auth-provider.class": ("PlainTextAuthProvider",),
    "advanced.ssl-engine-factory.class": ("DefaultSslEngineFactory",),
}
"""Java classes with a counterpart here; a package prefix is allowed."""

_JAVA_SETTINGS: Final[Mapping[str, tuple[str, Callable[[object], Any]]]] = {
    "basic.request.timeout": ("request_timeout_seconds", _seconds),
    "basic.request.consistency": ("consistency", _text),
    "basic.request.page-size": ("page_size", _whole),
    "basic.load-balancing-policy.local-datacenter": ("local_datacenter", _text),
    "advanced.connection.connect-timeout": ("connect_timeout_seconds", _seconds),
    "advanced.control-connection.timeout": ("control_timeout_seconds", _seconds),
    "advanced.heartbeat.interval": ("heartbeat_interval_seconds", _seconds),
    "advanced.heartbeat.timeout": ("heartbeat_timeout_seconds", _seconds),
    "advanced.protocol.compression": ("compression", _compression),
    "advanced.protocol.version": ("protocol_version", _protocol),
    "advanced.socket.keep-alive": ("tcp_keepalive", parse_flag),
    "advanced.socket.tcp-no-delay": ("tcp_nodelay", parse_flag),
    "advanced.auth-provider.username": ("login", _text),
    "advanced.auth-provider.password": ("password", _text),
    "advanced.ssl-engine-factory.truststore-path": ("trustStore.location", _text),
    "advanced.ssl-engine-factory.truststore-password": ("trustStore.password", _text),
    "advanced.ssl-engine-factory.keystore-path": ("keyStore.location", _text),
    "advanced.ssl-engine-factory.keystore-password": ("keyStore.password", _text),
    "advanced.ssl-engine-factory.hostname-validation": ("tls_check_hostname", parse_flag),
}
"""Java's settings, their names here, and their parsers."""

_REASONS: Final = {
    "profiles": "only one profile is supported",
    "advanced.metrics": "CassandraCdcHook.request_numbers() counts requests",
    "advanced.request-tracker": "CassandraCdcHook.request_numbers() counts requests",
    "advanced.retry-policy": "jobs retry reads",
    "advanced.speculative-execution-policy": "jobs retry reads",
    "advanced.reconnection-policy": "jobs reconnect, and Airflow retries the task",
    "basic.cloud": "secure connect bundles belong to a service without commit logs",
    "basic.session-keyspace": "statements have qualified table names",
    "basic.request.serial-consistency": "nothing is written",
    "basic.request.default-idempotence": "all requests are idempotent",
}
_NO_COUNTERPART: Final = "it has no counterpart in the Python driver"


def resolved(connection: Mapping[str, Any]) -> dict[str, Any]:
    """Return a connection's values, parsed and validated, with those of its driver's file as defaults.

    Args:
        connection: The values of an Airflow connection.

    Returns:
        The values.

    Raises:
        ConfigurationError: A setting is unknown, invalid, or has no counterpart; or the file can't be read.
    """
    extra = dict(connection.get("extra") or {})
    for name in extra:
        if name not in EXTRAS:
            near = difflib.get_close_matches(name, sorted(EXTRAS), n=1)
            raise ConfigurationError(
                f"the connection's extra has an unknown setting {name}",
                expected=f"some of {', '.join(sorted(EXTRAS))}",
                remedy=f"Did you mean {near[0]}?" if near else "",
            )
    values = {**connection, "extra": {name: _read(name, value) for name, value in extra.items()}}
    path = extra.get(_FILE)
    if not path:
        return values
    found = _with_defaults(values, read_driver_file(str(path)))
    remember(found)
    return found


def read_driver_file(path: str) -> dict[str, Any]:
    """Read an ``application.conf`` as values of a connection.

    Args:
        path: The file.

    Returns:
        ``host``, ``port``, ``login``, ``password``, if the file has them, and ``extra``.

    Raises:
        ConfigurationError: The file can't be read or parsed, or has an unsupported setting.
    """
    try:
        text = read_file(path, _FILE).decode()
    except UnicodeDecodeError:
        raise ConfigurationError(
            f"the driver's settings file {path} can't be read", expected="UTF-8"
        ) from None
    values: dict[str, Any] = {"extra": {}}
    for name, value in parse_hocon(text, path).items():
        _apply_setting(name.removeprefix("datastax-java-driver."), value, values, path)
    return values


def cluster_options(extra: Mapping[str, Any], timeout_seconds: float) -> dict[str, Any]:
    """Return the arguments of the driver's ``Cluster`` for settings.

    Args:
        extra: The extra from :func:`resolved`.
        timeout_seconds: Default of the timeouts.

    Returns:
        The arguments.

    Raises:
        ConfigurationError: The library of the compression is not installed.
    """
    options: dict[str, Any] = {
        "connect_timeout": extra.get("connect_timeout_seconds", timeout_seconds),
        "control_connection_timeout": extra.get("control_timeout_seconds", timeout_seconds),
    }
    for name, argument in _ARGUMENTS.items():
        if name in extra:
            options[argument] = extra[name]
    compression = extra.get("compression")
    if compression is not None:
        options["compression"] = False if compression == "none" else _available(compression)
    options_of_sockets = [
        (level, option, int(extra[name])) for name, (level, option) in _SOCKETS.items() if name in extra
    ]
    if options_of_sockets:
        options["sockopts"] = options_of_sockets
    return options


_ARGUMENTS: Final = {
    "heartbeat_interval_seconds": "idle_heartbeat_interval",
    "heartbeat_timeout_seconds": "idle_heartbeat_timeout",
    "protocol_version": "protocol_version",
}
_SOCKETS: Final = {
    "tcp_keepalive": (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
    "tcp_nodelay": (socket.IPPROTO_TCP, socket.TCP_NODELAY),
}


def _available(compression: str) -> str:
    from cassandra.connection import locally_supported_compressions

    if compression not in locally_supported_compressions:
        library = {"lz4": "lz4", "snappy": "python-snappy"}[compression]
        raise ConfigurationError(
            f"compression {compression} requires a library that is not installed",
            expected=library,
            remedy=f"pip install {library} on the driver and all executors; or omit the setting",
        )
    return compression


def _read(name: str, value: object) -> Any:
    if name not in _PARSERS:
        return value
    read, expected = _PARSERS[name]
    try:
        return read(value)
    except ValueError:
        raise ConfigurationError(
            f"invalid value of setting {name} of the connection's extra", expected=expected, found=repr(value)
        ) from None


def _apply_setting(name: str, value: object, values: dict[str, Any], path: str) -> None:
    """Add one of Java's settings to a connection's values."""
    extra = values["extra"]
    if value is None:
        return
    if name == "basic.contact-points":
        values["host"], values["port"] = _contact_points(value, path)
    elif name in _DEFAULT_CLASSES:
        classes = _DEFAULT_CLASSES[name]
        if str(value).rpartition(".")[2] not in classes:
            raise _unsupported(name, path, f"only {' and '.join(classes)} have counterparts")
        if name.startswith("advanced.ssl"):
            extra["tls"] = True
    elif name == "advanced.ssl-engine-factory.cipher-suites":
        suites = value if isinstance(value, list) else [value]
        extra |= {"tls": True, "cipherSuites": ",".join(map(str, suites))}
    elif name in _JAVA_SETTINGS:
        target, read = _JAVA_SETTINGS[name]
        try:
            found = read(value)
            found = _PARSERS[target][0](found) if target in _PARSERS else found
        except ValueError as error:
            expected = _PARSERS[target][1] if target in _PARSERS else "text"
            duration = str(error) if read is _seconds else ""
            raise ConfigurationError(
                f"invalid value of setting {name} in {path}",
                expected=duration or expected,
                found="" if "password" in name else repr(value),
            ) from None
        (values if target in ("login", "password") else extra)[target] = found
    else:
        family = next((family for family in _REASONS if f"{name}.".startswith(f"{family}.")), "")
        raise _unsupported(name, path, _REASONS.get(family, _NO_COUNTERPART))


def _unsupported(name: str, path: str, reason: str) -> ConfigurationError:
    # Of another file, a name may be a secret.
    known = f" {name}" if re.fullmatch(r"(basic|advanced|profiles)(\.[a-z0-9-]{1,40}){0,8}", name) else ""
    return ConfigurationError(f"unsupported setting{known} in {path}", remedy=f"Remove it: {reason}")


def _contact_points(value: object, path: str) -> tuple[str, int]:
    points = [str(point) for point in (value if isinstance(value, list) else [value])]
    parts = [point.rpartition(":") for point in points]
    ports = {port for _, _, port in parts}
    if not points or not all(host and port.isdigit() for host, _, port in parts) or len(ports) != 1:
        raise ConfigurationError(
            f"invalid value of setting basic.contact-points in {path}",
            expected='a list of "host:port", all with the same port',
            found=", ".join(points) or "none",
        )
    return ",".join(host.strip("[]") for host, _, _ in parts), int(ports.pop())


def _with_defaults(connection: Mapping[str, Any], file: Mapping[str, Any]) -> dict[str, Any]:
    """Return a connection's values with a file's as defaults: address and login each as a whole.

    Raises:
        ConfigurationError: The connection disables TLS, which the file enables.
    """
    if file["extra"].get("tls") and connection["extra"].get("tls") is False:
        raise ConfigurationError(
            f"the connection disables TLS, but its {_FILE} has settings of TLS",
            expected="tls: true, or a file without advanced.ssl-engine-factory",
            remedy="correct the extra of the Airflow connection",
        )
    values = {**connection, "extra": {**file["extra"], **connection["extra"]}}
    if not connection.get("host") and file.get("host"):
        values |= {"host": file["host"], "port": file["port"]}
    if not connection.get("login") and file.get("login"):
        values |= {"login": file["login"], "password": file.get("password", "")}
    return values
