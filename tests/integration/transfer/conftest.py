"""Places behind a network, the connections to them, and the shipper's configuration."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.transfer.nodes import HOST

if TYPE_CHECKING:
    from server_kit import S3Server, SshServer

Connect = Callable[..., str]
WriteConfig = Callable[..., Path]


@pytest.fixture(scope="session")
def ssh_server() -> Iterator[SshServer]:
    """One OpenSSH server. Use a folder of your own in its ``files``."""
    from server_kit import SshServer

    with SshServer() as server:
        yield server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One S3 server with a bucket ``landing``. Use a prefix of your own."""
    from server_kit import S3Server

    with S3Server() as server:
        server.make_bucket("landing")
        yield server


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Make an Airflow connection for the test: ``connect(conn_type=..., ...)`` returns its id."""

    def make(**values: Any) -> str:
        conn_id = f"c{uuid.uuid4().hex[:8]}"
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(values))
        return conn_id

    return make


@pytest.fixture
def ssh_conn_id(ssh_server: SshServer, connect: Connect) -> str:
    """A connection to the SSH server."""
    return connect(
        conn_type="sftp",
        host=ssh_server.host,
        port=ssh_server.port,
        login=ssh_server.user,
        extra={
            "key_file": str(ssh_server.client_key),
            "no_host_key_check": False,
            "host_key": " ".join((ssh_server.folder / "host_key.pub").read_text().split()[:2]),
        },
    )


@pytest.fixture
def aws_conn_id(s3_server: S3Server, connect: Connect) -> str:
    """A connection to the S3 server."""
    from server_kit.s3 import KEY, REGION, SECRET

    return connect(
        conn_type="aws",
        login=KEY,
        password=SECRET,
        extra={"endpoint_url": s3_server.endpoint, "region_name": REGION},
    )


@pytest.fixture
def ssh_folder(ssh_server: SshServer) -> Path:
    """A folder of the test's own behind the SSH server."""
    folder = ssh_server.files / uuid.uuid4().hex
    folder.mkdir()
    ssh_server.give(folder)
    return folder


@pytest.fixture
def s3_url() -> str:
    """A prefix of the test's own in the S3 server's bucket."""
    return f"s3://landing/{uuid.uuid4().hex}"


@pytest.fixture
def write_config(tmp_path: Path) -> WriteConfig:
    """Write a shipper's configuration: ``write_config(target=..., ssh=..., s3=...)``."""

    def write(*, ssh: str = "", s3: Mapping[str, str] | None = None, **options: Any) -> Path:
        options = {"cdc_raw": tmp_path / "cdc_raw", "host_id": HOST, "interval_seconds": 0.01, **options}
        sections = {"shipper": options, "ssh": {"options": ssh}, "s3": s3 or {}}
        path = tmp_path / "cdc-shipper.ini"
        path.write_text(
            "".join(
                f"[{section}]\n" + "".join(f"{name} = {value}\n" for name, value in values.items())
                for section, values in sections.items()
            )
        )
        return path

    return write


def aws_environment() -> dict[str, str]:
    from server_kit.s3 import KEY, SECRET

    return {**os.environ, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
