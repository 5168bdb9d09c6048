"""Rows of a mirror as the columns of Debezium's events, in the form of snapshot rows (:mod:`.events`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.formats.arrow_bytes import binary_parts
from airflow_cdc_provider.formats.kernels import Flags, Ints
from airflow_cdc_provider.sources.cassandra.events.decode import BOUND_TYPE, EventDecoder, cell_struct
from airflow_cdc_provider.sources.cassandra.events.facts import facts_of, liveness_at
from airflow_cdc_provider.sources.cassandra.events.types import empty_of
from airflow_cdc_provider.sources.cql.schema import Column


class MirrorRowDecoder(EventDecoder):
    """Decodes the cell rows of one table from a mirror, or merged from changes."""

    def whole_rows(self, rows: pa.RecordBatch) -> pa.StructArray:
        """Decode rows to cells, like the ``after`` of a snapshot's row.

        Args:
            rows: Columns ``key``; ``state`` and ``static_state``, cell rows without expired marks, null for
                none; ``at_us``: cells that had expired by then are omitted.

        Returns:
            Struct of cells in the form of ``after``; null where no row existed.
        """
        kept = self._kept(rows)
        whole, present = kept.whole, kept.present
        keys = (*self._event_schema.partition_key, *self._event_schema.clustering)
        has_row = rows["state"].is_valid().to_numpy(zero_copy_only=False)
        arrays = []
        for column in keys:
            values, field = self._value(whole, column)
            cell_present = has_row | (column.kind == "partition_key")
            arrays.append(cell_struct(field, values, pa.nulls(len(cell_present), pa.int64()), cell_present))
        for slot, column in enumerate(self._cells):
            values, field = self._value(whole, column)
            arrays.append(cell_struct(field, values, kept.expiry_of(slot), present[:, slot]))
        fields = [pa.field(c.name, a.type) for c, a in zip((*keys, *self._cells), arrays, strict=True)]
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(~kept.lives))

    def _kept(self, rows: pa.RecordBatch) -> _Kept:
        """Read the cell rows of :meth:`whole_rows`."""
        whole = self._projection.project(rows.select(["key", "state", "static_state"]))
        at_us = rows["at_us"].to_numpy()
        present = np.zeros((len(at_us), max(len(self._cells), 1)), np.bool_)
        expiry = np.zeros_like(present, np.int64)
        lives = np.zeros(len(at_us), np.bool_)
        for name, kind in (("state", "regular"), ("static_state", "static")):
            valid = np.flatnonzero(rows[name].is_valid())
            data, offsets, _ = binary_parts(rows[name].drop_null())
            plain = data[offsets[0] : offsets[-1]].copy()
            facts = facts_of(plain, np.ascontiguousarray(offsets[1:] - offsets[0]), self._slots, self._cells)
            own = np.array([c.kind == kind for c in self._cells] or [False])
            expired = facts.expires & (facts.expiry * 1_000_000 <= at_us[valid, np.newaxis])
            present[valid] |= (facts.live > 0) & ~expired & own
            expiry[valid] = np.where(own, np.where(facts.expires, facts.expiry, 0), expiry[valid])
            by_itself, strict = liveness_at(plain, offsets[:-1] - offsets[0], at_us[valid])
            lives[valid] |= (by_itself & (kind == "regular")) | (present[valid].any(axis=1) & ~strict)
        return _Kept(whole, present, expiry, lives)

    def merged_rows(self, rows: pa.RecordBatch, *, static: bool) -> pa.RecordBatch:
        """Decode changed rows of a mirror in the form of snapshot rows: with all of their columns.

        Args:
            rows: As in :meth:`whole_rows`, only rows or only static rows, with columns ``op`` (``r`` for
                read; ``c``, ``u`` and ``d``) and ``ts_us``, which is also the time of a deletion. A deleted
                row has its last state; a deleted static row is that of a deleted partition.
            static: Whether they are static rows.

        Returns:
            Columns of :class:`CassandraEvents`. ``file`` is empty.
        """
        count = rows.num_rows
        kept = self._kept(rows)
        deleted = pc.equal(rows["op"], "d").to_numpy(zero_copy_only=False)
        ended = pa.array(rows["ts_us"].to_numpy(zero_copy_only=False), mask=~deleted)
        everything = np.ones(count, np.bool_)
        keys = (*self._event_schema.partition_key, *self._event_schema.clustering)
        key_values, after = [], []
        for column in keys:
            values, field = self._value(kept.whole, column)
            key_values.append((values, self._field(column.name, column)))
            of_partition = static and column.kind == "clustering"
            times = ended if of_partition else pa.nulls(count, pa.int64())
            after.append(cell_struct(field, values, times, deleted if of_partition else everything))
        for slot, column in enumerate(self._cells):
            values, field = self._value(kept.whole, column)
            own = (column.kind == "static") == static
            if own and self._is_collection(column):
                values = pc.if_else(values.is_null(), empty_of(field), values)
            values = pc.if_else(pa.array(deleted), pa.scalar(None, field.type), values)
            times = pc.if_else(pa.array(deleted), ended, kept.expiry_of(slot))
            after.append(cell_struct(field, values, times, everything if own else deleted))
        names = [column.name for column in (*keys, *self._cells)]
        operations = {"r": "u" if static else "i", "c": "u" if static else "i", "u": "u", "d": "d"}
        codes = rows["op"].dictionary_encode()
        ops = pa.array([operations[op] for op in codes.dictionary.to_pylist()], pa.utf8())
        columns = {
            "row": pa.array(np.arange(count)),
            "ordinal": pa.array(np.zeros(count, np.int64)),
            "op": ops.take(codes.indices),
            "snapshot": pc.equal(rows["op"], "r"),
            "file": pa.repeat("", count),
            "pos": pa.array(np.full(count, -1)),
            "ts_us": rows["ts_us"],
            "key": pa.StructArray.from_arrays(
                [values for values, _ in key_values], fields=[field for _, field in key_values]
            ),
            "after": pa.StructArray.from_arrays(
                after, fields=[pa.field(n, a.type) for n, a in zip(names, after, strict=True)]
            ),
            "range_start": pa.nulls(count, BOUND_TYPE),
            "range_end": pa.nulls(count, BOUND_TYPE),
        }
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))

    def _value(self, whole: pa.RecordBatch, column: Column) -> tuple[pa.Array, pa.Field]:
        values = self._types.array(whole.column(column.name), column.type)
        converter = self._converters.get(column.name)
        return converter.array(values) if converter else values, self._field("value", column)


@dataclass(frozen=True)
class _Kept:
    """Decoded cell rows of a mirror: values, present cells, their expiry, and which rows exist.

    ``present`` and ``expiry`` (s since 1970, 0 for never) are by row and static or regular column.
    """

    whole: pa.RecordBatch
    present: Flags
    expiry: Ints
    lives: Flags

    def expiry_of(self, slot: int) -> pa.Array:
        """Return when cells of a column expire, us since 1970."""
        return pa.array(self.expiry[:, slot] * 1_000_000, mask=self.expiry[:, slot] == 0)
