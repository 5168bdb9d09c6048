"""Encodes row states and row keys.

A state::

    u8 format, 1 | 16 bytes: schema id | Row message

A key::

    u16 length of the shard | keyspace/shard | per key column: u32 length | value as MySQL's text

All numbers are little-endian. Values of a key are those of the stream. Types that copy and stream print
differently (ZEROFILL, DECIMAL, floating-point numbers, ENUM and SET) are normalised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.arrow_bytes import binary_buffer, column_of
from airflow_cdc_provider.formats.byte_kernels import copy, store_little32
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Ints, walker
from airflow_cdc_provider.sources.vitess.fields import Column, TableShape
from airflow_cdc_provider.sources.vitess.lake_types import family_of
from airflow_cdc_provider.sources.vitess.rows import Values
from airflow_cdc_provider.sources.vitess.values import texts

DIGEST_BYTES: Final = 16
HEAD_BYTES: Final = 1 + DIGEST_BYTES

_FORMAT: Final = b"\x01"
_LENGTH_BYTES: Final = 4
_LARGEST: Final = int(np.iinfo(np.int32).max)


def write_states(data: Bytes, starts: Ints, ends: Ints, digest: bytes) -> pa.Array:
    """Encode the states of rows with the same schema; null where a start is negative."""
    head = np.frombuffer(_FORMAT + digest, np.uint8)
    valid = starts >= 0
    offsets = _offsets(np.where(valid, ends - starts + HEAD_BYTES, 0))
    out = np.empty(int(offsets[-1]), np.uint8)
    _write_states(data, starts, ends, head, offsets, out)
    return column_of(pa.binary(), out, offsets, valid)


def read_states(states: pa.Array) -> tuple[Bytes, Ints, Ints, list[tuple[bytes, Ints]]]:
    """Parse states.

    Returns:
        A buffer, first byte of each Row message in it and the byte after it, and the rows of each schema id.

    Raises:
        CorruptInput: A state has another format.
    """
    data, starts, ends = binary_buffer(states)
    if len(starts) and ((ends - starts < HEAD_BYTES).any() or (data[starts] != _FORMAT[0]).any()):
        raise CorruptInput(
            "unsupported format of a Vitess row state",
            expected=f"{_FORMAT.hex()}, {DIGEST_BYTES} bytes and a Row message",
            remedy="the mirror was written by a newer release of this package: use that release",
        )
    names = data[starts[:, None] + np.arange(1, HEAD_BYTES)] if len(starts) else np.empty((0, 16), np.uint8)
    return data, starts + HEAD_BYTES, ends, _grouped(names)


def write_keys(
    shape: TableShape, data: Bytes, values: Values, rows: Ints, shards: Sequence[str], shard_of: Ints
) -> tuple[pa.Array, Flags]:
    """Encode the keys of rows.

    Args:
        shape: Schema of the rows.
        data: The buffer of their values.
        values: Byte ranges of the values.
        rows: Indexes of the rows to encode.
        shards: Shard names, ``keyspace/shard``.
        shard_of: Index in ``shards`` for each of ``rows``.

    Returns:
        The keys, and a mask of the rows without a key, because a key column is NULL.
    """
    parts = [
        _comparable(shape.columns[n], data, values.starts[n][rows], values.ends[n][rows]) for n in shape.key
    ]
    missing = np.zeros(len(rows), np.bool_)
    prefixes = [key_prefix(name) for name in shards]
    prefix_ends = np.cumsum([len(prefix) for prefix in prefixes], dtype=np.int64)
    prefix_sizes = np.array([len(prefix) for prefix in prefixes], np.int64)
    sizes = prefix_sizes[shard_of]
    for _, starts, ends in parts:
        missing |= starts < 0
        sizes = sizes + _LENGTH_BYTES + np.where(starts >= 0, ends - starts, 0)
    offsets = _offsets(sizes)
    out = np.empty(int(offsets[-1]), np.uint8)
    at = offsets[:-1].copy()
    prefix_data = np.frombuffer(b"".join(prefixes), np.uint8)
    _write_prefixes(prefix_data, (prefix_ends - prefix_sizes)[shard_of], prefix_ends[shard_of], out, at)
    for buffer, starts, ends in parts:
        _write_values(buffer, starts, ends, out, at)
    return column_of(pa.binary(), out, offsets), missing


def key_prefix(shard: str) -> bytes:
    """Return the prefix of all keys of a shard (``keyspace/shard``)."""
    name = shard.encode()
    return len(name).to_bytes(2, "little") + name


def shards_of(keys: pa.Array) -> pa.Array:
    """Return the shard (``keyspace/shard``) of each key."""
    data, starts, _ = binary_buffer(keys)
    lengths = data[starts].astype(np.int64) | data[starts + 1].astype(np.int64) << 8
    shards = pa.nulls(len(keys), pa.string())
    for length in np.unique(lengths).tolist():
        own = pa.array(lengths == length)
        names = pc.binary_slice(keys.filter(own), 2, 2 + length)
        shards = pc.replace_with_mask(shards, own, names.cast(pa.string()))
    return shards


def _comparable(column: Column, data: Bytes, starts: Ints, ends: Ints) -> tuple[Bytes, Ints, Ints]:
    """Return the normalised values of a key column."""
    family = family_of(column)
    if family in ("decimal", "float", "members") or column.type.zerofill:
        return binary_buffer(texts(column, data, starts, ends)[0])
    return data, starts, ends


def _grouped(names: Bytes) -> list[tuple[bytes, Ints]]:
    if not len(names):
        return []
    if (names == names[0]).all():
        return [(names[0].tobytes(), np.arange(len(names)))]
    column = pc.dictionary_encode(
        pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(DIGEST_BYTES), len(names), [None, pa.py_buffer(np.ascontiguousarray(names))]
        )
    )
    numbers = column.indices.to_numpy(zero_copy_only=False)
    return [(name, np.flatnonzero(numbers == n)) for n, name in enumerate(column.dictionary.to_pylist())]


def _offsets(sizes: Ints) -> Ints:
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    if offsets[-1] > _LARGEST:
        raise OverflowError(f"{offsets[-1]} bytes don't fit into an Arrow binary column")
    return offsets


@walker
def _write_states(data: Bytes, starts: Ints, ends: Ints, head: Bytes, offsets: Ints, out: Bytes) -> None:
    for row in range(len(starts)):
        if starts[row] >= 0:
            at = copy(head, 0, len(head), out, offsets[row])
            copy(data, starts[row], ends[row] - starts[row], out, at)


@walker
def _write_prefixes(data: Bytes, starts: Ints, ends: Ints, out: Bytes, at: Ints) -> None:
    for row in range(len(starts)):
        at[row] = copy(data, starts[row], ends[row] - starts[row], out, at[row])


@walker
def _write_values(data: Bytes, starts: Ints, ends: Ints, out: Bytes, at: Ints) -> None:
    for row in range(len(starts)):
        length = ends[row] - starts[row] if starts[row] >= 0 else 0
        store_little32(out, at[row], length)
        at[row] = copy(data, max(starts[row], 0), length, out, at[row] + 4)
