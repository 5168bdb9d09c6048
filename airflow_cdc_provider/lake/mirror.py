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
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, DOUBT, ROW, UPSERT
from airflow_cdc_provider.changes.drift import NO_DRIFT, Drift
from airflow_cdc_provider.changes.fence import Fence, fences_from_json, fences_to_json
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.lake.table import Head, Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
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
DOUBTS_SINCE = "cdc.doubts-since"
UNSEEN_BEFORE = "cdc.unseen-before"
ROWS = "cdc.rows"
OFFSET = "cdc.offset"

_STATIC_ONLY = b"\xff"
"""Stands for the clustering of a row that shows only statics; no clustering begins with this byte."""


class Asked(NamedTuple):
    """What a mirror had in doubt when its keys were read again; fields of :class:`MirrorState`."""

    merged_through: int
    doubts: int
    doubts_since: int
    unseen_before_us: int


@dataclass(frozen=True)
class MirrorState:
    """What a mirror's newest commit says.

    Args:
        head: Base of the next commit.
        merged_through: Last batch of the changes table that is in it, -1 for none.
        fences: Fences of the table.
        memory: The source's memory of the table (see ``Source.remember``), None before the first merge.
        next_expiry: No row expires before this second (epoch), None for never.
        doubts: How many keys must be read again at the source, some perhaps counted twice. They stand in the
            side table (:meth:`Mirror.doubtful_keys`).
        doubts_since: The batch of the first merge that told one of them.
        unseen_before_us: A replacing snapshot was merged: rows that were not read since then, by the source's
            clock in us, must be read again too. 0 for none.
        rows: How many rows the mirror has; None where a fence removed some, so that they must be counted.
        offset: The source's offset up to which all its changes are in it, None before the first merge.
    """

    head: Head
    merged_through: int = -1
    fences: tuple[Fence, ...] = ()
    memory: Mapping[str, Any] | None = None
    next_expiry: int | None = None
    doubts: int = 0
    doubts_since: int = 0
    unseen_before_us: int = 0
    rows: int | None = None
    offset: Mapping[str, Any] | None = None

    @property
    def asked(self) -> Asked:
        """What is in doubt; equal for two states between which no merge told or settled anything."""
        return Asked(self.merged_through, self.doubts, self.doubts_since, self.unseen_before_us)

    def properties(self) -> dict[str, str]:
        """Return the commit properties that :meth:`Mirror.state` reads back."""
        found = {MERGED_THROUGH: str(self.merged_through), FENCES: fences_to_json(self.fences)}
        if self.memory is not None:
            found[MEMORY] = json.dumps(self.memory, sort_keys=True)
        if self.next_expiry is not None:
            found[NEXT_EXPIRY] = str(self.next_expiry)
        if self.doubts:
            found[DOUBTS] = str(self.doubts)
            found[DOUBTS_SINCE] = str(self.doubts_since)
        if self.unseen_before_us:
            found[UNSEEN_BEFORE] = str(self.unseen_before_us)
        if self.rows is not None:
            found[ROWS] = str(self.rows)
        if self.offset is not None:
            found[OFFSET] = json.dumps(self.offset, sort_keys=True)
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

    def create(self, columns: pa.Schema) -> None:
        """Create both tables unless they are there.

        A side table whose mirror was dropped goes: its states name columns by ids that only the mirror knew.

        Args:
            columns: The codec's ``mirror_schema()``.

        Raises:
            ConfigurationError: A column is named like ``_cdc``.
        """
        if taken := [name for name in columns.names if name.startswith(CDC_COLUMN)]:
            raise ConfigurationError(
                f"the source of {self.name} has a column {taken[0]}",
                expected=f"no name that begins with {CDC_COLUMN}: they are the mirror's own",
                remedy="exclude the table, or rename the column",
            )
        left_behind = self.side.exists()  # looked at first: another job makes the mirror before it
        if not self.table.exists():
            if left_behind:
                self.side.drop()
            self.table.create(spark_schema(mirror_arrow_schema(columns)))
        if not self.side.exists():
            self.side.create(spark_schema(CONTRIBUTION_SCHEMA))

    def reserve(self, state: MirrorState, memory: Mapping[str, Any] | None, *, clear: bool) -> MirrorState:
        """Commit what must hold before columns change and anything is written beside the mirror.

        What it says of batches, fences and rows stays, so a run that is killed after it is done again whole.

        Args:
            state: From :meth:`state`.
            memory: The memory from now on, None to keep the one it has.
            clear: Take all rows out: the table that they are of is gone.

        Returns:
            The state as of the commit; the given one if there was nothing to do.

        Raises:
            CommitConflict: Another writer merged after the state.
        """
        clear = clear and not self.table.empty()
        if memory is None and not clear:
            return state
        reserved = state if memory is None else replace(state, memory=memory)
        if clear:
            reserved = replace(reserved, next_expiry=None, doubts=0, unseen_before_us=0, rows=0)
        delete = "true" if clear else None
        return replace(
            reserved, head=self.table.commit(state.head, delete=delete, properties=reserved.properties())
        )

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
        self.create(columns)
        return self.table.evolve(spark_schema(mirror_arrow_schema(columns)), drift)

    def state(self) -> MirrorState:
        """Read the newest commit's properties."""
        if not self.table.exists():
            return MirrorState(Head(None))
        head = self.table.head()
        found = head.properties
        memory = found.get(MEMORY)
        expiry, rows, offset = found.get(NEXT_EXPIRY), found.get(ROWS), found.get(OFFSET)
        return MirrorState(
            head=head,
            merged_through=int(found.get(MERGED_THROUGH, "-1")),
            fences=fences_from_json(found.get(FENCES, "[]")),
            memory=None if memory is None else json.loads(memory),
            next_expiry=None if expiry is None else int(expiry),
            doubts=int(found.get(DOUBTS, "0")),
            doubts_since=int(found.get(DOUBTS_SINCE, "0")),
            unseen_before_us=int(found.get(UNSEEN_BEFORE, "0")),
            rows=None if rows is None else int(rows),
            offset=None if offset is None else json.loads(offset),
        )

    def rows(self, state: MirrorState) -> DataFrame:
        """Return the mirror's rows as contributions, as of a state, with the column ``expires_at``.

        The row of a partition in which only statics live has neither ``clustering`` nor ``state``.
        """
        return (
            self.table.read(state.head)
            .select(f"{CDC_COLUMN}.*")
            .selectExpr(
                "key",
                f"cast({ROW} as tinyint) scope",
                "clustering",
                "cast(null as binary) clustering_end",
                "generation",
                "version",
                f"cast({UPSERT} as tinyint) op",
                "state",
                "expires_at",
            )
        )

    def remembered(self) -> DataFrame:
        """Return what the side table has for reconciliation: all but doubts."""
        return self.side.read().where(f"scope <> {DOUBT}")

    def doubtful_keys(self, state: MirrorState) -> DataFrame:
        """Return the keys in doubt as of a state: one column ``key``, with repetitions."""
        return self.side.read().where(f"scope = {DOUBT} AND generation >= {state.doubts_since}").select("key")

    def forget_settled(self, state: MirrorState) -> bool:
        """Remove doubts that are settled from the side table; returns whether there were any.

        Raises:
            CommitConflict: A merge came between; nothing is removed.
        """
        # A merge that is under way has told its own already: of the batch that is merged, or of later ones.
        through = (state.doubts_since if state.doubts else state.merged_through) - 1
        settled = f"scope = {DOUBT} AND generation <= {through}"
        head = self.side.head()
        if self.side.read(head).where(settled).isEmpty():
            return False
        self.side.commit(head, delete=settled, properties={})
        return True

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
