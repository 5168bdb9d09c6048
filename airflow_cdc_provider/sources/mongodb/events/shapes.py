"""Converts documents to typed Arrow structs, with a schema derived from each document's own values.

A collection has no schema, but each document has a shape. Documents of one shape (the same names and types in
the same order, to the leaves) become one struct column, so kernels do the work per document and Python the
work per shape. A kernel writes each document's shape as bytes, equal exactly for equal shapes::

    document  (type | name | 00 | inner)* 00
    array     (type | inner)* 00         an element like the previous one is left out, unless by position
    inner     of documents and arrays; other types have none

Types: ``docs/types-mongodb.md``, unwrapped events. Values without an Arrow type (minKey, maxKey, DBPointer,
code with scope) become Extended JSON text; ``undefined`` members are omitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.arrow_bytes import binary_slices, fixed_column, gather_text, text_array
from airflow_cdc_provider.formats.bson import (
    ARRAY,
    BINARY,
    BOOLEAN,
    CODE,
    DATE,
    DECIMAL128,
    DOCUMENT,
    DOUBLE,
    INT32,
    INT64,
    MAX_DEPTH,
    NULL,
    OBJECT_ID,
    REGEX,
    STRING,
    SYMBOL,
    TIMESTAMP,
    UNDEFINED,
    name_end,
    value_end,
)
from airflow_cdc_provider.formats.byte_kernels import copy, same
from airflow_cdc_provider.formats.extended_json import KEY, last_of_name, may_repeat, write_values
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Ints, kernel
from airflow_cdc_provider.sources.mongodb.decoding.columns import read_values
from airflow_cdc_provider.sources.mongodb.decoding.paths import Paths
from airflow_cdc_provider.sources.mongodb.events.members import numbers
from airflow_cdc_provider.sources.mongodb.events.update_lists import count_elements, elements, list_offsets

ArrayEncoding = Literal["array", "document", "mixed"]

_INSTANT: Final = {b"connect.name": b"org.apache.kafka.connect.data.Timestamp:1"}
_REGEX: Final = {b"connect.name": b"io.debezium.mongodb.regex"}
_TEXTS: Final = (STRING, CODE, SYMBOL)
_READ_AS: Final = {
    DOUBLE: "double",
    BINARY: "binary",
    OBJECT_ID: "string",
    BOOLEAN: "boolean",
    INT32: "int",
    INT64: "bigint",
}
_SEVERAL: Final = 0
_DECIMAL_LEAD: Final = len('{"$numberDecimal": "')


@dataclass(frozen=True)
class TypedDocuments:
    """Documents of one shape.

    Args:
        rows: Their row numbers in the input.
        documents: The structs; a field's metadata has Connect's semantic type (see ``connect.schema_of``).
    """

    rows: np.ndarray
    documents: pa.StructArray


def typed_documents(
    documents: pa.Array, arrays: ArrayEncoding = "array"
) -> tuple[list[TypedDocuments], dict[int, str]]:
    """Convert documents to structs, shape by shape.

    Args:
        documents: Valid documents (binary, null for none).
        arrays: ``array``: an array becomes a list, whose elements must be of one type. Documents in one list
            may have different fields. ``mixed``: likewise; values of several types become Extended JSON.
            ``document``: an array becomes a struct with fields ``_0``, ``_1`` ...

    Returns:
        The structs, and the reasons of rows without one.
    """
    data, starts, ends, valid = binary_slices(documents)
    shapes, sound = _shapes_of(data, starts, ends, valid, by_position=arrays == "document")
    distinct = shapes.dictionary_encode()
    codes = distinct.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    groups = []
    reasons = {int(row): "its names repeat or nest too deep" for row in np.flatnonzero(valid & ~sound)}
    for number, text in enumerate(distinct.dictionary.to_pylist()):
        rows = np.flatnonzero(codes == number)
        try:
            shape, _ = _read_members(text, 0, (), arrays)
        except CorruptInput as error:
            reason = f"{error.message}; {error.remedy}" if error.remedy else error.message
            reasons |= dict.fromkeys(map(int, rows), reason)
            continue
        kinds = np.full(len(rows), DOCUMENT, np.uint8)
        groups.append(TypedDocuments(rows, shape.read(data, kinds, starts[rows], ends[rows])))
    return groups, reasons


@dataclass(frozen=True)
class _Shape:
    """Type of a value.

    Args:
        kind: BSON type, or ``_SEVERAL`` for values of several types.
        members: Members of a document; elements of an array by position.
        item: Type of the elements of a list.
    """

    kind: int
    members: Mapping[str, _Shape] | None = None
    item: _Shape | None = None

    def field(self, name: str) -> pa.Field:
        """Return the Arrow field of a value of this shape."""
        metadata = {DATE: _INSTANT, TIMESTAMP: _INSTANT, REGEX: _REGEX}.get(self.kind)
        return pa.field(name, self.type, metadata=metadata)

    @property
    def type(self) -> pa.DataType:
        """The Arrow type."""
        if self.item is not None:
            return pa.list_(self.item.field("item"))
        if self.members is not None:
            return pa.struct([shape.field(name) for name, shape in self.members.items()])
        if self.kind == REGEX:
            return pa.struct([("regex", pa.utf8()), ("options", pa.utf8())])
        return _TYPES.get(self.kind, pa.utf8())

    def read(self, data: np.ndarray, kinds: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> pa.Array:
        """Read values; null for missing values and values of other types."""
        kinds = kinds.astype(np.uint8)
        if self.kind == _SEVERAL:
            kinds = np.where((kinds == NULL) | (kinds == UNDEFINED), 0, kinds)
            return write_values(data, kinds, starts, ends, KEY).column.cast(pa.utf8())
        valid = kinds == self.kind
        if self.item is not None:
            count = count_elements(data, np.where(valid, kinds, 0).astype(np.uint8), starts, ends)
            offsets, total = list_offsets(count)
            inner = elements(data, np.where(valid, kinds, 0).astype(np.uint8), starts, ends, total)
            field = self.item.field("item")
            mask = pa.array(~valid) if not valid.all() else None
            return pa.ListArray.from_arrays(
                pa.array(offsets), self.item.read(data, *inner), type=pa.list_(field), mask=mask
            )
        if self.members is not None:
            return self._read_members(data, valid, starts, ends)
        return _read_scalars(self.kind, data, np.where(valid, kinds, 0), starts, ends)

    def _read_members(
        self, data: np.ndarray, valid: np.ndarray, starts: np.ndarray, ends: np.ndarray
    ) -> pa.Array:
        assert self.members is not None
        bitmap = None if valid.all() else pa.array(valid).buffers()[1]
        if not self.members:
            return pa.Array.from_buffers(pa.struct([]), len(valid), [bitmap])
        names = list(self.members)
        if self.kind == ARRAY:  # by position: element n is named n
            names = [name.removeprefix("_") for name in names]
        found = Paths([(name,) for name in names]).find(data, np.where(valid, starts, -1), ends)
        columns = []
        for number, shape in enumerate(self.members.values()):
            values = found.values(number)
            columns.append(shape.read(data, values.kinds, values.starts, values.ends))
        fields = [shape.field(name) for name, shape in self.members.items()]
        mask = None if valid.all() else pa.array(~valid)
        return pa.StructArray.from_arrays(columns, fields=fields, mask=mask)


_TYPES: Final = {
    DOUBLE: pa.float64(),
    BINARY: pa.binary(),
    BOOLEAN: pa.bool_(),
    DATE: pa.int64(),
    TIMESTAMP: pa.int64(),
    INT32: pa.int32(),
    INT64: pa.int64(),
}


def _read_scalars(
    kind: int, data: np.ndarray, kinds: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> pa.Array:
    """Read values of one type."""
    valid = kinds == kind
    if kind in (NULL, UNDEFINED):
        return pa.nulls(len(kinds), pa.utf8())
    if kind in _READ_AS:
        return read_values(_READ_AS[kind], data, kinds.astype(np.int64), starts, ends)
    if kind in _TEXTS:
        return gather_text(data, starts + 4, ends - 1, valid).cast(pa.utf8())
    if kind == DATE:
        return fixed_column(pa.int64(), numbers(data, valid, starts, 8), valid)
    if kind == TIMESTAMP:
        # Debezium's: the seconds as a signed number.
        return fixed_column(pa.int64(), numbers(data, valid, starts + 4, 4) * 1000, valid)
    if kind == REGEX:
        middles = _pattern_ends(data, valid, starts, ends)
        options = _sorted_options(gather_text(data, middles + 1, ends - 1, valid).cast(pa.utf8()))
        pattern = gather_text(data, starts, middles, valid).cast(pa.utf8())
        mask = None if valid.all() else pa.array(~valid)
        return pa.StructArray.from_arrays([pattern, options], ["regex", "options"], mask=mask)
    text = write_values(data, kinds, starts, ends, KEY).column
    text = text.cast(pa.utf8())
    return pc.utf8_slice_codeunits(text, _DECIMAL_LEAD, -2) if kind == DECIMAL128 else text


def _sorted_options(texts: pa.Array) -> pa.Array:
    """Sort the letters of each text, as the Java driver does; there are few distinct ones."""
    distinct = texts.dictionary_encode()
    in_order = [
        "".join(sorted(text, key=lambda c: c.encode("utf-16-be"))) for text in distinct.dictionary.to_pylist()
    ]
    return pa.array(in_order, pa.utf8()).take(distinct.indices)


@kernel
def _pattern_ends(data: Bytes, valid: Flags, starts: Ints, ends: Ints) -> np.ndarray:
    """Return the end of the pattern of each regular expression."""
    found = np.zeros(len(valid), np.int64)
    for row in range(len(valid)):
        if valid[row]:
            found[row] = name_end(data, starts[row], ends[row])
    return found


def _read_members(text: bytes, at: int, path: tuple[str, ...], arrays: ArrayEncoding) -> tuple[_Shape, int]:
    """Read the shape of a document; return the offset after it, too.

    Raises:
        CorruptInput: The shape can't be converted to a struct.
    """
    members: dict[str, _Shape] = {}
    while text[at]:
        end = text.index(0, at + 1)
        try:
            name = text[at + 1 : end].decode()
        except UnicodeDecodeError:
            raise CorruptInput(f"a name in {'.'.join(path) or 'the document'} is not UTF-8") from None
        members[name], at = _read_value(text, text[at], end + 1, (*path, name), arrays)
    return _Shape(DOCUMENT, members), at + 1


def _read_value(
    text: bytes, kind: int, at: int, path: tuple[str, ...], arrays: ArrayEncoding
) -> tuple[_Shape, int]:
    if kind == DOCUMENT:
        return _read_members(text, at, path, arrays)
    if kind != ARRAY:
        return _Shape(kind), at
    found: list[_Shape] = []
    while text[at]:
        shape, at = _read_value(text, text[at], at + 1, path, arrays)
        found.append(shape)
    if arrays == "document":
        return _Shape(ARRAY, {f"_{n}": shape for n, shape in enumerate(found)}), at + 1
    return _Shape(ARRAY, item=_united(found, path, mixed=arrays == "mixed")), at + 1


def _united(shapes: Sequence[_Shape], path: tuple[str, ...], *, mixed: bool) -> _Shape:
    """Return the common type of these shapes; null is compatible with any type."""
    some = [shape for shape in shapes if shape.kind not in (NULL, UNDEFINED)]
    kinds = {shape.kind for shape in some}
    if not some:
        return _Shape(NULL)
    if kinds == {DOCUMENT}:
        names = dict.fromkeys(name for shape in some for name in shape.members or ())
        return _Shape(
            DOCUMENT,
            {
                name: _united(
                    [m[name] for s in some if name in (m := s.members or {})], (*path, name), mixed=mixed
                )
                for name in names
            },
        )
    if kinds == {ARRAY}:
        items = [shape.item for shape in some if shape.item is not None]
        return _Shape(ARRAY, item=_united(items, path, mixed=mixed))
    if len(kinds) > 1 and mixed:
        return _Shape(_SEVERAL)
    if len(kinds) > 1:
        raise CorruptInput(
            f"array {'.'.join(path)} has values of different types",
            remedy="set publish.unwrap.array_encoding: mixed or document; for an outbox expand_json: false",
        )
    return some[0]


def _shapes_of(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, valid: np.ndarray, *, by_position: bool
) -> tuple[pa.Array, np.ndarray]:
    """Write the shape of each document; null for a missing or unsupported document."""
    sizes = np.where(valid, ends - starts, 0)
    out = np.empty(int(sizes.sum()), np.uint8)
    offsets = np.zeros(len(starts) + 1, np.int64)
    sound = np.zeros(len(starts), np.bool_)
    _write_shapes(data, starts, ends, valid, by_position, out, offsets, sound)
    return text_array(out, offsets, sound, binary=True, wide=True), sound


# Columns of a frame: a document or array that is being described.
_NEXT: Final = 0
_END: Final = 1
_IN_ARRAY: Final = 2
_REPEATS: Final = 3
_BEGIN: Final = 4
_LAST: Final = 5
_START: Final = 6
_FRAME: Final = 7


@kernel
def _write_shapes(
    data: Bytes,
    starts: Ints,
    ends: Ints,
    valid: Flags,
    by_position: bool,
    out: Bytes,
    offsets: Ints,
    sound: Flags,
) -> None:
    frames = np.zeros((MAX_DEPTH, _FRAME), np.int64)
    at = 0
    for row in range(len(starts)):
        if valid[row] and value_end(data, DOCUMENT, starts[row], ends[row]) == ends[row]:
            end = _write_shape(data, starts[row], ends[row], by_position, frames, out, at)
            if end >= 0:
                sound[row] = True
                at = end
        offsets[row + 1] = at


@kernel
def _begin(data: Bytes, frames: Ints, depth: int, start: int, end: int, in_array: bool) -> None:
    frames[depth, _NEXT] = start + 4
    frames[depth, _END] = end
    frames[depth, _IN_ARRAY] = in_array
    frames[depth, _REPEATS] = not in_array and may_repeat(data, start, end)
    frames[depth, _LAST] = -1
    frames[depth, _START] = start


@kernel
def _write_shape(
    data: Bytes, start: int, end: int, by_position: bool, frames: Ints, out: Bytes, at: int
) -> int:
    """Write a document's shape, which is no longer than the document; return -1 if it is unsupported."""
    _begin(data, frames, 0, start, end, False)
    depth = 1
    while depth > 0:
        top = depth - 1
        pos = frames[top, _NEXT]
        limit = frames[top, _END] - 1
        finished = -1  # the frame whose element is complete
        if pos >= limit:
            out[at] = 0
            at += 1
            depth -= 1
            finished = depth - 1
        else:
            name = name_end(data, pos + 1, limit)
            after = value_end(data, np.int64(data[pos]), name + 1, limit) if name >= 0 else -1
            if after < 0:
                return -1
            frames[top, _NEXT] = after
            source = pos
            if frames[top, _REPEATS]:
                source = last_of_name(data, pos + 1, frames[top, _START], frames[top, _END])
                if source < 0:
                    continue
            kind = np.int64(data[source])
            if kind == UNDEFINED and not frames[top, _IN_ARRAY]:
                continue
            frames[top, _BEGIN] = at
            out[at] = kind
            at += 1
            if not frames[top, _IN_ARRAY]:
                at = copy(data, pos + 1, name + 1 - pos - 1, out, at)
            if kind in (DOCUMENT, ARRAY):
                if depth == len(frames):
                    return -1
                value = name_end(data, source + 1, limit) + 1
                inner_end = value_end(data, kind, value, limit)
                _begin(data, frames, depth, value, inner_end, kind == ARRAY)
                depth += 1
            else:
                finished = top
        if finished >= 0 and frames[finished, _IN_ARRAY] and not by_position:
            begin = frames[finished, _BEGIN]
            before = frames[finished, _LAST]
            size = at - begin
            if before >= 0 and begin - before == size and same(out, before, out, begin, size):
                at = begin
            else:
                frames[finished, _LAST] = begin
    return at
