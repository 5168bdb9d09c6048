"""The schemas of logs: what a log's rows are made of, as a record that decodes them by itself.

A log ``<table>_scylla_cdc_log`` has columns of its own, named ``cdc$...``, and for each column of its base
table one to three. The query reads them all in an order that the record tells: the log's own, the rest of
the log row's TTL, then the others by name.

The record is of kind ``schema``, its payload JSON. That of a table whose log is off tells ``"off": true`` and
explains no change: it tells when capture paused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from airflow_cdc_provider.changes.record import SCHEMA
from airflow_cdc_provider.sources.cql.schema import CqlType, Schemas, TableSchema
from airflow_cdc_provider.sources.cql.types import cql_name, quote_name, to_cql
from airflow_cdc_provider.sources.scylla.log_options import CdcOption
from airflow_cdc_provider.sources.scylla.payload import (
    LOG_ROW_TTL,
    LOG_SUFFIX,
    META_COLUMNS,
    OPERATION,
    STREAM_ID,
    TIME,
    schema_digest,
)

OWN_COLUMNS: Final[tuple[str, ...]] = META_COLUMNS[:-1]
FORMAT: Final = 1


@dataclass(frozen=True)
class LoggedTable:
    """A base table and its log as they are now.

    Args:
        base: The base table.
        columns: Names and CQL types of what is read of the log, in that order.
        option: How it is logged.
        payload: The schema record's.
    """

    base: TableSchema
    columns: tuple[tuple[str, str], ...]
    option: CdcOption
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
        """The query of a stream's rows in a window, from the first time to before the second."""
        asked = [f'TTL("{OPERATION}")' if c == LOG_ROW_TTL else f'"{c}"' for c, _ in self.columns]
        return (
            f"SELECT {', '.join(asked)} FROM {self._log_cql} "
            f'WHERE "{STREAM_ID}" = ? AND "{TIME}" >= ? AND "{TIME}" < ?'
        )

    @property
    def select_all(self) -> str:
        """A query that is prepared to learn which columns the log has."""
        return f'SELECT * FROM {self._log_cql} WHERE "{STREAM_ID}" = ?'

    @property
    def _log_cql(self) -> str:
        return f"{quote_name(self.base.keyspace)}.{quote_name(self.base.name + LOG_SUFFIX)}"


def log_tables(schemas: Schemas, options: Mapping[str, CdcOption]) -> dict[str, LoggedTable]:
    """Return all tables that have a log, whether it is on or off, by name.

    Args:
        schemas: The cluster's.
        options: By table.
    """
    found = {}
    for name, base in schemas.tables.items():
        log = schemas.tables.get(name + LOG_SUFFIX)
        if log is None or base.view:
            continue
        types = {c.name: to_cql(c.type) for c in log.columns}
        others = sorted(set(types) - set(OWN_COLUMNS))
        columns: list[tuple[str, str]] = [(c, types[c]) for c in OWN_COLUMNS if c in types]
        columns += [(LOG_ROW_TTL, "int"), *((c, types[c]) for c in others)]
        option = options.get(name) or CdcOption.untold()
        found[name] = LoggedTable(base, tuple(columns), option, _payload(base, columns, log, option))
    return found


def schema_record(table: str, payload: bytes, read_us: int) -> dict[str, Any]:
    """Make the record of a schema.

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
    """Return how many columns each of some schemas has."""
    return {name: len(json.loads(payload)["columns"]) for name, payload in payloads.items()}


def off_payload(base: TableSchema) -> bytes:
    """Write the payload of the record that a table's log is off."""
    told = {"v": FORMAT, "keyspace": base.keyspace, "table": base.name, "id": base.id, "off": True}
    return json.dumps(told, sort_keys=True).encode()


class LogHistory:
    """What is recorded of the schemas of logs.

    Args:
        records: Records of kind ``schema``, of any order; others are passed over.
    """

    def __init__(self, records: pa.Table | None = None) -> None:
        self.payloads: dict[str, bytes] = {}
        self._seen: dict[str, list[tuple[bytes, str]]] = {}
        self._ids: dict[str, str] = {}
        if records is None:
            return
        columns = [records[name].to_pylist() for name in ("kind", "source_table", "position", "payload")]
        for kind, table, position, payload in zip(*columns, strict=True):
            if kind == SCHEMA:
                name, told = schema_digest(payload), json.loads(payload)
                self._seen.setdefault(table, []).append((position, name))
                self._ids[name] = told["id"]
                if not told.get("off"):
                    self.payloads[name] = payload
        for seen in self._seen.values():
            seen.sort()

    def latest(self, table: str) -> str:
        """Return the schema that was recorded last of a table, empty for none."""
        return self._seen[table][-1][1] if table in self._seen else ""

    def payloads_of(self, table: str) -> dict[str, bytes]:
        """Return the payloads of a table's schemas, by their names."""
        seen = [schema for _, schema in self._seen.get(table, ())]
        return {schema: self.payloads[schema] for schema in seen if schema in self.payloads}

    def captured(self, table: str) -> bool:
        """Tell whether a table's log was ever on."""
        return any(schema in self.payloads for _, schema in self._seen.get(table, ()))

    def switched_us(self, table: str) -> tuple[int, int]:
        """Return since when a table's log is off, and when it was last switched on again; 0 for never."""
        off_us = on_us = 0
        was_on: bool | None = None
        for position, schema in self._seen.get(table, ()):
            is_on = schema in self.payloads
            at_us = int.from_bytes(position[-8:], "big")
            if is_on and was_on is False and self._on_before(table, position):
                on_us = at_us
            if not is_on and was_on:
                off_us = at_us
            was_on = is_on
        return (0 if was_on else off_us), on_us

    def resumed_us(self, table: str) -> int:
        """Return since when rows may be there that no log row told of, µs; 0 if there are none.

        Either the log was off and is on again, or the table was made anew: whether it had a log from its
        first write on can't be known.
        """
        made_anew = 0
        known = ""
        for position, schema in self._seen.get(table, ()):
            if known not in ("", self._ids[schema]):
                made_anew = int.from_bytes(position[-8:], "big")
            known = self._ids[schema]
        return max(made_anew, self.switched_us(table)[1])

    def findings(self, tables: Iterable[str], logs: Mapping[str, LoggedTable]) -> Iterator[str]:
        """Tell of tables whose log is off, or gone.

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
            since = f", which was seen at {moment:%Y-%m-%d %H:%M:%S} UTC" if off_us else ""
            state = "is switched off" if log_table is not None else "is gone"
            yield (
                f"the log of {table} {state}{since}: its mirror follows no longer. "
                f"ALTER TABLE {cql_name(table)} WITH cdc = {{'enabled': true}}, which takes a new snapshot, "
                "or exclude the table"
            )

    def _on_before(self, table: str, position: bytes) -> bool:
        return any(s in self.payloads for p, s in self._seen[table] if p < position)

    def news(
        self, tables: Iterable[LoggedTable], without_log: Iterable[TableSchema], read_us: int
    ) -> Iterator[dict[str, Any]]:
        """Make records of what tables are now and weren't when they were recorded last.

        Args:
            tables: Those that have a log, which may be off.
            without_log: Those that have none; of interest if they once had.
            read_us: When that was read, us since 1970.
        """
        payloads = {
            table.name: table.payload if table.option.enabled else off_payload(table.base) for table in tables
        }
        payloads |= {table.full_name: off_payload(table) for table in without_log}
        for name, payload in payloads.items():
            off = json.loads(payload).get("off", False)
            if schema_digest(payload) != self.latest(name) and (not off or self.captured(name)):
                yield schema_record(name, payload, read_us)


def _payload(
    base: TableSchema, columns: Iterable[tuple[str, str]], log: TableSchema, option: CdcOption
) -> bytes:
    udts: dict[str, list[list[str]]] = {}
    for column in (*base.columns, *log.columns):
        _collect(column.type, udts)
    told = {
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
    return json.dumps(told, sort_keys=True).encode()


def _collect(cql_type: CqlType, udts: dict[str, list[list[str]]]) -> None:
    """Add the user-defined types that a type needs."""
    for inside in cql_type.parameters:
        _collect(inside, udts)
    if cql_type.name == "udt":
        fields = zip(cql_type.fields, map(to_cql, cql_type.parameters), strict=True)
        udts[cql_type.udt.partition(".")[2]] = [list(field) for field in fields]
