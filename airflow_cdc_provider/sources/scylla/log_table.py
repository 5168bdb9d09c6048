"""What a log table's columns are, as a record of kind ``schema`` tells it.

Its payload is JSON::

    {"v": 1, "keyspace": ..., "table": ..., "id": the base table's id,
     "partition_key": [name, ...], "clustering": [[name, "asc" or "desc"], ...], "static": [name, ...],
     "columns": [[name, type of the log's column], ...],   in the order of the values in payloads
     "base": {name: type of the base's column}, "types": {name of a user-defined type: [[field, type], ...]},
     "log_ttl": seconds, 0 for log rows that stay, "delta": "full" or "keys"}

For the value that a base column has in the log, and for its two marks beside it:
:class:`LogColumn`. A column that isn't frozen is frozen in the log (reference, section 2).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.scylla.log_options import UNTOLD
from airflow_cdc_provider.sources.scylla.payload import DELETED, DELETED_ELEMENTS, schema_digest

FORMAT: Final = 1
NOT_THERE: Final = -1
"""Place of a column that the log doesn't have."""


@dataclass(frozen=True)
class LogColumn:
    """Where the log tells of one column of the base that is in no key.

    Args:
        name: Its name.
        value: Place of the new value among the log's columns.
        deleted: Place of ``cdc$deleted_<name>``.
        deleted_elements: Place of ``cdc$deleted_elements_<name>``; :data:`NOT_THERE` for a column that is one
            cell.
    """

    name: str
    value: int
    deleted: int
    deleted_elements: int


@dataclass(frozen=True)
class LogTable:
    """One version of one log table.

    Args:
        schema_id: Digest of the record's payload.
        keyspace: Its keyspace.
        table: Name of the base table.
        table_id: The base's id as 32 hex digits, empty if unknown.
        partition_key: Names of the base's partition key.
        clustering: Names of its clustering columns.
        descending: Those of them in descending order.
        static: Names of its static columns.
        columns: Names and types of the log's columns, in the order of payloads.
        base: Types of the base's columns by name.
        types: Fields of user-defined types.
        log_ttl: How long log rows live, in seconds; 0 for ever.
        keys_only: Whether the log tells keys alone (``delta = keys``).
        untold: Whether nothing tells that.
    """

    schema_id: str
    keyspace: str
    table: str
    table_id: str
    partition_key: tuple[str, ...]
    clustering: tuple[str, ...]
    descending: frozenset[str]
    static: frozenset[str]
    columns: tuple[tuple[str, str], ...]
    base: Mapping[str, str]
    types: Mapping[str, Any]
    log_ttl: int
    keys_only: bool
    untold: bool

    @classmethod
    def of(cls, payload: bytes) -> LogTable:
        """Read the payload of a record of kind ``schema``.

        Raises:
            CorruptInput: It isn't one.
        """
        try:
            told = json.loads(payload)
            if told["v"] != FORMAT:
                raise CorruptInput(
                    "a schema record of a log table has an unknown form",
                    expected=str(FORMAT),
                    found=str(told["v"]),
                )
            return cls(
                schema_id=schema_digest(payload),
                keyspace=told["keyspace"],
                table=told["table"],
                table_id=str(told["id"]).replace("-", "").lower(),
                partition_key=tuple(told["partition_key"]),
                clustering=tuple(name for name, _ in told["clustering"]),
                descending=frozenset(name for name, order in told["clustering"] if order == "desc"),
                static=frozenset(told["static"]),
                columns=tuple((name, kind) for name, kind in told["columns"]),
                base=told["base"],
                types=told["types"],
                log_ttl=int(told["log_ttl"]),
                keys_only=told["delta"] == "keys",
                untold=told["delta"] == UNTOLD,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptInput(
                "a schema record of a log table is broken", found=payload[:200].decode(errors="replace")
            ) from error

    @property
    def full_name(self) -> str:
        """``keyspace.table`` of the base."""
        return f"{self.keyspace}.{self.table}"

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Place of each of the log's columns."""
        return {name: place for place, (name, _) in enumerate(self.columns)}

    @cached_property
    def value_columns(self) -> tuple[LogColumn, ...]:
        """The base's columns that are in no key, as the log tells of them, by name."""
        keys = {*self.partition_key, *self.clustering}
        places = self.places
        return tuple(
            LogColumn(
                name,
                places[name],
                places.get(DELETED + name, NOT_THERE),
                places.get(DELETED_ELEMENTS + name, NOT_THERE),
            )
            for name in sorted(self.base)
            if name not in keys and name in places
        )
