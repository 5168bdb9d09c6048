"""Cassandra's system tables as in its log: their ids, and the columns of those that are read.

Their ids are derived from their names, so they are known without any schema (reference §13). The columns are
the union of all versions' columns: an update names the ones that it has.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Final

from airflow_cdc_provider.sources.cql.schema import Column, TableSchema, number_columns, order_columns
from airflow_cdc_provider.sources.cql.types import parse_type

LOCAL_TABLE: Final = "system.local"
"""A node's local state, including truncations."""

SCHEMA_KEYSPACE: Final = "system_schema"
"""The schema's keyspace; every node writes its changes to its own log."""

_NAMES: Final = {
    "system": (
        "IndexInfo available_ranges available_ranges_v2 batches batchlog built_views compaction_history "
        "hints local paxos paxos_repair_history _paxos_repair_state peer_events peer_events_v2 peers "
        "peers_v2 prepared_statements range_xfers repairs schema_aggregates schema_columnfamilies "
        "schema_columns schema_functions schema_keyspaces schema_triggers schema_usertypes "
        "size_estimates sstable_activity sstable_activity_v2 table_estimates top_partitions "
        "transferred_ranges transferred_ranges_v2 view_builds_in_progress views_builds_in_progress "
        "NodeIdInfo local_metadata_log metadata_snapshots"
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
"""Tables of Cassandra 3.0 to 5.0, except those of ``system_schema``."""

_TABLE_OPTIONS: Final = """
    additional_write_policy text; allow_auto_snapshot boolean; bloom_filter_fp_chance double;
    caching frozen<map<text, text>>; cdc boolean; comment text; compaction frozen<map<text, text>>;
    compression frozen<map<text, text>>; crc_check_chance double; dclocal_read_repair_chance double;
    default_time_to_live int; extensions frozen<map<text, blob>>; gc_grace_seconds int; id uuid;
    incremental_backups boolean; max_index_interval int; memtable text; memtable_flush_period_in_ms int;
    min_index_interval int; read_repair text; read_repair_chance double; speculative_retry text;
    automated_repair_full frozen<map<text, text>>; automated_repair_incremental frozen<map<text, text>>
"""

_COLUMNS: Final = {
    LOCAL_TABLE: """
        key text; bootstrapped text; broadcast_address inet; broadcast_port int; cluster_name text;
        cql_version text; data_center text; gossip_generation int; host_id uuid; listen_address inet;
        listen_port int; native_protocol_version text; partitioner text; rack text; release_version text;
        rpc_address inet; rpc_port int; schema_version uuid; thrift_version text; tokens set<text>;
        truncated_at map<uuid, blob>
    """,
    "system_schema.keyspaces": """
        keyspace_name text; durable_writes boolean; fast_path frozen<map<text, text>>;
        replication frozen<map<text, text>>
    """,
    "system_schema.tables": f"""
        keyspace_name text; table_name text; flags frozen<set<text>>; fast_path frozen<map<text, text>>;
        {_TABLE_OPTIONS}
    """,
    "system_schema.views": f"""
        keyspace_name text; view_name text; base_table_id uuid; base_table_name text;
        include_all_columns boolean; where_clause text; {_TABLE_OPTIONS}
    """,
    "system_schema.columns": """
        keyspace_name text; table_name text; column_name text; clustering_order text; column_name_bytes blob;
        kind text; position int; type text
    """,
    "system_schema.column_masks": """
        keyspace_name text; table_name text; column_name text; function_keyspace text; function_name text;
        function_argument_types frozen<list<text>>; function_argument_values frozen<list<text>>;
        function_argument_nulls frozen<list<boolean>>
    """,
    "system_schema.dropped_columns": """
        keyspace_name text; table_name text; column_name text; dropped_time timestamp; kind text; type text
    """,
    "system_schema.triggers": """
        keyspace_name text; table_name text; trigger_name text; options frozen<map<text, text>>
    """,
    "system_schema.indexes": """
        keyspace_name text; table_name text; index_name text; kind text; options frozen<map<text, text>>
    """,
    "system_schema.types": """
        keyspace_name text; type_name text; field_names frozen<list<text>>; field_types frozen<list<text>>
    """,
    "system_schema.functions": """
        keyspace_name text; function_name text; argument_types frozen<list<text>>;
        argument_names frozen<list<text>>; body text; called_on_null_input boolean; language text;
        return_type text; deterministic boolean; monotonic boolean; monotonic_on frozen<list<text>>
    """,
    "system_schema.aggregates": """
        keyspace_name text; aggregate_name text; argument_types frozen<list<text>>; deterministic boolean;
        final_func text; initcond text; return_type text; state_func text; state_type text
    """,
}
"""Columns, those of the primary key first."""

_CLUSTERING_COLUMNS: Final = {
    "columns": 2,
    "column_masks": 2,
    "dropped_columns": 2,
    "triggers": 2,
    "indexes": 2,
    "functions": 2,
    "aggregates": 2,
    "tables": 1,
    "views": 1,
    "types": 1,
}


def system_table_id(keyspace: str, name: str) -> str:
    """Return the id of a system table: the MD5 (version 3) UUID of its names."""
    digest = bytearray(hashlib.md5((keyspace + name).encode(), usedforsecurity=False).digest())
    digest[6] = digest[6] & 0x0F | 0x30
    digest[8] = digest[8] & 0x3F | 0x80
    return digest.hex()


@cache
def system_tables() -> tuple[TableSchema, ...]:
    """List the system tables; only those that are read have columns, with their ids."""
    named = [(keyspace, name) for keyspace, names in _NAMES.items() for name in names.split()]
    named += [(SCHEMA_KEYSPACE, full.partition(".")[2]) for full in _COLUMNS if full != LOCAL_TABLE]
    return tuple(_table(keyspace, name) for keyspace, name in named)


@cache
def system_table(full_name: str) -> TableSchema:
    """Return a system table by ``keyspace.table``."""
    return next(table for table in system_tables() if table.full_name == full_name)


def _table(keyspace: str, name: str) -> TableSchema:
    text = _COLUMNS.get(f"{keyspace}.{name}", "")
    listed = [line.split(None, 1) for line in text.split(";") if line.strip()]
    clustering = _CLUSTERING_COLUMNS.get(name, 0) if keyspace == SCHEMA_KEYSPACE else 0
    columns = []
    for index, (column, kind) in enumerate(listed):
        cql_type = parse_type(" ".join(kind.split()))
        if index == 0:
            columns.append(Column(column, "partition_key", 0, cql_type))
        elif index <= clustering:
            columns.append(Column(column, "clustering", index - 1, cql_type))
        else:
            columns.append(Column(column, "regular", -1, cql_type))
    return number_columns(
        TableSchema(keyspace, name, system_table_id(keyspace, name), order_columns(columns))
    )
