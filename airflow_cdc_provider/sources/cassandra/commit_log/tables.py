"""Which tables updates belong to, and what becomes of them: compiled once, sent to every reader."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from airflow_cdc_provider.sources.cassandra.decoding.programs import Program, compile_tables
from airflow_cdc_provider.sources.cql.schema import TableSchema

SELECTED: Final = 0
"""Its updates become changes."""
UNSELECTED: Final = 1
VIEW: Final = 2
COUNTER: Final = 3
SYSTEM: Final = 4
LOCAL: Final = 5
"""``system.local``, whose mutations tell of truncations."""
ROLES: Final = 6

_SYSTEM_TABLES: Final = {
    "system": (
        "IndexInfo available_ranges available_ranges_v2 batches batchlog built_views compaction_history "
        "hints paxos paxos_repair_history _paxos_repair_state peer_events peer_events_v2 peers peers_v2 "
        "prepared_statements range_xfers repairs schema_aggregates schema_columnfamilies schema_columns "
        "schema_functions schema_keyspaces schema_triggers schema_usertypes size_estimates sstable_activity "
        "sstable_activity_v2 table_estimates top_partitions transferred_ranges transferred_ranges_v2 "
        "view_builds_in_progress views_builds_in_progress NodeIdInfo local_metadata_log metadata_snapshots"
    ),
    "system_schema": (
        "aggregates column_masks columns dropped_columns functions indexes keyspaces tables triggers types "
        "views"
    ),
    "system_auth": (
        "cidr_groups cidr_permissions credentials identity_to_role network_permissions permissions "
        "resource_role_permissons_index role_members role_permissions roles users"
    ),
    "system_distributed": (
        "compression_dictionaries parent_repair_history partition_denylist repair_history view_build_status"
    ),
    "system_traces": "events sessions",
    "system_cluster_metadata": "distributed_metadata_log",
}
"""Tables of Cassandra 3.0 to 5.0 itself, whose ids follow from their names."""


def system_table_id(keyspace: str, name: str) -> str:
    """Return the id of one of Cassandra's own tables: the MD5 (version 3) UUID of its names."""
    digest = bytearray(hashlib.md5((keyspace + name).encode(), usedforsecurity=False).digest())
    digest[6] = digest[6] & 0x0F | 0x30
    digest[8] = digest[8] & 0x3F | 0x80
    return digest.hex()


@dataclass(frozen=True)
class LogTables:
    """Every table that is known, and what becomes of its updates. Picklable and small.

    Args:
        names: ``keyspace.table`` by number.
        ids: Table id by number, 32 hex digits.
        roles: :data:`SELECTED` and the others by number, uint8.
        keyspace_selected: By number, whether any table of its keyspace is selected, uint8: all updates of one
            mutation are of one keyspace, so the others need not be walked.
        program: All tables compiled.
    """

    names: tuple[str, ...]
    ids: tuple[str, ...]
    roles: NDArray[np.uint8]
    keyspace_selected: NDArray[np.uint8]
    program: Program

    @cached_property
    def number_by_id(self) -> dict[str, int]:
        """Number of each table by its id."""
        return {table_id: number for number, table_id in enumerate(self.ids)}


def log_tables(schemas: Iterable[TableSchema], selected: Collection[str]) -> LogTables:
    """Compile what readers must know of tables.

    Args:
        schemas: All tables and views that are known, also those that are not captured: a batch can mix them,
            and its updates can only be told apart by knowing all of them. Several ids of one name (a table
            dropped and made anew) may all be given.
        selected: Names of those to capture. Counter tables never are: their cells are contexts, not values.
    """
    chosen = set(selected)
    known = {schema.id: schema for schema in schemas}
    local = system_table_id("system", "local")
    system = {
        system_table_id(keyspace, name): TableSchema(keyspace, name, system_table_id(keyspace, name), ())
        for keyspace, names in _SYSTEM_TABLES.items()
        for name in names.split()
    }
    system[local] = TableSchema("system", "local", local, ())
    tables = [s for i, s in known.items() if i not in system] + list(system.values())
    roles = [_role(schema, chosen, system, local) for schema in tables]
    keyspaces = {schema.keyspace for schema, role in zip(tables, roles, strict=True) if role == SELECTED}
    return LogTables(
        names=tuple(schema.full_name for schema in tables),
        ids=tuple(schema.id for schema in tables),
        roles=np.array(roles, np.uint8),
        keyspace_selected=np.array([schema.keyspace in keyspaces for schema in tables], np.uint8),
        program=compile_tables(tables),
    )


def _role(schema: TableSchema, selected: set[str], system: Collection[str], local: str) -> int:
    if schema.id == local:
        return LOCAL
    if schema.id in system:
        return SYSTEM
    if schema.counter:
        return COUNTER
    if schema.full_name in selected:
        return SELECTED
    return VIEW if schema.view else UNSELECTED
