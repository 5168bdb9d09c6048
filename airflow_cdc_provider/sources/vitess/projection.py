"""Showing: states of rows, of whatever shapes, as the columns of the newest one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_cdc_provider.changes.spans import Bytes, Ints
from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput
from airflow_cdc_provider.sources.vitess.fields import Column
from airflow_cdc_provider.sources.vitess.history import FromColumn, Origin, TableHistory
from airflow_cdc_provider.sources.vitess.lake_types import REST, LakeTypes
from airflow_cdc_provider.sources.vitess.rows import FAULTS, read_rows
from airflow_cdc_provider.sources.vitess.states import read_states
from airflow_cdc_provider.sources.vitess.values import show, shown_or_bytes

_TAKEN: Final = (REST, "_cdc")

_Cells = tuple[Bytes, Ints, Ints]
_Show = Callable[[int, Column, _Cells, Ints], pa.Array]


def mirror_schema(history: TableHistory, types: LakeTypes) -> pa.Schema:
    """Return the columns of the newest shape, and :data:`.lake_types.REST`.

    Raises:
        ConfigurationError: A column has a name that mirrors need for themselves.
    """
    if taken := [column.name for column in history.newest.columns if column.name.lower() in _TAKEN]:
        raise ConfigurationError(
            f"column {taken[0]} of {history.table} can't be shown: mirrors have one of this name themselves",
            expected=f"other names than {', '.join(_TAKEN)}",
            remedy="rename the column, or leave the table out with exclude_tables",
        )
    fields = [pa.field(column.name, types.of(column)) for column in history.newest.columns]
    return pa.schema([*fields, pa.field(REST, pa.string())])


def project(states: pa.Array, history: TableHistory, schema: pa.Schema) -> pa.RecordBatch:
    """Show states as the columns of :func:`mirror_schema`.

    What a column can't hold exactly is null there, and in ``_rest`` as MySQL's text.

    Raises:
        CorruptInput: A state doesn't fit the fields that it names, or these aren't known.
    """
    rest: dict[int, dict[str, str]] = {}

    def show_typed(number: int, column: Column, cells: _Cells, rows: Ints) -> pa.Array:
        shown, misfits = show(column, schema.field(number).type, *cells)
        if misfits.any():
            odd = np.flatnonzero(misfits)
            data, starts, ends = cells
            texts = shown_or_bytes(column, data, starts[odd], ends[odd]).to_pylist()
            name = schema.field(number).name
            for row, text in zip(rows[odd], texts, strict=True):
                rest.setdefault(int(row), {})[name] = text
        return shown

    arrays = _columns(states, history, show_typed, [field.type for field in schema][:-1])
    left: list[str | None] = [None] * len(states)
    for row, values in rest.items():
        left[row] = json.dumps(values, ensure_ascii=False)
    return pa.RecordBatch.from_arrays([*arrays, pa.array(left, pa.string())], schema=schema)


def to_json(states: pa.Array, history: TableHistory) -> Iterator[str]:
    """Show states as JSON objects of MySQL's texts, bytes as ``0x`` and digits.

    Raises:
        CorruptInput: As in :func:`project`.
    """
    columns = history.newest.columns
    kinds = [pa.string() for _ in columns]
    arrays = _columns(states, history, lambda _, column, cells, __: shown_or_bytes(column, *cells), kinds)
    names = [json.dumps(column.name, ensure_ascii=False) for column in columns]
    for row in zip(*(array.to_pylist() for array in arrays), strict=True):
        yield (
            "{"
            + ",".join(
                f"{name}:{json.dumps(text, ensure_ascii=False)}"
                for name, text in zip(names, row, strict=True)
            )
            + "}"
        )


def _columns(
    states: pa.Array, history: TableHistory, shown: _Show, kinds: list[pa.DataType]
) -> list[pa.Array]:
    """Show states of each shape by itself; put the rows back into their order."""
    data, starts, ends, groups = read_states(states)
    pieces: list[list[pa.Array]] = [[] for _ in kinds]
    for digest, rows in groups:
        number = history.by_digest.get(digest)
        if number is None:
            raise CorruptInput(
                f"a row of {history.table} came with fields that aren't recorded",
                found=digest.hex(),
                remedy="restore the records of kind schema in the changes table, or take a new snapshot",
            )
        shape = history.shapes[number]
        values = read_rows(data, starts[rows], ends[rows], len(shape.columns))
        if (values.counts != len(shape.columns)).any():
            fault = next((FAULTS[one] for one in values.faults if one), "another number of values")
            raise CorruptInput(f"a state of a row of {history.table} is broken", found=fault)
        for place, origin in enumerate(history.origins(number)):
            if isinstance(origin, FromColumn):
                cells = data, values.starts[origin.number], values.ends[origin.number]
                pieces[place].append(shown(place, shape.columns[origin.number], cells, rows))
            else:
                column = history.newest.columns[place]
                pieces[place].append(shown(place, column, _constant(origin, len(rows)), rows))
    if len(groups) == 1:
        return [piece[0] for piece in pieces]
    order = np.concatenate([rows for _, rows in groups]) if groups else np.empty(0, np.int64)
    back = pa.array(np.argsort(order, kind="stable"))
    return [
        pa.concat_arrays(piece).take(back) if piece else pa.array([], kind)
        for piece, kind in zip(pieces, kinds, strict=True)
    ]


def _constant(origin: Origin, count: int) -> tuple[Bytes, Ints, Ints]:
    """Return places of one text, or of none, as often as there are rows."""
    text = None if isinstance(origin, FromColumn) or origin.text is None else origin.text.encode()
    data: npt.NDArray[Any] = np.frombuffer(text or b"", np.uint8)
    return data, np.full(count, -1 if text is None else 0), np.full(count, -1 if text is None else len(data))
