"""Projects row states of any schema version to the columns of the newest one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_cdc_provider.changes.column_names import column_names
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.kernels import Bytes, Ints
from airflow_cdc_provider.sources.vitess.fields import Column
from airflow_cdc_provider.sources.vitess.lake_types import REST, LakeTypes
from airflow_cdc_provider.sources.vitess.rows import FAULTS, read_rows
from airflow_cdc_provider.sources.vitess.schema_history import FromColumn, Origin, TableHistory
from airflow_cdc_provider.sources.vitess.states import read_states
from airflow_cdc_provider.sources.vitess.values import texts_or_hex, to_lake_type

_Cells = tuple[Bytes, Ints, Ints]
_Convert = Callable[[int, Column, _Cells, Ints], pa.Array]


def lake_names(history: TableHistory) -> list[str]:
    """Return the names of the columns of the newest version in the mirror.

    Of clashing columns the older one has its own name; no other column changes a column's name later.
    """
    found: dict[str, str] = {}
    earlier: tuple[Column, ...] = ()
    for shape, step in zip(history.shapes, ((), *history.steps), strict=False):
        kept = {
            column.name: found[column.name]
            for column, origin in zip(shape.columns, step, strict=False)
            if isinstance(origin, FromColumn) and earlier[origin.number].name == column.name
        }
        by_age = sorted((column.name for column in shape.columns), key=lambda name: name not in kept)
        found = column_names(by_age, kept, reserved=(REST,))
        earlier = shape.columns
    return [found[column.name] for column in earlier]


def mirror_schema(history: TableHistory, types: LakeTypes) -> pa.Schema:
    """Return the columns of the newest version, and :data:`.lake_types.REST`."""
    named = zip(lake_names(history), history.newest.columns, strict=True)
    fields = [pa.field(name, types.of(column)) for name, column in named]
    return pa.schema([*fields, pa.field(REST, pa.string())])


def project(states: pa.Array, history: TableHistory, schema: pa.Schema) -> pa.RecordBatch:
    """Project states to the columns of :func:`mirror_schema`.

    A value that its column can't represent exactly is null there, and in ``_rest`` as MySQL's text.

    Raises:
        CorruptInput: A state doesn't match its schema, or the schema isn't recorded.
    """
    rest: dict[int, dict[str, str]] = {}

    def convert_typed(number: int, column: Column, cells: _Cells, rows: Ints) -> pa.Array:
        converted, misfits = to_lake_type(column, schema.field(number).type, *cells)
        if misfits.any():
            odd = np.flatnonzero(misfits)
            data, starts, ends = cells
            texts = texts_or_hex(column, data, starts[odd], ends[odd]).to_pylist()
            name = schema.field(number).name
            for row, text in zip(rows[odd], texts, strict=True):
                rest.setdefault(int(row), {})[name] = text
        return converted

    arrays = _columns(states, history, convert_typed, [field.type for field in schema][:-1])
    rest_texts: list[str | None] = [None] * len(states)
    for row, values in rest.items():
        rest_texts[row] = json.dumps(values, ensure_ascii=False)
    return pa.RecordBatch.from_arrays([*arrays, pa.array(rest_texts, pa.string())], schema=schema)


def to_json(states: pa.Array, history: TableHistory) -> Iterator[str]:
    """Convert states to JSON objects of MySQL's texts, bytes as ``0x`` and hexadecimal digits.

    Raises:
        CorruptInput: As in :func:`project`.
    """
    columns = history.newest.columns
    kinds = [pa.string() for _ in columns]
    arrays = _columns(states, history, lambda _, column, cells, __: texts_or_hex(column, *cells), kinds)
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
    states: pa.Array, history: TableHistory, converted: _Convert, kinds: list[pa.DataType]
) -> list[pa.Array]:
    """Convert the states of each version separately, and restore the order of the rows."""
    data, starts, ends, groups = read_states(states)
    pieces: list[list[pa.Array]] = [[] for _ in kinds]
    for digest, rows in groups:
        number = history.by_digest.get(digest)
        if number is None:
            raise CorruptInput(
                f"the fields of a row of {history.table} aren't recorded",
                found=digest.hex(),
                remedy="restore the records of kind schema in the changes table, or take a new snapshot",
            )
        shape = history.shapes[number]
        values = read_rows(data, starts[rows], ends[rows], len(shape.columns))
        if (values.counts != len(shape.columns)).any():
            fault = next((FAULTS[one] for one in values.faults if one), "wrong number of values")
            raise CorruptInput(f"a row state of {history.table} is invalid", found=fault)
        for index, origin in enumerate(history.origins(number)):
            if isinstance(origin, FromColumn):
                cells = data, values.starts[origin.number], values.ends[origin.number]
                pieces[index].append(converted(index, shape.columns[origin.number], cells, rows))
            else:
                column = history.newest.columns[index]
                pieces[index].append(converted(index, column, _constant(origin, len(rows)), rows))
    if len(groups) == 1:
        return [piece[0] for piece in pieces]
    order = np.concatenate([rows for _, rows in groups]) if groups else np.empty(0, np.int64)
    inverse = pa.array(np.argsort(order, kind="stable"))
    return [
        pa.concat_arrays(piece).take(inverse) if piece else pa.array([], kind)
        for piece, kind in zip(pieces, kinds, strict=True)
    ]


def _constant(origin: Origin, count: int) -> tuple[Bytes, Ints, Ints]:
    """Return the offsets of one text, or of NULL, repeated for each row."""
    text = None if isinstance(origin, FromColumn) or origin.text is None else origin.text.encode()
    data: npt.NDArray[Any] = np.frombuffer(text or b"", np.uint8)
    return data, np.full(count, -1 if text is None else 0), np.full(count, -1 if text is None else len(data))
