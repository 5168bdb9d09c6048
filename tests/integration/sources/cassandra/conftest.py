"""A keyspace for tables of random shapes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def random_keyspace(cassandra_session: Any) -> Iterator[str]:
    """A keyspace with a type, for tables of random shapes."""
    name = f"k{random.randrange(10**9)}"
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    cassandra_session.execute(f"CREATE KEYSPACE {name} WITH replication = {replication}")
    cassandra_session.execute(f"CREATE TYPE {name}.pair (x int, y text, z frozen<list<int>>)")
    yield name
    cassandra_session.execute(f"DROP KEYSPACE {name}")
