"""Client settings from the values of an Airflow connection, validated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError

_URL: Final = re.compile(r"(pulsar|pulsar\+ssl)://([A-Za-z0-9._-]+|\[[0-9a-fA-F:]+\])(?::(\d{1,5}))?/?")
_PORTS: Final = {"pulsar": 6650, "pulsar+ssl": 6651}
KNOWN: Final = ("service_url", "token", "tls_ca_file", "tls_certificate_file", "tls_key_file")
"""Valid settings of a connection's extra."""


@dataclass(frozen=True)
class Address:
    """Address of a broker or a proxy."""

    host: str
    port: int
    tls: bool

    @classmethod
    def of(cls, url: str) -> Address:
        """Read a service URL.

        Raises:
            ConfigurationError: It is invalid.
        """
        found = _URL.fullmatch(url)
        if not found:
            raise ConfigurationError(
                "the Pulsar connection has no valid service_url",
                expected="service_url in its extra: pulsar://host:6650, or pulsar+ssl://host:6651",
                remedy='airflow connections add ID --conn-type generic --conn-extra \'{"service_url": '
                '"pulsar://host:6650"}\'',
            )
        scheme, host, port = found.groups()
        return cls(host.strip("[]"), int(port or _PORTS[scheme]), scheme == "pulsar+ssl")

    def __str__(self) -> str:
        """Return host and port."""
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class ClientSettings:
    """Client settings.

    Args:
        service_url: Address of the first broker or proxy.
        token: Token of ``AuthenticationToken``; empty for none; never logged.
        tls_ca_file: CA certificates; empty for the system's.
        tls_certificate_file: The client's certificate, if brokers require one.
        tls_key_file: Its key.
        timeout_seconds: Timeout of a response.
    """

    service_url: str
    token: str = field(default="", repr=False)
    tls_ca_file: str = ""
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    timeout_seconds: float = 30.0

    @classmethod
    def of_connection(cls, values: Mapping[str, Any], timeout_seconds: float = 30.0) -> ClientSettings:
        """Build settings from a connection's values.

        Raises:
            ConfigurationError: The address is invalid, or a setting is unknown.
        """
        unknown = sorted(set(values) - set(KNOWN))
        if unknown:
            raise ConfigurationError(
                f"the Pulsar connection's extra has an unknown setting: {unknown[0]}",
                expected=f"some of {', '.join(KNOWN)}",
            )
        found = {name: str(value) for name, value in values.items()}
        tls = Address.of(found.get("service_url", "")).tls
        if named := sorted(name for name in found if name.startswith("tls_") and not tls):
            raise ConfigurationError(
                f"the Pulsar connection has {', '.join(named)}, but its service_url doesn't use TLS",
                expected="service_url: pulsar+ssl://host:6651, or no setting of TLS",
            )
        return cls(timeout_seconds=timeout_seconds, **found)
