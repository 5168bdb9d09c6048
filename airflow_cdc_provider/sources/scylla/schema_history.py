"""The schemas of logs, as self-contained records that decode a log's rows.

A log ``<table>_scylla_cdc_log`` has metadata columns, named ``cdc$...``, and one to three columns for each
column of its base table. The query selects them in the order of the record: the metadata columns, the
remaining TTL of the log row, then the others by name.

The record has kind ``schema`` and a JSON payload. For a disabled log the payload has ``"off": true`` and
decodes no change: it records when capture paused.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from airflow_cdc_provider.changes.record import SCHEMA
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.sources.cql.schema import CqlType, Schemas, TableSchema
from airflow_cdc_provider.sources.cql.types import cql_name, quote_name, to_cql
from airflow_cdc_provider.sources.scylla.log_options import CdcOption
from airflow_cdc_provider.sources.scylla.payload import (
    DELETED,
    LOG_ROW_TTL,
    LOG_SUFFIX,
    META_COLUMNS,
    OPERATION,
    STREAM_ID,
    TIME,
    schema_digest,
)

log = logger(__name__)

OWN_COLUMNS: Final[tuple[str, ...]] = META_COLUMNS[:-1]
FORMAT: Final = 1
MOST_RECORDED_BYTES: Final = 8 << 20
"""Recorded schemas of a table: each run's driver reads all of them."""
_RECORD_BYTES: Final = 1_000
"""What a record takes beyond its payload."""
_SECOND_US: Final = 1_000_000


@dataclass(frozen=True)
class LoggedTable:
    """A base table and its log, current schema.

    Args:
        base: The base table.
        columns: Names and CQL types of the selected columns of the log, in that order.
        option: The table's option ``cdc``.
        renamed_us: Rows of changes up to this time may lack values of renamed key columns; 0 for none.
        payload: Payload of the schema record.
    """

    base: TableSchema
    columns: tuple[tuple[str, str], ...]
    option: CdcOption
    renamed_us: int
    payload: bytes

    @property
    def name(self) -> str:
        """``keyspace.table`` of the base."""
        return self.base.full_name

    @property
    def schema_id(self) -> str:
        """The name of this schema."""
        return schema_digest(self.payload)

    @property
    def select(self) -> str:
        """The query of a stream's rows in a window; the second time is exclusive."""
        selected = [f'TTL("{OPERATION}")' if c == LOG_ROW_TTL else quote_name(c) for c, _ in self.columns]
        return (
            f"SELECT {', '.join(selected)} FROM {self._log_cql} "
            f'WHERE "{STREAM_ID}" = ? AND "{TIME}" >= ? AND "{TIME}" < ?'
        )

    @property
    def select_all(self) -> str:
        """A query that is prepared to determine the columns of the log."""
        return f'SELECT * FROM {self._log_cql} WHERE "{STREAM_ID}" = ?'

    @property
    def _log_cql(self) -> str:
        return f"{quote_name(self.base.keyspace)}.{quote_name(self.base.name + LOG_SUFFIX)}"


def log_tables(
    schemas: Schemas, options: Mapping[str, CdcOption], history: LogHistory | None = None
) -> dict[str, LoggedTable]:
    """Return all tables that have a log, enabled or disabled, by name.

    Args:
        schemas: The schemas of the cluster.
        options: The option ``cdc`` of each table.
        history: The recorded schemas; None for none.
    """
    history = history or LogHistory()
    found = {}
    for name, base in schemas.tables.items():
        log = schemas.tables.get(name + LOG_SUFFIX)
        if log is None or base.view:
            continue
        types = {c.name: to_cql(c.type) for c in log.columns}
        others = sorted(set(types) - set(OWN_COLUMNS))
        columns: list[tuple[str, str]] = [(c, types[c]) for c in OWN_COLUMNS if c in types]
        columns += [(LOG_ROW_TTL, "int"), *((c, types[c]) for c in others)]
        option = options.get(name) or CdcOption.unreported()
        recorded = history.last(base)
        renamed_us = _renamed_us(log, recorded)
        payload = _payload(base, columns, log, option, renamed_us)
        if recorded and not option.enabled and _columns(recorded[1]) == _columns(payload):
            payload = recorded[1]  # a disabled log stays as it is if the key columns of its base are renamed
        found[name] = LoggedTable(base, tuple(columns), option, renamed_us, payload)
    return found


def schema_record(table: str, payload: bytes, read_us: int) -> dict[str, Any]:
    """Build the record of a schema.

    Args:
        table: The base table.
        payload: Its payload.
        read_us: When it was read, us since 1970.
    """
    return {
        "source_table": table,
        "kind": SCHEMA,
        "origin": table,
        "position": bytes(32) + read_us.to_bytes(8, "big"),
        "generation": 0,
        "committed_at": read_us,
        "captured_at": datetime.now(UTC),
        "schema_id": schema_digest(payload),
        "payload": payload,
    }


def schema_columns(payloads: Mapping[str, bytes]) -> dict[str, int]:
    """Return the number of columns of each schema."""
    return {name: len(_columns(payload)) for name, payload in payloads.items()}


def off_payload(base: TableSchema) -> bytes:
    """Build the payload of the record of a disabled log."""
    content = {"v": FORMAT, "keyspace": base.keyspace, "table": base.name, "id": base.id, "off": True}
    return json.dumps(content, sort_keys=True).encode()


class LogHistory:
    """The recorded schemas of logs.

    Args:
        records: Records of kind ``schema``, in any order; records of other kinds are skipped.
    """

    def __init__(self, records: pa.Table | None = None) -> None:
        self.payloads: dict[str, bytes] = {}
        self._seen: dict[str, list[tuple[bytes, str]]] = {}
        self._ids: dict[str, str] = {}
        self._bytes: Counter[str] = Counter()
        if records is None:
            return
        columns = [records[name].to_pylist() for name in ("kind", "source_table", "position", "payload")]
        for kind, table, position, payload in zip(*columns, strict=True):
            if kind == SCHEMA:
                name, content = schema_digest(payload), json.loads(payload)
                self._seen.setdefault(table, []).append((position, name))
                self._ids[name] = content["id"]
                self._bytes[table] += len(payload) + _RECORD_BYTES
                if not content.get("off"):
                    self.payloads[name] = payload
        for seen in self._seen.values():
            seen.sort()

    def latest(self, table: str) -> str:
        """Return the name of a table's last recorded schema, empty for none."""
        return self._seen[table][-1][1] if table in self._seen else ""

    def payloads_of(self, table: str) -> dict[str, bytes]:
        """Return the payloads of a table's schemas, by name."""
        seen = [schema for _, schema in self._seen.get(table, ())]
        return {schema: self.payloads[schema] for schema in seen if schema in self.payloads}

    def captured(self, table: str) -> bool:
        """Return whether a table's log was ever enabled."""
        return any(schema in self.payloads for _, schema in self._seen.get(table, ()))

    def switched_us(self, table: str) -> tuple[int, int]:
        """Return when a table's log was disabled, and when it was last re-enabled; 0 for never."""
        off_us = on_us = 0
        was_on: bool | None = None
        for position, schema in self._seen.get(table, ()):
            is_on = schema in self.payloads
            at_us = int.from_bytes(position[-8:], "big")
            if is_on and was_on is False and self._was_enabled_before(table, position):
                on_us = at_us
            if not is_on and was_on:
                off_us = at_us
            was_on = is_on
        return (0 if was_on else off_us), on_us

    def resumed_us(self, table: str) -> int:
        """Return since when rows may exist that the log doesn't contain, µs; 0 if there are none.

        Either the log was disabled and re-enabled, or the table was re-created: it is unknown whether the log
        of a re-created table was enabled before the first write.
        """
        recreated_us = 0
        known = ""
        for position, schema in self._seen.get(table, ()):
            if known not in ("", self._ids[schema]):
                recreated_us = int.from_bytes(position[-8:], "big")
            known = self._ids[schema]
        return max(recreated_us, self.switched_us(table)[1])

    def last(self, base: TableSchema) -> tuple[int, bytes] | None:
        """Return the last record of the enabled log of a table: when it was read, µs, and its payload."""
        for position, schema in reversed(self._seen.get(base.full_name, ())):
            if schema in self.payloads and self._ids[schema] == base.id:
                return int.from_bytes(position[-8:], "big"), self.payloads[schema]
        return None

    def findings(self, tables: Iterable[str], logs: Mapping[str, LoggedTable]) -> Iterator[str]:
        """Report tables whose log is disabled or dropped.

        Args:
            tables: The tables.
            logs: Those that have a log.
        """
        for table in tables:
            log_table = logs.get(table)
            if log_table is not None and log_table.option.enabled:
                continue
            off_us, _ = self.switched_us(table)
            moment = datetime.fromtimestamp(off_us / 1_000_000, UTC)
            since = f", detected at {moment:%Y-%m-%d %H:%M:%S} UTC" if off_us else ""
            state = "is disabled" if log_table is not None else "was dropped"
            yield (
                f"the log of {table} {state}{since}: its mirror is no longer updated. "
                f"ALTER TABLE {cql_name(table)} WITH cdc = {{'enabled': true}}, which triggers a new "
                "snapshot, or exclude the table"
            )

    def _was_enabled_before(self, table: str, position: bytes) -> bool:
        return any(s in self.payloads for p, s in self._seen[table] if p < position)

    def new_records(
        self, tables: Iterable[LoggedTable], without_log: Iterable[TableSchema], read_us: int
    ) -> Iterator[dict[str, Any]]:
        """Yield records of schemas that differ from the last recorded ones.

        Args:
            tables: Tables with a log, enabled or disabled.
            without_log: Tables without a log; recorded if they once had one.
            read_us: When the schemas were read, us since 1970.
        """
        payloads = {
            table.name: table.payload if table.option.enabled else off_payload(table.base) for table in tables
        }
        payloads |= {table.full_name: off_payload(table) for table in without_log}
        for name, payload in payloads.items():
            off = json.loads(payload).get("off", False)
            if self._bytes[name] > MOST_RECORDED_BYTES:
                log.warning(
                    "%s has more than %d MiB of recorded schemas: changes with a new one are quarantined. "
                    "Capture it by a connector with a new name",
                    name,
                    MOST_RECORDED_BYTES >> 20,
                )
            elif schema_digest(payload) != self.latest(name) and (not off or self.captured(name)):
                yield schema_record(name, payload, read_us)


def _renamed_us(log: TableSchema, recorded: tuple[int, bytes] | None) -> int:
    """Return until when rows of a log may lack values of key columns that were renamed, µs; 0 for never.

    A rename drops the column from the log and adds one of the new name, which is null in older rows. Of other
    columns, ``cdc$deleted_`` is dropped at the same time. But the log only has the last drop of a name: if a
    column that got the old name was dropped later, only the last recorded schema shows the rename, since a
    key column of that schema was dropped. After it, any drop may be of another rename.
    """
    drops = {name: column.dropped_at_us for name, column in log.dropped.items()}
    before_us = 0
    if recorded:
        read_us, content = recorded[0], json.loads(recorded[1])
        keys = [*content["partition_key"], *(name for name, _ in content["clustering"])]
        renamed = any(drops.get(name, 0) > read_us for name in keys)
        before_us = int(content.get("renamed_us", 0))
    else:
        own = {name: at_us for name, at_us in drops.items() if not name.startswith(DELETED)}
        renamed = any(at_us - drops.get(DELETED + name, 0) >= _SECOND_US for name, at_us in own.items())
    return max(drops.values()) if renamed else before_us


def _columns(payload: bytes) -> Any:
    return json.loads(payload)["columns"]


def _payload(
    base: TableSchema,
    columns: Iterable[tuple[str, str]],
    log: TableSchema,
    option: CdcOption,
    renamed_us: int,
) -> bytes:
    udts: dict[str, list[list[str]]] = {}
    for column in (*base.columns, *log.columns):
        _collect_udts(column.type, udts)
    content = {
        "v": FORMAT,
        "keyspace": base.keyspace,
        "table": base.name,
        "id": base.id,
        "partition_key": [c.name for c in base.partition_key],
        "clustering": [[c.name, "desc" if c.descending else "asc"] for c in base.clustering],
        "static": [c.name for c in base.static],
        "columns": [list(column) for column in columns],
        "base": {c.name: to_cql(c.type) for c in base.columns},
        "types": udts,
        "log_ttl": option.ttl_seconds,
        "delta": option.delta,
    }
    if renamed_us:
        content["renamed_us"] = renamed_us
    return json.dumps(content, sort_keys=True).encode()


def _collect_udts(cql_type: CqlType, udts: dict[str, list[list[str]]]) -> None:
    """Add the user-defined types that a type refers to."""
    for inside in cql_type.parameters:
        _collect_udts(inside, udts)
    if cql_type.name == "udt":
        fields = zip(cql_type.fields, map(to_cql, cql_type.parameters), strict=True)
        udts[cql_type.udt.partition(".")[2]] = [list(field) for field in fields]
