"""The demo's two databases, on the same folders and ports in ``make demo`` and ``make ui``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from demo.layout import Layout
from server_kit import CassandraServer, MongoServer


@contextmanager
def servers(layout: Layout) -> Iterator[tuple[CassandraServer, MongoServer]]:
    """Start both; they end with the context."""
    ports = json.loads(layout.ports.read_text()) if layout.ports.exists() else {}
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
