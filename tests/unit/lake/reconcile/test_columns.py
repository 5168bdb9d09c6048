from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.changes.cell_row import Cell, CellRow, read_cell_row, write_cell_row
from airflow_cdc_provider.changes.cells import CELL_PATH, ROW_LIVENESS
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.lake.reconcile.columns import only_columns


def _row(columns: list[int], clustering: bytes, value: bytes) -> CellRow:
    cells = [Cell(column, CELL_PATH, 0, 7, 0, b"p" * column, value) for column in sorted(set(columns))]
    return CellRow(ROW_LIVENESS, liveness_us=5, clustering=clustering, cells=tuple(cells))


ROWS = st.lists(
    st.none() | st.builds(_row, st.lists(st.integers(1, 5)), st.binary(max_size=3), st.binary(max_size=9)),
    max_size=6,
)


@given(ROWS, st.sets(st.integers(1, 5)))
def test_cells_of_other_columns_are_left_out_and_nothing_else(
    rows: list[CellRow | None], known: set[int]
) -> None:
    column = pa.chunked_array([[row and write_cell_row(row) for row in rows]], pa.binary())

    found = [state and read_cell_row(state) for state in only_columns(column, known).to_pylist()]

    assert found == [
        row and row._replace(cells=tuple(cell for cell in row.cells if cell.column in known)) for row in rows
    ]


def test_what_is_no_cell_row_is_refused() -> None:
    with pytest.raises(CorruptInput, match="contribution 1 is broken"):
        only_columns(pa.array([None, b"x"], pa.binary()), {1})
