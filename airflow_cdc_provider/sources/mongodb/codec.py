"""The codec of one collection: decodes changes, and projects documents to the mirror's columns.

The row with the greatest version wins as a whole (model ``row``): its state is the document, as BSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.contribution import PATCH
from airflow_cdc_provider.changes.drift import NO_DRIFT, Drift
from airflow_cdc_provider.changes.fence import Fence
from airflow_cdc_provider.changes.inferred_columns import REST, InferredColumns, counts_batch
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.arrow_bytes import binary_buffer
from airflow_cdc_provider.formats.bson import DOCUMENT, find_in_all
from airflow_cdc_provider.formats.extended_json import JSON_UTIL, MIRROR, write_values
from airflow_cdc_provider.formats.kernels import Ints
from airflow_cdc_provider.sources.contract import Codec, Decoded
from airflow_cdc_provider.sources.mongodb.declared_columns import (
    OWN_COLUMNS,
    DeclaredColumn,
    declared_columns,
)
from airflow_cdc_provider.sources.mongodb.decoding.columns import arrow_type, read_located
from airflow_cdc_provider.sources.mongodb.decoding.decode import FullDocument, decode
from airflow_cdc_provider.sources.mongodb.decoding.field_tally import TYPE_NAMES, FieldCount, tally_fields
from airflow_cdc_provider.sources.mongodb.decoding.patches import apply_patches
from airflow_cdc_provider.sources.mongodb.decoding.rest import projected_offsets, write_rest
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions

MISFITS: Final = b"cdc.type-mismatches"
"""Metadata of a projected batch's schema: JSON, column -> number of values it couldn't hold exactly."""

LAKE_TYPE: Final = b"cdc.lake_type"
"""Metadata of a string field that the lake should store as another type: ``variant``."""


@dataclass(eq=False)
class MongodbCodec(Codec):
    """The codec of one collection. Picklable; no I/O.

    Args:
        table: ``database.collection``.
        full_document: Source of the documents of updates (option ``full_document``).
        document_column: How the mirror stores the exact document (option ``document_column``).
        columns: The collection's declared columns.
        inferred: The inferred columns; None if columns are not inferred.
        most_inferred: Maximum number of inferred columns.
    """

    table: str
    full_document: FullDocument = "lookup"
    document_column: Literal["extended_json", "variant", "none"] = "extended_json"
    columns: tuple[DeclaredColumn, ...] = ()
    inferred: InferredColumns | None = None
    most_inferred: int = 0

    @classmethod
    def of(cls, table: str, options: MongodbOptions, memory: Mapping[str, Any] | None = None) -> MongodbCodec:
        """Build the codec of a collection from the source's options.

        Args:
            table: ``database.collection``.
            options: The source's options.
            memory: The result of :meth:`remember`, None for a new mirror.

        Raises:
            ConfigurationError: Columns are inferred and the mirror was created without them.
        """
        declared = options.columns.get(table, {})
        columns = declared_columns(table, declared)
        inferred = None
        if options.infer.includes(table):
            if memory is not None and "fields" not in memory:
                raise ConfigurationError(
                    f"the mirror of {table} was created without inferred columns",
                    expected="a mirror created with them",
                    remedy="drop the mirror and take a new snapshot of the collection; or remove the "
                    "collection from source.infer.collections",
                )
            if memory is None:
                inferred = InferredColumns(declared=tuple(sorted(declared.items())))
            else:
                inferred = InferredColumns.from_memory(memory).with_declared(declared, OWN_COLUMNS)
        return cls(
            table,
            options.full_document,
            options.document_column,
            columns,
            inferred,
            options.infer.max_columns,
        )

    def remember(self) -> dict[str, Any]:
        """Return the state to store with the mirror once all its rows have these columns."""
        return {} if self.inferred is None else self.inferred.applied().to_memory()

    def reserve(self, memory: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Return the inferred columns if they differ from the mirror's, so that a chosen type is kept."""
        if self.inferred is None or self.inferred == InferredColumns(declared=self.inferred.declared):
            return None
        inferred = self.inferred.to_memory()
        return None if inferred == memory else inferred

    @property
    def drift(self) -> Drift:
        """Inferred columns whose type has changed."""
        replaced = self.inferred.replaced if self.inferred is not None else frozenset()
        return Drift(replaced=replaced) if replaced else NO_DRIFT

    @property
    def infers_columns(self) -> bool:
        """Whether columns are inferred."""
        return self.inferred is not None

    @property
    def reads_states(self) -> bool:
        """Whether merges read the stored documents: to infer columns, or to apply patches."""
        return self.inferred is not None or self.full_document == "none"

    def patch(self, states: pa.Array, patches: pa.Array, offsets: Ints) -> pa.Array:
        """Apply updates to documents (see :func:`.decoding.patches.apply_patches`)."""
        return apply_patches(states, patches, offsets)

    @property
    def rows_to_rewrite(self) -> str:
        """SQL predicate of the mirror's rows to rewrite, empty for none."""
        which = self.inferred.rows_to_rewrite if self.inferred is not None else ""
        return {"": "", "rest": f"`{REST}` IS NOT NULL", "all": "true"}[which]

    def tally(self, contributions: pa.RecordBatch) -> pa.RecordBatch:
        """Count the fields of the documents in contributions, as :data:`.FIELD_COUNTS`.

        For a patch, the fields that it sets are counted.
        """
        data, starts, ends = binary_buffer(contributions.column("state"))
        is_patch = pc.equal(contributions.column("op"), PATCH).to_numpy(zero_copy_only=False)
        if is_patch.any():
            patches = np.where(is_patch, starts, -1)
            kinds, first, last = find_in_all(data, patches, ends, b"updatedFields")
            starts = np.where(is_patch, np.where(kinds == DOCUMENT, first, -1), starts)
            ends = np.where(is_patch, last, ends)
        found = tally_fields(data, starts, ends)
        return field_counts(found.fields, whole=found.whole)

    def learn(self, counts: pa.Table) -> MongodbCodec:
        """Return a codec with the fields that :meth:`tally` counted; the same one if nothing changes."""
        if self.inferred is None:
            return self
        learned = self.inferred.learn(counts, OWN_COLUMNS, self.most_inferred, hidden={"_id"})
        return self if learned == self.inferred else replace(self, inferred=learned)

    def findings(self) -> list[str]:
        """Return a message for each field whose values are of several families."""
        return [] if self.inferred is None else self.inferred.findings()

    def decode(self, changes: pa.RecordBatch, fences: Sequence[Fence]) -> Decoded:
        """Decode changes of kind ``change`` and ``snapshot`` (:mod:`.decoding.decode`)."""
        return decode(changes, fences, self.full_document)

    def mirror_schema(self) -> pa.Schema:
        """Return ``_id``, ``document`` unless switched off, declared and inferred columns, the rest."""
        return self._schema

    @cached_property
    def _schema(self) -> pa.Schema:
        fields = [pa.field("_id", pa.string())]
        if self.document_column != "none":
            metadata = {LAKE_TYPE: b"variant"} if self.document_column == "variant" else None
            fields.append(pa.field("document", pa.string(), metadata=metadata))
        fields += [pa.field(column.name, arrow_type(column)) for column in self._typed]
        if self.inferred is not None:
            fields.append(pa.field(REST, pa.string()))
        return pa.schema(fields)

    @cached_property
    def _typed(self) -> tuple[DeclaredColumn, ...]:
        inferred = self.inferred.fields if self.inferred is not None else ()
        return (*self.columns, *(DeclaredColumn(one.column, (one.name,), one.type_name) for one in inferred))

    def project(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Project live rows to the mirror's columns.

        Values that their column can't hold exactly are null, and counted in the metadata :data:`MISFITS` of
        the batch's schema, which is absent if there are none.
        """
        data, starts, ends = binary_buffer(rows.column("state"))
        id_spans = find_in_all(data, starts, ends, b"_id")
        ids = write_values(data, *id_spans, MIRROR)
        arrays = [ids.column]
        misfits = {"_id": ids.not_utf8}
        if self.document_column != "none":
            texts = write_values(data, _kinds(starts), starts, ends, MIRROR)
            arrays.append(texts.column)
            misfits["document"] = texts.not_utf8
        projected = [id_spans[1]]
        typed = read_located(self._typed, data, starts, ends)
        for column, (array, count, values) in zip(self._typed, typed, strict=True):
            arrays.append(array)
            misfits[column.name] = count
            if len(column.path) == 1:
                valid = array.is_valid().to_numpy(zero_copy_only=False)
                projected.append(projected_offsets(values.starts, valid))
        if self.inferred is not None:
            rest = write_rest(data, starts, ends, projected)
            arrays.append(rest.column)
            misfits[REST] = rest.not_utf8
        found = {name: count for name, count in misfits.items() if count}
        schema = self._schema.with_metadata({MISFITS: json.dumps(found).encode()}) if found else self._schema
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def to_json(self, rows: pa.RecordBatch) -> Iterator[str]:
        """Yield live documents as canonical Extended JSON in the format of ``json_util``, one text each."""
        data, starts, ends = binary_buffer(rows.column("state"))
        yield from write_values(data, _kinds(starts), starts, ends, JSON_UTIL).column.to_pylist()


def field_counts(fields: Iterable[FieldCount], *, whole: bool = True) -> pa.RecordBatch:
    """Return the counts of top-level fields as :data:`.FIELD_COUNTS`."""
    counts = ((one.path[0], TYPE_NAMES[one.kind], one.count, one.first_index) for one in fields)
    return counts_batch(counts, whole=whole)


def _kinds(starts: Ints) -> Ints:
    return np.where(starts >= 0, DOCUMENT, 0)
