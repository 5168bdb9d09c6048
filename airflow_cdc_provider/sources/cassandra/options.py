"""Options of a Cassandra source. Light: read by DAG files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from airflow_cdc_provider.options import option


@dataclass(frozen=True)
class CassandraAdvanced:
    """Options that few users need."""

    rules: Literal["4.0", "3.11"] = option(
        "Tie rules of the read path: those of Cassandra 4.0 and later, or of 3.11", "4.0"
    )
    strict: bool = option("Fail on the first corrupt or undecodable entry instead of setting it apart", False)
    latest_segment_only: bool = option(
        "Read each node's newest segment only: to look at a log with `airflow cdc events`, no job takes it",
        False,
    )
    request_timeout_seconds: float = option(
        "How long to wait for one answer from the cluster", 30.0, minimum=0.1
    )
    ranges_per_snapshot: int = option(
        "Token ranges that a table's snapshot is cut into, at least", 16, minimum=1
    )
    fetch_size: int = option("Rows per page of a snapshot read", 5000, minimum=1)
    beyond_index: bool = option(
        "Read growing segments past what their index calls durable: sooner, but what a crash of the node "
        "takes back stays captured",
        False,
    )
    trust_zero_checksum: bool = option(
        "Go on past a sync marker whose checksum the node had no time to write, in segments that are neither "
        "compressed nor encrypted; as cassandra.commitlog.allow_ignore_sync_crc",
        False,
    )
    timestamps: Literal["timestamp", "milliseconds"] = option(
        "How mirrors show CQL timestamps: as the lake's own type, or as int64 milliseconds, which alone hold "
        "values beyond the year 294247",
        "timestamp",
    )


@dataclass(frozen=True)
class CassandraEncryption:
    """The keystore of encrypted commit logs, as ``transparent_data_encryption_options`` names it."""

    keystore: str = option("JCEKS file with the keys, where jobs and the CLI can read it; empty for none", "")
    keystore_password: str = option(
        "Its password, better as ${env:NAME} or ${file:PATH}; default: keystore_password of the connection's "
        "extra",
        "",
        secret=True,
    )
    key_password: str = option(
        "Password of its keys, likewise; default: key_password of the connection's extra, else the "
        "keystore's",
        "",
        secret=True,
    )
    key_alias: str = option(
        "Key of segments that name one which the keystore doesn't have; each segment names its own", ""
    )


@dataclass(frozen=True)
class CassandraOptions:
    """Where the segments are and how to reach the cluster."""

    conn_id: str = option("Airflow connection of the cluster; not needed offline", "")
    cdc_raw: str = option(
        "Folder that holds one folder per node, named by host id, with its segments; or one node's segments",
        "",
    )
    node: str = option("Host id of the node whose segments lie directly in cdc_raw", "")
    schema_file: str = option(
        "CQL file with the schema, as DESCRIBE ... WITH INTERNALS prints it, for offline use", ""
    )
    driver_config_file: str = option(
        "application.conf of the DataStax Java driver whose settings the connection takes on, where jobs can "
        "read it; driver_config_file of the connection's extra wins",
        "",
    )
    encryption: CassandraEncryption = option("Keystore of encrypted commit logs", CassandraEncryption)
    cluster: str = option("Name of the cluster in events; default: that of the node's cassandra.yaml", "")
    consistency: str = option(
        "Consistency level of snapshots and re-reads. ALL sees whatever any replica has, and fails while one "
        "is down; a lower level goes on, and may miss what only that replica has",
        "ALL",
    )
    advanced: CassandraAdvanced = option("Options that few users need", CassandraAdvanced)
