"""Decode values of any CQL type, at any offsets of a buffer, to Arrow arrays of their lake types.

Scalars are decoded by a kernel for their type (:mod:`.scalars`); nested values are split into scalars
(:mod:`.nested`), which are decoded by the same kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.changes.cells import CELL_HEADER_BYTES
from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput
from airflow_cdc_provider.formats.kernels import Bytes, Ints
from airflow_cdc_provider.sources.cql.lake_types import LakeTypes
from airflow_cdc_provider.sources.cql.live_rows import OK
from airflow_cdc_provider.sources.cql.nested import (
    NO_SPACE,
    NULL_KEY,
    Parts,
    locate_elements,
    locate_parts,
    new_sorting,
)
from airflow_cdc_provider.sources.cql.programs import (
    FIRST_CHILD,
    LIST,
    MAP,
    OP,
    OPS,
    TUPLE,
    UDT,
    Programs,
    compile_types,
)
from airflow_cdc_provider.sources.cql.scalars import bitmap, check_size, scalar_array
from airflow_cdc_provider.sources.cql.schema import CqlType
from airflow_cdc_provider.sources.cql.scratch import new_scratch


@dataclass(frozen=True)
class ValueColumns:
    """Decodes values of a list of types. Picklable.

    Args:
        types: The types. Values of multi-cell types are cell rows, others are in the native protocol's
        format. lake: Choices of lake types.
    """

    types: tuple[CqlType, ...]
    lake: LakeTypes = field(default_factory=LakeTypes)

    def array(self, number: int, data: Bytes, starts: Ints, lengths: Ints, where: str) -> pa.Array:
        """Decode values of the type with a number to an Arrow array; see :func:`.scalars.scalar_array`."""
        cql_type = self.types[number]
        op = int(self._compiled.nodes[number, OP])
        if op < LIST:
            return scalar_array(op, self.lake.of(cql_type), data, starts, lengths, where)
        return _NestedColumn(self._compiled, number, cql_type, self.lake, where).array(data, starts, lengths)

    @cached_property
    def _compiled(self) -> Programs:
        """The types and that of list paths, first as decoded, then as stored.

        Elements are sorted by the order of their stored type.
        """
        programs = compile_types([*self.types, CqlType("timeuuid")])
        decoded, stored = programs.nodes.copy(), programs.nodes.copy()
        stored[:, FIRST_CHILD] += len(stored)
        ops = decoded[:, OP]
        if self.lake.timestamps == "milliseconds":
            # A time is 64 bits without conversion, like milliseconds.
            ops[ops == OPS["timestamp"]] = OPS["time"]
        ops[np.isin(ops, [OPS[name] for name in self.lake.native])] = OPS["blob"]
        return Programs(np.concatenate([decoded, stored]), programs.roots)

    def __getstate__(self) -> dict[str, Any]:
        """Omit compiled attributes."""
        return {"types": self.types, "lake": self.lake}


class _NestedColumn:
    """Decodes a column of a nested type.

    Args:
        programs: The table's compiled types.
        root: The column's node.
        cql_type: Its type.
        types: Choices of lake types.
        where: The column, for errors.
    """

    def __init__(
        self, programs: Programs, root: int, cql_type: CqlType, types: LakeTypes, where: str
    ) -> None:
        self.nodes = programs.nodes
        self.stored = len(programs.nodes) // 2
        self.paths = int(programs.roots[-1]) + self.stored
        self.root = root
        self.type = cql_type
        self.types = types
        self.where = where

    def array(self, data: Bytes, starts: Ints, lengths: Ints) -> pa.Array:
        """Decode values to an Arrow array."""
        empty = np.empty(0, np.int64)
        first = np.zeros(len(self.nodes), np.int64)
        counting = Parts(False, first, empty, empty, np.zeros(len(self.nodes), np.int64))
        self._locate(data, starts, lengths, counting)
        check_size(int(counting.counts.max()), self.where)
        first[1:] = np.cumsum(counting.counts)[:-1]
        spans = int(counting.counts.sum())
        parts = Parts(True, first, np.empty(spans, np.int64), np.empty(spans, np.int64), np.zeros_like(first))
        self._locate(data, starts, lengths, parts)
        return self._node(self.root, self.type, data, parts)

    def _locate(self, data: Bytes, starts: Ints, lengths: Ints, parts: Parts) -> None:
        longest = int(lengths.max(initial=0))
        scratch = new_scratch(longest)
        if not self.type.multi_cell:
            status, row = locate_parts(self.nodes, self.root, data, starts, lengths, scratch, parts)
        else:
            most = longest // CELL_HEADER_BYTES
            elements = int(self.nodes[self.root, FIRST_CHILD]) + self.stored
            order = self.paths if self.type.name == "list" else elements
            status, path_bytes = NO_SPACE, 2 * longest + 64
            while status == NO_SPACE:
                parts.counts[:] = 0
                sorting = new_sorting(most, path_bytes)
                status, row = locate_elements(
                    self.nodes, self.root, order, data, starts, lengths, sorting, scratch, parts
                )
                path_bytes *= 2
        if status == NULL_KEY:
            raise ConfigurationError(
                f"{self.where} has a map with an empty key of a type without empty values",
                found=f"row {row} of a batch",
                expected="keys that are not empty",
                remedy="delete the entry in the database, or exclude the table",
            )
        if status != OK:
            raise CorruptInput(f"{self.where} can't be decoded: row {row} of a batch breaks its format")

    def _node(self, node: int, cql_type: CqlType, data: Bytes, parts: Parts) -> pa.Array:
        """Build the array of a node and its descendants."""
        op, count = int(self.nodes[node, OP]), int(parts.counts[node])
        here = slice(int(parts.first[node]), int(parts.first[node]) + count)
        starts, lengths = parts.starts[here], parts.lengths[here]
        if op < LIST:
            return scalar_array(op, self.types.of(cql_type), data, starts, lengths, self.where)
        valid = bitmap(lengths >= 0)
        below = int(self.nodes[node, FIRST_CHILD])
        children = [self._node(below + i, p, data, parts) for i, p in enumerate(cql_type.parameters)]
        lake_type = self.types.of(cql_type)
        if op in (TUPLE, UDT):
            return pa.Array.from_buffers(lake_type, count, [valid], children=children)
        if op == MAP:
            entry_type = lake_type.field(0).type
            children = [pa.Array.from_buffers(entry_type, len(children[0]), [None], children=children)]
        offsets = pa.py_buffer(np.append(starts, parts.counts[below]).astype(np.int32))
        return pa.Array.from_buffers(lake_type, count, [valid, offsets], children=children)
