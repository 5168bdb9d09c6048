"""Checks the connections to a declaration's targets: settings, logins in the clear, servers not verified.

The connection of the source, and of its registry, is checked by the source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from airflow_cdc_provider.connections.kafka import kafka_values
from airflow_cdc_provider.connections.pulsar import pulsar_values
from airflow_cdc_provider.connections.registry import registry_values
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.secrets import resolve_secrets

if TYPE_CHECKING:
    from airflow_cdc_provider.sources.contract import Finding

_HOSTS: Final = r"://(?:\S{0,500}@)?([^/?#\s@]*)"
_HTTP: Final = re.compile(rf"\bhttp{_HOSTS}", re.IGNORECASE)
_JDBC: Final = re.compile(rf"\bjdbc:(?:postgresql|mysql|mariadb){_HOSTS}", re.IGNORECASE)
_JDBC_TLS: Final = re.compile(
    r"ssl-?mode=(require|verify|trust)|(?<![a-z])((use|require)?ssl|tls)=(true|require|verify)", re.IGNORECASE
)
"""Their drivers use TLS for sure only if a setting requires it."""


def plain_logins(connector: Connector) -> list[Finding]:
    """Check all connections that the declaration names except the source's own, and the catalog's."""
    from airflow_cdc_provider.sources.contract import Finding
    from airflow_cdc_provider.sources.findings import login_findings

    findings: list[Finding] = []
    for option, check in CHECKS.items():
        try:
            findings += (
                check(conn_id, option, connector) if (conn_id := attrgetter(option)(connector)) else ()
            )
        except ConfigurationError as error:
            findings.append(Finding("error", option, str(error), error.remedy))
    try:
        options = resolve_secrets(connector.lake.catalog_options, "lake.catalog_options")
    except ConfigurationError as error:
        return [*findings, Finding("warning", "lake.catalog_options", str(error), error.remedy)]
    settings = " ".join(f"{name}={value}" for name, value in options.items())
    named = [*_HTTP.findall(settings), *([] if _JDBC_TLS.search(settings) else _JDBC.findall(settings))]
    servers = [host for hosts in named for host in hosts.split(",") if host]
    return findings + login_findings(servers, login=True, encrypted=False, subject="lake.catalog_options")


def _kafka(conn_id: str, option: str, _: Connector) -> list[Finding]:
    from airflow_cdc_provider.kafka.settings import ClientSettings
    from airflow_cdc_provider.sources.findings import kafka_findings

    return kafka_findings(ClientSettings(kafka_values(conn_id, option)), option)


def _pulsar(conn_id: str, option: str, _: Connector) -> list[Finding]:
    from airflow_cdc_provider.pulsar.settings import Address, ClientSettings
    from airflow_cdc_provider.sources.findings import login_findings

    settings = ClientSettings.of_connection(pulsar_values(conn_id))
    address = Address.of(settings.service_url)
    return login_findings([str(address)], login=bool(settings.token), encrypted=address.tls, subject=option)


def _registry(conn_id: str, option: str, connector: Connector) -> list[Finding]:
    from airflow_cdc_provider.kafka.registry import client_settings
    from airflow_cdc_provider.sources.findings import registry_findings

    client = client_settings(registry_values(conn_id, option), connector.publish.registry.url)
    return registry_findings(client, option)


CHECKS: Final[Mapping[str, Callable[[str, str, Connector], list[Finding]]]] = {
    "publish.kafka.connection": _kafka,
    "publish.pulsar.connection": _pulsar,
    "publish.registry.connection": _registry,
    "signals.kafka.connection": _kafka,
    "notifications.connection": _kafka,
}
"""Options that name connections. The default of the last two is publish.kafka.connection."""
