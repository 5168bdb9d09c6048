"""The tables of the imitation, as CQL: bases, their logs, and the server's own tables that readers query.

ScyllaDB's own tables stand in its system keyspaces. Cassandra lets nobody create tables there, so they get
keyspaces of other names (:class:`SystemKeyspaces`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from server_kit.scylla.tables import Column, Table
from server_kit.scylla.values import CqlType, quoted

META = "cdc$"
BLOB, BOOLEAN = CqlType("blob"), CqlType("boolean")


@dataclass(frozen=True)
class SystemKeyspaces:
    """Names of the keyspaces that replace the server's own ones.

    Args:
        distributed: For ``system_distributed``.
        system: For ``system``.
        schema: For ``system_schema``.
    """

    distributed: str = "scylla_distributed"
    system: str = "scylla_system"
    schema: str = "scylla_schema"


def create_base(table: Table) -> str:
    """Create a base table; the option ``cdc`` is left out, as Cassandra has another one of that name."""
    columns = [*map(_defined(table), (*table.partition, *table.clustering, *table.regular))]
    columns += [f"{_defined(table)(column)} static" for column in table.static_columns]
    key = f"({', '.join(quoted(column.name) for column in table.partition)})"
    key = ", ".join([key, *(quoted(column.name) for column in table.clustering)])
    order = ", ".join(
        f"{quoted(column.name)} {'DESC' if column.name in table.descending else 'ASC'}"
        for column in table.clustering
    )
    ordered = f" WITH CLUSTERING ORDER BY ({order})" if order else ""
    return f"CREATE TABLE {table.cql_name} ({', '.join(columns)}, PRIMARY KEY ({key})){ordered}"


def _defined(table: Table) -> Callable[[Column], str]:
    return lambda column: f"{quoted(column.name)} {column.type.cql(table.keyspace)}"


def log_columns(table: Table) -> list[tuple[str, CqlType]]:
    """Return the names and types of the log's columns (scylla source, cdc/log.cc, ``create_log_schema``)."""
    found = [
        (META + "stream_id", BLOB),
        (META + "time", CqlType("timeuuid")),
        (META + "batch_seq_no", CqlType("int")),
        (META + "operation", CqlType("tinyint")),
        (META + "ttl", CqlType("bigint")),
        (META + "end_of_batch", BOOLEAN),
    ]
    found += [(column.name, column.type) for column in (*table.partition, *table.clustering)]
    for column in (*table.static_columns, *table.regular):
        found += log_columns_of(column)
    return found


def log_columns_of(column: Column) -> list[tuple[str, CqlType]]:
    """Return the log's columns for a column that is in no key.

    A collection that isn't frozen is frozen in the log. A list is a map by the ids of its cells there, and
    the removed elements of a user-defined type are the places of its fields.
    """
    cql_type = column.type
    found = [(column.name, logged_type(cql_type)), (f"{META}deleted_{column.name}", BOOLEAN)]
    if cql_type.multi_cell:
        removed = {"list": CqlType("timeuuid"), "udt": CqlType("smallint")}.get(cql_type.name)
        element = removed or cql_type.parameters[0]
        found.append((f"{META}deleted_elements_{column.name}", CqlType("set", (element,), frozen=True)))
    return found


def logged_type(cql_type: CqlType) -> CqlType:
    """Return the type that a column has in the log."""
    if not cql_type.multi_cell:
        return cql_type
    if cql_type.name == "list":
        return CqlType("map", (CqlType("timeuuid"), cql_type.parameters[0]), frozen=True)
    return cql_type.as_frozen


def create_log(table: Table) -> str:
    """Create the log of a table.

    Of the server's own settings a log here has the compaction by time; its partitioner, by which the token of
    a stream is the first half of its id, Cassandra doesn't have.
    """
    columns = ", ".join(f"{quoted(name)} {kind.cql(table.keyspace)}" for name, kind in log_columns(table))
    key = f'(("{META}stream_id"), "{META}time", "{META}batch_seq_no")'
    settings = [f"comment = 'CDC log for {table.full_name}'"]
    if table.cdc.ttl:
        minutes = max(1, -(-table.cdc.ttl // 24 // 60))
        settings.append("gc_grace_seconds = 0")
        settings.append(
            "compaction = {'class': 'TimeWindowCompactionStrategy', "
            f"'compaction_window_unit': 'MINUTES', 'compaction_window_size': '{minutes}'}}"
        )
    return f"CREATE TABLE {table.log_cql_name} ({columns}, PRIMARY KEY {key}) WITH {' AND '.join(settings)}"


def create_system_tables(names: SystemKeyspaces) -> list[str]:
    """Create the server's own tables that a reader queries.

    Two have the generations with vnodes, two the streams with tablets (there they are virtual tables), the
    others of releases, features, truncations, and options of tables and keyspaces.
    """
    return [
        f"CREATE TABLE IF NOT EXISTS {names.distributed}.cdc_generation_timestamps (key text, "
        "time timestamp, expired timestamp, PRIMARY KEY (key, time)) WITH CLUSTERING ORDER BY (time DESC)",
        f"CREATE TABLE IF NOT EXISTS {names.distributed}.cdc_streams_descriptions_v2 (time timestamp, "
        "range_end bigint, streams frozen<set<blob>>, PRIMARY KEY (time, range_end))",
        f"CREATE TABLE IF NOT EXISTS {names.system}.cdc_timestamps (keyspace_name text, table_name text, "
        '"timestamp" timestamp, PRIMARY KEY ((keyspace_name, table_name), "timestamp")) '
        'WITH CLUSTERING ORDER BY ("timestamp" DESC)',
        f"CREATE TABLE IF NOT EXISTS {names.system}.cdc_streams (keyspace_name text, table_name text, "
        '"timestamp" timestamp, stream_state tinyint, stream_id blob, '
        'PRIMARY KEY ((keyspace_name, table_name), "timestamp", stream_state, stream_id)) '
        'WITH CLUSTERING ORDER BY ("timestamp" DESC, stream_state ASC, stream_id ASC)',
        f"CREATE TABLE IF NOT EXISTS {names.system}.versions (key text PRIMARY KEY, build_id text, "
        "build_mode text, version text)",
        f"CREATE TABLE IF NOT EXISTS {names.system}.local (key text PRIMARY KEY, cluster_name text, "
        "cql_version text, data_center text, host_id uuid, partitioner text, rack text, "
        "release_version text, supported_features text)",
        f"CREATE TABLE IF NOT EXISTS {names.system}.truncated (table_uuid uuid, shard int, position int, "
        "segment_id bigint, truncated_at timestamp static, PRIMARY KEY (table_uuid, shard))",
        f"CREATE TABLE IF NOT EXISTS {names.schema}.scylla_tables (keyspace_name text, table_name text, "
        "cdc map<text, text>, PRIMARY KEY (keyspace_name, table_name))",
        f"CREATE TABLE IF NOT EXISTS {names.schema}.scylla_keyspaces (keyspace_name text PRIMARY KEY, "
        "initial_tablets int)",
    ]


def create_old_descriptions(names: SystemKeyspaces) -> str:
    """Create the table of release 4.3, before ``cdc_streams_descriptions_v2``."""
    return (
        f"CREATE TABLE IF NOT EXISTS {names.distributed}.cdc_streams_descriptions "
        "(time timestamp PRIMARY KEY, streams frozen<set<blob>>, expired timestamp)"
    )
