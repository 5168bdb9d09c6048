"""The demo's two databases, on the same folders and ports in ``make demo`` and ``make ui``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_cdc_provider.exceptions import ConfigurationError
from demo.layout import Layout
from server_kit import CassandraServer, MongoServer
from server_kit.ports import is_free


@contextmanager
def servers(layout: Layout) -> Iterator[tuple[CassandraServer, MongoServer]]:
    """Start both; they end with the context."""
    ports = _ports(layout)
    cassandra = CassandraServer(
        layout.cassandra,
        native_port=ports.get("native"),
        storage_port=ports.get("storage"),
        jmx_port=ports.get("jmx"),
        commitlog_segment_size_mib=4,
    )
    mongodb = MongoServer(layout.mongodb, port=ports.get("mongodb"))
    layout.ports.parent.mkdir(parents=True, exist_ok=True)
    layout.ports.write_text(
        json.dumps(
            {
                "native": cassandra.port,
                "storage": cassandra.storage_port,
                "jmx": cassandra.jmx_port,
                "mongodb": mongodb.port,
            }
        )
    )
    with cassandra, mongodb:
        yield cassandra, mongodb


def clear(layout: Layout) -> None:
    """Remove what an earlier demo left.

    Raises:
        ConfigurationError: The folder holds something else, or is in use.
    """
    if not layout.folder.exists():
        return
    if any(layout.folder.iterdir()) and not layout.ports.exists():
        raise ConfigurationError(
            f"{layout.folder} holds what no demo made",
            expected="a folder that is new, empty or an earlier demo's",
            remedy="set CDC_DEMO to another folder",
        )
    require_ended(layout)
    shutil.rmtree(layout.folder)


def require_ended(layout: Layout) -> None:
    """Refuse to go on while the databases of an earlier demo run.

    Raises:
        ConfigurationError: Their ports are in use.
    """
    taken = [port for port in _ports(layout).values() if not is_free(port)]
    if taken:
        raise ConfigurationError(
            f"an earlier demo in {layout.folder} still runs",
            found=f"port {', '.join(map(str, taken))} in use",
            remedy="end its make demo or make ui, or set CDC_DEMO to another folder",
        )


def _ports(layout: Layout) -> dict[str, int]:
    return dict(json.loads(layout.ports.read_text())) if layout.ports.exists() else {}
