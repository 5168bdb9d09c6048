"""Findings of several sources: one line for each kind, which lists the tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from airflow_cdc_provider.exceptions import listed
from airflow_cdc_provider.sources.contract import Finding

_LOCAL: Final = re.compile(r"localhost(:|$)|127\.|\[?::1(\]|$)|/|%2F", re.IGNORECASE)
"""This machine, by an address or a socket."""
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
    away = [host for host in hosts if not _LOCAL.match(host)]
    if encrypted or not login or not away:
        return []
    message = f"login and data are sent to {listed(away)} without TLS: the network between can read them"
    return [Finding("warning", subject, message, "enable TLS at the servers and in the Airflow connection")]


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
