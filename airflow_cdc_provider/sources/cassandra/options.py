"""Options of a Cassandra source. Light: read by DAG files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from airflow_cdc_provider.options import option
from airflow_cdc_provider.sources.plugin import SourceOptions


@dataclass(frozen=True)
class CassandraAdvanced:
    """Options that few users need."""

    rules: Literal["4.0", "3.11"] = option(
        "Tie rules of the read path: those of Cassandra 4.0 and later, or of 3.11", "4.0"
    )
    strict: bool = option("Fail on the first corrupt or undecodable entry instead of quarantining it", False)
    latest_segment_only: bool = option(
        "Read only each node's newest segment: for `airflow cdc events`; jobs reject it",
        False,
    )
    request_timeout_seconds: float = option("Timeout of one request to the cluster", 30.0, minimum=0.1)
    ranges_per_snapshot: int = option(
        "Minimum number of token ranges that a table's snapshot is split into", 16, minimum=1
    )
    fetch_size: int = option("Rows per page of a snapshot read", 5000, minimum=1)
    beyond_index: bool = option(
        "Read growing segments past their index's durable position: lower latency, but changes that a crash "
        "of the node revokes stay captured",
        False,
    )
    trust_zero_checksum: bool = option(
        "Accept sync markers whose checksum the node hadn't written yet, in segments that are neither "
        "compressed nor encrypted; as cassandra.commitlog.allow_ignore_sync_crc",
        False,
    )
    timestamps: Literal["timestamp", "milliseconds"] = option(
        "Type of CQL timestamps in mirrors: the lake's timestamp, or int64 milliseconds, which can also hold "
        "values beyond the year 294247",
        "timestamp",
    )


@dataclass(frozen=True)
class CassandraEncryption:
    """The keystore of encrypted commit logs, from ``transparent_data_encryption_options``."""

    keystore: str = option("JCEKS file with the keys, readable by jobs and the CLI; empty for none", "")
    keystore_password: str = option(
        "The keystore's password, preferably as ${env:NAME} or ${file:PATH}; default: keystore_password of "
        "the connection's extra",
        "",
        secret=True,
    )
    key_password: str = option(
        "The keys' password, likewise; default: key_password of the connection's extra, else the keystore's",
        "",
        secret=True,
    )
    key_alias: str = option(
        "Key for segments whose key alias is missing from the keystore; each segment names its key", ""
    )


@dataclass(frozen=True)
class CassandraOptions(SourceOptions):
    """Location of the segments, and access to the cluster."""

    conn_id: str = option("Airflow connection of the cluster; not needed offline", "")
    cdc_raw: str = option(
        "Folder with one folder of segments per node, named by host id; or with one node's segments",
        "",
    )
    node: str = option("Host id of the node whose segments lie directly in cdc_raw", "")
    schema_file: str = option(
        "CQL file with the schema, from DESCRIBE ... WITH INTERNALS, for offline use", ""
    )
    driver_config_file: str = option(
        "application.conf of the DataStax Java driver with settings of the connection, readable by jobs; "
        "driver_config_file of the connection's extra takes precedence",
        "",
    )
    encryption: CassandraEncryption = option("Keystore of encrypted commit logs", CassandraEncryption)
    cluster: str = option(
        "Name of the cluster in events; default: cluster_name of the node's cassandra.yaml", ""
    )
    consistency: str = option(
        "Consistency level of snapshots and re-reads. ALL reads every replica's data, and fails while one "
        "is down; a lower level continues, and may miss data that only that replica has",
        "ALL",
    )
    advanced: CassandraAdvanced = option("Options that few users need", CassandraAdvanced)

    @property
    def strict(self) -> bool:
        """Whether a record that can't be decoded fails the job instead of being quarantined."""
        return self.advanced.strict
