"""What is checked of a cluster whose logs and streams can be read: release, level, options of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError
from airflow_cdc_provider.sources.base import Finding
from airflow_cdc_provider.sources.cql.driver.connect import consistency_level, driver_errors
from airflow_cdc_provider.sources.cql.schema import TableSchema
from airflow_cdc_provider.sources.cql.types import cql_name
from airflow_cdc_provider.sources.scylla.client_driver import ClientDriver
from airflow_cdc_provider.sources.scylla.log_options import CdcOption
from airflow_cdc_provider.sources.scylla.server_tables import rows_if_there

if TYPE_CHECKING:
    from cassandra.cluster import Session

    from airflow_cdc_provider.sources.scylla.cluster import Cluster
    from airflow_cdc_provider.sources.scylla.options import ScyllaOptions

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


def check_cluster(
    cluster: Cluster,
    options: ScyllaOptions,
    selected: Callable[[], Sequence[str]],
    images: WantedImages,
    selects: Callable[[str], bool],
) -> Iterator[Finding]:
    """Look at a cluster, the tables that are selected, and their streams.

    Args:
        cluster: The cluster.
        options: The declaration's source part.
        selected: Lists the tables.
        images: What events are to show.
        selects: Tells whether the declaration selects a table, which may have no log.
    """
    try:
        cluster.observe()
        tables = selected()
        nameless = [table for table in tables if not cluster.timeline(table, lambda: tables).begins_ms]
        bases = [base for table, base in cluster.schemas.tables.items() if selects(table)]
    except CdcError as error:
        yield Finding("error", "logs", error.message, error.remedy)
        return
    yield from tell_counters(bases)
    if not tables:
        yield Finding(
            "error",
            "tables",
            "none that the declaration selects has a log",
            "ALTER TABLE ... WITH cdc = {'enabled': true}, or check tables",
        )
        return
    yield Finding("ok", "tables", f"{len(tables)} have a log: {', '.join(tables)}")
    if nameless:
        yield Finding("warning", "streams", f"{', '.join(nameless)}: there are no streams yet")
    yield from check_consistency(options.consistency)
    try:
        release = release_of(cluster.session, options.advanced.system_keyspace)
    except CdcError as error:
        yield Finding("error", "release", error.message, error.remedy)
        return
    yield Finding("ok", "release", f"ScyllaDB {release}")
    yield from ClientDriver.present().findings()
    logged = {table: cluster.logs[table].option for table in tables if table in cluster.logs}
    yield from tell_untold(logged, options.advanced.schema_keyspace)
    yield from check_logs(logged, options.confidence_window_seconds)
    yield from check_images(logged, images)


def release_of(session: Session, keyspace: str = "system") -> str:
    """Return the release of the node that is asked.

    Args:
        session: To the cluster.
        keyspace: Keyspace of the table ``versions``; where there is none, the release of Cassandra's protocol
            is told that the node says it has.
    """
    doing = "asking for the release"
    query = f"SELECT version FROM {keyspace}.versions WHERE key = 'local'"
    for row in rows_if_there(session, query, doing=doing) or ():
        if row.version:
            return str(row.version)
    with driver_errors(doing):
        own = session.execute("SELECT release_version FROM system.local").one()
        return f"that speaks as Cassandra {own.release_version}"


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


def tell_untold(options: Mapping[str, CdcOption], keyspace: str) -> Iterator[Finding]:
    """Tell of logs whose options the server doesn't tell, as of those that are kept elsewhere.

    Args:
        options: Of each table.
        keyspace: Where they should be told.
    """
    untold = [table for table, option in options.items() if not option.told]
    if untold:
        yield Finding(
            "warning",
            "options",
            f"{keyspace}.scylla_tables doesn't tell how {', '.join(untold)} are logged: a log counts as on "
            "while its table is there, its rows live as its default_time_to_live says and for ever without "
            "one, and which images it has isn't known",
            "of a ScyllaDB, correct source.advanced.schema_keyspace; for logs elsewhere make that table, as "
            "docs/source-scylla.md says, or leave it at this",
        )


def check_logs(options: Mapping[str, CdcOption], lag_seconds: float) -> Iterator[Finding]:
    """Check how long tables' logs live, and whether they tell what was written.

    Args:
        options: Of each table.
        lag_seconds: How far reading is behind writing at the least.
    """
    for table, option in options.items():
        ttl = option.ttl_seconds
        if ttl and ttl <= lag_seconds:
            yield Finding(
                "error",
                table,
                f"its log lives for {ttl} s, and is read {lag_seconds:g} s after the write at the earliest",
                f"ALTER TABLE {cql_name(table)} WITH cdc = {{'enabled': true, 'ttl': 86400}}",
            )
        elif ttl:
            yield Finding("ok", table, f"its log lives for {ttl} s: the longest pause between two runs")
        if option.delta == "keys":
            yield Finding(
                "warning",
                table,
                "its log tells keys alone: a mirror can't follow it, and rows must be read again",
                f"ALTER TABLE {cql_name(table)} WITH cdc = {{'enabled': true, 'delta': 'full'}}",
            )


def unlogged(base: TableSchema, *, switched_off: bool) -> ConfigurationError:
    """Make the error that a table is named whose changes aren't logged.

    Args:
        base: The table.
        switched_off: Whether it has a log, which is off.
    """
    problem = f"the table {base.full_name} is named but its changes aren't logged"
    if base.counter:
        return ConfigurationError(
            problem,
            expected="a table without counters",
            found="counters, of which ScyllaDB makes no log",
            remedy="take it out of tables",
        )
    return ConfigurationError(
        problem,
        expected="cdc = {'enabled': true}",
        found="a log that is switched off" if switched_off else "no log",
        remedy=f"ALTER TABLE {cql_name(base.full_name)} WITH cdc = {{'enabled': true}}, or take it out of "
        "tables",
    )


def tell_counters(selected: Iterable[TableSchema]) -> Iterator[Finding]:
    """Tell of tables that a pattern selects and that can't be captured, since they count.

    Args:
        selected: The selected tables.
    """
    counters = sorted(base.full_name for base in selected if base.counter)
    if counters:
        yield Finding(
            "warning",
            "tables",
            f"{', '.join(counters)}: ScyllaDB makes no log of tables with counters, so they are left out",
            "exclude them with a narrower pattern in tables",
        )


def check_images(options: Mapping[str, CdcOption], wanted: WantedImages) -> Iterator[Finding]:
    """Check that tables log the images that events are to show.

    Args:
        options: Of each table; one that the server doesn't tell says nothing of images.
        wanted: What events are to show.
    """
    for image, asked in (("preimage", wanted.before), ("postimage", wanted.after)):
        lacking = [table for table, o in options.items() if o.told and image not in o.images]
        for table in lacking if asked else ():
            yield Finding(
                "error",
                table,
                f"{asked} needs {image}s, which its log doesn't have",
                f"ALTER TABLE {cql_name(table)} WITH cdc = {{'enabled': true, '{image}': true}}",
            )
