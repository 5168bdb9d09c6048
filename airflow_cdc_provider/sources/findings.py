"""Findings of several sources: one line for each kind, which lists the tables."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from airflow_cdc_provider.exceptions import listed
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.sources.contract import Finding

_PLURALS: Final = {"is": "are", "has": "have"}


def grouped(statements: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line for each statement, with all names that it is made of.

    Args:
        statements: A name, and what is said of it: a verb, which may be in the plural then, and more.
    """
    names: dict[str, list[str]] = {}
    for name, statement in statements:
        names.setdefault(statement, []).append(name)
    lines = []
    for statement, own in names.items():
        verb, space, more = statement.partition(" ")
        lines.append(f"{listed(own)} {_PLURALS.get(verb, verb) if len(own) > 1 else verb}{space}{more}")
    return lines


def login_findings(
    hosts: Iterable[str], *, login: bool, encrypted: bool, subject: str = "TLS"
) -> list[Finding]:
    """Report a login that is sent over the network in the clear.

    Args:
        hosts: The servers, each with or without a port.
        login: Whether the connection has a login.
        encrypted: Whether it uses TLS.
        subject: What was checked.
    """
    away = [host for host in hosts if not _is_local(host)]
    if encrypted or not login or not away:
        return []
    message = f"login and data are sent to {listed(away)} without TLS: the network between can read them"
    return [Finding("warning", subject, message, "enable TLS at the servers and in the Airflow connection")]


def _is_local(server: str) -> bool:
    """Return whether a server is this machine, by an address, its name or a socket."""
    if server.lower().startswith(("/", "%2f")):
        return True
    host = server.strip().rpartition("://")[2].partition("/")[0].rpartition("@")[2]
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def verification_findings(setting: str, subject: str = "TLS") -> list[Finding]:
    """Report a setting that disables verification of servers; empty for none."""
    if not setting:
        return []
    return [
        Finding(
            "warning",
            subject,
            f"{setting}: the server's identity is not verified, so that another one can take login and data",
            "remove it, and name the authority of the server's certificate in the Airflow connection",
        )
    ]


def kafka_findings(settings: ClientSettings, subject: str = "TLS") -> list[Finding]:
    """Report a login to brokers, or to the issuer of their tokens, in the clear, and servers not verified."""
    return [
        *login_findings(
            settings.servers.split(","), login=settings.plain_login, encrypted=False, subject=subject
        ),
        *_url_findings([settings.issuer], subject),
        *verification_findings(settings.unverified, subject),
    ]


def registry_findings(client: Mapping[str, Any], subject: str) -> list[Finding]:
    """Report a login to a registry, its proxy or its issuer of tokens in the clear, and one not verified.

    Args:
        client: Settings of the client (:func:`airflow_cdc_provider.kafka.registry.client_settings`).
        subject: The option that names the connection.
    """
    urls = [url.strip() for url in str(client["url"]).split(",")]
    login = any(name.startswith(("basic.auth.", "bearer.auth.")) for name in client)
    unverified = client.get("ssl.ca.location") is False
    return [
        *_url_findings([url for url in urls if login or urlsplit(url).username], subject),
        *_url_findings([str(client.get("bearer.auth.issuer.endpoint.url", ""))], subject),
        *_url_findings([url for url in [str(client.get("proxy", ""))] if urlsplit(url).username], subject),
        *verification_findings("ssl.ca.location: false" if unverified else "", subject),
    ]


def _url_findings(urls: Iterable[str], subject: str) -> list[Finding]:
    """Report the URLs that get a login and don't use TLS."""
    parts = [urlsplit(url) for url in urls]
    plain = [one.netloc.rpartition("@")[2] for one in parts if one.scheme == "http"]
    return login_findings(plain, login=True, encrypted=False, subject=subject)


def name_findings(renamed: Mapping[str, Iterable[tuple[str, str]]]) -> Iterator[Finding]:
    """Report the names that new mirrors change (:mod:`airflow_cdc_provider.changes.column_names`).

    Args:
        renamed: By table, the name of each column or field at the source, and in the mirror.
    """
    changed = {
        table: [f"{name} is {other}" for name, other in names if name != other]
        for table, names in renamed.items()
    }
    if tables := [f"{table}: {listed(names)}" for table, names in changed.items() if names]:
        yield Finding(
            "warning",
            "names",
            f"engines confuse some names; in new mirrors of {listed(tables, '; ')}",
            "query the mirrors by these names, or rename the columns",
        )
