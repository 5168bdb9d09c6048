"""Prerequisite checks of a cluster: release, consistency level, streams and table options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, listed
from airflow_cdc_provider.sources.contract import Finding
from airflow_cdc_provider.sources.cql.connection import consistency_level, driver_errors
from airflow_cdc_provider.sources.cql.lake_names import lake_names
from airflow_cdc_provider.sources.cql.schema import TableSchema
from airflow_cdc_provider.sources.cql.types import cql_name
from airflow_cdc_provider.sources.findings import name_findings
from airflow_cdc_provider.sources.scylla.client_driver import ClientDriver
from airflow_cdc_provider.sources.scylla.cluster import SECOND_US
from airflow_cdc_provider.sources.scylla.log_options import CdcOption
from airflow_cdc_provider.sources.scylla.server_tables import rows_or_none

if TYPE_CHECKING:
    from cassandra.cluster import Session

    from airflow_cdc_provider.sources.scylla.cluster import Cluster
    from airflow_cdc_provider.sources.scylla.options import ScyllaOptions

_NEED_ALL: Final = ("ANY", "ONE", "TWO", "LOCAL_ONE", "NODE_LOCAL")
"""Consistency levels that only overlap with writes at ALL."""
_LOCAL: Final = ("LOCAL_QUORUM", "LOCAL_SERIAL")


@dataclass(frozen=True)
class RequiredImages:
    """The row images that events require.

    Args:
        before: Name of the option that requires preimages, empty for none.
        after: Name of the option that requires postimages, empty for none.
    """

    before: str = ""
    after: str = ""


def check_cluster(
    cluster: Cluster,
    options: ScyllaOptions,
    selected: Callable[[], Sequence[str]],
    images: RequiredImages,
    selects: Callable[[str], bool],
    refusals: Callable[[], Mapping[str, ConfigurationError]],
) -> Iterator[Finding]:
    """Check a cluster, the selected tables, and their streams.

    Args:
        cluster: The cluster.
        options: The declaration's source part.
        selected: Returns the selected tables that have or had a log.
        images: The images that events require.
        selects: Returns whether the declaration selects a table, with or without a log.
        refusals: Returns why named tables can't be captured, by table.
    """
    try:
        cluster.observe()
        tables = selected()
        without_streams = [table for table in tables if not cluster.timeline(table, lambda: tables).begins_ms]
        refused = refusals()
        schemas = cluster.schemas.tables.items()
        bases = [base for table, base in schemas if selects(table) and table not in refused]
    except CdcError as error:
        yield Finding("error", "logs", error.message, error.remedy)
        return
    yield from check_counters(bases)
    for refusal in refused.values():
        yield Finding("error", "tables", f"{refusal.message}: found {refusal.found}", refusal.remedy)
    if not tables:
        yield Finding(
            "error",
            "tables",
            "none of the selected tables has a log",
            "ALTER TABLE ... WITH cdc = {'enabled': true}, or check tables",
        )
        return
    yield Finding("ok", "tables", f"{len(tables)} have a log: {listed(tables)}")
    yield from name_findings({table: lake_names(cluster.schemas.tables[table]) for table in tables})
    if without_streams:
        yield Finding("warning", "streams", f"{listed(without_streams)}: no streams yet")
    yield from check_consistency(options.consistency)
    try:
        release = release_of(cluster.session, options.advanced.system_keyspace)
    except CdcError as error:
        yield Finding("error", "release", error.message, error.remedy)
        return
    yield Finding("ok", "release", f"ScyllaDB {release}")
    yield from ClientDriver.detect().findings()
    logged = {table: cluster.logs[table].option for table in tables if table in cluster.logs}
    yield from check_unreported_options(logged, options.advanced.schema_keyspace)
    yield from check_logs(logged, options.confidence_window_seconds)
    yield from check_images(logged, images)
    renamed = []
    for table, option in logged.items():
        kept_us = cluster.now_us - option.ttl_seconds * SECOND_US if option.ttl_seconds else 0
        if cluster.logs[table].renamed_us > kept_us:
            renamed.append(table)
    if renamed:
        yield Finding(
            "warning",
            "renamed keys",
            f"a key column of {listed(renamed)} was renamed: the log has lost its value in changes from "
            "before. Those that aren't captured yet are quarantined, and a run reads the table in full",
            "none needed; before the next rename, let a run capture all changes",
        )


def release_of(session: Session, keyspace: str = "system") -> str:
    """Return the release of the connected node.

    Args:
        session: To the cluster.
        keyspace: Keyspace of the table ``versions``. Without that table, the result is the Cassandra release
            that the node reports.
    """
    doing = "reading the release"
    query = f"SELECT version FROM {keyspace}.versions WHERE key = 'local'"
    for row in rows_or_none(session, query, doing=doing) or ():
        if row.version:
            return str(row.version)
    with driver_errors(doing):
        own = session.execute("SELECT release_version FROM system.local").one()
        return f"that reports Cassandra {own.release_version}"


def check_consistency(name: str) -> Iterator[Finding]:
    """Check that a consistency level exists, and report the level that writers need."""
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
            f"logs are read at {level}: only changes that were written at ALL are guaranteed to be read",
            "use QUORUM, with writers at QUORUM",
        )
    elif level in _LOCAL:
        yield Finding(
            "warning",
            "consistency",
            f"logs are read at {level}: changes written in another datacenter may be missed",
            "use it where all writers use LOCAL_QUORUM in the connection's datacenter",
        )


def check_unreported_options(options: Mapping[str, CdcOption], keyspace: str) -> Iterator[Finding]:
    """Report logs whose options the server doesn't report, such as logs that are stored elsewhere.

    Args:
        options: The option of each table.
        keyspace: Keyspace of the table that should list them.
    """
    unreported = [table for table, option in options.items() if not option.reported]
    if unreported:
        yield Finding(
            "warning",
            "options",
            f"{keyspace}.scylla_tables doesn't list the CDC options of {listed(unreported)}: a log counts "
            "as enabled while its table exists, its rows expire after its default_time_to_live or never, and "
            "its images are unknown",
            "for ScyllaDB, correct source.advanced.schema_keyspace; for logs stored elsewhere, create that "
            "table as docs/source-scylla.md describes, or ignore this warning",
        )


def check_logs(options: Mapping[str, CdcOption], lag_seconds: float) -> Iterator[Finding]:
    """Check the retention of tables' logs, and whether they contain the written values.

    Args:
        options: The option of each table.
        lag_seconds: Minimum delay between a write and its read.
    """
    by_ttl: dict[int, list[str]] = {}
    for table, option in options.items():
        by_ttl.setdefault(option.ttl_seconds, []).append(table)
    for ttl, tables in sorted(by_ttl.items()):
        if ttl and ttl <= lag_seconds:
            yield Finding(
                "error",
                listed(tables),
                _logs(tables, f"expires after {ttl} s, and is read", f"expire after {ttl} s, and are read")
                + f" {lag_seconds:g} s or more after the write",
                _alter(tables, "'ttl': 86400"),
            )
        elif ttl:
            expiry = _logs(tables, "expires", "expire")
            yield Finding("ok", listed(tables), f"{expiry} after {ttl} s: the longest pause between two runs")
    if tables := [table for table, option in options.items() if option.delta == "keys"]:
        contents = _logs(tables, "contains", "contain")
        yield Finding(
            "warning",
            listed(tables),
            f"{contents} keys only: a mirror can't be built from keys, and rows must be read again",
            _alter(tables, "'delta': 'full'"),
        )


def _logs(tables: Sequence[str], verb: str, plural: str) -> str:
    return f"its log {verb}" if len(tables) == 1 else f"their logs {plural}"


def _alter(tables: Sequence[str], option: str) -> str:
    others = ", and the others likewise" if len(tables) > 1 else ""
    return f"ALTER TABLE {cql_name(tables[0])} WITH cdc = {{'enabled': true, {option}}}{others}"


def not_logged_error(base: TableSchema, *, switched_off: bool) -> ConfigurationError:
    """Build the error for a table that the declaration names and whose changes aren't logged.

    Args:
        base: The table.
        switched_off: Whether it has a disabled log.
    """
    problem = f"the table {base.full_name} is named but its changes aren't logged"
    if base.counter:
        return ConfigurationError(
            problem,
            expected="a table without counters",
            found="counters, for which ScyllaDB writes no log",
            remedy="remove it from tables",
        )
    return ConfigurationError(
        problem,
        expected="cdc = {'enabled': true}",
        found="a disabled log" if switched_off else "no log",
        remedy=f"ALTER TABLE {cql_name(base.full_name)} WITH cdc = {{'enabled': true}}, or remove it from "
        "tables",
    )


def check_counters(selected: Iterable[TableSchema]) -> Iterator[Finding]:
    """Report counter tables that a pattern selects and that can't be captured.

    Args:
        selected: The selected tables.
    """
    counters = sorted(base.full_name for base in selected if base.counter)
    if counters:
        yield Finding(
            "warning",
            "tables",
            f"{listed(counters)}: ScyllaDB writes no log for tables with counters, so they are skipped",
            "exclude them with a narrower pattern in tables",
        )


def check_images(options: Mapping[str, CdcOption], required: RequiredImages) -> Iterator[Finding]:
    """Check that tables log the images that events require.

    Args:
        options: The option of each table; one that the server doesn't report is skipped.
        required: The images that events require.
    """
    for image, required_by in (("preimage", required.before), ("postimage", required.after)):
        without_image = [table for table, o in options.items() if o.reported and image not in o.images]
        if required_by and without_image:
            lacking = _logs(without_image, "doesn't have", "don't have")
            yield Finding(
                "error",
                listed(without_image),
                f"{required_by} needs {image}s, which {lacking}",
                _alter(without_image, f"'{image}': true"),
            )
