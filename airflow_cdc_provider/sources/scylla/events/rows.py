"""Rows of a mirror of ScyllaDB as events in the form of snapshot rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from airflow_cdc_provider.events.framing import Registrar
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.sources.cql.events.rows import CqlRows, with_times
from airflow_cdc_provider.sources.row_events import RowBuilder
from airflow_cdc_provider.sources.scylla.events.records import ScyllaRecords
from airflow_cdc_provider.sources.scylla.events.tables import LogSchemas


@dataclass(frozen=True, kw_only=True)
class ScyllaRows(CqlRows):
    """Builds events of one mirror's rows; static columns have separate events.

    Args:
        schemas: The logs' schemas.
    """

    static_columns_table: ClassVar[bool] = True
    schemas: LogSchemas

    def of_cells(self, now_ns: int, registrar: Registrar | None, skipped: SkippedRecords) -> RowBuilder:
        """Return a function that builds records of cells; see :class:`.cql.events.rows.CqlRows`."""
        schema = self.codec.schema
        records = ScyllaRecords(self.connector, now_ns, self.schemas, skipped, registrar)
        names = [column.name for column in schema.regular]
        log = self.schemas.of_row(self.codec.table, "", names, static=False, read_us=now_ns // 1000)
        return lambda cells: records.of_rows(log, with_times(cells, now_ns), schema)
