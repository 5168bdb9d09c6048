"""The mirror: a lake table that equals ``SELECT *`` at the source, and the side table that keeps the rest.

A mirror has the source's columns and one trailing struct ``_cdc``::

    _cdc struct<id binary, key binary, clustering binary, generation bigint, version binary, state binary,
                expires_at bigint>

``id`` names the row (see :func:`row_ids`), ``state`` is the cell row of cell-level sources, null for the
others, whose ``version`` is enough. Only live rows are in it, so any engine's plain SELECT is right. The side
table (``<mirror>__side``) has the columns of a contribution and is only appended to: deletions, statics and
the states of rows that don't live. Its content is commutative, so it is written before the mirror and a crash
between the two is harmless.

A mirror shows static columns in each row of their partition, or, if ``lake.statics`` says so, in a table of
their own (``<mirror>__statics``): partition key, static columns and ``_cdc``, one row for each partition of
which a static column has a value. It is committed just before the mirror. A merge that ends between the two
leaves it ahead: both commits bear a common name by which the next merge sees that, and redoes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, DOUBT, ROW, UPSERT
from airflow_cdc_provider.changes.drift import NO_DRIFT, Drift
from airflow_cdc_provider.changes.fence import Fence, fences_from_json, fences_to_json
from airflow_cdc_provider.changes.static_columns import StaticColumns
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.lake.layout import MIRROR, STATIC_COLUMNS, TOMBSTONES
from airflow_cdc_provider.lake.table import Head, Lake, LakeTable

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
STATICS = "cdc.statics"

_STATIC_ONLY = b"\xff"
"""Stands for the clustering of a row that shows only statics; no clustering begins with this byte."""


class Asked(NamedTuple):
    """What a mirror had in doubt when its keys were read again; fields of :class:`MirrorState`."""

    merged_through: int
    doubts: int
    doubts_since: int
    unseen_before_us: int


@dataclass(frozen=True)
class StaticsState:
    """What the newest commit of a mirror's table of statics says.

    Args:
        head: Base of the next commit.
        commit: Names this commit, and the mirror's commit of the same merge. Empty before the first merge.
        merged_through: Last batch of the changes table that is in it, -1 for none.
        next_expiry: No static row expires before this second (epoch), None for never.
    """

    head: Head
    commit: str = ""
    merged_through: int = -1
    next_expiry: int | None = None

    def properties(self) -> dict[str, str]:
        """Return the commit properties that :meth:`Mirror.statics_state` reads back."""
        found = {MERGED_THROUGH: str(self.merged_through)}
        if self.commit:
            found[STATICS] = self.commit
        if self.next_expiry is not None:
            found[NEXT_EXPIRY] = str(self.next_expiry)
        return found


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
        statics: Of its table of statics, None if it has none.
        statics_commit: Names the commit of its table of statics that belongs to this one.
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
    statics: StaticsState | None = None
    statics_commit: str = ""

    @property
    def statics_ahead(self) -> bool:
        """Whether the table of statics holds what a merge wrote that didn't come to its end."""
        return self.statics is not None and self.statics.commit != self.statics_commit

    @property
    def expires_next(self) -> int | None:
        """The second (epoch) before which nothing of mirror and statics expires, None for never."""
        expiries = (self.next_expiry, self.statics.next_expiry if self.statics else None)
        return min((s for s in expiries if s is not None), default=None)

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
        if self.statics_commit:
            found[STATICS] = self.statics_commit
        return found


@dataclass
class Mirror:
    """A mirror in a lake, with its side table and, perhaps, its table of statics.

    Args:
        lake: The lake.
        name: The mirror's ``namespace.table``.
        statics_apart: Static columns are shown in a table of their own.
    """

    lake: Lake
    name: str
    statics_apart: bool = False

    def __post_init__(self) -> None:
        """Find the tables; none need exist."""
        self.table = self.lake.table(self.name, MIRROR)
        self.side = self.lake.table(f"{self.name}__side", TOMBSTONES)
        self.statics = self.lake.table(f"{self.name}__statics", STATIC_COLUMNS)

    def tables(self) -> list[LakeTable]:
        """List the tables that there are."""
        tables = [self.table, self.side]
        return [*tables, self.statics] if self.statics_apart and self.statics.exists() else tables

    def layout(self, columns: pa.Schema, statics: StaticColumns | None) -> tuple[pa.Schema, pa.Schema]:
        """Part a table's columns among mirror and table of statics.

        Args:
            columns: The codec's ``mirror_schema()``.
            statics: Its ``static_columns``.

        Returns:
            The columns of the mirror and of the table of statics, both without ``_cdc``; none of the latter
            if it isn't needed. A table of statics stays when the last static column was dropped.
        """
        if not self.statics_apart or statics is None or not (statics.names or self.statics.exists()):
            return columns, pa.schema([])
        return statics.of_rows(columns), statics.of_partitions(columns)

    def require_layout(self, statics: StaticColumns | None, replaced: frozenset[str] = frozenset()) -> None:
        """Refuse a mirror that was made when ``lake.statics`` said otherwise.

        Args:
            statics: The codec's ``static_columns``.
            replaced: Columns of other ones' names, which the mirror may have had.

        Raises:
            ConfigurationError: It was; says what to do.
        """
        if statics is None or not statics.names or not self.table.exists():
            return
        apart = self.statics.exists()
        within = not apart and (set(statics.names) - replaced) & set(self.table.schema().names)
        if (within and self.statics_apart) or (apart and not self.statics_apart):
            wanted, found = ("table", "rows") if self.statics_apart else ("rows", "table")
            raise ConfigurationError(
                f"the mirror {self.name} was made with lake.statics: {found}",
                expected=f"a mirror made with lake.statics: {wanted}",
                found=f"static columns {', '.join(statics.names)} in "
                f"{'its rows' if within else f'the table {self.statics.name}'}",
                remedy=f"set lake.statics to {found}; or drop {self.name} and take a new snapshot of its "
                "source table",
            )

    def create(self, columns: pa.Schema, statics: StaticColumns | None = None) -> None:
        """Create its tables unless they are there.

        What stands beside a mirror that was dropped goes: its states name columns by ids that only the mirror
        knew.

        Args:
            columns: The codec's ``mirror_schema()``.
            statics: Its ``static_columns``.

        Raises:
            ConfigurationError: A column is named like ``_cdc``.
        """
        if taken := [name for name in columns.names if name.startswith(CDC_COLUMN)]:
            raise ConfigurationError(
                f"the source of {self.name} has a column {taken[0]}",
                expected=f"no name that begins with {CDC_COLUMN}: they are the mirror's own",
                remedy="exclude the table, or rename the column",
            )
        # Looked at first: another job makes the mirror before them.
        left_behind = [table for table in (self.side, self.statics) if table.exists()]
        own, apart = self.layout(columns, statics)
        if not self.table.exists():
            for table in left_behind:
                table.drop()
            self.table.create(spark_schema(mirror_arrow_schema(own)))
        if not self.side.exists():
            self.side.create(spark_schema(CONTRIBUTION_SCHEMA))
        if len(apart):
            self.statics.create(spark_schema(mirror_arrow_schema(apart)))

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
        if clear:
            state = self._clear_statics(state)
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

    def _clear_statics(self, state: MirrorState) -> MirrorState:
        """Take all rows out of the table of statics; which is ahead then until a merge comes to its end."""
        if state.statics is None or self.statics.empty():
            return state
        cleared = replace(state.statics, commit="", next_expiry=None)
        head = self.statics.commit(cleared.head, delete="true", properties=cleared.properties())
        return replace(state, statics=replace(cleared, head=head))

    def prepare(
        self, columns: pa.Schema, drift: Drift = NO_DRIFT, statics: StaticColumns | None = None
    ) -> list[str]:
        """Create its tables, or fit them to the source's present columns.

        Args:
            columns: The codec's ``mirror_schema()``.
            drift: What became of the columns that the mirror has.
            statics: The codec's ``static_columns``.

        Returns:
            What was changed in an existing mirror, in words.

        Raises:
            ConfigurationError: A column is named like ``_cdc``, or its type changed beyond widening.
        """
        self.create(columns, statics)
        own, apart = self.layout(columns, statics)
        changes = self.table.evolve(spark_schema(mirror_arrow_schema(own)), drift)
        if len(apart) and statics is not None:
            of_key = replace(drift, keys=min(drift.keys, len(statics.key)))
            found = self.statics.evolve(spark_schema(mirror_arrow_schema(apart)), of_key)
            changes += [f"{change} in its table of statics" for change in found]
        return changes

    def statics_state(self) -> StaticsState | None:
        """Read the newest commit's properties of the table of statics; None if there is no such table."""
        if not self.statics_apart or not self.statics.exists():
            return None
        head = self.statics.head()
        expiry = head.properties.get(NEXT_EXPIRY)
        return StaticsState(
            head=head,
            commit=head.properties.get(STATICS, ""),
            merged_through=int(head.properties.get(MERGED_THROUGH, "-1")),
            next_expiry=None if expiry is None else int(expiry),
        )

    def state(self) -> MirrorState:
        """Read the properties of the newest commits of mirror and table of statics."""
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
            statics=self.statics_state(),
            statics_commit=found.get(STATICS, ""),
        )

    def rows(self, state: MirrorState) -> DataFrame:
        """Return the mirror's rows as contributions, as of a state, with the column ``expires_at``.

        The row of a partition in which only statics live has neither ``clustering`` nor ``state``.
        """
        return _as_contributions(self.table.read(state.head))

    def static_rows(self, statics: StaticsState) -> DataFrame:
        """Return the rows of the table of statics likewise.

        They have no ``clustering``; their ``state`` is that of the statics.
        """
        return _as_contributions(self.statics.read(statics.head))

    def remembered(self) -> DataFrame:
        """Return what the side table has for reconciliation, as of now: all but doubts.

        Of the snapshot that is the newest now: where Spark reads a table as it is at any time, it makes each
        frame anew that it keeps of it when the table is appended to, as merges do, under another plan. Nobody
        could let go of that one, and it fails when the files are gone that it was made of.
        """
        return self.side.read(self.side.head()).where(f"scope <> {DOUBT}")

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


def _as_contributions(rows: DataFrame) -> DataFrame:
    return rows.select(f"{CDC_COLUMN}.*").selectExpr(
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


def mirror_arrow_schema(columns: pa.Schema) -> pa.Schema:
    """Return the mirror's columns with the trailing ``_cdc``."""
    return pa.schema([*columns, pa.field(CDC_COLUMN, CDC_TYPE)])


def spark_schema(schema: pa.Schema) -> StructType:
    """Translate an Arrow schema to Spark's, all fields nullable."""
    from pyspark.sql.pandas.types import from_arrow_schema

    told = pa.schema([field.with_type(_with_metadata(field.type)) for field in schema])
    return from_arrow_schema(told, prefer_timestamp_ntz=True)


def _with_metadata(kind: pa.DataType) -> pa.DataType:
    """Give fields of structs some metadata, as those of Debezium's geometries, ``wkb`` and ``srid``.

    Spark 4.1 looks for its own geometries there, and fails where a field of these names has none.
    """
    if pa.types.is_struct(kind):
        return pa.struct([one.with_type(_with_metadata(one.type)).with_metadata(_PLAIN) for one in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_metadata(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(_with_metadata(kind.item_type)))
    return kind


_PLAIN = {"type": "plain"}


ID_KEY_BEGINS = 4
"""Where the key stands in an id; it is the rest of it where rows have no clustering."""


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
