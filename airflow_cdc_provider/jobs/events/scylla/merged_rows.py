"""Rows of a mirror of ScyllaDB that merges changed, as events in the form of snapshot rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.framing import Registrar
from airflow_cdc_provider.jobs.context.stores import Stores
from airflow_cdc_provider.jobs.events.merged_cells import MergedCells
from airflow_cdc_provider.jobs.events.scylla.lake import schemas_of
from airflow_cdc_provider.jobs.events.scylla.records import ScyllaRecords
from airflow_cdc_provider.jobs.events.skipped_records import SkippedRecords
from airflow_cdc_provider.sources.contract import Source
from airflow_cdc_provider.sources.scylla.event_tables import LogSchemas


@dataclass(frozen=True)
class ScyllaRows:
    """Builds events of one mirror's rows; see :class:`~..merged_rows.RowEvents`.

    Args:
        connector: The declaration.
        cells: The cells of the rows.
        schemas: The logs' schemas.
    """

    connector: Connector
    cells: MergedCells
    schemas: LogSchemas

    @classmethod
    def of(cls, connector: Connector, stores: Stores, source: Source, table: str) -> ScyllaRows:
        """Return the builder of events for a table's mirror."""
        cells = MergedCells.of(stores, source, table)
        return cls(connector, cells, schemas_of(stores.changes, stores.changes.state().batch))

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
        codec = self.cells.codec
        records = ScyllaRecords(self.connector, now_ns, self.schemas, skipped, registrar)
        names = [column.name for column in codec.schema.regular]
        log = self.schemas.of_row(codec.table, "", names, static=False, read_us=now_ns // 1000)

        def build(rows: pa.RecordBatch) -> pa.RecordBatch:
            return records.of_rows(log, self.cells.states(rows, now_ns), codec.schema)

        return build
