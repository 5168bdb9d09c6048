"""Verify the prerequisites of capture from Cassandra; each finding that needs action has a remedy.

Problems are returned as findings, never raised. No finding contains a secret.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, listed
from airflow_cdc_provider.sources.cassandra.capture import (
    Faults,
    LogFolder,
    faults_by_node,
    head,
    plan_segments,
)
from airflow_cdc_provider.sources.cassandra.nodes import host_ids
from airflow_cdc_provider.sources.cassandra.views import refusal_of
from airflow_cdc_provider.sources.contract import Finding, ReadLimit
from airflow_cdc_provider.sources.cql.connection import (
    NODE_LOCAL,
    connection_findings,
    consistency_level,
    contact_points,
    driver_errors,
    open_session,
)
from airflow_cdc_provider.sources.cql.driver.node_queries import query_nodes
from airflow_cdc_provider.sources.cql.lake_names import lake_names
from airflow_cdc_provider.sources.cql.schema import Schemas, TableSchema
from airflow_cdc_provider.sources.cql.snapshot import PARTITIONER
from airflow_cdc_provider.sources.cql.system_schema import load
from airflow_cdc_provider.sources.cql.types import quote_name
from airflow_cdc_provider.sources.findings import name_findings
from airflow_cdc_provider.transfer.space import measure

if TYPE_CHECKING:
    from cassandra.cluster import Session

    from airflow_cdc_provider.sources.cassandra.options import CassandraOptions

NEARLY_FULL: Final = 0.8
"""Used fraction of cdc_total_space above which to warn."""

SILENT_SECONDS: Final = 86_400
"""Warn of a node whose newest segment is this much older than another node's."""

_OLDEST_MAJOR: Final = 3
_UNITS: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@dataclass(frozen=True)
class NodeSettings:
    """Settings of one node, from its ``system_views.settings``; None for a setting that it doesn't have.

    Args:
        cdc_enabled: Whether change data capture is on.
        total_space_bytes: Cap of its cdc_raw; 0 for the default of its volume.
        blocks_writes: Whether writes fail when cdc_raw is full (else the node deletes the oldest segments).
        logs_repairs: Whether repaired data goes through the commit log.
    """

    cdc_enabled: bool | None = None
    total_space_bytes: int | None = None
    blocks_writes: bool | None = None
    logs_repairs: bool | None = None


def check_source(
    options: CassandraOptions,
    connection: Mapping[str, Any],
    selects: Callable[[TableSchema], bool],
    names: Callable[[str], bool],
) -> Iterator[Finding]:
    """Check the cluster and cdc_raw.

    Args:
        options: The source's options.
        connection: The Airflow connection's values.
        selects: Returns whether the declaration selects a table.
        names: Returns whether it has a table's literal name.

    Returns:
        The findings, problems or not.
    """
    hosts = ", ".join(contact_points(connection))
    settings: dict[str, NodeSettings] = {}
    try:
        session = open_session(connection, timeout_seconds=options.advanced.request_timeout_seconds)
    except CdcError as error:
        yield Finding("error", "connection", error.message, error.remedy or f"check {hosts}")
    else:
        try:
            yield Finding("ok", "connection", f"{hosts} is reachable")
            yield from connection_findings(connection)
            yield from _guarded("version", lambda: check_version(session, options.advanced.rules))
            settings = node_settings(session)
            yield from check_nodes(options, host_ids(session))
            yield from check_capture(settings)
            yield from _guarded("schema", lambda: check_tables(session, load(session), selects, names))
            release = session.execute("SELECT release_version FROM system.local").one().release_version
            yield from check_consistency(options.consistency, release)
        finally:
            session.cluster.shutdown()
    yield from check_folder(options, settings)


def _guarded(subject: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    try:
        with driver_errors(f"checking the {subject}"):
            yield from check()
    except CdcError as error:
        yield Finding("error", subject, str(error), error.remedy or "see the message")


def check_version(session: Session, rules: str) -> Iterator[Finding]:
    """Check release and partitioner of the contacted node."""
    row = session.execute("SELECT release_version, partitioner FROM system.local").one()
    major = int(row.release_version.partition(".")[0])
    name = f"Cassandra {row.release_version}"
    if major < _OLDEST_MAJOR:
        yield Finding("error", "version", f"{name} is too old", "use Cassandra 3.11 or later")
    elif (major < 4) != (rules == "3.11"):
        matching_rules = "3.11" if major < 4 else "4.0"
        yield Finding(
            "warning",
            "version",
            f"{name} resolves equal timestamps by the rules of {matching_rules}, the connector by {rules}",
            f"set source.advanced.rules to '{matching_rules}'",
        )
    else:
        yield Finding("ok", "version", name)
    if row.partitioner != PARTITIONER:
        yield Finding(
            "error",
            "partitioner",
            f"snapshots can't be split into token ranges of {row.partitioner}",
            "set snapshot.mode to never; the commit log can still be captured",
        )


def check_capture(settings: Mapping[str, NodeSettings]) -> Iterator[Finding]:
    """Check that change data capture is on in every node's settings."""
    for host, node in settings.items():
        subject = f"cdc_enabled on {host}"
        if node.cdc_enabled is None:
            yield Finding(
                "warning",
                subject,
                "this node doesn't expose its settings (Cassandra before 4.0)",
                "make sure that its cassandra.yaml has cdc_enabled: true",
            )
        elif not node.cdc_enabled:
            yield Finding(
                "error",
                subject,
                "change data capture is off",
                "set cdc_enabled: true in cassandra.yaml and restart the node",
            )
        else:
            yield Finding("ok", subject, "true")
        if node.blocks_writes is False:
            yield Finding(
                "warning",
                f"cdc_block_writes on {host}",
                "the node deletes the oldest segments when cdc_raw is full, read or not",
                "capture often enough, enlarge cdc_total_space, or set cdc_block_writes: true",
            )
        if node.logs_repairs is False:
            yield Finding(
                "warning",
                f"cdc_on_repair_enabled on {host}",
                "rows that a repair writes to the node are not captured from it",
                "set it to true, or verify on a schedule: verify finds such rows, and a snapshot adds them",
            )


def check_nodes(options: CassandraOptions, members: Mapping[str, str]) -> Iterator[Finding]:
    """Check that cdc_raw has a folder for every node of the cluster, and for no other node.

    Args:
        options: The source's options.
        members: Addresses by host id.
    """
    folder = Path(options.cdc_raw)
    if not options.cdc_raw or not folder.is_dir():
        return
    folders = {child.name for child in folder.iterdir() if child.is_dir()}
    named = {options.node} if options.node else folders
    if not named and len(members) == 1:
        return
    for host_id, address in sorted(members.items(), key=lambda member: member[1]):
        if host_id not in named:
            yield Finding(
                "warning",
                f"node {address}",
                f"no folder {host_id} in {folder}: its writes are captured from other replicas only",
                "transfer its segments there, into one folder per node named by its host id",
            )
    for host_id in sorted(named - set(members)):
        yield Finding(
            "warning",
            f"node {host_id}",
            "it is not a node of this cluster, or has left it",
            "when its segments are captured: remove its folder, and run airflow cdc offsets remove-origin "
            f"{host_id}",
        )
    yield from _check_silence(folder, folders & set(members), members)


def _check_silence(folder: Path, host_ids: set[str], members: Mapping[str, str]) -> Iterator[Finding]:
    written = {
        host_id: max((f.lstat().st_mtime for f in (folder / host_id).glob("*_cdc.idx")), default=0.0)
        for host_id in host_ids
    }
    newest = max(written.values(), default=0.0)
    for host_id, at in sorted(written.items()):
        if at and newest - at > SILENT_SECONDS:
            hours = int(newest - at) // 3600
            yield Finding(
                "warning",
                f"node {members[host_id]}",
                f"its newest segment is {hours} hours older than another node's",
                "check that the node is up and its segments are transferred; until then the mirrors lack "
                "writes that only it has",
            )


def check_tables(
    session: Session,
    schemas: Schemas,
    selects: Callable[[TableSchema], bool],
    names: Callable[[str], bool],
) -> Iterator[Finding]:
    """Check that the selected tables have ``cdc = true``, are readable, and can be captured."""
    selected = [t for t in schemas.tables.values() if selects(t)]
    captured = [t for t in selected if t.cdc]
    if not captured:
        yield Finding(
            "error",
            "tables",
            "no table that the connector selects has cdc = true",
            "change tables and exclude_tables, or ALTER TABLE ... WITH cdc = true",
        )
    else:
        yield Finding("ok", "tables", f"{len(captured)} with cdc = true")
    for table in selected:
        refusal = refusal_of(table, captured=table.cdc) if names(table.full_name) else None
        if refusal is not None:
            yield Finding("error", table.full_name, refusal.message, refusal.remedy)
        elif not table.cdc:
            yield Finding(
                "warning",
                table.full_name,
                "it is selected but doesn't have cdc = true, so it is skipped",
                f"ALTER TABLE {_cql_name(table)} WITH cdc = true, or exclude it",
            )
    yield from name_findings({table.full_name: lake_names(table) for table in captured})
    if counters := [table.full_name for table in captured if table.counter]:
        yield Finding(
            "note",
            "counters",
            f"{listed(counters)}: the log has the changed partitions, which are read again at the source",
        )
    stored = _compact_tables(session)
    if compact := [table.full_name for table in captured if table.full_name in stored]:
        yield Finding(
            "note",
            "compact storage",
            f"{listed(compact)}: mirrors have the columns of SELECT *. ALTER TABLE ... DROP COMPACT STORAGE "
            "changes the key of a table without clustering columns: drop its mirror then, and take a new "
            "snapshot",
        )
    for table in captured:
        yield from _check_table(session, schemas, table)


def _compact_tables(session: Session) -> frozenset[str]:
    """Return the tables WITH COMPACT STORAGE."""
    rows = session.execute("SELECT keyspace_name, table_name, flags FROM system_schema.tables")
    return frozenset(
        f"{row.keyspace_name}.{row.table_name}"
        for row in rows
        if row.flags is not None and ("compound" not in row.flags or {"dense", "super"} & set(row.flags))
    )


def _check_table(session: Session, schemas: Schemas, table: TableSchema) -> Iterator[Finding]:
    keyspace = schemas.keyspaces.get(table.keyspace)
    if keyspace is not None and not keyspace.durable_writes:
        yield Finding(
            "error",
            table.full_name,
            "its keyspace has durable_writes = false: writes never reach the commit log",
            f"ALTER KEYSPACE {quote_name(table.keyspace)} WITH durable_writes = true",
        )
    read: dict[str, Iterable[str]] = {table.full_name: (column.name for column in table.partition_key)}
    if table.liveness_column and table.definition:
        read[table.definition.base] = table.definition.partition_key
    for full_name, key in read.items():
        name = ".".join(map(quote_name, full_name.split(".", 1)))
        try:
            with driver_errors(f"reading {full_name}"):
                # The driver can't make its own class of each type that a column may have.
                session.execute(f"SELECT token({', '.join(map(quote_name, key))}) FROM {name} LIMIT 1")
        except CdcError as error:
            yield Finding(
                "error",
                table.full_name,
                error.message + (f": {error.found}" if error.found else ""),
                f"GRANT SELECT ON {name} TO the connection's role",
            )


def check_consistency(name: str, release: str) -> Iterator[Finding]:
    """Check that the consistency level exists for reads, in a release such as ``5.0.9``."""
    try:
        level = consistency_level(name)
    except ConfigurationError as error:
        yield Finding("error", "consistency", error.message, f"use {error.expected}")
        return
    if level == NODE_LOCAL and int(release.partition(".")[0]) < 4:
        yield Finding(
            "error", "consistency", f"Cassandra {release} has no level {name}", "use ALL, or LOCAL_QUORUM"
        )
    elif level == NODE_LOCAL:
        yield Finding(
            "warning",
            "consistency",
            f"{name} reads only the contacted node's data",
            "use it only where every node has all data; it needs -Dcassandra.enable_nodelocal_queries=true",
        )


def check_folder(options: CassandraOptions, settings: Mapping[str, NodeSettings]) -> Iterator[Finding]:
    """Check that cdc_raw is readable, and how full it is."""
    if not options.cdc_raw:
        yield Finding("error", "cdc_raw", "no folder is declared", "set source.cdc_raw")
        return
    folder = Path(options.cdc_raw)
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        yield Finding(
            "error",
            "cdc_raw",
            f"{folder} can't be read: {error.strerror}",
            "mount the nodes' cdc_raw here, readable by the user that runs Spark",
        )
        return
    unreadable = [e for e in entries if not os.access(e, os.R_OK)]
    if unreadable:
        yield Finding(
            "error",
            "cdc_raw",
            f"{len(unreadable)} files of {folder} can't be read, among them {unreadable[0].name}",
            "grant the user that runs Spark permission to read them",
        )
    else:
        yield Finding("ok", "cdc_raw", f"{folder} is readable")
    readable = [e for e in entries if e.is_dir() and os.access(e, os.R_OK | os.X_OK)]
    nodes = [e for e in readable if e.name != "errors"] or [folder]
    cap = min(
        (s.total_space_bytes for s in settings.values() if s.total_space_bytes is not None), default=None
    )
    blocks = any(s.blocks_writes is not False for s in settings.values())
    for node in nodes:
        yield from _check_space(node, cap, blocks=blocks)


def check_segments(open_folder: Callable[[], LogFolder]) -> Iterator[Finding]:
    """Open all segments as a capture does: check their headers, compressors and keys.

    Args:
        open_folder: Returns the folder of segments; it opens the keystore.

    Returns:
        One finding, or one per node with segments that can't be read.
    """
    faults: Faults = {}
    try:
        folder, most = open_folder(), ReadLimit(bytes=sys.maxsize)
        plan = plan_segments(folder, None, head(folder, faults), most, faults)
    except CdcError as error:
        yield _segments_error(error)
        return
    yield from map(_segments_error, faults_by_node(faults).values())
    broken = sorted({part.path for part in plan.partitions if part.damage})
    if broken:
        yield Finding(
            "warning",
            "segments",
            f"{len(broken)} segments are corrupt, among them {broken[0]}",
            "capture quarantines the unreadable bytes; take a new snapshot of the tables after it",
        )
    elif not faults:
        yield Finding("ok", "segments", "all are readable")


def _segments_error(error: CdcError) -> Finding:
    found = f": {error.found}" if error.found else ""
    return Finding("error", "segments", error.message + found, error.remedy or f"provide {error.expected}")


def _check_space(folder: Path, cap: int | None, *, blocks: bool) -> Iterator[Finding]:
    if cap is None:
        return
    space = measure(folder, cap or None)
    subject = f"space of {folder.name}"
    text = f"{space.used_bytes >> 20} MiB of {space.total_bytes >> 20} MiB (cdc_total_space)"
    if space.seconds_to_full:
        text += f", full in {space.seconds_to_full / 60:.0f} minutes at the current rate"
    remedy = (
        "run a capture, then the transfer, which removes segments that were read; or enlarge cdc_total_space"
    )
    if space.full:
        effect = (
            "writes to tables with cdc = true fail" if blocks else "the oldest segments are being deleted"
        )
        yield Finding("error", subject, f"{text}: {effect}", remedy)
    elif space.used_ratio >= NEARLY_FULL:
        yield Finding("warning", subject, text, remedy)
    else:
        yield Finding("ok", subject, text)


def node_settings(session: Session) -> dict[str, NodeSettings]:
    """Return the settings of each node that is up, by its address."""
    found = {}
    for host, answer in query_nodes(session, "SELECT name, value FROM system_views.settings"):
        if isinstance(answer, CdcError):
            found[host.address] = NodeSettings()
        else:
            found[host.address] = read_settings({row.name: row.value for row in answer})
    return found


def read_settings(values: Mapping[str, str | None]) -> NodeSettings:
    """Parse the settings that capture depends on, by their names of 4.0 or of 4.1 and later."""
    enabled, blocks = values.get("cdc_enabled"), values.get("cdc_block_writes")
    repairs = values.get("cdc_on_repair_enabled")
    space = values.get("cdc_total_space")
    megabytes = values.get("cdc_total_space_in_mb")
    if space is None and megabytes is not None:
        space = f"{megabytes}MiB"
    return NodeSettings(
        cdc_enabled=None if enabled is None else enabled == "true",
        total_space_bytes=None if space is None else _bytes(space),
        blocks_writes=None if blocks is None else blocks == "true",
        logs_repairs=None if repairs is None else repairs == "true",
    )


def _bytes(text: str) -> int | None:
    match = re.fullmatch(r"(\d+)\s*([KMG]?i?B)", text.strip())
    return int(match.group(1)) * _UNITS[match.group(2)] if match and match.group(2) in _UNITS else None


def _cql_name(table: TableSchema) -> str:
    return f"{quote_name(table.keyspace)}.{quote_name(table.name)}"
