"""Changes of rows for builders of events."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.changes.cell_row import Cell, CellRow, read_cell_row, write_cell_row
from airflow_cdc_provider.changes.cells import NEVER, ROW_DELETION, ROW_LIVENESS, ROW_STATIC
from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, ROW, STATIC
from airflow_cdc_provider.sources.cassandra.events.row_states import row_states


class Changes:
    """Changes of one table, one contribution each unless said otherwise."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.numbers: list[int] = []

    def add(self, key: str, scope: int, row: CellRow, clustering: str = "", **more: Any) -> Changes:
        change = more.pop("change", len(set(self.numbers)))
        self.numbers.append(change)
        values = {"clustering": clustering.encode(), "generation": 0, "op": 0, **more}
        self.rows.append({"key": key.encode(), "scope": scope, "state": write_cell_row(row), **values})
        return self

    def write(self, key: str, clustering: str, value: str, time: int, **more: Any) -> Changes:
        cell = Cell(1, 0, 0, time, NEVER, b"", value.encode())
        native = len(clustering).to_bytes(4, "little") + clustering.encode()
        row = CellRow(ROW_LIVENESS, liveness_us=time, clustering=native, cells=(cell,))
        return self.add(key, ROW, row, clustering, **more)

    def update(self, key: str, clustering: str, value: str, time: int, **more: Any) -> Changes:
        """Write another column, without the row's liveness."""
        cell = Cell(3, 0, 0, time, NEVER, b"", value.encode())
        native = len(clustering).to_bytes(4, "little") + clustering.encode()
        return self.add(key, ROW, CellRow(0, clustering=native, cells=(cell,)), clustering, **more)

    def static(self, key: str, value: str, time: int, **more: Any) -> Changes:
        cell = Cell(2, 0, 0, time, NEVER, b"", value.encode())
        return self.add(key, STATIC, CellRow(ROW_STATIC, cells=(cell,)), **more)

    def delete(self, key: str, scope: int, time: int, clustering: str = "", **more: Any) -> Changes:
        row = CellRow(ROW_DELETION, deletion_us=time, deletion_seconds=1)
        return self.add(key, scope, row, clustering, **more)

    def states(
        self, *, clustered: bool = True
    ) -> list[tuple[int, str, str | None, str | None, str | None, bool]]:
        """Return change, key, clustering, value of the row, value of the static column, whether it lives."""
        table = pa.Table.from_pylist(self.rows, CONTRIBUTION_SCHEMA)
        numbers = np.array(self.numbers, np.int64)
        batch = row_states(table, numbers, 1000, "4.0", clustered=clustered)
        return [
            (
                row["change"],
                row["key"].decode(),
                None if row["key_state"] is None else read_cell_row(row["key_state"]).clustering[4:].decode(),
                value_of(row["state"]),
                value_of(row["static_state"]),
                row["lives"],
            )
            for row in batch.to_pylist()
        ]


def value_of(state: bytes | None) -> str | None:
    return None if state is None else "".join(c.value.decode() for c in read_cell_row(state).cells[:1])
