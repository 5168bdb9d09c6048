"""What is checked of a cluster whose logs and streams can be read: release, level, options of tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.base import Finding
from airflow_cdc_provider.sources.cql.driver.connect import consistency_level, driver_errors
from airflow_cdc_provider.sources.cql.types import cql_name

if TYPE_CHECKING:
    from cassandra.cluster import Session

_DEFAULT_TTL_SECONDS: Final = 86400
_NEED_ALL: Final = ("ANY", "ONE", "TWO", "LOCAL_ONE", "NODE_LOCAL")
"""Levels that overlap only with writers at ALL."""
_LOCAL: Final = ("LOCAL_QUORUM", "LOCAL_SERIAL")


@dataclass(frozen=True)
class WantedImages:
    """What events are to show of rows that change.

    Args:
        before: Which option asks for preimages, empty for none.
        after: Which option asks for postimages, empty for none.
    """

    before: str = ""
    after: str = ""


def release_of(session: Session, keyspace: str = "system") -> str:
    """Return the release of the node that is asked.

    Args:
        session: To the cluster.
        keyspace: Keyspace of the table ``versions``; where there is none, the release of Cassandra's protocol
            is told that the node says it has.
    """
    from cassandra import InvalidRequest

    with driver_errors("asking for the release"):
        try:
            row = session.execute(f"SELECT version FROM {keyspace}.versions WHERE key = 'local'").one()
        except InvalidRequest:
            row = None
        if row is not None and row.version:
            return str(row.version)
        own = session.execute("SELECT release_version FROM system.local").one()
        return f"that speaks as Cassandra {own.release_version}"


def read_cdc_options(session: Session, keyspace: str = "system_schema") -> dict[str, Mapping[str, str]]:
    """Read the option ``cdc`` of all tables that have one, by ``keyspace.table``."""
    with driver_errors("reading how tables are logged"):
        rows = session.execute(f"SELECT keyspace_name, table_name, cdc FROM {keyspace}.scylla_tables")
        return {f"{r.keyspace_name}.{r.table_name}": dict(r.cdc) for r in rows if r.cdc}


def check_consistency(name: str) -> Iterator[Finding]:
    """Check that a level exists, and tell what writers must use with it."""
    try:
        consistency_level(name)
    except ConfigurationError as error:
        yield Finding("error", "consistency", error.message, f"use {error.expected}")
        return
    level = name.upper()
    if level in _NEED_ALL:
        yield Finding(
            "warning",
            "consistency",
            f"logs are read at {level}: only changes that were written at ALL are sure to be seen",
            "use QUORUM, with writers at QUORUM",
        )
    elif level in _LOCAL:
        yield Finding(
            "warning",
            "consistency",
            f"logs are read at {level}: changes written in another datacenter may be missed",
            "use it where all writers use LOCAL_QUORUM in the connection's datacenter",
        )


def check_logs(options: Mapping[str, Mapping[str, str]], lag_seconds: float) -> Iterator[Finding]:
    """Check how long tables' logs live, and whether they tell what was written.

    Args:
        options: Option ``cdc`` of each table.
        lag_seconds: How far reading is behind writing at the least.
    """
    for table, told in options.items():
        ttl = int(told.get("ttl") or _DEFAULT_TTL_SECONDS)
        if ttl and ttl <= lag_seconds:
            yield Finding(
                "error",
                table,
                f"its log lives for {ttl} s, and is read {lag_seconds:g} s after the write at the earliest",
                f"ALTER TABLE {cql_name(table)} WITH cdc = {{'enabled': true, 'ttl': 86400}}",
            )
        elif ttl:
            yield Finding("ok", table, f"its log lives for {ttl} s: the longest pause between two runs")
        if told.get("delta", "full") == "keys":
            yield Finding(
                "warning",
                table,
                "its log tells keys alone: a mirror can't follow it, and rows must be read again",
                f"ALTER TABLE {cql_name(table)} WITH cdc = {{'enabled': true, 'delta': 'full'}}",
            )


def check_images(options: Mapping[str, Mapping[str, str]], wanted: WantedImages) -> Iterator[Finding]:
    """Check that tables log the images that events are to show.

    Args:
        options: Option ``cdc`` of each table.
        wanted: What events are to show.
    """
    for image, asked in (("preimage", wanted.before), ("postimage", wanted.after)):
        lacking = [table for table, told in options.items() if told.get(image, "false").lower() == "false"]
        for table in lacking if asked else ():
            yield Finding(
                "error",
                table,
                f"{asked} needs {image}s, which its log doesn't have",
                f"ALTER TABLE {cql_name(table)} WITH cdc = {{'enabled': true, '{image}': true}}",
            )
