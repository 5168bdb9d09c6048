"""The codec of one table: decodes changes to contributions, and projects row states to mirror columns.

The row with the greatest version wins as a whole (model ``row``). The state of a row is its ``Row`` message
with the schema id of its fields (:mod:`.states`). Mirrors store the states, so all rows can be projected
again to a later schema of the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.drift import Drift
from airflow_cdc_provider.changes.fence import Fence
from airflow_cdc_provider.formats.arrow_bytes import without_first_bytes
from airflow_cdc_provider.sources.contract import Codec, Decoded
from airflow_cdc_provider.sources.vitess import decode, projection
from airflow_cdc_provider.sources.vitess.lake_types import LakeTypes
from airflow_cdc_provider.sources.vitess.schema_history import FromDefault, TableHistory, families_of
from airflow_cdc_provider.sources.vitess.states import key_prefix

MEMORY_FORMAT: Final = 1

_PENDING: Final = "pending"


@dataclass(eq=False)
class VitessCodec(Codec):
    """Decodes one table. Picklable; no I/O.

    Args:
        table: ``keyspace.table``.
        history: The schema history of the table.
        lineage: All ancestors of each shard that a reshard created (:func:`.schema_history.lineage_of`).
        types: Lake types of the columns.
        memory: The mirror's result of :meth:`remember` or :meth:`reserve`; None for a new mirror.
    """

    table: str
    history: TableHistory
    lineage: Mapping[str, Sequence[str]] = field(default_factory=dict)
    types: LakeTypes = field(default_factory=LakeTypes)
    memory: Mapping[str, Any] | None = None

    reads_states = True

    @property
    def has_key(self) -> bool:
        """Whether the table has a key; without one it is read in full at each run."""
        return bool(self.history.newest.key)

    @cached_property
    def drift(self) -> Drift:
        """Columns that differ from the mirror's column of the same name."""
        known = _columns(self.memory, "columns") + _columns(self.memory, _PENDING)
        replaced = {
            name
            for name, kind, number in self._current_columns
            for old_name, old_kind, old_number in known
            if name == old_name and (number != old_number or not _is_promotion(old_kind, kind))
        }
        return Drift(replaced=frozenset(replaced), exact=True)

    @cached_property
    def rows_to_rewrite(self) -> str:
        """SQL predicate of the mirror's rows to rewrite: all rows, or empty for none.

        All rows, if a column was renamed or has another type than in the mirror, or if an added column has a
        default.
        """
        if self.memory is None:
            return ""
        if _PENDING in self.memory:
            return "true"
        before = {number: (name, kind) for name, kind, number in _columns(self.memory, "columns")}
        for index, (name, kind, number) in enumerate(self._current_columns):
            if number in before:
                old_name, old_kind = before[number]
                if old_name != name or not _is_promotion(old_kind, kind):
                    return "true"
            elif self._has_default(index):
                return "true"
        return ""

    def remember(self) -> dict[str, Any]:
        """Return the memory for the next codec, to store once all rows of the mirror have these columns."""
        return {"v": MEMORY_FORMAT, "columns": [list(one) for one in self._current_columns]}

    def reserve(self, memory: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Return the memory to store before the mirror's columns are altered; None if it needn't change.

        A mirror whose columns were altered and that wasn't merged yet has nulls in new columns. This memory
        makes the next codec rewrite all rows.
        """
        own = self.remember()["columns"]
        if memory is None or (own == memory["columns"] and _PENDING not in memory):
            return None
        pending = list(memory.get(_PENDING, []))
        pending += [one for one in own if one not in pending]
        return None if memory.get(_PENDING) == pending else {**memory, _PENDING: pending}

    def decode(self, changes: pa.RecordBatch, fences: Sequence[Fence]) -> Decoded:
        """Decode changes of kind ``change`` and ``snapshot`` (:mod:`.decode`)."""
        return decode.decode(changes, self.history, self.lineage, self._inherited(fences))

    def _inherited(self, fences: Sequence[Fence]) -> Sequence[Fence]:
        """Add the fences of a shard's ancestors to its own: all its changes are newer than these."""
        children = {child: set(ancestors) for child, ancestors in self.lineage.items()}
        return [
            *fences,
            *(replace(f, origin=child) for f in fences for child in children if f.origin in children[child]),
        ]

    def key_prefix(self, origin: str) -> bytes:
        """Return the prefix of the keys of all rows of a shard, and of no other rows."""
        return key_prefix(origin)

    def families(self, keys: pa.Array) -> pa.Array | None:
        """Return keys in which shards related by reshards have one name; None without a reshard."""
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
        """Project live rows to the mirror's columns."""
        return projection.project(rows.column("state"), self.history, self._schema)

    def to_json(self, rows: pa.RecordBatch) -> Iterator[str]:
        """Convert live rows to JSON objects of MySQL's text values."""
        return projection.to_json(rows.column("state"), self.history)

    @cached_property
    def _schema(self) -> pa.Schema:
        return projection.mirror_schema(self.history, self.types)

    @cached_property
    def _current_columns(self) -> tuple[tuple[str, str, str], ...]:
        """Name in the mirror, lake type and id of each column."""
        names, ids = projection.lake_names(self.history), self.history.column_ids
        columns = zip(names, self.history.newest.columns, ids, strict=True)
        return tuple((name, str(self.types.of(column)), number) for name, column, number in columns)

    def _has_default(self, index: int) -> bool:
        return any(
            isinstance(origin, FromDefault) and origin.text is not None
            for origin in (self.history.origins(n)[index] for n in range(len(self.history.shapes)))
        )


def _columns(memory: Mapping[str, Any] | None, name: str) -> list[tuple[str, str, str]]:
    return [(one[0], one[1], one[2]) for one in (memory or {}).get(name, ())]


def _is_promotion(old: str, new: str) -> bool:
    """Return whether Iceberg can promote a column of one type to another without rewriting it."""
    if old == new or {old, new} in ({"int32", "int64"}, {"float", "double"}):
        return True
    if old.startswith("decimal128(") and new.startswith("decimal128("):
        return old.rpartition(",")[2] == new.rpartition(",")[2]
    return False
