"""The base of CQL codecs: column ids that outlive schema changes, and projection of rows.

Column ids in cell rows must outlive schema changes, so a mirror stores them (:meth:`CqlCodec.remember`). A
column that was dropped and added again, and every column of a re-created table, gets a new id: stored cells
of the old one are no longer projected. Ids are reserved (:meth:`CqlCodec.reserve`) before any data with them
is written, so that no two columns ever get the same id, even if the writer is killed. Names in the mirror
that differ from the source's (:mod:`airflow_cdc_provider.changes.column_names`) are stored likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, TypeVar
from uuid import UUID

import pyarrow as pa

from airflow_cdc_provider.changes.column_names import column_names
from airflow_cdc_provider.changes.drift import Drift
from airflow_cdc_provider.changes.static_columns import StaticColumns
from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.sources.contract import Codec
from airflow_cdc_provider.sources.cql.json_text import rows_to_json
from airflow_cdc_provider.sources.cql.lake_types import LakeTypes
from airflow_cdc_provider.sources.cql.projection import Projection
from airflow_cdc_provider.sources.cql.schema import TableSchema, number_columns
from airflow_cdc_provider.sources.cql.snapshot_payload import state_payload

_Codec = TypeVar("_Codec", bound="CqlCodec")

MEMORY_FORMAT: Final = 1
_RESERVED: Final = "reserved"
_LAKE_NAMES: Final = "lake_names"
_SAME: Final = Drift(exact=True)
_EPOCH_100NS: Final = 0x01B21DD213814000
"""The Unix epoch in the time of UUIDs: 100 ns since 1582."""


@dataclass
class CqlCodec(Codec):
    """The codec of one table.

    Each source implements :meth:`decode`.

    Args:
        schema: The table, its columns numbered.
        rules: Tie rules of the read path (:data:`~airflow_cdc_provider.lake.reconcile.cells.RULES`).
        types: Choices of lake types.
        last_id: The greatest column id that the mirror's table ever had.
        drift: Changes of the columns since the mirror was last written.
    """

    schema: TableSchema
    rules: str
    types: LakeTypes = field(default_factory=LakeTypes)
    last_id: int = 0
    drift: Drift = _SAME

    model = "cell"
    table: str = field(init=False)

    def __post_init__(self) -> None:
        """Set the table's name."""
        self.table = self.schema.full_name

    @property
    def created_us(self) -> int:
        """When the table was created, by its id, in us since 1970; 0 if the id isn't time-based."""
        table_id = UUID(hex=self.schema.id or "0" * 32)
        return (table_id.time - _EPOCH_100NS) // 10 if table_id.version == 1 else 0

    @property
    def column_ids(self) -> frozenset[int] | None:
        """Ids of the static and regular columns; None if no column was ever dropped."""
        ids = frozenset(c.id for c in (*self.schema.static, *self.schema.regular))
        return ids if len(ids) < self.last_id else None

    @property
    def static_columns(self) -> StaticColumns:
        """The static columns; a table may have none."""
        key = tuple(c.name_in_lake for c in self.schema.partition_key)
        return StaticColumns(key, tuple(c.name_in_lake for c in self.schema.static))

    @property
    def liveness_columns(self) -> tuple[str, ...] | None:
        """The columns whose cells keep a row alive as when the mirror was last written.

        None if no column was removed since, so no row lost its last cells with a column.
        """
        if self.drift.recreated or not self.drift.replaced:
            return None
        names = [c.name_in_lake for c in self.schema.regular]
        return tuple(name for name in names if name not in self.drift.replaced)

    def mirror_schema(self) -> pa.Schema:
        """Return the mirror's columns, in the order of ``SELECT *``."""
        return self._mirror_schema

    def project(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Project live rows to the mirror's columns."""
        return pa.RecordBatch.from_arrays(self._projection.project(rows).columns, schema=self._mirror_schema)

    def to_json(self, rows: pa.RecordBatch) -> Iterator[str]:
        """Return live rows as JSON, like ``SELECT JSON *``."""
        return rows_to_json(self.schema, rows)

    def state_payload(self, state: bytes) -> bytes:
        """Return the payload of a snapshot change that contributes only this cell row."""
        return state_payload(self.schema, state)

    def remember(self) -> dict[str, Any]:
        """Return the JSON from which :func:`recall_codec` restores the column ids."""
        columns = (*self.schema.static, *self.schema.regular)
        return {
            "v": MEMORY_FORMAT,
            "table_id": self.schema.id,
            "keys": [c.name for c in (*self.schema.partition_key, *self.schema.clustering)],
            "columns": {c.name: [c.id, _dropped_at(self.schema, c.name)] for c in columns},
            "last_id": self.last_id,
            **_optional(_LAKE_NAMES, {c.name: c.lake_name for c in self.schema.columns if c.lake_name}),
        }

    def reserve(self, memory: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Return the memory that a mirror must store before data of this codec is written.

        It has the columns that the mirror's rows were written with, and under ``reserved`` the current
        columns and those of earlier reservations of this table that were dropped since. So a later codec
        gives the same ids to the same columns and to no others, and knows columns that may have been added to
        the mirror's schema without any values.
        """
        mine = self.remember()
        if memory is not None and mine == {n: v for n, v in memory.items() if n != _RESERVED}:
            return None
        merged = {**mine, "columns": {}} if memory is None else memory
        former = merged.get(_RESERVED, {"table_id": None})
        if former["table_id"] != self.schema.id:
            former = {"columns": {}}
        part = {
            "table_id": self.schema.id,
            "columns": {**former["columns"], **mine["columns"]},
            **_optional(_LAKE_NAMES, {**former.get(_LAKE_NAMES, {}), **mine.get(_LAKE_NAMES, {})}),
        }
        reserved = {**merged, _RESERVED: part, "last_id": self.last_id}
        return None if reserved == memory else reserved

    @cached_property
    def _mirror_schema(self) -> pa.Schema:
        named = zip(self._projection.schema, self.schema.columns, strict=True)
        return pa.schema([field.with_name(column.name_in_lake) for field, column in named])

    @cached_property
    def _projection(self) -> Projection:
        return Projection(self.schema, self.types)

    def __getstate__(self) -> dict[str, Any]:
        """Omit compiled attributes."""
        return {f: getattr(self, f) for f in self.__dataclass_fields__}


def recall_codec(
    create: Callable[[TableSchema, str, LakeTypes, int, Drift], _Codec],
    schema: TableSchema,
    memory: Mapping[str, Any] | None,
    rules: str,
    types: LakeTypes | None = None,
) -> _Codec:
    """Build a codec whose columns have the ids that a mirror has stored.

    Args:
        create: The class of the source's codec.
        schema: The table's current schema.
        memory: The return value of :meth:`CqlCodec.remember`, None for a new mirror.
        rules: See :class:`CqlCodec`.
        types: See :class:`CqlCodec`.

    Returns:
        The codec.

    Raises:
        TransientError: The mirror has stored a later schema of the table: following ``schema`` would drop
            columns that it lacks.
        ConfigurationError: The table's key has more columns than before.
    """
    ids: dict[str, int] = {}
    names: dict[str, str] = {}
    last_id = 0
    parts: Sequence[Mapping[str, Any]] = ()
    if memory is not None:
        last_id = int(memory["last_id"])
        parts = (memory.get(_RESERVED, {"table_id": memory["table_id"], "columns": {}}), memory)
        own = [c.name for c in (*schema.partition_key, *schema.clustering)]
        if _same_table(schema, memory) and len(own) != len(memory["keys"]):
            raise ConfigurationError(
                f"{schema.full_name} has another key than its mirror, by ALTER TABLE DROP COMPACT STORAGE",
                expected=", ".join(memory["keys"]),
                found=", ".join(own),
                remedy="drop the mirror, and take a new snapshot of the table",
            )
    for part in parts:
        if _same_table(schema, part) and (column := _missing_column(schema, part["columns"])):
            raise TransientError(
                f"the schema of {schema.full_name} is older than that of its mirror",
                expected=f"a column {column}, or when it was dropped",
                found="neither",
                remedy="retry when the cluster is reachable and its nodes agree on the schema",
            )
        kept = _kept(schema, part)
        ids |= kept
        keys = part.get("keys", ()) if _same_table(schema, part) else ()
        names |= {name: _lake_name(part, name) for name in (*keys, *kept)}
    # No column has the empty name: this prevents reuse of dropped columns' ids.
    numbered = _named(number_columns(schema, {**ids, "": last_id}), names)
    last_id = max([last_id, *(c.id for c in numbered.columns)])
    drift = _SAME if memory is None else _drift(numbered, memory, parts)
    return create(numbered, rules, types or LakeTypes(), last_id, drift)


def _named(schema: TableSchema, kept: Mapping[str, str]) -> TableSchema:
    """Return a numbered schema whose columns have names in the lake; those with kept names have these."""
    by_age = [column.name for column in sorted(schema.columns, key=lambda column: column.id)]  # keys first: 0
    names = column_names(by_age, kept)
    columns = (replace(c, lake_name=names[c.name] if names[c.name] != c.name else "") for c in schema.columns)
    return replace(schema, columns=tuple(columns))


def _optional(name: str, content: Mapping[str, str]) -> dict[str, Any]:
    return {name: dict(content)} if content else {}


def _same_table(schema: TableSchema, remembered: Mapping[str, Any]) -> bool:
    return not schema.id or remembered["table_id"] in ("", schema.id)


def _kept(schema: TableSchema, remembered: Mapping[str, Any]) -> dict[str, int]:
    """Return the ids of the columns that are unchanged."""
    if not _same_table(schema, remembered):
        return {}
    return {
        name: number
        for name, (number, dropped_at) in remembered["columns"].items()
        if _dropped_at(schema, name) == dropped_at
    }


def _drift(schema: TableSchema, memory: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> Drift:
    """Compare a table with a mirror's memory of it; key columns are matched by position.

    A column whose id is only reserved has no values yet, and may differ from the one in the mirror's schema:
    it always counts as replaced.
    """
    known = {_lake_name(part, name) for part in parts for name in part["columns"]}
    if not _same_table(schema, memory):
        keys = {_lake_name(memory, name) for name in memory["keys"]}
        own = {column.name_in_lake for column in schema.columns}
        return Drift(recreated=True, replaced=frozenset(known | keys | own), exact=True)
    kept = {_lake_name(memory, name) for name in _kept(schema, memory)}
    return Drift(
        keys=len(schema.partition_key) + len(schema.clustering), replaced=frozenset(known - kept), exact=True
    )


def _lake_name(remembered: Mapping[str, Any], column: str) -> str:
    return str(remembered.get(_LAKE_NAMES, {}).get(column, column))


def _missing_column(schema: TableSchema, remembered: Mapping[str, Sequence[int]]) -> str:
    """Return a column that a mirror has stored and the schema lacks; empty for none.

    Cassandra keeps the time at which a column was dropped, even if one of its name is added again.
    """
    present = {column.name for column in schema.columns}
    for name, (_, dropped_at) in remembered.items():
        if name not in schema.dropped and (dropped_at or name not in present):
            return name
    return ""


def _dropped_at(schema: TableSchema, name: str) -> int:
    dropped = schema.dropped.get(name)
    return dropped.dropped_at_us if dropped else 0
