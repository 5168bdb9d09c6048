"""Projects states of rows, of any schemas, to the columns of a mirror."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.inferred_columns import InferredField
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.arrow_bytes import column_of
from airflow_cdc_provider.formats.byte_kernels import copy
from airflow_cdc_provider.formats.json_text import NULL
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Ints, walker
from airflow_cdc_provider.sources.debezium.connect_schema import NO_SCHEMA, REST, ConnectField
from airflow_cdc_provider.sources.debezium.json_members import Members, ValueSpans, read_values
from airflow_cdc_provider.sources.debezium.json_texts import compact
from airflow_cdc_provider.sources.debezium.schema_history import HIDDEN, TableRows
from airflow_cdc_provider.sources.debezium.states import read_states, rows_of
from airflow_cdc_provider.sources.debezium.values import Converted, show, show_plain

PLAIN_TYPES: Mapping[str, str] = {
    "boolean": "bool",
    "int": "int32",
    "bigint": "int64",
    "double": "double",
    "string": "string",
    "json": "json",
}
"""How values of inferred columns are read, by the column's type; ``decimal(p,s)`` is read as such."""


def project(
    states: pa.Array,
    rows: TableRows,
    schema: pa.Schema,
    inferred: Mapping[str, InferredField],
    placeholder: tuple[bytes, ...],
) -> pa.RecordBatch:
    """Project states to a mirror's columns.

    Values that a column can't represent exactly, and values without a column, are stored in ``_rest``.

    Args:
        states: From :func:`.states.write_states`.
        rows: The recorded schemas of the table's rows.
        schema: The mirror's columns; :data:`.connect_schema.REST` is the last one.
        inferred: The member of each inferred column.
        placeholder: The spellings of an unavailable value.

    Raises:
        CorruptInput: A state has an unrecorded schema, or isn't a JSON object.
    """
    groups, texts = read_states(states)
    pieces = [
        _group(rows, name, texts.take(pa.array(own)), schema, inferred, placeholder) for name, own in groups
    ]
    if not pieces:
        return pa.RecordBatch.from_arrays([pa.array([], one.type) for one in schema], schema=schema)
    if len(pieces) == 1:
        return pa.RecordBatch.from_arrays(pieces[0], schema=schema)
    original_order = pa.array(np.argsort(np.concatenate([own for _, own in groups]), kind="stable"))
    return pa.RecordBatch.from_arrays(
        [pa.concat_arrays(columns).take(original_order) for columns in zip(*pieces, strict=True)],
        schema=schema,
    )


def to_json(states: pa.Array) -> Iterator[str]:
    """Yield states as canonical JSON objects."""
    _, texts = read_states(states)
    data, values = read_values(texts)
    for text in compact(data, values).to_pylist():
        yield text.decode()


def _group(
    rows: TableRows,
    name: str,
    texts: pa.Array,
    schema: pa.Schema,
    inferred: Mapping[str, InferredField],
    placeholder: tuple[bytes, ...],
) -> list[pa.Array]:
    """Project rows of one schema, or without a schema."""
    own = rows.schemas.get(name)
    if own is None and name != NO_SCHEMA:
        raise CorruptInput(
            f"the schema of a row of {rows.table} isn't recorded",
            found=name,
            remedy="restore the records of kind schema in the changes table, or read the topic from its "
            "start again",
        )
    members, _ = rows_of(texts, placeholder)
    if members.count and len(np.unique(members.owners)) < members.count:
        _require_objects(rows.table, texts)
    columns = [column for column in schema if column.name != REST]
    fields = [rows.fields.get(column.name) for column in columns]
    sources = [(rows.fields.get(column.name) or inferred[column.name]).name for column in columns]
    index = members.index(sources)
    in_rest = members.values.kinds != NULL
    converted = []
    for column, newest, source, indexes in zip(columns, fields, sources, index, strict=True):
        field = own.field(source) if own is not None else newest
        plain = inferred.get(column.name) if own is None else None
        array, misfits = _convert(members, indexes, field, plain, column.type)
        converted.append(array)
        in_rest[indexes[(indexes >= 0) & ~misfits]] = False
    numbers, names = members.numbered
    hidden = np.array([one in HIDDEN for one in names] or [False], np.bool_)
    in_rest &= ~hidden[numbers]
    return [*converted, _rest(members, in_rest)]


def _convert(
    members: Members,
    indexes: Ints,
    field: ConnectField | None,
    inferred: InferredField | None,
    kind: pa.DataType,
) -> Converted:
    values = members.at(indexes)
    if field is not None:
        return fit(*show(members.data, values, field), values, kind)
    if inferred is not None:
        name = PLAIN_TYPES.get(inferred.type_name, inferred.type_name)
        return fit(*show_plain(members.data, values, name), values, kind)
    return pa.nulls(len(indexes), kind), values.present


def fit(converted: pa.Array, misfits: Flags, values: ValueSpans, kind: pa.DataType) -> Converted:
    """Convert values to the column's type, which may come from a newer schema."""
    if converted.type == kind:
        return converted, misfits
    fitting = _cast_or_null(converted, kind)
    lost = pc.and_(fitting.is_null(), converted.is_valid()).to_numpy(zero_copy_only=False)
    return fitting, misfits | (values.present & lost)


def _cast_or_null(converted: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast values; null if the target type can't represent a value."""
    try:
        return _cast(converted, kind)
    except pa.ArrowNotImplementedError:
        return pa.nulls(len(converted), kind)
    except pa.ArrowInvalid:
        if len(converted) == 1:
            return pa.nulls(1, kind)
        half = len(converted) // 2
        return pa.concat_arrays(
            [_cast_or_null(converted.slice(0, half), kind), _cast_or_null(converted.slice(half), kind)]
        )


def _cast(converted: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast values without loss.

    Raises:
        pa.ArrowInvalid: The target type can't represent some values.
    """
    if converted.type == kind:
        return converted
    if pa.types.is_struct(kind) and pa.types.is_struct(converted.type):
        known = dict(zip((one.name for one in converted.type), converted.flatten(), strict=True))
        if not known.keys() <= {one.name for one in kind}:
            raise pa.ArrowNotImplementedError("the target struct lacks a field")
        children = [
            _cast(known[one.name], one.type) if one.name in known else pa.nulls(len(converted), one.type)
            for one in kind
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=converted.is_null())
    if pa.types.is_list(kind) and pa.types.is_list(converted.type):
        sizes = pc.list_value_length(converted).fill_null(0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        elements = _cast(converted.flatten(), kind.value_type)
        return pa.ListArray.from_arrays(pa.array(offsets), elements, type=kind, mask=converted.is_null())
    if pa.types.is_map(kind) and pa.types.is_map(converted.type):
        sizes = pc.list_value_length(converted).fill_null(0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        keys, items = converted.flatten().flatten()
        is_null = np.append(converted.is_null().to_numpy(zero_copy_only=False), False)
        return pa.MapArray.from_arrays(
            pa.array(offsets, mask=is_null), keys, _cast(items, kind.item_type), type=kind
        )
    if kind == pa.string() and not pa.types.is_nested(converted.type) and converted.type != pa.binary():
        return pc.cast(converted, kind)
    if not _is_number(kind) or not (_is_number(converted.type) or converted.type == pa.string()):
        raise pa.ArrowNotImplementedError("a cast would give values another meaning: 5 as a date, or as true")
    found = pc.cast(converted, kind, safe=True)
    if converted.type == pa.string():  # a cast reads 0x10, too
        found = pc.if_else(pc.equal(pc.cast(found, pa.string()), converted), found, None)
    return found


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _require_objects(table: str, texts: pa.Array) -> None:
    _, values = read_values(texts)
    if (values.kinds == 0).any():
        raise CorruptInput(f"a state of a row of {table} is not a JSON object")


def _rest(members: Members, in_rest: Flags) -> pa.Array:
    """Write members of rows as a JSON object; null for none."""
    offsets = np.zeros(members.count + 1, np.int64)
    some = np.flatnonzero(in_rest)
    if not len(some):
        return pa.nulls(members.count, pa.string())
    names, values = members.names[:, some], members.values.take(some)
    capacity = int((names[1] - names[0] + values.ends - values.starts + 6).sum())
    out: Bytes = np.empty(capacity, np.uint8)
    _write(members.data, members.owners[some], names, values.starts, values.ends, out, offsets)
    texts = column_of(pa.binary(), out[: offsets[-1]].copy(), offsets, np.diff(offsets) > 0)
    data, found = read_values(texts)
    return compact(data, found).cast(pa.string())


@walker
def _write(
    data: Bytes, owners: Ints, names: Ints, starts: Ints, ends: Ints, out: Bytes, offsets: Ints
) -> None:
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
