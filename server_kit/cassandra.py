"""One real Cassandra node from Maven's jars, with change data capture on: 5.0 by default.

Example::

    with CassandraServer() as server:
        session = server.connect()
        create_keyspace(session, "k")
        session.execute("CREATE TABLE k.t (a int PRIMARY KEY) WITH cdc = true")
        session.execute("INSERT INTO k.t (a) VALUES (1)")
        server.roll_segment(session)        # now the segment in server.cdc_raw is complete

A second node joins the first with ``CassandraServer(address="127.0.0.2", seed=server)``.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import yaml

from server_kit.cache import require_space
from server_kit.cassandra_releases import java_flags, native_protocol, ready_words, yaml_settings
from server_kit.jars import CASSANDRA_VERSION, cassandra_jars
from server_kit.ports import free_port, require_free
from server_kit.programs import find_java, run_program
from server_kit.server import Server, memory_disk

if TYPE_CHECKING:
    from cassandra.cluster import Cluster, Session
    from cassandra.metadata import TableMetadata

_LOGBACK_FILE = """<configuration><appender name="F" class="ch.qos.logback.core.FileAppender">
<file>{log}</file><encoder><pattern>%-5level %date{{ISO8601}} %F:%L - %msg%n</pattern></encoder></appender>
<root level="INFO"><appender-ref ref="F"/></root></configuration>
"""
_LOGBACK_CONSOLE = """<configuration><appender name="C" class="ch.qos.logback.core.ConsoleAppender">
<target>System.err</target><encoder><pattern>%-5level %msg%n</pattern></encoder></appender>
<root level="WARN"><appender-ref ref="C"/></root></configuration>
"""
_NEEDED_BYTES = 512 << 20
_RING_DELAY_MS = {False: 1000, True: 5000}
"""By whether a node joins another one: it then gives up asking the other after twice that time, which a busy
machine needs."""
_REPLICATION = "{'class': 'SimpleStrategy', 'replication_factor': 1}"


def table_definition(session: Session, table: str) -> TableMetadata:
    """Read the definition of ``keyspace.table`` from the server."""
    keyspace, _, name = table.partition(".")
    session.cluster.refresh_keyspace_metadata(keyspace)
    session.cluster.refresh_table_metadata(keyspace, name)
    return session.cluster.metadata.keyspaces[keyspace].tables[name]


def create_keyspace(session: Session, name: str) -> None:
    """Create a keyspace with one replica, unless it is there."""
    session.execute(f"CREATE KEYSPACE IF NOT EXISTS {name} WITH replication = {_REPLICATION}")


class CassandraServer(Server):
    """One node. Settings that a restart must keep are arguments; all ports are free ones unless given.

    Args:
        folder: Where the node keeps everything. Default: a temporary folder that :meth:`close` removes. In a
            folder that was used before the node starts with its data.
        address: Address to listen on, any ``127.x.y.z``.
        seed: A running node to join; the two share the storage port, so they need different addresses.
        version: Release of Cassandra.
        java: Program to run it with; default: the one that 5.0 runs on. 4.0 and 4.1 need Java 11, 3.11 needs
            Java 8.
        storage_compatibility_mode: ``CASSANDRA_4`` writes commit log version 7, ``NONE`` version 8.
        commitlog_segment_size_mib: Size of a segment; the largest mutation is half of it.
        cdc_total_space_mib: Writes to CDC tables fail when cdc_raw holds more.
        commitlog_compression: A compressor's class name, for example ``LZ4Compressor``, or empty.
        keystore: A JCEKS file; the commit log is encrypted with its key ``cdc:1``. Both passwords are
            ``cassandra``.
        native_port: Port for CQL clients.
        storage_port: Port between nodes.
        jmx_port: Port for nodetool.
        heap_mib: Java heap; the process takes some 350 MiB more.
        settings: Further lines of cassandra.yaml, which win over all of the above.
        properties: Further system properties, by name.
        start_timeout_seconds: How long a start may take.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        address: str = "127.0.0.1",
        seed: CassandraServer | None = None,
        version: str = CASSANDRA_VERSION,
        java: str = "",
        storage_compatibility_mode: str = "CASSANDRA_4",
        commitlog_segment_size_mib: int = 1,
        cdc_total_space_mib: int = 512,
        commitlog_compression: str = "",
        keystore: Path | None = None,
        native_port: int | None = None,
        storage_port: int | None = None,
        jmx_port: int | None = None,
        heap_mib: int = 512,
        settings: Mapping[str, Any] | None = None,
        properties: Mapping[str, str] | None = None,
        start_timeout_seconds: float = 180,
    ) -> None:
        port = native_port or free_port(address)
        super().__init__(
            "Cassandra", folder, host=address, port=port, log="log/system.log", parent=memory_disk()
        )
        self.storage_port: int = storage_port or (seed.storage_port if seed else free_port(address))
        self.jmx_port = jmx_port or free_port()
        self.heap_mib = heap_mib
        self.start_timeout_seconds = start_timeout_seconds
        self.version = version
        self._java = java
        self._joins = seed is not None
        self._properties = dict(properties or {})
        settings_of_5 = {
            "cluster_name": "server_kit",
            "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
            "endpoint_snitch": "SimpleSnitch",
            "num_tokens": 1,
            "seed_provider": [
                {
                    "class_name": "org.apache.cassandra.locator.SimpleSeedProvider",
                    "parameters": [{"seeds": f"{seed.host if seed else address}:{self.storage_port}"}],
                }
            ],
            "listen_address": address,
            "rpc_address": address,
            "native_transport_port": self.port,
            "storage_port": self.storage_port,
            "storage_compatibility_mode": storage_compatibility_mode,
            "cdc_enabled": True,
            "cdc_total_space": f"{cdc_total_space_mib}MiB",
            "cdc_free_space_check_interval": "50ms",
            "commitlog_sync": "periodic",
            "commitlog_sync_period": "100ms",
            "commitlog_segment_size": f"{commitlog_segment_size_mib}MiB",
            "commitlog_disk_access_mode": "legacy",
            "auto_snapshot": False,
            "materialized_views_enabled": True,
            **(
                {"commitlog_compression": [{"class_name": commitlog_compression}]}
                if commitlog_compression
                else {}
            ),
            **(_encrypting(keystore.absolute()) if keystore else {}),
        }
        self.settings = {**yaml_settings(version, settings_of_5), **(settings or {})}
        self._clusters: list[Cluster] = []
        self._host_id = ""

    @property
    def cdc_raw(self) -> Path:
        """Folder of the segments for capture."""
        return self.folder / "cdc_raw"

    @property
    def yaml(self) -> Path:
        """The node's cassandra.yaml."""
        return self.folder / "conf" / "cassandra.yaml"

    @property
    def host_id(self) -> str:
        """The node's host id, as text. Needs a running node the first time."""
        if not self._host_id:
            row = self.connect().execute("SELECT host_id FROM system.local").one()
            self._host_id = str(row.host_id)
        return self._host_id

    def start(self) -> Self:
        """Start the node and wait until it serves clients.

        Raises:
            ConfigurationError: No Java, a taken port, a full disk, or a failed start with the end of its log.
        """
        java = self._java or find_java()
        jars = cassandra_jars(self.version)
        for part in ("conf", "log", "tmp"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        require_space(self.folder, _NEEDED_BYTES, "Cassandra")
        for port, host in (
            (self.port, self.host),
            (self.storage_port, self.host),
            (self.jmx_port, "127.0.0.1"),
        ):
            require_free(port, host, "Cassandra")
        self.yaml.write_text(yaml.safe_dump(self.settings, sort_keys=False))
        logback = self.folder / "conf" / "logback.xml"
        logback.write_text(_LOGBACK_FILE.format(log=self.log))
        seen = self.log.stat().st_size if self.log.exists() else 0
        self._process.start(
            [
                java,
                *java_flags(self.version),
                f"-javaagent:{next(jars.glob('jamm-*.jar'))}",
                f"-Xms{self.heap_mib}m",
                f"-Xmx{self.heap_mib}m",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                f"-Djava.io.tmpdir={self.folder / 'tmp'}",
                f"-Dcassandra.config=file://{self.yaml}",
                f"-Dcassandra.storagedir={self.folder}",
                f"-Dcassandra.logdir={self.log.parent}",
                f"-Dlogback.configurationFile={logback}",
                "-Dcassandra-foreground=yes",
                f"-Dcassandra.jmx.local.port={self.jmx_port}",
                f"-Dcassandra.ring_delay_ms={_RING_DELAY_MS[self._joins]}",
                "-Dcassandra.skip_wait_for_gossip_to_settle=0",
                "-Dcassandra.superuser_setup_delay_ms=0",
                "-Dcassandra.size_recorder_interval=0",
                # By default a thread reads the clock each 2 ms, which takes 1.5 % of a core.
                "-Dcassandra.approximate_time_precision_ms=50",
                *(f"-D{name}={value}" for name, value in self._properties.items()),
                "-cp",
                f"{logback.parent}:{jars}/*",
                "org.apache.cassandra.service.CassandraDaemon",
            ],
            self.folder / "log" / "stdout.log",
        )
        self._process.wait_until(
            lambda: self._logged(ready_words(self.version), seen),
            f"'{ready_words(self.version)}' in its log",
            self.start_timeout_seconds,
        )
        return self

    def stop(self, *, drain: bool = False) -> None:
        """End the node in order.

        Args:
            drain: Flush all tables first, as operators do; it costs 3 s.
        """
        if drain and self.running:
            self.nodetool("drain")
        super().stop()

    def connect(self, keyspace: str | None = None) -> Session:
        """Return a new driver session that talks to this node only; it is closed when the node stops.

        It doesn't follow the schema, whose tables the driver would read after each change;
        :func:`table_definition` reads one.
        """
        from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
        from cassandra.policies import WhiteListRoundRobinPolicy

        cluster = Cluster(
            [self.host],
            port=self.port,
            connect_timeout=30,
            control_connection_timeout=30,
            execution_profiles={
                EXEC_PROFILE_DEFAULT: ExecutionProfile(
                    load_balancing_policy=WhiteListRoundRobinPolicy([self.host]), request_timeout=60
                )
            },
            protocol_version=native_protocol(self.version),
            schema_metadata_enabled=False,
            token_metadata_enabled=False,
        )
        self._clusters.append(cluster)
        return cluster.connect(keyspace)

    def nodetool(self, *arguments: str) -> str:
        """Run nodetool, for example ``nodetool("flush", "shop")``, and return what it prints (2 to 3 s).

        Raises:
            ConfigurationError: nodetool failed; the message has its output.
        """
        logback = self.folder / "nodetool" / "logback.xml"
        logback.parent.mkdir(exist_ok=True)
        logback.write_text(_LOGBACK_CONSOLE)
        command: Sequence[str] = [
            self._java or find_java(),
            *java_flags(self.version),
            "-Xmx64m",
            f"-Dlogback.configurationFile={logback}",
            "-cp",
            f"{logback.parent}:{self.yaml.parent}:{cassandra_jars(self.version)}/*",
            "org.apache.cassandra.tools.NodeTool",
            "-h",
            "127.0.0.1",
            "-p",
            str(self.jmx_port),
            *arguments,
        ]
        return run_program(command, f"nodetool {' '.join(arguments)}", timeout_seconds=120)

    def roll_segment(self, session: Session, timeout_seconds: float = 30) -> None:
        """Complete the segments with all writes so far, by creating and dropping a scratch table.

        Dropping a table makes the node close its open segment; ``nodetool flush`` alone does not.

        Args:
            session: A session on this node.
            timeout_seconds: How long the index files may take to say COMPLETED.

        Raises:
            TimeoutError: They did not.
        """
        open_before = self.open_segments()
        create_keyspace(session, "server_kit")
        session.execute("CREATE TABLE IF NOT EXISTS server_kit.scratch (a int PRIMARY KEY)")
        session.execute("DROP TABLE server_kit.scratch")
        deadline = time.monotonic() + timeout_seconds
        while left := set(open_before) & set(self.open_segments()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"segments still open after {timeout_seconds} s: {sorted(left)}")
            time.sleep(0.02)

    def forget_segments(self, session: Session) -> None:
        """Complete open segments, and delete all complete ones from cdc_raw.

        Who reads cdc_raw next finds what is written from now on, and nothing of tables that are gone: the
        node completes a segment when a table is dropped.

        Args:
            session: A session on this node.

        Raises:
            TimeoutError: The node does not complete a segment.
        """
        if self.open_segments():
            self.roll_segment(session)
        still_open = set(self.open_segments())
        for index in self.cdc_raw.glob("*_cdc.idx"):
            if index.name not in still_open:
                index.with_name(f"{index.name.removesuffix('_cdc.idx')}.log").unlink(missing_ok=True)
                index.unlink()

    def ship_segments(self, folder: Path, *, without: Collection[str] = ()) -> None:
        """Copy complete segments that a landing folder doesn't have yet.

        Args:
            folder: The landing folder of this node.
            without: Names of index files whose segments stay.
        """
        for index in sorted(self.cdc_raw.glob("*_cdc.idx")):
            if index.name in {*without, *self.open_segments()} or (folder / index.name).exists():
                continue
            for name in (f"{index.name.removesuffix('_cdc.idx')}.log", index.name):
                shutil.copy(self.cdc_raw / name, folder / name)

    def open_segments(self) -> list[str]:
        """Return the names of index files in cdc_raw that don't say COMPLETED yet."""
        return sorted(
            path.name
            for path in self.cdc_raw.glob("*_cdc.idx")
            if not path.read_text().rstrip().endswith("COMPLETED")
        )

    def _logged(self, text: str, offset: int) -> bool:
        if not self.log.exists():
            return False
        with self.log.open("rb") as file:
            file.seek(offset)
            return text.encode() in file.read()

    def _close_clients(self) -> None:
        for cluster in self._clusters:
            cluster.shutdown()
        self._clusters.clear()


def _encrypting(keystore: Path) -> dict[str, Any]:
    parameters = {
        "keystore": str(keystore),
        "keystore_password": "cassandra",
        "store_type": "JCEKS",
        "key_password": "cassandra",
    }
    provider = "org.apache.cassandra.security.JKSKeyProvider"
    return {
        "transparent_data_encryption_options": {
            "enabled": True,
            "chunk_length_kb": 64,
            "cipher": "AES/CBC/PKCS5Padding",
            "key_alias": "cdc:1",
            "key_provider": [{"class_name": provider, "parameters": [parameters]}],
        }
    }
