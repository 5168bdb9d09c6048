"""One S3 server: moto's, from PyPI, in a process of its own. Everything it holds is in its memory."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any, Self

from server_kit.ports import free_port, require_free
from server_kit.server import Server

REGION = "eu-central-1"
KEY = "test-key"
SECRET = "test-secret"  # noqa: S105  # moto takes any


class S3Server(Server):
    """One server.

    Args:
        folder: For its log. Default: a temporary folder that :meth:`close` removes.
        port: Port for clients.
    """

    def __init__(self, folder: Path | None = None, *, port: int | None = None) -> None:
        super().__init__("S3", folder, host="127.0.0.1", port=port or free_port(), log="log")

    @property
    def endpoint(self) -> str:
        """URL of the server."""
        return f"http://{self.host}:{self.port}"

    def start(self) -> Self:
        """Start the server and wait until it takes connections.

        Raises:
            ConfigurationError: A taken port, or a failed start with the end of its log.
        """
        require_free(self.port, self.host, "S3")
        command = [sys.executable, "-m", "moto.server", "--host", self.host, "--port", str(self.port)]
        self._process.start(command, self.log, {"MOTO_S3_CUSTOM_ENDPOINTS": self.endpoint})
        self._process.wait_until(self._answers, "a connection", 60)
        return self

    def client(self) -> Any:
        """Return a client of boto3."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        )

    def make_bucket(self, name: str) -> None:
        """Make a bucket."""
        self.client().create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((self.host, self.port)) == 0

    def _close_clients(self) -> None:
        """Clients end by themselves."""
