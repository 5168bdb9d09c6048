"""Tables of an imitated ScyllaDB, and the rows of their logs."""

from __future__ import annotations

import struct
import uuid
from collections import Counter
from typing import Any

from server_kit.scylla import (
    PAIR,
    CdcOptions,
    Column,
    CqlType,
    ImitatedScylla,
    LoggedChange,
    Table,
)
from server_kit.scylla.statements import Insert
from tests.integration.sources.scylla.captured import LogRow
from tests.oracles.raw_rows import raw_rows

NUMBER = CqlType("int")


def imitated(session: Any, keyspace: str, **settings: Any) -> ImitatedScylla:
    cluster = ImitatedScylla(session, keyspace, **settings)
    cluster.create(first_generation=False)
    cluster.create_type(PAIR)
    return cluster


def item(keyspace: str, name: str = "item", **cdc: Any) -> Table:
    columns = (Column("sku", NUMBER),)
    return Table(keyspace, name, columns, regular=(Column("qty", NUMBER),), cdc=CdcOptions(**cdc))


def insert(sku: int, qty: int) -> Insert:
    return Insert((struct.pack(">i", sku),), (), {"qty": struct.pack(">i", qty)})


def log_row(change: LoggedChange) -> str:
    """Say in CQL which log row is the first of a change."""
    moment = uuid.UUID(bytes=change.timeuuid)
    return f'"cdc$stream_id" = 0x{change.stream.hex()} AND "cdc$time" = {moment} AND "cdc$batch_seq_no" = 0'


def logged_rows(session: Any, cluster: ImitatedScylla) -> Counter[LogRow]:
    """Read all log rows there are, as :attr:`Captured.log_rows` has them."""
    return Counter(
        (base.table.full_name, frozenset((name, value) for name, value in row.items() if value is not None))
        for base in cluster.tables.values()
        for row in raw_rows(session, f"SELECT * FROM {cluster.keyspace}.{base.table.log_name}")
    )
