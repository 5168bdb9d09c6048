"""The columns of a log table, read from a record of kind ``schema``.

Its payload is JSON::

    {"v": 1, "keyspace": ..., "table": ..., "id": the base table's id,
     "partition_key": [name, ...], "clustering": [[name, "asc" or "desc"], ...], "static": [name, ...],
     "columns": [[name, type of the log's column], ...],   in the order of the values in payloads
     "base": {name: type of the base's column}, "types": {name of a user-defined type: [[field, type], ...]},
     "log_ttl": seconds, 0 for log rows that stay, "delta": "full" or "keys",
     "renamed_us": not before a key column was last renamed, us since 1970; absent for never}

:class:`LogColumn` has the log columns of a base column: its value and two deletion flags. A non-frozen column
is frozen in the log (reference, section 2).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.scylla.log_options import UNREPORTED
from airflow_cdc_provider.sources.scylla.payload import DELETED, DELETED_ELEMENTS, schema_digest

FORMAT: Final = 1
MISSING: Final = -1
"""Index of a column that the log doesn't have."""


@dataclass(frozen=True)
class LogColumn:
    """The log columns of one non-key column of the base table.

    Args:
        name: Its name.
        value: Index of the log column with the new value.
        deleted: Index of ``cdc$deleted_<name>``.
        deleted_elements: Index of ``cdc$deleted_elements_<name>``; :data:`MISSING` for a single-cell column.
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
        log_ttl: Lifetime of log rows in seconds; 0 for unlimited.
        keys_only: Whether the log contains keys only (``delta = keys``).
        unreported: Whether ``delta`` is unknown.
        renamed_us: Rows of changes up to this time may lack values of renamed key columns; 0 for none.
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
    unreported: bool
    renamed_us: int

    @classmethod
    def of(cls, payload: bytes) -> LogTable:
        """Read the payload of a record of kind ``schema``.

        Raises:
            CorruptInput: The payload is not a schema record.
        """
        try:
            content = json.loads(payload)
            if content["v"] != FORMAT:
                raise CorruptInput(
                    "a schema record of a log table has an unknown format",
                    expected=str(FORMAT),
                    found=str(content["v"]),
                )
            return cls(
                schema_id=schema_digest(payload),
                keyspace=content["keyspace"],
                table=content["table"],
                table_id=str(content["id"]).replace("-", "").lower(),
                partition_key=tuple(content["partition_key"]),
                clustering=tuple(name for name, _ in content["clustering"]),
                descending=frozenset(name for name, order in content["clustering"] if order == "desc"),
                static=frozenset(content["static"]),
                columns=tuple((name, kind) for name, kind in content["columns"]),
                base=content["base"],
                types=content["types"],
                log_ttl=int(content["log_ttl"]),
                keys_only=content["delta"] == "keys",
                unreported=content["delta"] == UNREPORTED,
                renamed_us=int(content.get("renamed_us", 0)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptInput(
                "a schema record of a log table is malformed", found=payload[:200].decode(errors="replace")
            ) from error

    @property
    def full_name(self) -> str:
        """``keyspace.table`` of the base."""
        return f"{self.keyspace}.{self.table}"

    @cached_property
    def indexes(self) -> Mapping[str, int]:
        """Index of each of the log's columns."""
        return {name: index for index, (name, _) in enumerate(self.columns)}

    @cached_property
    def value_columns(self) -> tuple[LogColumn, ...]:
        """The log columns of the base table's non-key columns, by name."""
        keys = {*self.partition_key, *self.clustering}
        indexes = self.indexes
        return tuple(
            LogColumn(
                name,
                indexes[name],
                indexes.get(DELETED + name, MISSING),
                indexes.get(DELETED_ELEMENTS + name, MISSING),
            )
            for name in sorted(self.base)
            if name not in keys and name in indexes
        )
