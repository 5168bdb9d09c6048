"""A keyspace for an imitation of ScyllaDB on the shared Cassandra node."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from server_kit.scylla import SystemKeyspaces, remove_cluster


def imitated_keyspace(session: Any) -> Iterator[str]:
    """Yield the name of a keyspace that doesn't exist, and remove the cluster that has it then."""
    name = f"k{random.randrange(10**9)}"
    yield name
    remove_cluster(session, name, SystemKeyspaces())
