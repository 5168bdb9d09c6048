"""Decoding and showing one table: what the pipeline needs of a source, put together.

The greatest version wins whole (model ``row``). The state of a row is its ``Row`` message with the name of
the fields that it came with (:mod:`.states`), so a later shape of the table can show it anew: mirrors keep
the states of their rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.drift import Drift
from airflow_cdc_provider.changes.fence import Fence
from airflow_cdc_provider.changes.spans import without_first_bytes
from airflow_cdc_provider.sources.base import Decoded
from airflow_cdc_provider.sources.vitess import contributions, projection
from airflow_cdc_provider.sources.vitess.history import FromDefault, TableHistory, families_of
from airflow_cdc_provider.sources.vitess.lake_types import LakeTypes
from airflow_cdc_provider.sources.vitess.states import key_prefix

MEMORY_FORMAT: Final = 1

_PENDING: Final = "pending"


@dataclass(eq=False)
class VitessCodec:
    """Decodes one table. Picklable; no I/O.

    Args:
        table: ``keyspace.table``.
        history: Its shapes.
        lineage: Per shard that a reshard made, all its ancestors (:func:`.history.lineage_of`).
        types: How values are shown.
        memory: What :meth:`remember` or :meth:`reserve` gave for the mirror; None for a new one.
    """

    table: str
    history: TableHistory
    lineage: Mapping[str, Sequence[str]] = field(default_factory=dict)
    types: LakeTypes = field(default_factory=LakeTypes)
    memory: Mapping[str, Any] | None = None
    model: Literal["row", "cell"] = "row"
    rules: str = ""
    created_us: int = 0
    column_ids: frozenset[int] | None = None
    lived_by: tuple[str, ...] | None = None
    static_columns: None = None
    keeps_state: bool = True

    @property
    def has_key(self) -> bool:
        """Whether rows can be told apart; if not, the table is read in full at each run."""
        return bool(self.history.newest.key)

    @cached_property
    def drift(self) -> Drift:
        """Columns that are others than those of their name in the mirror."""
        known = _columns(self.memory, "columns") + _columns(self.memory, _PENDING)
        replaced = {
            name
            for name, kind, number in self._shown
            for old_name, old_kind, old_number in known
            if name == old_name and (number != old_number or not _fits(old_kind, kind))
        }
        return Drift(replaced=frozenset(replaced), exact=True)

    @cached_property
    def revisit(self) -> str:
        """SQL predicate of the mirror's rows that are to be shown anew: all, or empty for none.

        All, if a column has another name or type than where the mirror has its values, or a default that
        older rows show.
        """
        if self.memory is None:
            return ""
        if _PENDING in self.memory:
            return "true"
        before = {number: (name, kind) for name, kind, number in _columns(self.memory, "columns")}
        for place, (name, kind, number) in enumerate(self._shown):
            if number in before:
                old_name, old_kind = before[number]
                if old_name != name or not _fits(old_kind, kind):
                    return "true"
            elif self._has_default(place):
                return "true"
        return ""

    def remember(self) -> dict[str, Any]:
        """Return what the mirror keeps for the next codec, once all its rows show these columns."""
        return {"v": MEMORY_FORMAT, "columns": [list(one) for one in self._shown]}

    def reserve(self) -> dict[str, Any] | None:
        """Return the memory that must be kept before columns are fitted; None if the given one will do.

        A mirror that was fitted to columns and not merged shows nulls in those that are new. With the memory
        its next codec shows all rows anew.
        """
        own = self.remember()["columns"]
        if self.memory is None or (own == self.memory["columns"] and _PENDING not in self.memory):
            return None
        pending = list(self.memory.get(_PENDING, []))
        pending += [one for one in own if one not in pending]
        return None if self.memory.get(_PENDING) == pending else {**self.memory, _PENDING: pending}

    def decode(self, changes: pa.RecordBatch, fences: Sequence[Fence]) -> Decoded:
        """Decode changes of kind ``change`` and ``snapshot`` (:mod:`.contributions`)."""
        return contributions.decode(changes, self.history, self.lineage, self._inherited(fences))

    def _inherited(self, fences: Sequence[Fence]) -> Sequence[Fence]:
        """Add the fences of a shard's ancestors as its own: all that it tells came after them."""
        children = {child: set(ancestors) for child, ancestors in self.lineage.items()}
        return [
            *fences,
            *(replace(f, origin=child) for f in fences for child in children if f.origin in children[child]),
        ]

    def key_prefix(self, origin: str) -> bytes:
        """Return what the keys of all rows of a shard begin with, and no others."""
        return key_prefix(origin)

    def families(self, keys: pa.Array) -> pa.Array | None:
        """Return keys as if shards that a reshard made and those it made them of were one; None for none."""
        if not self.lineage:
            return None
        for shard, name in families_of(self.lineage).items():
            prefix = key_prefix(shard)
            own = pc.starts_with(keys, prefix)
            rest = without_first_bytes(keys.filter(own), len(prefix))
            keys = pc.replace_with_mask(keys, own, pc.binary_join_element_wise(key_prefix(name), rest, b""))
        return keys

    def mirror_schema(self) -> pa.Schema:
        """Return the columns of the newest fields in their order, and ``_rest``."""
        return self._schema

    def project(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Show live rows as the mirror's columns."""
        return projection.project(rows.column("state"), self.history, self._schema)

    def to_json(self, rows: pa.RecordBatch) -> Iterator[str]:
        """Show live rows as JSON objects of MySQL's texts."""
        return projection.to_json(rows.column("state"), self.history)

    @cached_property
    def _schema(self) -> pa.Schema:
        return projection.mirror_schema(self.history, self.types)

    @cached_property
    def _shown(self) -> tuple[tuple[str, str, str], ...]:
        """Name, lake type and id of each column."""
        columns = zip(self.history.newest.columns, self.history.column_ids, strict=True)
        return tuple((column.name, str(self.types.of(column)), number) for column, number in columns)

    def _has_default(self, place: int) -> bool:
        return any(
            isinstance(origin, FromDefault) and origin.text is not None
            for origin in (self.history.origins(n)[place] for n in range(len(self.history.shapes)))
        )


def _columns(memory: Mapping[str, Any] | None, name: str) -> list[tuple[str, str, str]]:
    return [(one[0], one[1], one[2]) for one in (memory or {}).get(name, ())]


def _fits(old: str, new: str) -> bool:
    """Tell whether a lake's column of one type shows values of another where they are, as Iceberg does."""
    if old == new or {old, new} in ({"int32", "int64"}, {"float", "double"}):
        return True
    if old.startswith("decimal128(") and new.startswith("decimal128("):
        return old.rpartition(",")[2] == new.rpartition(",")[2]
    return False
