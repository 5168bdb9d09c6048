"""The mirror: a lake table that equals ``SELECT *`` at the source, and the side table that keeps the rest.

A mirror has the source's columns and one trailing struct ``_cdc``::

    _cdc struct<id binary, key binary, clustering binary, generation bigint, version binary, state binary,
                expires_at bigint>

``id`` names the row (see :func:`row_ids`), ``state`` is the cell row of cell-level sources, null for the
others, whose ``version`` is enough. Only live rows are in it, so any engine's plain SELECT is right. The side
table (``<mirror>__side``) has the columns of a contribution and is only appended to: deletions, statics and
the states of rows that don't live. Its content is commutative, so it is written before the mirror and a crash
between the two is harmless.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA
from airflow_cdc_provider.changes.drift import NO_DRIFT, Drift
from airflow_cdc_provider.changes.fence import Fence, fences_from_json, fences_to_json
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.lake.table import Head, Lake

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

CDC_COLUMN = "_cdc"
CDC_TYPE = pa.struct(
    [
        pa.field("id", pa.binary()),
        pa.field("key", pa.binary()),
        pa.field("clustering", pa.binary()),
        pa.field("generation", pa.int64()),
        pa.field("version", pa.binary()),
        pa.field("state", pa.binary()),
        pa.field("expires_at", pa.int64()),
    ]
)

MERGED_THROUGH = "cdc.batch"
FENCES = "cdc.fences"
MEMORY = "cdc.memory"
NEXT_EXPIRY = "cdc.next-expiry"
DOUBTS = "cdc.doubts"
ROWS = "cdc.rows"

MOST_DOUBTS = 2_000
"""More doubts than these ask for a rerun of the snapshot; they are counted, but no longer listed."""

_STATIC_ONLY = b"\xff"
"""Stands for the clustering of a row that shows only statics; no clustering begins with this byte."""


@dataclass(frozen=True)
class MirrorState:
    """What a mirror's newest commit says.

    Args:
        head: Base of the next commit.
        merged_through: Last batch of the changes table that is in it, -1 for none.
        fences: Fences of the table.
        memory: The source's memory of the table (see ``Source.remember``), None before the first merge.
        next_expiry: No row expires before this second (epoch), None for never.
        doubts: Keys that must be read again at the source; at most :data:`MOST_DOUBTS`.
        rows: How many rows the mirror has; None where a fence removed some, so that they must be counted.
    """

    head: Head
    merged_through: int = -1
    fences: tuple[Fence, ...] = ()
    memory: Mapping[str, Any] | None = None
    next_expiry: int | None = None
    doubts: tuple[bytes, ...] = ()
    rows: int | None = None

    def properties(self) -> dict[str, str]:
        """Return the commit properties that :meth:`Mirror.state` reads back."""
        found = {MERGED_THROUGH: str(self.merged_through), FENCES: fences_to_json(self.fences)}
        if self.memory is not None:
            found[MEMORY] = json.dumps(self.memory, sort_keys=True)
        if self.next_expiry is not None:
            found[NEXT_EXPIRY] = str(self.next_expiry)
        if self.doubts:
            found[DOUBTS] = ",".join(key.hex() for key in self.doubts)
        if self.rows is not None:
            found[ROWS] = str(self.rows)
        return found


@dataclass
class Mirror:
    """A mirror and its side table in a lake.

    Args:
        lake: The lake.
        name: The mirror's ``namespace.table``.
    """

    lake: Lake
    name: str
    columns: pa.Schema | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Find both tables; neither need exist."""
        self.table = self.lake.table(self.name)
        self.side = self.lake.table(f"{self.name}__side")

    def prepare(self, columns: pa.Schema, drift: Drift = NO_DRIFT) -> list[str]:
        """Create both tables, or fit the mirror to the source's present columns.

        Args:
            columns: The codec's ``mirror_schema()``.
            drift: What became of the columns that the mirror has.

        Returns:
            What was changed in an existing mirror, in words.

        Raises:
            ConfigurationError: A column is named like ``_cdc``, or its type changed beyond widening.
        """
        if taken := [name for name in columns.names if name.startswith(CDC_COLUMN)]:
            raise ConfigurationError(
                f"the source of {self.name} has a column {taken[0]}",
                expected=f"no name that begins with {CDC_COLUMN}: they are the mirror's own",
                remedy="exclude the table, or rename the column",
            )
        schema = spark_schema(mirror_arrow_schema(columns))
        if not self.table.exists():
            self.table.create(schema)
            self.side.create(spark_schema(CONTRIBUTION_SCHEMA))
            return []
        if not self.side.exists():
            self.side.create(spark_schema(CONTRIBUTION_SCHEMA))
        return self.table.evolve(schema, drift)

    def state(self) -> MirrorState:
        """Read the newest commit's properties."""
        if not self.table.exists():
            return MirrorState(Head(None))
        head = self.table.head()
        found = head.properties
        memory = found.get(MEMORY)
        expiry, rows = found.get(NEXT_EXPIRY), found.get(ROWS)
        return MirrorState(
            head=head,
            merged_through=int(found.get(MERGED_THROUGH, "-1")),
            fences=fences_from_json(found.get(FENCES, "[]")),
            memory=None if memory is None else json.loads(memory),
            next_expiry=None if expiry is None else int(expiry),
            doubts=tuple(bytes.fromhex(key) for key in found.get(DOUBTS, "").split(",") if key),
            rows=None if rows is None else int(rows),
        )

    def row_count(self, state: MirrorState) -> int:
        """Count the mirror's rows as of a state; 0 before the first merge.

        Args:
            state: From :meth:`state`; mostly it knows, else the rows are read.
        """
        if state.merged_through < 0:
            return 0
        return self.table.read(state.head).count() if state.rows is None else state.rows


def mirror_arrow_schema(columns: pa.Schema) -> pa.Schema:
    """Return the mirror's columns with the trailing ``_cdc``."""
    return pa.schema([*columns, pa.field(CDC_COLUMN, CDC_TYPE)])


def spark_schema(schema: pa.Schema) -> StructType:
    """Translate an Arrow schema to Spark's, all fields nullable."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def row_ids(keys: pa.Array, clusterings: pa.Array) -> pa.Array:
    """Name rows: four bytes of key length, the key, the clustering.

    Args:
        keys: Binary, no nulls.
        clusterings: Binary; null for the row of a partition in which only statics live.

    Returns:
        Binary array of the same length; equal ids are equal rows.
    """
    lengths = np.asarray(pc.binary_length(keys).cast(pa.int32()), dtype=">i4")
    prefix = pa.Array.from_buffers(pa.binary(4), len(lengths), [None, pa.py_buffer(lengths.tobytes())])
    tail = pc.fill_null(clusterings, pa.scalar(_STATIC_ONLY, pa.binary()))
    return pc.binary_join_element_wise(prefix.cast(pa.binary()), keys, tail, pa.scalar(b"", pa.binary()))


def fingerprints(columns: Sequence[pa.Array]) -> pa.Array:
    """Join binary and integer columns to one binary per row; equal rows give equal bytes and only they do."""
    parts: list[pa.Array] = []
    for column in columns:
        if pa.types.is_binary(column.type):
            lengths = pc.fill_null(pc.binary_length(column).cast(pa.int64()), -1)
            parts += [_fixed(lengths), pc.fill_null(column, pa.scalar(b"", pa.binary()))]
        else:
            parts.append(_fixed(pc.fill_null(column.cast(pa.int64()), -(2**63))))
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def _fixed(numbers: pa.Array) -> pa.Array:
    raw = np.ascontiguousarray(np.asarray(numbers, dtype="<i8"))
    return pa.Array.from_buffers(pa.binary(8), len(raw), [None, pa.py_buffer(raw.tobytes())]).cast(
        pa.binary()
    )
