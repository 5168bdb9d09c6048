"""Rows of the server's own tables: what a reader learns of streams, options and releases."""

from __future__ import annotations

import random
import uuid
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from server_kit.scylla.generations import Generation, StreamSet, difference
from server_kit.scylla.schemas import SystemKeyspaces, create_old_descriptions
from server_kit.scylla.tables import Table

if TYPE_CHECKING:
    from cassandra.cluster import Session

IN_USE, CLOSED, OPENED = range(3)
"""Values of ``stream_state`` (scylla source, docs/dev/system_keyspace.md, ``cdc_streams``)."""


@dataclass(frozen=True)
class SystemTables:
    """Writes them.

    Args:
        session: A session on Cassandra.
        names: Their keyspaces.
    """

    session: Session
    names: SystemKeyspaces

    def empty(self) -> None:
        """Delete all rows, and the table of release 4.3."""
        self.session.execute(f"DROP TABLE IF EXISTS {self.names.distributed}.cdc_streams_descriptions")
        for keyspace in astuple(self.names):
            columns = self.session.execute(
                "SELECT table_name, column_name FROM system_schema.columns WHERE keyspace_name = %s "
                "AND kind = 'partition_key' ALLOW FILTERING",
                (keyspace,),
            )
            keys: dict[str, list[str]] = {}
            for table, column in columns:
                keys.setdefault(table, []).append(column)
            for table, key in keys.items():
                where = " AND ".join(f"{column} = %s" for column in key)
                for row in self.session.execute(f"SELECT DISTINCT {', '.join(key)} FROM {keyspace}.{table}"):
                    self._write(f"DELETE FROM {keyspace}.{table} WHERE {where}", *row)

    def show_server(self, release: str, features: str, chance: random.Random) -> None:
        """Write the release and the features of the only visible node."""
        self._write(
            f"INSERT INTO {self.names.system}.versions (key, version, build_mode) "
            "VALUES ('local', %s, 'release')",
            release,
        )
        self._write(
            f"INSERT INTO {self.names.system}.local (key, cluster_name, cql_version, data_center, host_id, "
            "partitioner, rack, release_version, supported_features) VALUES ('local', 'imitated', '3.3.1', "
            "'datacenter1', %s, 'org.apache.cassandra.dht.Murmur3Partitioner', 'rack1', '3.0.8', %s)",
            uuid.UUID(bytes=chance.randbytes(16), version=4),
            features,
        )

    def show_keyspace(self, keyspace: str, tablets: int) -> None:
        """Write whether a keyspace has tablets: then their initial number isn't null."""
        self._write(
            f"INSERT INTO {self.names.schema}.scylla_keyspaces (keyspace_name, initial_tablets) "
            "VALUES (%s, %s)",
            keyspace,
            tablets or None,
        )

    def show_options(self, table: Table) -> None:
        """Write the option ``cdc`` of a table."""
        self._write(
            f"INSERT INTO {self.names.schema}.scylla_tables (keyspace_name, table_name, cdc) "
            "VALUES (%s, %s, %s)",
            table.keyspace,
            table.name,
            table.cdc.as_map(),
        )

    def forget_table(self, keyspace: str, table: str) -> None:
        """Remove the rows of a dropped table."""
        where = "WHERE keyspace_name = %s AND table_name = %s"
        self._write(f"DELETE FROM {self.names.schema}.scylla_tables {where}", keyspace, table)
        for name in ("cdc_timestamps", "cdc_streams"):
            self._write(f"DELETE FROM {self.names.system}.{name} {where}", keyspace, table)

    def show_truncation(self, table_id: uuid.UUID, time_ms: int) -> None:
        """Write when a table was truncated, as each node does (``save_truncation_record``)."""
        self._write(
            f"INSERT INTO {self.names.system}.truncated (table_uuid, shard, position, segment_id, "
            "truncated_at) VALUES (%s, 0, 0, 0, %s)",
            table_id,
            _moment(time_ms),
        )

    def describe(self, generation: Generation) -> None:
        """Write the streams of a generation; who looks for generations doesn't see it yet."""
        for vnode in generation.vnodes:
            self._write(
                f"INSERT INTO {self.names.distributed}.cdc_streams_descriptions_v2 "
                "(time, range_end, streams) VALUES (%s, %s, %s)",
                _moment(generation.time_ms),
                vnode.end,
                set(vnode.streams),
            )

    def announce(self, generation: Generation) -> None:
        """Let readers see a generation. Its description must be whole by then."""
        self._write(
            f"INSERT INTO {self.names.distributed}.cdc_generation_timestamps (key, time) VALUES (%s, %s)",
            "timestamps",
            _moment(generation.time_ms),
        )

    def describe_as_of_4_3(self, generations: list[Generation]) -> None:
        """Describe generations in the table of release 4.3 alone."""
        self.session.execute(create_old_descriptions(self.names))
        for generation in generations:
            self._write(
                f"INSERT INTO {self.names.distributed}.cdc_streams_descriptions (time, streams) "
                "VALUES (%s, %s)",
                _moment(generation.time_ms),
                set(generation.streams),
            )
        for name in ("cdc_generation_timestamps", "cdc_streams_descriptions_v2"):
            self.session.execute(f"DROP TABLE {self.names.distributed}.{name}")

    def show_streams(self, table: Table, before: StreamSet | None, streams: StreamSet) -> None:
        """Write the streams of a table with tablets from a time on, and their differences."""
        closed, opened = difference(before, streams) if before else ([], [])
        for state, ids in ((IN_USE, streams.streams), (CLOSED, closed), (OPENED, opened)):
            for stream in ids:
                self._write(
                    f"INSERT INTO {self.names.system}.cdc_streams (keyspace_name, table_name, "
                    '"timestamp", stream_state, stream_id) VALUES (%s, %s, %s, %s, %s)',
                    table.keyspace,
                    table.name,
                    _moment(streams.time_ms),
                    state,
                    stream,
                )
        self._write(
            f"INSERT INTO {self.names.system}.cdc_timestamps (keyspace_name, table_name, "
            '"timestamp") VALUES (%s, %s, %s)',
            table.keyspace,
            table.name,
            _moment(streams.time_ms),
        )

    def _write(self, text: str, *values: Any) -> None:
        self.session.execute(text, values)


def _moment(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC)
