"""What a base table is: its columns, its order, and how its changes are logged."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from server_kit.scylla.errors import InvalidRequest
from server_kit.scylla.values import CqlType, quoted, sort_key

LOG_SUFFIX = "_scylla_cdc_log"


class Preimage(enum.Enum):
    """Which columns the row before a write is logged with."""

    OFF = "false"
    ON = "true"
    FULL = "full"


class Delta(enum.Enum):
    """What is logged of a write itself.

    ``OFF`` was there in releases of 2020 only: images alone. Servers since refuse the word (scylla source,
    cdc/log.cc, the options' constructor knows ``full`` and ``keys``).
    """

    FULL = "full"
    KEYS = "keys"
    OFF = "off"


@dataclass(frozen=True)
class CdcOptions:
    """The table option ``cdc``; defaults are the server's (scylla docs, CDC log table, parameters).

    Args:
        enabled: Whether writes are logged.
        preimage: Log rows as they were before.
        postimage: Log rows as they are after.
        delta: What is logged of the write.
        ttl: Seconds until log rows expire, 0 for never.
        preimage_of_partition_deletes: In tables without clustering key a delete of a row is one of the
            partition; from 2026.1 on it has a preimage too (scylladb issues 23170 and 28332).
    """

    enabled: bool = True
    preimage: Preimage = Preimage.OFF
    postimage: bool = False
    delta: Delta = Delta.FULL
    ttl: int = 86400
    preimage_of_partition_deletes: bool = False

    def as_map(self) -> dict[str, str]:
        """Return it as ``system_schema.scylla_tables`` shows it."""
        return {
            "enabled": str(self.enabled).lower(),
            "preimage": self.preimage.value,
            "postimage": str(self.postimage).lower(),
            "delta": self.delta.value,
            "ttl": str(self.ttl),
        }


@dataclass(frozen=True)
class Column:
    """A column of a base table."""

    name: str
    type: CqlType


class Descending:
    """Turns the order of what it holds around."""

    __slots__ = ("key",)

    def __init__(self, key: Any) -> None:
        self.key = key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Descending) and self.key == other.key

    def __lt__(self, other: Descending) -> bool:
        return bool(other.key < self.key)

    def __gt__(self, other: Descending) -> bool:
        return bool(other.key > self.key)

    def __le__(self, other: Descending) -> bool:
        return bool(other.key <= self.key)

    def __ge__(self, other: Descending) -> bool:
        return bool(other.key >= self.key)

    def __hash__(self) -> int:
        return hash(self.key)


Position = tuple[tuple[Any, ...], ...]
"""A place in the clustering order of a partition: that of a row, or of a bound between rows."""

BEFORE, AT, AFTER = -1, 0, 1


@dataclass(frozen=True)
class Table:
    """A base table.

    Args:
        keyspace: Its keyspace.
        name: Its name.
        partition: Columns of the partition key.
        clustering: Columns of the clustering key, may be none.
        static_columns: Static columns.
        regular: All others.
        descending: Names of clustering columns in descending order.
        cdc: How its changes are logged.
    """

    keyspace: str
    name: str
    partition: tuple[Column, ...]
    clustering: tuple[Column, ...] = ()
    static_columns: tuple[Column, ...] = ()
    regular: tuple[Column, ...] = ()
    descending: frozenset[str] = frozenset()
    cdc: CdcOptions = field(default_factory=CdcOptions)

    @property
    def full_name(self) -> str:
        """``keyspace.table``."""
        return f"{self.keyspace}.{self.name}"

    @property
    def cql_name(self) -> str:
        """The full name as CQL."""
        return f"{quoted(self.keyspace)}.{quoted(self.name)}"

    @property
    def log_name(self) -> str:
        """The name of the log table, in the same keyspace."""
        return self.name + LOG_SUFFIX

    @property
    def log_cql_name(self) -> str:
        """The full name of the log table as CQL."""
        return f"{quoted(self.keyspace)}.{quoted(self.log_name)}"

    def column(self, name: str) -> Column:
        """Find a column that is in no key."""
        for column in (*self.static_columns, *self.regular):
            if column.name == name:
                return column
        raise InvalidRequest(f"table {self.full_name}: expected a column, found {name!r}")

    def is_static(self, name: str) -> bool:
        """Return whether a column is static."""
        return any(column.name == name for column in self.static_columns)

    def with_cdc(self, **options: Any) -> Table:
        """Return it with other options of its log."""
        return replace(self, cdc=replace(self.cdc, **options))

    def position(self, clustering: Sequence[bytes], edge: int = AT) -> Position:
        """Return the place of a row, or of a bound before or after all rows of a prefix.

        Args:
            clustering: Values of clustering columns: all for a row, fewer for a prefix.
            edge: ``AT`` for a row, ``BEFORE`` or ``AFTER`` for a bound.
        """
        components: list[tuple[Any, ...]] = []
        for column, value in zip(self.clustering, clustering, strict=False):
            key: Any = sort_key(column.type, value)
            components.append((0, Descending(key) if column.name in self.descending else key))
        return (*components, (edge,))

    def partition_key(self, values: Sequence[bytes]) -> bytes:
        """Join the values of a partition key as the partitioner sees them.

        One column is its own bytes; several have a 16-bit length before and a zero byte after each.
        """
        if len(values) == 1:
            return values[0]
        return b"".join(len(value).to_bytes(2, "big") + value + b"\0" for value in values)
