"""Map updates to their tables and the tables' roles: compiled once, sent to every reader."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from airflow_cdc_provider.formats.kernels import Bytes
from airflow_cdc_provider.sources.cassandra.commit_log.system_tables import (
    LOCAL_TABLE,
    SCHEMA_KEYSPACE,
    system_table,
    system_tables,
)
from airflow_cdc_provider.sources.cql.decoding.programs import Program, compile_tables
from airflow_cdc_provider.sources.cql.schema import TableSchema

SELECTED: Final = 0
"""Its updates become changes."""
UNSELECTED: Final = 1
VIEW: Final = 2
COUNTER: Final = 3
SYSTEM: Final = 4
LOCAL: Final = 5
"""``system.local``, whose mutations contain truncations."""
SCHEMA: Final = 6
"""Tables of ``system_schema``, whose mutations are the schema changes."""
FORMER: Final = 7
"""Dropped, perhaps re-created under another id; its updates become changes."""
ROLES: Final = 8


@dataclass(frozen=True)
class LogTables:
    """All known tables and their roles. Picklable and small.

    Args:
        names: ``keyspace.table`` by number.
        ids: Table id by number, 32 hex digits.
        roles: :data:`SELECTED` and the others by number, uint8.
        keyspace_selected: By number, whether any table of its keyspace is selected, uint8: all updates of one
            mutation are of one keyspace, so mutations of other keyspaces are not parsed.
        program: All tables compiled.
        skips_unknown: Whether updates of unknown tables are skipped instead of quarantined.
    """

    names: tuple[str, ...]
    ids: tuple[str, ...]
    roles: Bytes
    keyspace_selected: Bytes
    program: Program
    skips_unknown: bool = False

    @cached_property
    def number_by_id(self) -> dict[str, int]:
        """Number of each table by its id."""
        return {table_id: number for number, table_id in enumerate(self.ids)}


def log_tables(
    schemas: Iterable[TableSchema],
    selected: Collection[str],
    former: Iterable[TableSchema] = (),
    captured_former: Collection[str] = (),
    *,
    counters: bool = False,
) -> LogTables:
    """Compile the tables for readers.

    Args:
        schemas: All tables and views that exist, also those that are not captured: a batch can mix them, and
            parsing its updates requires all their schemas.
        selected: Names of the tables to capture.
        former: Dropped tables whose updates may still be in the log, including earlier tables with the names
            of existing ones.
        captured_former: Ids of the former tables whose updates become changes, under their names.
        counters: Whether counter tables can be captured too. Their cells are contexts, not values: an update
            only identifies a partition to read again.

    Returns:
        The compiled tables.
    """
    chosen, chosen_former = set(selected), set(captured_former)
    roles = {table.id: SCHEMA if table.keyspace == SCHEMA_KEYSPACE else SYSTEM for table in system_tables()}
    roles[system_table(LOCAL_TABLE).id] = LOCAL
    tables = {table.id: table for table in system_tables()}
    for schema in former:
        tables.setdefault(schema.id, schema)
        roles.setdefault(
            schema.id, _role(schema, FORMER, captured=not schema.counter and schema.id in chosen_former)
        )
    for schema in schemas:
        if roles.get(schema.id, FORMER) not in (SYSTEM, SCHEMA, LOCAL):
            tables[schema.id] = schema
            captured = schema.full_name in chosen and (counters or not schema.counter)
            roles[schema.id] = _role(schema, SELECTED, captured=captured)
    keyspaces = {t.keyspace for t in tables.values() if roles[t.id] in (SELECTED, FORMER)}
    return LogTables(
        names=tuple(schema.full_name for schema in tables.values()),
        ids=tuple(tables),
        roles=np.array([roles[table_id] for table_id in tables], np.uint8),
        keyspace_selected=np.array([schema.keyspace in keyspaces for schema in tables.values()], np.uint8),
        program=compile_tables(list(tables.values())),
    )


def schema_tables_only() -> LogTables:
    """Compile the tables for a reader that reads only schema changes."""
    return replace(log_tables((), ()), skips_unknown=True)


def _role(schema: TableSchema, role: int, *, captured: bool) -> int:
    if captured:
        return role
    if schema.counter:
        return COUNTER
    return VIEW if schema.view else UNSELECTED
