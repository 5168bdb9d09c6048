"""Checks the connections to a declaration's targets: settings, and logins that are sent in the clear."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from airflow_cdc_provider.connections.kafka import kafka_values
from airflow_cdc_provider.connections.pulsar import pulsar_values
from airflow_cdc_provider.connections.registry import registry_values
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError

if TYPE_CHECKING:
    from airflow_cdc_provider.sources.contract import Finding


def plain_logins(connector: Connector) -> list[Finding]:
    """Check the connections to brokers and to the registry that the declaration names, and the catalog's."""
    from airflow_cdc_provider.sources.contract import Finding
    from airflow_cdc_provider.sources.findings import login_findings

    publish = connector.publish
    findings: list[Finding] = []
    for option, conn_id, check in (
        ("publish.kafka.connection", publish.kafka.connection, _kafka),
        ("publish.pulsar.connection", publish.pulsar.connection, _pulsar),
        ("publish.registry.connection", publish.registry.connection, _registry),
    ):
        try:
            findings += check(conn_id, option) if conn_id else ()
        except ConfigurationError as error:
            findings.append(Finding("error", option, str(error), error.remedy))
    catalog = urlsplit(str(connector.lake.catalog_options.get("uri", "")))
    servers = [catalog.netloc.rpartition("@")[2]] if catalog.scheme == "http" else []
    return findings + login_findings(servers, login=True, encrypted=False, subject="lake.catalog_options")


def _kafka(conn_id: str, option: str) -> Iterator[Finding]:
    from airflow_cdc_provider.kafka.settings import ClientSettings
    from airflow_cdc_provider.sources.findings import login_findings

    settings = ClientSettings(kafka_values(conn_id, option))
    hosts = settings.servers.split(",")
    yield from login_findings(hosts, login=settings.has_plain_login, encrypted=False, subject=option)


def _pulsar(conn_id: str, option: str) -> Iterator[Finding]:
    from airflow_cdc_provider.pulsar.settings import Address, ClientSettings
    from airflow_cdc_provider.sources.findings import login_findings

    settings = ClientSettings.of_connection(pulsar_values(conn_id))
    address = Address.of(settings.service_url)
    yield from login_findings(
        [str(address)], login=bool(settings.token), encrypted=address.tls, subject=option
    )


def _registry(conn_id: str, option: str) -> Iterator[Finding]:
    from airflow_cdc_provider.kafka.registry import client_settings
    from airflow_cdc_provider.sources.findings import login_findings

    values = registry_values(conn_id, option)
    if not values.get("host"):
        return
    settings = client_settings(values)
    urls = [urlsplit(url) for url in settings["url"].split(",")]
    plain = [url.netloc.rpartition("@")[2] for url in urls if url.scheme == "http"]
    login = any(name.startswith(("basic.auth.", "bearer.auth.")) for name in settings) or any(
        url.username for url in urls
    )
    yield from login_findings(plain, login=login, encrypted=False, subject=option)
