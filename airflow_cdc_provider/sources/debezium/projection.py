"""Showing: states of rows, of whatever schemas, as the columns of a mirror."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.byte_kernels import copy
from airflow_cdc_provider.changes.kernels import walker
from airflow_cdc_provider.changes.spans import Bytes, column_of
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.debezium.connect_schema import NO_SCHEMA, REST, ConnectField
from airflow_cdc_provider.sources.debezium.json_members import NULL, Members, Places, read_values
from airflow_cdc_provider.sources.debezium.json_texts import compact
from airflow_cdc_provider.sources.debezium.states import read_states, rows_of
from airflow_cdc_provider.sources.debezium.tables import HIDDEN, TableRows
from airflow_cdc_provider.sources.debezium.values import Shown, show, show_plain

Mask = npt.NDArray[np.bool_]

PLAIN_TYPES: Mapping[str, str] = {
    "boolean": "bool",
    "int": "int32",
    "bigint": "int64",
    "double": "double",
    "string": "string",
    "json": "json",
}
"""How values of inferred columns are read, by the columns' type; ``decimal(p,s)`` is read as what it is."""


def project(
    states: pa.Array,
    rows: TableRows,
    schema: pa.Schema,
    inferred: Mapping[str, str],
    placeholder: tuple[bytes, ...],
) -> pa.RecordBatch:
    """Show states as a mirror's columns.

    What a column can't hold exactly, and what has no column, stands in ``_rest``.

    Args:
        states: From :func:`.states.write_states`.
        rows: What is known of the table's rows.
        schema: The mirror's columns, :data:`.connect_schema.REST` the last of them.
        inferred: Type of each column that no schema tells, as documents' inferred columns have it.
        placeholder: How what Debezium doesn't have is written.

    Raises:
        CorruptInput: A state names a schema that isn't recorded, or holds no JSON object.
    """
    groups, texts = read_states(states)
    pieces = [
        _group(rows, name, texts.take(pa.array(own)), schema, inferred, placeholder) for name, own in groups
    ]
    if not pieces:
        return pa.RecordBatch.from_arrays([pa.array([], one.type) for one in schema], schema=schema)
    if len(pieces) == 1:
        return pa.RecordBatch.from_arrays(pieces[0], schema=schema)
    back = pa.array(np.argsort(np.concatenate([own for _, own in groups]), kind="stable"))
    return pa.RecordBatch.from_arrays(
        [pa.concat_arrays(columns).take(back) for columns in zip(*pieces, strict=True)], schema=schema
    )


def to_json(states: pa.Array) -> Iterator[str]:
    """Show states as JSON objects, written in one way."""
    _, texts = read_states(states)
    data, values = read_values(texts)
    for text in compact(data, values).to_pylist():
        yield text.decode()


def _group(
    rows: TableRows,
    name: str,
    texts: pa.Array,
    schema: pa.Schema,
    inferred: Mapping[str, str],
    placeholder: tuple[bytes, ...],
) -> list[pa.Array]:
    """Show rows that came with one schema, or with none."""
    own = rows.schemas.get(name)
    if own is None and name != NO_SCHEMA:
        raise CorruptInput(
            f"a row of {rows.table} came with a schema that isn't recorded",
            found=name,
            remedy="restore the records of kind schema in the changes table, or read the topic anew",
        )
    members, _ = rows_of(texts, placeholder)
    if members.count and len(np.unique(members.owners)) < members.count:
        _require_objects(rows.table, texts)
    columns = [column for column in schema if column.name != REST]
    index = members.index([column.name for column in columns])
    kept = members.values.kinds != NULL
    shown = []
    for column, places in zip(columns, index, strict=True):
        field = own.field(column.name) if own is not None else rows.fields.get(column.name)
        array, misfits = _shown(
            members, places, field, inferred.get(column.name, ""), column.type, own is None
        )
        shown.append(array)
        kept[places[(places >= 0) & ~misfits]] = False
    numbers, names = members.numbered
    hidden = np.array([one in HIDDEN for one in names] or [False], np.bool_)
    kept &= ~hidden[numbers]
    return [*shown, _rest(members, kept)]


def _shown(
    members: Members,
    places: npt.NDArray[np.int64],
    field: ConnectField | None,
    inferred: str,
    kind: pa.DataType,
    plain: bool,
) -> Shown:
    values = members.at(places)
    if field is not None:
        return fitted(*show(members.data, values, field), values, kind)
    if plain and inferred:
        return fitted(*show_plain(members.data, values, PLAIN_TYPES.get(inferred, inferred)), values, kind)
    return pa.nulls(len(places), kind), values.present


def fitted(shown: pa.Array, misfits: Mask, values: Places, kind: pa.DataType) -> Shown:
    """Show values of one type in a column of another, which a newer schema made it."""
    if shown.type == kind:
        return shown, misfits
    fitting = _fitted(shown, kind)
    lost = pc.and_(fitting.is_null(), shown.is_valid()).to_numpy(zero_copy_only=False)
    return fitting, misfits | (values.present & lost)


def _fitted(shown: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast values; null where one has no place in the other type."""
    try:
        return _cast(shown, kind)
    except pa.ArrowNotImplementedError:
        return pa.nulls(len(shown), kind)
    except pa.ArrowInvalid:
        if len(shown) == 1:
            return pa.nulls(1, kind)
        half = len(shown) // 2
        return pa.concat_arrays([_fitted(shown.slice(0, half), kind), _fitted(shown.slice(half), kind)])


def _cast(shown: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast values without loss.

    Raises:
        pa.ArrowInvalid: Some have no place there.
    """
    if pa.types.is_struct(kind) and pa.types.is_struct(shown.type):
        known = dict(zip((one.name for one in shown.type), shown.flatten(), strict=True))
        if not known.keys() <= {one.name for one in kind}:
            raise pa.ArrowNotImplementedError("a field has no place")
        children = [
            _cast(known[one.name], one.type) if one.name in known else pa.nulls(len(shown), one.type)
            for one in kind
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=shown.is_null())
    if pa.types.is_list(kind) and pa.types.is_list(shown.type):
        sizes = pc.list_value_length(shown).fill_null(0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        elements = _cast(shown.flatten(), kind.value_type)
        return pa.ListArray.from_arrays(pa.array(offsets), elements, type=kind, mask=shown.is_null())
    if kind == pa.binary() or pa.types.is_binary(shown.type):  # whose bytes a cast would take for text
        raise pa.ArrowNotImplementedError("bytes are no other values")
    return pc.cast(shown, kind, safe=True)


def _require_objects(table: str, texts: pa.Array) -> None:
    _, values = read_values(texts)
    if (values.kinds == 0).any():
        raise CorruptInput(f"a state of a row of {table} is no JSON object")


def _rest(members: Members, kept: Mask) -> pa.Array:
    """Write members of rows as an object; null where there are none."""
    offsets = np.zeros(members.count + 1, np.int64)
    some = np.flatnonzero(kept)
    if not len(some):
        return pa.nulls(members.count, pa.string())
    names, values = members.names[:, some], members.values.take(some)
    room = int((names[1] - names[0] + values.ends - values.starts + 6).sum())
    out: Bytes = np.empty(room, np.uint8)
    _write(members.data, members.owners[some], names, values.starts, values.ends, out, offsets)
    texts = column_of(pa.binary(), out[: offsets[-1]].copy(), offsets.astype(np.int32), np.diff(offsets) > 0)
    data, found = read_values(texts)
    return compact(data, found).cast(pa.string())


@walker
def _write(data: Any, owners: Any, names: Any, starts: Any, ends: Any, out: Any, offsets: Any) -> None:
    to = np.int64(0)
    member = np.int64(0)
    for row in range(len(offsets) - 1):
        begin = to
        while member < len(owners) and owners[member] == row:
            out[to] = 0x7B if to == begin else 0x2C
            to = copy(data, names[0, member] - 1, names[1, member] - names[0, member] + 2, out, to + 1)
            out[to] = 0x3A
            to = copy(data, starts[member], ends[member] - starts[member], out, to + 1)
            member += 1
        if to > begin:
            out[to] = 0x7D
            to += 1
        offsets[row + 1] = to
