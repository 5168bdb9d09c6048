"""The codec of one table: decodes changes and projects rows.

The row with the greatest version wins (model ``row``). Versions are positions in a partition, which contains
all messages of a key. The state of a row is its JSON with the name of its schema (:mod:`.states`). Mirrors
keep the states of their rows, so a later schema can project them again.

The columns of rows without a schema are inferred from their values, as for MongoDB documents
(:mod:`airflow_cdc_provider.changes.inferred_columns`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.contribution import DELETE
from airflow_cdc_provider.changes.drift import Drift
from airflow_cdc_provider.changes.fence import Fence
from airflow_cdc_provider.changes.inferred_columns import InferredColumns, counts_batch
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.json_text import ARRAY, FALSE, INTEGER, NULL, NUMBER, OBJECT, STRING, TRUE
from airflow_cdc_provider.formats.kernels import Ints
from airflow_cdc_provider.sources.contract import Codec, Decoded
from airflow_cdc_provider.sources.debezium import projection
from airflow_cdc_provider.sources.debezium.connect_schema import NO_SCHEMA, REST
from airflow_cdc_provider.sources.debezium.decode import Form, decode
from airflow_cdc_provider.sources.debezium.json_members import Members
from airflow_cdc_provider.sources.debezium.patches import apply_patches
from airflow_cdc_provider.sources.debezium.schema_history import HIDDEN, TableRows
from airflow_cdc_provider.sources.debezium.states import read_states, rows_of
from airflow_cdc_provider.sources.debezium.values import show_plain

MEMORY_FORMAT: Final = 1

_PENDING: Final = "pending"
_INFERRED: Final = "inferred"
_LAKE_NAMES: Final = "lake_names"
_TYPES: Final = ("null", "bool", "int", "long", "decimal", "double", "string", "object", "array")
_KINDS: Final[Mapping[int, int]] = {
    kind: _TYPES.index(name)
    for kind, name in (
        (NULL, "null"),
        (FALSE, "bool"),
        (TRUE, "bool"),
        (INTEGER, "int"),
        (NUMBER, "double"),
        (STRING, "string"),
        (OBJECT, "object"),
        (ARRAY, "array"),
    )
}
_MOST_NAMES: Final = 20_000


@dataclass(eq=False)
class DebeziumCodec(Codec):
    """Decodes one table. Picklable; no I/O.

    Args:
        table: ``database.table``.
        rows: The recorded schemas of its rows.
        form: The format of rows in values.
        inferred: Columns of rows without a schema.
        most_inferred: Maximum number of inferred columns.
        memory: The mirror's result of :meth:`remember` or :meth:`reserve`; None for a new one.
    """

    table: str
    rows: TableRows
    form: Form = field(default_factory=Form)
    inferred: InferredColumns = field(default_factory=InferredColumns)
    most_inferred: int = 500
    memory: Mapping[str, Any] | None = None

    reads_states = True

    @classmethod
    def of(
        cls, rows: TableRows, form: Form, most_inferred: int, memory: Mapping[str, Any] | None
    ) -> DebeziumCodec:
        """Build a table's codec, with the inferred columns and the names of columns that its mirror has."""
        known = (memory or {}).get(_INFERRED)
        inferred = InferredColumns.from_memory(known) if known is not None else InferredColumns()
        renamed = {**(memory or {}).get(_LAKE_NAMES, {}), **{one.name: one.column for one in inferred.fields}}
        same = {name for name, _ in _columns(memory, "columns") + _columns(memory, _PENDING)}
        rows = replace(rows, kept={**{name: name for name in same - set(renamed.values())}, **renamed})
        dropped = [one for one in inferred.fields if one.name in rows.lake_names]
        if dropped:  # a new schema has these columns
            inferred = replace(
                inferred,
                fields=tuple(one for one in inferred.fields if one not in dropped),
                replaced=inferred.replaced | {one.column for one in dropped},
                rows_to_rewrite="all",
            )
        return cls(rows.table, rows, form, inferred, most_inferred, memory)

    @cached_property
    def drift(self) -> Drift:
        """Columns whose type differs from the mirror's column of the same name."""
        known = _columns(self.memory, "columns") + _columns(self.memory, _PENDING)
        replaced = {
            name
            for name, kind in self._column_types
            for old_name, old_kind in known
            if name == old_name and not _fits(old_kind, kind)
        }
        return Drift(replaced=frozenset(replaced | self.inferred.replaced))

    @cached_property
    def rows_to_rewrite(self) -> str:
        """SQL predicate of the mirror's rows that must be rewritten, empty for none."""
        if self.memory is None:
            return ""
        if _PENDING in self.memory or self.drift.replaced or self.inferred.rows_to_rewrite == "all":
            return "true"
        before = dict(_columns(self.memory, "columns"))
        is_wider = any(name in before and before[name] != kind for name, kind in self._column_types)
        is_new = any(name not in before for name, _ in self._column_types)
        # Values without a column are in the rest; a new or wider column may hold them.
        return f"`{REST}` IS NOT NULL" if is_wider or is_new or self.inferred.rows_to_rewrite else ""

    @property
    def infers_columns(self) -> bool:
        """Whether there are rows without a schema, whose columns are inferred."""
        return self.rows.plain

    def remember(self) -> dict[str, Any]:
        """Return the memory for the mirror's next codec, for use after all its rows have these columns."""
        found: dict[str, Any] = {"v": MEMORY_FORMAT, "columns": [list(one) for one in self._column_types]}
        if self.rows.plain:
            found[_INFERRED] = self.inferred.applied().to_memory()
        if names := {name: other for name, other in self.rows.lake_names.items() if name != other}:
            found[_LAKE_NAMES] = names
        return found

    def reserve(self, memory: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Return the memory to store before columns are changed; None if the given one suffices.

        A mirror whose columns were changed but not merged has nulls in the new columns. With this memory, its
        next codec rewrites all rows and infers the same types as this one.
        """
        own = self.remember()["columns"]
        if memory is None and not self.rows.plain:
            return None
        known = memory or {"v": MEMORY_FORMAT, "columns": []}
        if own == known["columns"] and _PENDING not in known:
            return None
        pending = [list(one) for one in known.get(_PENDING, [])]
        pending += [one for one in own if one not in pending]
        reserved = {**known, _PENDING: pending}
        if self.rows.plain:
            reserved[_INFERRED] = self.inferred.to_memory()
        if names := self.remember().get(_LAKE_NAMES):
            reserved[_LAKE_NAMES] = names
        return None if reserved == memory else reserved

    def decode(self, changes: pa.RecordBatch, fences: Sequence[Fence]) -> Decoded:
        """Decode changes, each with its own schema."""
        return decode(changes, self.form, self.rows.schemas, fences, self.rows.topic)

    def patch(self, states: pa.Array, patches: pa.Array, offsets: Ints) -> pa.Array:
        """Fill in values that events don't contain (see :func:`.patches.apply_patches`)."""
        return apply_patches(states, patches, offsets, self.form.placeholder)

    def tally(self, contributions: pa.RecordBatch) -> pa.RecordBatch:
        """Count the members of rows without a schema, as :data:`.FIELD_COUNTS`."""
        has_row = pc.and_(
            pc.not_equal(contributions.column("op"), DELETE), contributions.column("state").is_valid()
        )
        groups, texts = read_states(contributions.column("state").filter(has_row))
        found: list[tuple[str, str, int, int]] = []
        complete = True
        for name, own in groups:
            if name == NO_SCHEMA:
                members, _ = rows_of(texts.take(pa.array(own)), self.form.placeholder)
                complete = complete and len(members.numbered[1]) <= _MOST_NAMES
                found = _counts(members)
        return counts_batch(found, whole=complete)

    def learn(self, counts: pa.Table) -> DebeziumCodec:
        """Return a codec with columns for the members that :meth:`tally` counted; self if nothing changes."""
        own = self.rows.lake_names
        learned = self.inferred.learn(counts, (REST, *own.values()), self.most_inferred, own.keys())
        return self if learned == self.inferred else replace(self, inferred=learned)

    def findings(self) -> list[str]:
        """Return messages about inferred columns with values of several types."""
        return self.inferred.findings()

    def mirror_schema(self) -> pa.Schema:
        """Return the columns of all schemas, the inferred columns, and ``_rest``."""
        return self._schema

    def project(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Project live rows to the mirror's columns."""
        inferred = {one.column: one for one in self.inferred.fields}
        return projection.project(
            rows.column("state"), self.rows, self._schema, inferred, self.form.placeholder
        )

    def to_json(self, rows: pa.RecordBatch) -> Iterator[str]:
        """Yield live rows as their original JSON objects."""
        return projection.to_json(rows.column("state"))

    @cached_property
    def _schema(self) -> pa.Schema:
        if not self.rows.known:
            raise ConfigurationError(
                f"no row of {self.table} was captured yet", expected="an event with a row"
            )
        fields = [pa.field(name, kind) for name, kind in self.rows.columns.items()]
        fields += [pa.field(one.column, one.type) for one in self.inferred.fields]
        return pa.schema([*fields, pa.field(REST, pa.string())])

    @cached_property
    def _column_types(self) -> tuple[tuple[str, str], ...]:
        """Name and lake type of each column."""
        return tuple((one.name, str(one.type)) for one in self._schema if one.name != REST)


def _counts(members: Members) -> list[tuple[str, str, int, int]]:
    """Count members by name and kind; integers by size."""
    if not len(members.owners):
        return []
    numbers, names = members.numbered
    values = members.values
    kinds = np.zeros(len(numbers), np.int64)
    for kind, code in _KINDS.items():
        kinds[values.kinds == kind] = code
    for size, wider in (("int32", "long"), ("int64", "decimal")):
        _, misfits = show_plain(members.data, values.only(INTEGER), size)
        kinds[misfits] = _TYPES.index(wider)
    first = np.searchsorted(members.owners, members.owners)
    indexes = np.arange(len(numbers)) - first
    pairs, inverse, counts = np.unique(numbers * 256 + kinds, return_inverse=True, return_counts=True)
    least = np.full(len(pairs), len(numbers), np.int64)
    np.minimum.at(least, inverse, indexes)
    return [
        (names[pair // 256], _TYPES[pair % 256], count, index)
        for pair, count, index in zip(pairs.tolist(), counts.tolist(), least.tolist(), strict=True)
        if names[pair // 256] not in HIDDEN
    ]


def _columns(memory: Mapping[str, Any] | None, name: str) -> list[tuple[str, str]]:
    return [(one[0], one[1]) for one in (memory or {}).get(name, ())]


def _fits(old: str, new: str) -> bool:
    """Return whether a lake column can be promoted to another type in place, as in Iceberg."""
    if old == new or (old, new) in (("int32", "int64"), ("float", "double")):
        return True
    if old.startswith("decimal128(") and new.startswith("decimal128("):
        return old.rpartition(",")[2] == new.rpartition(",")[2]
    return False
