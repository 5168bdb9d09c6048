"""Verifies the prerequisites of capture in a Vitess keyspace, and returns problems as findings."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from airflow_cdc_provider.changes.column_names import column_names
from airflow_cdc_provider.exceptions import CdcError, PositionLost, listed
from airflow_cdc_provider.sources.contract import Finding
from airflow_cdc_provider.sources.findings import login_findings, name_findings
from airflow_cdc_provider.sources.vitess.connection import ConnectionValues
from airflow_cdc_provider.sources.vitess.lake_types import REST
from airflow_cdc_provider.sources.vitess.options import VitessOptions
from airflow_cdc_provider.sources.vitess.position import Position, require_known
from airflow_cdc_provider.sources.vitess.requests import (
    current_position,
    each_keyspace,
    home_shards,
    list_tables,
    oldest_after,
    serving_shards,
)
from airflow_cdc_provider.sources.vitess.tablets import (
    SERVING,
    Binlogs,
    columns_of_tables,
    keyless_tables,
    list_tablets,
    read_binlogs,
    require_binlogs_retained,
)
from airflow_cdc_provider.sources.vitess.vtctld import vtctld_position
from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient

_TABLES_TO_COPY_SINCE: Final = 23
_BARE_NAMES_SINCE: Final = 23
_JOURNALS_SINCE: Final = 21
_CHUNKS_SINCE: Final = 24
_SHORT_RETENTION_SECONDS: Final = 86_400
_MAX_LAG_SECONDS: Final = 60
_AGE_TIMEOUT_SECONDS: Final = 3.0
_FULL_LOAD: Final = 100
_MINUTE_SECONDS: Final = 60
_ON_LOST_TABLE: Final = {
    "fail": "each run fails until an operator intervenes",
    "fail_once": "the run fails after the other tables, and the next sync reads the table in full",
    "snapshot": "the same sync reads the table in full",
    "continue": "its mirror lacks them until the next snapshot",
}
_THROTTLER: Final = 8
"""Column of ``SHOW VITESS_REPLICATION_STATUS``: status of the tablet's throttler, as JSON."""


@dataclass(frozen=True)
class SnapshotRules:
    """When the declaration lets runs take snapshots.

    Args:
        never: Whether no run takes one by itself.
        on_lost_table: The effective ``snapshot.on_lost_position`` for single tables.
    """

    never: bool = False
    on_lost_table: str = "fail_once"


DEFAULT_RULES: Final = SnapshotRules()


def check_keyspace(
    values: ConnectionValues,
    options: VitessOptions,
    selects: Callable[[str], bool],
    offset: Position | None,
    rules: SnapshotRules = DEFAULT_RULES,
) -> list[Finding]:
    """Run all checks, in an order in which the first error tends to explain the others.

    Args:
        values: The connection.
        options: The source's options.
        selects: Returns whether ``keyspace.table`` belongs to the capture.
        offset: The stored position; None if there is none yet.
        rules: When runs take snapshots.

    Returns:
        The findings.
    """
    try:
        client = VtgateClient(values)
    except CdcError as error:
        return [_failed("connection", error)]
    encrypted = values.tls is not None
    servers = [f"{host}:{port}" for host, port in values.addresses]
    findings = login_findings(servers, login=bool(values.metadata), encrypted=encrypted)
    if vtctld := values.vtctld:
        address = f"{vtctld.host}:{vtctld.port}"
        findings += login_findings([address], login=bool(vtctld.metadata), encrypted=encrypted)
    with client:
        findings += _server(client, options)
        if _has_errors(findings):
            return findings
        try:
            keyspaces = each_keyspace(client, options)
        except CdcError as error:
            return [*findings, _failed("keyspace", error)]
        for one in keyspaces:
            findings += _shards(client, one)
        if _has_errors(findings):
            return findings
        for one in keyspaces:
            findings += _tables(client, one, selects, rules)
            findings += _mysql_servers(client, one, _of_keyspace(offset, one))
        findings += _stream(client, options, offset)
        findings += _first_position(values, client, options)
    return findings


def _has_errors(findings: Sequence[Finding]) -> bool:
    return any(finding.level == "error" for finding in findings)


def _of_keyspace(offset: Position | None, options: VitessOptions) -> Position | None:
    """Return the part of a position that belongs to a keyspace; None if there is none."""
    shards = {} if offset is None else offset.shards
    own = {s: known for s, known in shards.items() if s.partition("/")[0] == options.keyspace}
    return Position(own) if own else None


def _first_position(
    values: ConnectionValues, client: VtgateClient, options: VitessOptions
) -> Iterator[Finding]:
    """Request the first position from vtctld, if the connection names one, as the first capture does."""
    if values.vtctld is None:
        return
    try:
        shards = serving_shards(client, options)
        vtctld_position(values, values.vtctld, shards, options.tablet_type, _seconds(options))
    except CdcError as error:
        yield _failed("vtctld", error)
        return
    yield Finding("ok", "vtctld", f"returns the positions of {len(shards)} shards")


def _failed(subject: str, error: CdcError) -> Finding:
    message = ": ".join(part for part in (error.message, error.found) if part)
    remedy = error.remedy or (f"needed: {error.expected}" if error.expected else "see VTGate's log")
    return Finding("error", subject, message, remedy)


def _server(client: VtgateClient, options: VitessOptions) -> Iterator[Finding]:
    try:
        comment = client.execute("SELECT @@version_comment", timeout_seconds=_seconds(options)).texts()[0][0]
    except CdcError as error:
        yield _failed("connection", error)
        return
    found = re.search(r"Version: (\d+)\.(\d+\.\d+\S*)", comment)
    if found is None:
        yield Finding("ok", "connection", f"VTGate answers; its version is unknown ({comment[:60]})")
        return
    release = int(found[1])
    yield Finding("ok", "connection", f"Vitess {found[1]}.{found[2]} answers")
    flags = options.stream
    for name, enabled, since in (
        ("transaction_chunk_bytes", flags.transaction_chunk_bytes, _CHUNKS_SINCE),
        ("keyspace_heartbeats", flags.keyspace_heartbeats, _JOURNALS_SINCE),
        ("exclude_keyspace_from_table_name", flags.exclude_keyspace_from_table_name, _BARE_NAMES_SINCE),
    ):
        if enabled and release < since:
            yield Finding(
                "warning",
                "version",
                f"option source.stream.{name} has no effect before Vitess {since}",
                f"use Vitess {since} or later, or remove the option",
            )
    if release < _TABLES_TO_COPY_SINCE:
        yield Finding(
            "warning",
            "version",
            "snapshots that resume after a failure read finished tables again",
            f"no data is lost; Vitess {_TABLES_TO_COPY_SINCE} or later avoids it",
        )
    if release < _JOURNALS_SINCE and not flags.stop_on_reshard:
        yield Finding(
            "warning",
            "version",
            "the stream doesn't report reshards: VTGate continues with the new shards by itself",
            f"use Vitess {_JOURNALS_SINCE} or later, or option source.stream.stop_on_reshard",
        )


def _shards(client: VtgateClient, options: VitessOptions) -> Iterator[Finding]:
    try:
        shards = [shard.partition("/")[2] for shard in serving_shards(client, options)]
        tablets = list_tablets(client, options.keyspace, _seconds(options))
    except CdcError as error:
        yield _failed("keyspace", error)
        return
    yield Finding("ok", "keyspace", f"{options.keyspace} has the shards {', '.join(shards)}")
    kind = options.tablet_type
    serve = [t for t in tablets if t.type == kind and t.state == SERVING]
    if empty := [shard for shard in shards if not any(t.shard == shard for t in serve)]:
        others = sorted({t.type for t in tablets if t.shard in empty and t.state == SERVING})
        yield Finding(
            "error",
            "tablets",
            f"no tablet of type {kind} serves {', '.join(empty)}: a stream would wait silently",
            f"start one, or choose another source.tablet_type (available: {', '.join(others) or 'none'}), or "
            "exclude the shards: source.shards, source.exclude_empty_shards",
        )
        return
    yield Finding("ok", "tablets", f"type {kind}: {', '.join(sorted(t.alias for t in serve))}")
    cells = set(options.stream.cells)
    if unknown := sorted(cells - {t.cell for t in tablets}):
        yield Finding(
            "warning",
            "cells",
            f"no tablet of the keyspace is in {', '.join(unknown)}: VTGate uses the tablets of its own cell",
            f"cells with tablets: {', '.join(sorted({t.cell for t in tablets}))}",
        )
    if kind != "PRIMARY":
        yield from _replication(client, options)


def _replication(client: VtgateClient, options: VitessOptions) -> Iterator[Finding]:
    try:
        rows = client.execute(
            f"SHOW VITESS_REPLICATION_STATUS LIKE '{options.keyspace}/%'", timeout_seconds=_seconds(options)
        ).texts()
    except CdcError as error:
        yield Finding("warning", "replication", f"its state is unknown: {error.found or error.message}", "")
        return
    lagging = [
        f"{row[3]} {row[7]} s"
        for row in rows
        if row[2] == options.tablet_type and row[7].isdigit() and int(row[7]) > _MAX_LAG_SECONDS
    ]
    if lagging:
        yield Finding(
            "warning",
            "replication",
            f"tablets lag behind their primaries, and so does the capture: {', '.join(lagging)}",
            "find out why replication is slow, or choose another source.tablet_type",
        )
    throttled = [
        f"{row[3]} ({why})"
        for row in rows
        if row[2] == options.tablet_type and len(row) > _THROTTLER and (why := _throttled(row[_THROTTLER]))
    ]
    if throttled:
        yield Finding(
            "warning",
            "throttler",
            f"tablets are throttled, so their streams wait: {', '.join(throttled)}",
            "check SHOW VITESS_THROTTLED_APPS and the throttler's threshold, or choose another "
            "source.tablet_type",
        )


def _throttled(status: str) -> str:
    """Return why a tablet throttles its streams; empty if it doesn't, or if its status is unknown."""
    try:
        throttler = json.loads(status)
    except ValueError:
        return ""
    # The name of the state depends on the release, and some releases leave it empty.
    load, state, message = (
        throttler.get("load") or 0,
        throttler.get("state") or "",
        throttler.get("message") or "",
    )
    if load < _FULL_LOAD and state in ("OK", ""):
        return ""
    return ", ".join(part for part in (f"load {load:g} %", state, message) if part)


def _tables(
    client: VtgateClient, options: VitessOptions, selects: Callable[[str], bool], rules: SnapshotRules
) -> Iterator[Finding]:
    try:
        tables = [table.partition(".")[2] for table in list_tables(client, options, selects)]
        target = _target(options, _first_shard(client, options))
        keyless = keyless_tables(client, target, tables, _seconds(options))
        columns = columns_of_tables(client, target, _seconds(options))
        homes = home_shards(client, options, [f"{options.keyspace}.{table}" for table in tables])
    except CdcError as error:
        yield _failed("tables", error)
        return
    if not tables:
        yield Finding(
            "warning",
            "tables",
            "no table is selected",
            "check the patterns in tables and exclude_tables: they match keyspace.table",
        )
        return
    yield Finding("ok", "tables", f"{len(tables)} selected: {listed(tables)}")
    yield from name_findings(
        {
            f"{options.keyspace}.{table}": column_names(columns.get(table, ()), reserved=(REST,)).items()
            for table in tables
        }
    )
    yield from _types({table: frozenset(columns.get(table, {}).values()) for table in tables}, rules)
    if odd := [f"{options.keyspace}.{table}" for table in tables if "`" in table]:
        yield Finding("warning", listed(odd), "VTGate can't copy a table with ` in its name", "exclude it")
    for table in tables:
        if at := [column for column in columns.get(table, ()) if column.startswith("@")]:
            reason = f"VTGate can't stream changes of a table with columns like {listed(at)}"
            remedy = "rename the columns, or exclude the table"
            yield Finding("warning", f"{options.keyspace}.{table}", reason, remedy)
    if homes:
        yield Finding(
            "note",
            "reference tables",
            f"{listed(sorted(homes))}: all shards have the same rows, {min(homes.values())} is read",
        )
    if keyless:
        yield Finding(
            "warning",
            "keys",
            f"tables without a primary key can't be mirrored incrementally: {listed(keyless)}",
            "add a primary key, exclude them, or let each run read them in full",
        )


def _types(types: Mapping[str, Set[str]], rules: SnapshotRules) -> Iterator[Finding]:
    """Report what runs do with types and statements that the stream can't represent.

    Args:
        types: The types of the columns by table.
        rules: When runs take snapshots.
    """
    if documents := [table for table, own in types.items() if "json" in own]:
        effect = "keeps its text in _rest" if rules.never else "reads the table again in full"
        yield Finding(
            "note",
            "JSON",
            f"{listed(documents)}: VTGate's stream breaks values with BIT or binary members; each run that "
            f"captures one {effect}",
        )
    if enums := [table for table, own in types.items() if own & {"enum", "set"}]:
        outcome = _ON_LOST_TABLE[rules.on_lost_table]
        if rules.never and rules.on_lost_table in ("fail_once", "snapshot"):
            outcome = "the run fails, and the table needs a snapshot on request (snapshot.mode is never)"
        yield Finding(
            "note",
            "ENUM and SET",
            f"{listed(enums)}: if such a column is altered or dropped while changes from before aren't "
            f"captured, tablets can't read these, and {outcome}",
            "before such a statement, let a run capture all changes",
        )
    if rules.never:
        yield Finding(
            "note",
            "added columns",
            "snapshot.mode is never: a column that is added with a default that MySQL converts or computes "
            "is null in existing rows until a snapshot of the table is requested",
        )


def _mysql_servers(
    client: VtgateClient, options: VitessOptions, offset: Position | None
) -> Iterator[Finding]:
    """Check the MySQL servers of all shards; report equal findings once."""
    seconds = _seconds(options)
    try:
        binlogs = {
            shard: read_binlogs(client, _target(options, shard), seconds)
            for shard in (name.partition("/")[2] for name in serving_shards(client, options))
        }
    except CdcError as error:
        yield Finding(
            "warning",
            "binlogs",
            f"MySQL's settings are unknown: {error.found or error.message}",
            "make sure that binlog_row_image is FULL, and that binlogs are retained longer than the pauses "
            "between captures",
        )
        return
    yield from _row_images(binlogs)
    times = {b.expire_seconds for b in binlogs.values() if b.expire_seconds}
    if times and min(times) < _SHORT_RETENTION_SECONDS:
        yield Finding(
            "warning",
            "binlogs",
            f"binlogs are retained for {_duration(min(times))}: after a longer pause changes are lost",
            "raise binlog_expire_logs_seconds, or capture more often",
        )
    elif times:
        yield Finding("ok", "binlogs", f"retained for {_duration(min(times))}")
    if offset is not None:
        try:
            positions = {shard: known.gtid for shard, known in offset.shards.items()}
            require_binlogs_retained(client, positions, options.tablet_type, seconds)
        except PositionLost as error:
            yield _failed("stored offset", error)
        except CdcError as error:
            yield Finding("warning", "stored offset", str(error), "make sure that all its shards serve")
    yield from _schema_versions(client, options)


def _age_of_offset(client: VtgateClient, options: VitessOptions, offset: Position) -> Iterator[Finding]:
    """Compare the age of the first transaction after the offset with the retention of binlogs."""
    targets = (name.replace("/", ":") + f"@{options.tablet_type.lower()}" for name in offset.shards)
    retentions = [read_binlogs(client, target, _seconds(options)).expire_seconds for target in targets]
    retention_seconds = min(filter(None, retentions), default=0)
    if not retention_seconds or not offset.is_real:
        return
    committed = oldest_after(client, options, offset, _AGE_TIMEOUT_SECONDS)
    age = int(time.time() - committed) if committed is not None else 0
    if age > retention_seconds / 2:
        yield Finding(
            "warning",
            "stored offset",
            f"the changes after it are {_duration(age)} old, and binlogs are retained for "
            f"{_duration(retention_seconds)}",
            "run the capture now, and then more often, or raise binlog_expire_logs_seconds",
        )


def _row_images(binlogs: dict[str, Binlogs]) -> Iterator[Finding]:
    if parts := [shard for shard, b in binlogs.items() if b.row_image not in ("FULL", "")]:
        yield Finding(
            "error",
            "row image",
            f"updates of {', '.join(parts)} don't contain all columns",
            "SET GLOBAL binlog_row_image = FULL on all servers of the shards",
        )
    if partial := [shard for shard, b in binlogs.items() if b.partial_json]:
        yield Finding(
            "error",
            "row image",
            f"updates of JSON columns of {', '.join(partial)} may be partial",
            "SET GLOBAL binlog_row_value_options = '' on all servers of the shards",
        )


def _schema_versions(client: VtgateClient, options: VitessOptions) -> Iterator[Finding]:
    target = _target(options, _first_shard(client, options))
    try:
        rows = client.execute("SELECT COUNT(*) FROM _vt.schema_version", target, _seconds(options)).rows
    except CdcError:
        return  # older releases store it elsewhere
    if rows[0][0] == b"0":
        yield Finding(
            "warning",
            "schema versions",
            "tablets store no schema versions: a stream that is behind an ALTER TABLE may fail for a while, "
            "or until the next one",
            "start vttablets with --track-schema-versions",
        )
    else:
        yield Finding("ok", "schema versions", "tablets store schema versions")


def _stream(client: VtgateClient, options: VitessOptions, offset: Position | None) -> Iterator[Finding]:
    try:
        shards = serving_shards(client, options)
        now = current_position(client, options, shards)
        yield Finding("ok", "stream", f"opens, and returns the positions of {len(shards)} shards")
        if offset is None:
            return
        require_known(offset, now)
        missing = sorted(set(offset.shards) - set(now.shards))
        if missing:
            yield Finding(
                "warning",
                "stored offset",
                f"shards of it are no longer read: {', '.join(missing)}",
                "a capture that didn't run during a reshard that is now complete needs a new snapshot",
            )
            return
        behind = sum(
            current.set.count - offset.shards[shard].set.count
            for shard, current in now.shards.items()
            if shard in offset.shards
        )
        yield Finding(
            "ok", "stored offset", f"the stream can resume; it is {max(behind, 0)} transactions behind"
        )
        if behind > 0:
            yield from _age_of_offset(client, options, offset)
    except PositionLost as error:
        yield _failed("stored offset", error)
    except CdcError as error:
        yield _failed("stream", error)


def _first_shard(client: VtgateClient, options: VitessOptions) -> str:
    return serving_shards(client, options)[0].partition("/")[2]


def _target(options: VitessOptions, shard: str) -> str:
    return f"{options.keyspace}:{shard}@{options.tablet_type.lower()}"


def _seconds(options: VitessOptions) -> float:
    return options.advanced.call_timeout_seconds


def _duration(seconds: int) -> str:
    days, rest = divmod(seconds, 86_400)
    if not days and rest < _MINUTE_SECONDS:
        return f"{rest} s"
    return f"{days} d {rest // 3600} h" if days else f"{rest // 3600} h {rest % 3600 // 60} min"
