"""Rows of a mirror of Cassandra as DataStax's events: rows that merges changed, in their current state.

A mirror keeps the cells of each row; static cells of its partition are in the tombstone table. An event has
the newest static cells: a repeated step may send newer ones than its first attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.cell_times import latest_times
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.envelopes import datastax as datastax_envelope
from airflow_cdc_provider.events.framing import Registrar
from airflow_cdc_provider.events.transforms.pieces import Piece
from airflow_cdc_provider.jobs.context.stores import Stores
from airflow_cdc_provider.jobs.context.tables import learn_schema
from airflow_cdc_provider.jobs.events.cassandra.datastax_rows import whole_columns
from airflow_cdc_provider.jobs.events.cassandra.records import excluded_columns
from airflow_cdc_provider.jobs.events.known_static_columns import known_static_columns
from airflow_cdc_provider.jobs.events.skipped_records import SkippedRecords
from airflow_cdc_provider.jobs.topics.settings import encoded_events, topics_of
from airflow_cdc_provider.lake.row_changes import DELETE
from airflow_cdc_provider.sources.cassandra.codec import CassandraCodec
from airflow_cdc_provider.sources.cassandra.datastax.rows import RowDecoder
from airflow_cdc_provider.sources.cassandra.source import CassandraSource
from airflow_cdc_provider.sources.contract import Source

if TYPE_CHECKING:
    from airflow_cdc_provider.lake.mirror import MirrorState

_NO_STATE = pa.scalar(None, pa.binary())


@dataclass(frozen=True)
class CassandraRows:
    """Builds events of one mirror's rows; see :class:`~..merged_rows.RowEvents`.

    Args:
        connector: The declaration.
        stores: The lake.
        source: The source.
        table: ``keyspace.table``.
        codec: The table's codec, with the column ids of the mirror.
        state: The mirror's state.
    """

    connector: Connector
    stores: Stores
    source: Source
    table: str
    codec: CassandraCodec
    state: MirrorState

    @classmethod
    def of(cls, connector: Connector, stores: Stores, source: Source, table: str) -> CassandraRows:
        """Return the builder of events for a table's mirror."""
        assert isinstance(source, CassandraSource)
        learn_schema(source, stores.changes)
        state = stores.mirror(table).state()
        return cls(connector, stores, source, table, source.codec(table, state.memory), state)

    @property
    def columns(self) -> tuple[str, ...]:
        """The static columns: they may change without a cell of the row."""
        return tuple(column.name for column in self.codec.schema.static)

    @property
    def static_columns_table(self) -> bool:
        """A whole row includes the static columns of its partition."""
        return False

    def builder(
        self, now_ns: int, registrar: Registrar | None, skipped: SkippedRecords
    ) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """Return a function that builds records of rows."""
        del skipped  # changes that a merge could not decode aren't in the mirror
        connector, source = self.connector, self.source
        assert isinstance(source, CassandraSource)
        schema, choices = self.codec.schema, connector.publish.cassandra
        options = datastax_envelope.EnvelopeOptions(
            topics_of(connector),
            json=connector.publish.value == "json",
            key_in_value=choices.key_in_value,
            excluded=whole_columns(excluded_columns(connector, source)[self.table]),
            static=self.columns,
        )
        decoder = RowDecoder(schema, key_in_value=options.key_in_value)

        def build(rows: pa.RecordBatch) -> pa.RecordBatch:
            states = self._states(rows, now_ns)
            pieces = []
            for of_partition in (False, True):
                chosen = pc.equal(states["of_partition"], of_partition)
                part = decoder.decode(states.filter(chosen))
                if part.num_rows:
                    envelope = datastax_envelope.build(part, schema.keyspace, schema.name, options)
                    pieces.append(Piece(envelope, np.flatnonzero(chosen)))
            return encoded_events(connector, pieces, registrar)

        return build

    def _states(self, rows: pa.RecordBatch, now_ns: int) -> pa.RecordBatch:
        """Return rows with the columns that the decoder and the envelope read."""
        keys, cells = rows["key"].cast(pa.binary()), rows["state"].cast(pa.binary())
        deletes = pc.equal(rows["op"], DELETE)
        of_partition = cells.is_null()  # the row has only static cells
        static_columns = self._static_columns(keys, now_ns // 1_000_000_000)
        written = np.full(len(keys), now_ns // 1000)
        # The time of a deletion isn't known: use the build time.
        known = np.flatnonzero(pc.and_(cells.is_valid(), pc.invert(deletes)))
        written[known] = latest_times(cells.take(pa.array(known)))
        deleted_rows = pc.and_(deletes, pc.invert(of_partition))
        return pa.RecordBatch.from_pydict(
            {
                "key": keys,
                "key_state": cells,
                "state": pc.if_else(deletes, _NO_STATE, cells),
                "static_state": pc.if_else(deleted_rows, _NO_STATE, static_columns),
                "lives": pc.if_else(of_partition, static_columns.is_valid(), pc.invert(deletes)),
                "written_at": pa.array(written),
                "of_partition": of_partition,
            }
        )

    def _static_columns(self, keys: pa.Array, now_seconds: int) -> pa.Array:
        """Return the static cells of partitions, null if there are none."""
        return known_static_columns(self.stores, self.codec, self.state, keys, now_seconds).states
