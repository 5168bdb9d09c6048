"""Rows of a mirror of Cassandra as events: cells in the form of snapshot rows, or whole rows of DataStax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.events.framing import Registrar
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.events.transforms.pieces import Piece
from airflow_cdc_provider.lake.row_changes import DELETE
from airflow_cdc_provider.sources.cassandra.events import datastax_envelope, envelope
from airflow_cdc_provider.sources.cassandra.events import datastax_records as datastax
from airflow_cdc_provider.sources.cassandra.events.datastax_decode import RowDecoder
from airflow_cdc_provider.sources.cassandra.events.mirror_rows import MirrorRowDecoder
from airflow_cdc_provider.sources.cassandra.events.records import envelope_options
from airflow_cdc_provider.sources.cassandra.events.types import EventTypes
from airflow_cdc_provider.sources.converters import load_converters
from airflow_cdc_provider.sources.cql.events.rows import CqlRows, with_times
from airflow_cdc_provider.sources.encoding import encoded_events, without_skipped
from airflow_cdc_provider.sources.row_events import RowBuilder

_NOTHING_EXPIRED: Final = 0
"""Events show a mirror's row as it is, even if cells have expired since the merge."""
_NO_STATE: Final = pa.scalar(None, pa.binary())


@dataclass(frozen=True, kw_only=True)
class CassandraCells(CqlRows):
    """Builds events of cells; static columns have separate events.

    Args:
        excluded: Paths of columns to exclude from values.
        cluster: The cluster's name.
    """

    static_columns_table: ClassVar[bool] = True
    excluded: Sequence[tuple[str, ...]]
    cluster: str

    def of_cells(self, now_ns: int, registrar: Registrar | None, skipped: SkippedRecords) -> RowBuilder:
        """Return a function that builds records of cells; see :class:`.cql.events.rows.CqlRows`."""
        connector, schema = self.connector, self.codec.schema
        choices = connector.publish.cassandra
        types = EventTypes(choices.decimals, choices.varints, choices.frozen)
        decoder = MirrorRowDecoder(schema, types, load_converters(choices.converters))
        options = envelope_options(connector, self.cluster, now_ns, self.excluded)

        def build(cells: pa.RecordBatch) -> pa.RecordBatch:
            at_us = pa.array(np.full(cells.num_rows, _NOTHING_EXPIRED))
            cells = with_times(cells, now_ns).append_column("at_us", at_us)
            is_static = cells["state"].is_null()
            pieces = []
            for static, chosen in ((False, pc.invert(is_static)), (True, is_static)):
                events = decoder.merged_rows(cells.filter(chosen), static=static)
                events = without_skipped(events, connector, skipped.by_kind)
                if events.num_rows:
                    places = np.flatnonzero(chosen)[events["row"].to_numpy()]
                    built = envelope.build(events, schema.keyspace, schema.name, options)
                    pieces.append(Piece(built, places))
            return encoded_events(connector, pieces, registrar)

        return build


@dataclass(frozen=True, kw_only=True)
class DatastaxRows(CqlRows):
    """Builds events of whole rows, which include the static columns of their partition.

    Args:
        excluded: Columns to exclude from values.
    """

    excluded: Sequence[str]

    def of_cells(self, now_ns: int, registrar: Registrar | None, skipped: SkippedRecords) -> RowBuilder:
        """Return a function that builds records of cells; see :class:`.cql.events.rows.CqlRows`."""
        del skipped  # changes that a merge could not decode aren't in the mirror
        connector, schema = self.connector, self.codec.schema
        options = datastax.envelope_options(connector, schema, self.excluded, index=False)
        decoder = RowDecoder(schema, key_in_value=options.key_in_value)

        def build(cells: pa.RecordBatch) -> pa.RecordBatch:
            states = _states(cells, now_ns)
            pieces = []
            for of_partition in (False, True):
                chosen = pc.equal(states["of_partition"], of_partition)
                part = decoder.decode(states.filter(chosen))
                if part.num_rows:
                    built = datastax_envelope.build(part, schema.keyspace, schema.name, options)
                    pieces.append(Piece(built, np.flatnonzero(chosen)))
            return encoded_events(connector, pieces, registrar)

        return build


def _states(cells: pa.RecordBatch, now_ns: int) -> pa.RecordBatch:
    """Return rows with the columns that the decoder and the envelope of whole rows read."""
    deletes = pc.equal(cells["op"], DELETE)
    of_partition = cells["state"].is_null()  # the row has only static cells
    deleted_rows = pc.and_(deletes, pc.invert(of_partition))
    static_state = cells["static_state"]
    # The time of a deletion isn't known: use the build time.
    known = pc.invert(pc.or_(deletes, of_partition))
    return pa.RecordBatch.from_pydict(
        {
            "key": cells["key"],
            "key_state": cells["state"],
            "state": pc.if_else(deletes, _NO_STATE, cells["state"]),
            "static_state": pc.if_else(deleted_rows, _NO_STATE, static_state),
            "lives": pc.if_else(of_partition, static_state.is_valid(), pc.invert(deletes)),
            "written_at": pc.if_else(known, cells["written_us"], now_ns // 1000),
            "of_partition": of_partition,
        }
    )
