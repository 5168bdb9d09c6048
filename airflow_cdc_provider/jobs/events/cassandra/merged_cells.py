"""Rows of a mirror of Cassandra that merges changed, as events of cells in the form of snapshot rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.envelopes import cassandra as cassandra_envelope
from airflow_cdc_provider.events.framing import Registrar
from airflow_cdc_provider.events.transforms.pieces import Piece
from airflow_cdc_provider.jobs.context.stores import Stores
from airflow_cdc_provider.jobs.events.cassandra.events import envelope_options
from airflow_cdc_provider.jobs.events.cassandra.records import cluster_of, excluded_columns
from airflow_cdc_provider.jobs.events.merged_cells import MergedCells
from airflow_cdc_provider.jobs.events.skipped_records import SkippedRecords
from airflow_cdc_provider.jobs.topics.settings import encoded_events, without_skipped
from airflow_cdc_provider.sources.cassandra.debezium.mirror_rows import MirrorRowDecoder
from airflow_cdc_provider.sources.cassandra.debezium.types import EventTypes
from airflow_cdc_provider.sources.cassandra.source import CassandraSource
from airflow_cdc_provider.sources.contract import Source
from airflow_cdc_provider.sources.converters import load_converters, require_columns

_NOTHING_EXPIRED: Final = 0
"""Events show a mirror's row as it is, even if cells have expired since the merge."""


@dataclass(frozen=True)
class CassandraCells:
    """Builds events of one mirror's rows; see :class:`~..merged_rows.RowEvents`.

    Args:
        connector: The declaration.
        source: The source.
        cells: The cells of the rows.
    """

    connector: Connector
    source: CassandraSource
    cells: MergedCells

    @classmethod
    def of(cls, connector: Connector, stores: Stores, source: Source, table: str) -> CassandraCells:
        """Return the builder of events for a table's mirror."""
        assert isinstance(source, CassandraSource)
        return cls(connector, source, MergedCells.of(stores, source, table))

    @property
    def columns(self) -> tuple[str, ...]:
        """The static columns."""
        return self.cells.columns

    @property
    def static_columns_table(self) -> bool:
        """Static columns have separate events."""
        return True

    def builder(
        self, now_ns: int, registrar: Registrar | None, skipped: SkippedRecords
    ) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """Return a function that builds records of rows."""
        connector, source = self.connector, self.source
        schema, choices = self.cells.codec.schema, connector.publish.cassandra
        converters = load_converters(choices.converters)
        known = [source.schemas.tables[name] for name in source.tables()]
        require_columns(converters, [f"{one.full_name}.{c.name}" for one in known for c in one.columns])
        types = EventTypes(choices.decimals, choices.varints, choices.frozen)
        decoder = MirrorRowDecoder(schema, types, converters)
        excluded = excluded_columns(connector, source)[schema.full_name]
        options = envelope_options(connector, cluster_of(source), now_ns, excluded)

        def build(rows: pa.RecordBatch) -> pa.RecordBatch:
            states = self.cells.states(rows, now_ns)
            at = pa.array(np.full(states.num_rows, _NOTHING_EXPIRED))
            states = states.append_column("at_us", at)
            is_static = states["state"].is_null()
            pieces = []
            for static, chosen in ((False, pc.invert(is_static)), (True, is_static)):
                events = decoder.merged_rows(states.filter(chosen), static=static)
                events = without_skipped(events, connector, skipped.by_kind)
                if events.num_rows:
                    places = np.flatnonzero(chosen)[events["row"].to_numpy()]
                    envelope = cassandra_envelope.build(events, schema.keyspace, schema.name, options)
                    pieces.append(Piece(envelope, places))
            return encoded_events(connector, pieces, registrar)

        return build
