"""How the changes of one table are decoded, and how its rows become rows of the mirror."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import pyarrow as pa

from airflow_cdc_provider.changes.drift import NO_DRIFT, Drift
from airflow_cdc_provider.changes.fence import Fence
from airflow_cdc_provider.changes.static_columns import StaticColumns
from airflow_cdc_provider.sources.contract.values import Decoded


class Codec(ABC):
    """Decodes the changes of one table and projects its rows. Picklable, without I/O or connections.

    A merge builds one per table and run and calls it in the order of the sections below. Methods without
    another note are called on the driver; those that run on executors are called by many tasks at once, each
    with its own copy.

    Attributes:
        table: The table's name.
        model: How conflicting contributions are resolved: ``row`` (the row with the greatest version wins) or
            ``cell`` (each cell by its write time, under the rule set ``rules``).
        rules: Rule set of model ``cell`` (:data:`~airflow_cdc_provider.lake.reconcile.cells.RULES`).
    """

    table: str
    model: ClassVar[Literal["row", "cell"]] = "row"
    rules: str = ""

    # Schema: what differs from the mirror.

    @property
    def drift(self) -> Drift:
        """Schema changes of the table since the memory was stored. Default: none beyond the names."""
        return NO_DRIFT

    @property
    def created_us(self) -> int:
        """When the table was created, in us since 1970. Default: 0, unknown."""
        return 0

    @property
    def column_ids(self) -> frozenset[int] | None:
        """Ids of the columns in states. Default: None, no column was dropped or states have no ids."""
        return None

    @property
    def static_columns(self) -> StaticColumns | None:
        """The table's static columns. Default: None, the source has no such concept."""
        return None

    @property
    def liveness_columns(self) -> tuple[str, ...] | None:
        """The columns that kept rows alive at the last merge and still do. Default: None, all of them."""
        return None

    @property
    def rows_to_rewrite(self) -> str:
        """SQL predicate of the mirror's rows to rewrite without pending changes. Default: empty, none."""
        return ""

    # Memory: what the mirror keeps for its next codec.

    def remember(self) -> Mapping[str, Any]:
        """Return the JSON that the mirror stores with a merge, for the next :meth:`.source.Source.codec`.

        If it differs from what is stored, the table is merged even without changes. Default: empty.
        """
        return {}

    def reserve(self, memory: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Return the memory that the mirror must store before any output of this codec is written.

        With it, the next codec is consistent with what an unfinished merge has written: rows in other tables,
        or changes of the mirror's columns. Default: None.

        Args:
            memory: The mirror's, from which the codec was built.

        Returns:
            The memory; None if the given one suffices.
        """
        return None

    # Decoding.

    @abstractmethod
    def decode(self, changes: pa.RecordBatch, fences: Sequence[Fence]) -> Decoded:
        """Decode changes of kind ``change`` and ``snapshot``. Runs on executors.

        An error fails the merge of this table; a change that can't be decoded belongs to the result's
        ``undecodable``, which are quarantined.

        Args:
            changes: Batch of ``CHANGE_SCHEMA`` (further columns are ignored), all of this table; may be
                empty.
            fences: The table's fences; they give each contribution its generation.
        """

    # Columns inferred from the rows.

    @property
    def infers_columns(self) -> bool:
        """Whether the columns of this table are inferred, with the next three methods. Default: False."""
        return False

    def tally(self, contributions: pa.RecordBatch) -> pa.RecordBatch:
        """Count the fields of contributions.

        Runs on executors.

        Returns:
            A batch of :data:`airflow_cdc_provider.changes.inferred_columns.FIELD_COUNTS`.
        """
        raise NotImplementedError

    def learn(self, counts: pa.Table) -> Codec:
        """Return a codec that has columns for the counted fields; the same one if nothing changes."""
        raise NotImplementedError

    def findings(self) -> list[str]:
        """Return messages about values that don't fit their columns. Default: none."""
        return []

    # Rows of the mirror.

    @abstractmethod
    def mirror_schema(self) -> pa.Schema:
        """Return the mirror's columns without ``_cdc``: the source's names, lake types."""

    @abstractmethod
    def project(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Project live rows (``LIVE_ROW_SCHEMA``) to the mirror's columns. Runs on executors.

        Returns:
            A row for each, in the same order. A value that its column can't hold is null.
        """

    @abstractmethod
    def to_json(self, rows: pa.RecordBatch) -> Iterator[str]:
        """Yield live rows as the database's own JSON: ``SELECT JSON *``, canonical Extended JSON."""

    @property
    def reads_states(self) -> bool:
        """Whether merges read the stored states of rows, to project or patch them. Default: False."""
        return False

    def patch(self, states: pa.Array, patches: pa.Array, offsets: Any) -> pa.Array:
        """Apply patches to states (:data:`~airflow_cdc_provider.lake.reconcile.Patch`). Runs on executors.

        Called only if :meth:`decode` returns contributions of operation ``PATCH``.
        """
        raise NotImplementedError

    # Feeds of model "row" whose positions can't be compared.

    def key_prefix(self, origin: str) -> bytes:
        """Return the prefix that the keys of all rows of a feed have, and no others. Runs on executors.

        Default: empty, positions of all feeds of a table can be compared.
        """
        return b""

    def families(self, keys: pa.Array) -> pa.Array | None:
        """Return keys that are the same for a row under all names of replaced feeds. Runs on executors.

        Default: None, no feed was replaced.
        """
        return None

    # Re-reads of model "cell".

    def state_payload(self, state: bytes) -> bytes:
        """Return the payload of a snapshot change that contributes exactly this state."""
        raise NotImplementedError
