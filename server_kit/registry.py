"""One real schema registry: Apicurio's, which speaks Confluent's REST interface, from Maven Central.

Confluent's own server is not on Maven Central. Apicurio keeps schemas in its memory, checks them (Avro,
Protobuf, JSON Schema) and whether new ones are compatible, where a subject asks for that. Otherwise than
Confluent's it doesn't know ``format=serialized`` of Protobuf schemas, and asks for nothing of a subject that
was given no compatibility level.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

from server_kit.jars import REGISTRY_VERSION, registry_folder
from server_kit.ports import free_port, require_free
from server_kit.programs import find_java
from server_kit.server import Server


class RegistryServer(Server):
    """One registry. Its content is lost when it stops.

    Args:
        folder: For its log. Default: a temporary folder that :meth:`close` removes.
        port: Port for clients.
        heap_mib: Java heap.
        start_timeout_seconds: How long a start may take.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        port: int | None = None,
        heap_mib: int = 256,
        start_timeout_seconds: float = 120,
    ) -> None:
        super().__init__("Registry", folder, host="127.0.0.1", port=port or free_port(), log="registry.log")
        self.heap_mib = heap_mib
        self.start_timeout_seconds = start_timeout_seconds

    @property
    def url(self) -> str:
        """Where Confluent's interface is."""
        return f"http://{self.host}:{self.port}/apis/ccompat/v7"

    def start(self) -> Self:
        """Start the registry and wait until it answers.

        Raises:
            ConfigurationError: No Java, a taken port, or a failed start with the end of its log.
        """
        java = find_java()
        program = registry_folder() / f"apicurio-registry-app-{REGISTRY_VERSION}-runner.jar"
        self.folder.mkdir(parents=True, exist_ok=True)
        require_free(self.port, self.host, "the registry")
        flags = [f"-Xmx{self.heap_mib}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        address = [f"-Dquarkus.http.host={self.host}", f"-Dquarkus.http.port={self.port}"]
        self._process.start([java, *flags, *address, "-jar", str(program)], self.log)
        self._process.wait_until(self._answers, "an answer to a client", self.start_timeout_seconds)
        return self

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=5) as answer:  # noqa: S310  # our own
                return answer.status == 200
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def _close_clients(self) -> None:
        """Clients end by themselves."""
