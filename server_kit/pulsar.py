"""One real Pulsar in one process, from Maven's jars: broker, its storage (a bookie) and its metadata.

Readers of topics are Java's (:meth:`PulsarServer.read`): the client that DataStax's users have, and the one
that decodes KeyValue schemas.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from server_kit.cache import require_space
from server_kit.jars import pulsar_jars
from server_kit.ports import free_port, require_free
from server_kit.programs import find_java, run_program
from server_kit.server import Server

_NEEDED_BYTES = 512 << 20
_LOG4J = """appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %c{1} %m%n
rootLogger.level=WARN
rootLogger.appenderRef.out.ref=out
"""
_OPENED = (
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.platform",
    "java.base/java.lang",
    "java.base/java.nio",
    "java.base/java.util.zip",
    "java.base/sun.net",
    "java.base/sun.nio.ch",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)
_READER = Path(__file__).with_name("PulsarReader.java")


class PulsarServer(Server):
    """One Pulsar. All ports are free ones unless given.

    Args:
        folder: Where it keeps everything. Default: a temporary folder that :meth:`close` removes. In a folder
            that was used before it starts with its data.
        deduplication: Whether the broker drops what a producer sends a second time.
        settings: Further lines of standalone.conf, which win over all others.
        heap_mib: Java heap; as much again outside of it.
        start_timeout_seconds: How long a start may take.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        deduplication: bool = True,
        settings: Mapping[str, object] | None = None,
        heap_mib: int = 256,
        start_timeout_seconds: float = 120,
    ) -> None:
        super().__init__("Pulsar", folder, host="127.0.0.1", port=free_port(), log="broker.log")
        self.web_port = free_port()
        self.bookie_port = free_port()
        self.deduplication = deduplication
        self.heap_mib = heap_mib
        self.start_timeout_seconds = start_timeout_seconds
        self._settings = dict(settings or {})

    @property
    def service_url(self) -> str:
        """Where clients connect."""
        return f"pulsar://{self.host}:{self.port}"

    def start(self) -> Self:
        """Start it and wait until its namespace is there.

        Raises:
            ConfigurationError: No Java, a taken port, a full disk, or a failed start with the end of its log.
        """
        java = find_java()
        jars = pulsar_jars()
        self.folder.mkdir(parents=True, exist_ok=True)
        require_space(self.folder, _NEEDED_BYTES, "Pulsar")
        for port in (self.port, self.web_port, self.bookie_port):
            require_free(port, self.host, "Pulsar")
        conf = self.folder / "standalone.conf"
        conf.write_text("".join(f"{name}={value}\n" for name, value in self._properties().items()))
        (self.folder / "log4j2.properties").write_text(_LOG4J)
        flags = [
            f"-Xmx{self.heap_mib}m",
            f"-XX:MaxDirectMemorySize={self.heap_mib}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
            "-Dio.netty.tryReflectionSetAccessible=true",
            "-Dbookkeeper.metadata.driver.class=org.apache.pulsar.metadata.bookkeeper.PulsarMetadataBookieDriver",
            "-Dbookkeeper.metadata.client.driver.class="
            "org.apache.pulsar.metadata.bookkeeper.PulsarMetadataClientDriver",
            *(word for package in _OPENED for word in ("--add-opens", f"{package}=ALL-UNNAMED")),
        ]
        options = [
            "--config",
            str(conf),
            "--no-functions-worker",
            "--no-stream-storage",
            "--metadata-dir",
            str(self.folder / "metadata"),
            "--bookkeeper-dir",
            str(self.folder / "bookkeeper"),
            "--bookkeeper-port",
            str(self.bookie_port),
        ]
        starter = "org.apache.pulsar.PulsarStandaloneStarter"
        self._process.start([java, *flags, "-cp", f"{jars}/*", starter, *options], self.log)
        self._process.wait_until(self._answers, "its namespace", self.start_timeout_seconds)
        return self

    def admin(self, path: str, body: object = None, *, method: str = "GET") -> Any:
        """Call the admin API.

        Args:
            path: Behind ``/admin/v2/``.
            body: What is sent as JSON.
            method: ``GET``, ``POST``, ``PUT``, ``DELETE``.

        Returns:
            What its JSON says, None for nothing.
        """
        request = urllib.request.Request(  # its own address
            f"http://{self.host}:{self.web_port}/admin/v2/{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310  # likewise
            text = answer.read()
        return json.loads(text) if text else None

    def read(self, topic: str) -> list[dict[str, Any]]:
        """Return all messages of a topic, as Java's client reads them with ``Schema.AUTO_CONSUME()``.

        Args:
            topic: Its full name.

        Returns:
            Per message ``key`` and ``value`` (fields as texts; null for none), ``encoding`` of the pair,
            ``properties``, ``sequence``, ``producer``, ``text_key`` as a client without schema sees it.
        """
        command = [find_java(), "-XX:TieredStopAtLevel=1", "-cp", f"{pulsar_jars()}/*", str(_READER)]
        output = run_program([*command, self.service_url, topic], "reading a topic of Pulsar")
        return [json.loads(line) for line in output.splitlines() if line.startswith('{"key')]

    def _properties(self) -> dict[str, Any]:
        return {
            "clusterName": "standalone",
            "brokerServicePort": self.port,
            "webServicePort": self.web_port,
            "bindAddress": self.host,
            "advertisedAddress": self.host,
            # Else topics that no reader has come to yet go with their messages when a test is slow.
            "brokerDeleteInactiveTopicsEnabled": "false",
            "brokerDeduplicationEnabled": str(self.deduplication).lower(),
            "managedLedgerDefaultEnsembleSize": 1,
            "managedLedgerDefaultWriteQuorum": 1,
            "managedLedgerDefaultAckQuorum": 1,
            "managedLedgerCacheSizeMB": 16,
            "managedLedgerCacheEvictionIntervalMs": 1000,  # not 10
            "bookkeeperNumberOfChannelsPerBookie": 1,
            "loadBalancerEnabled": "false",
            "functionsWorkerEnabled": "false",
            "dbStorage_writeCacheMaxSizeMb": 16,
            "dbStorage_readAheadCacheMaxSizeMb": 8,
            "dbStorage_rocksDB_blockCacheSize": 8388608,
            "journalMaxSizeMB": 32,
            "journalPreAllocSizeMB": 1,
            "journalSyncData": "false",
            "numIOThreads": 2,
            "numHttpServerThreads": 4,
            "diskUsageThreshold": 0.99,
            "diskUsageWarnThreshold": 0.98,
            **self._settings,
        }

    def _answers(self) -> bool:
        try:
            return "public/default" in self.admin("namespaces/public")
        except (urllib.error.URLError, OSError):
            return False

    def _close_clients(self) -> None:
        """Clients end by themselves."""
