"""Extracts values of documents as separate documents, in raw BSON."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.formats.arrow_bytes import binary_slices, text_array
from airflow_cdc_provider.formats.bson import DOCUMENT, NULL
from airflow_cdc_provider.formats.byte_kernels import copy, store_little32
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Ints, walker
from airflow_cdc_provider.sources.mongodb.decoding.paths import Paths


def values_as_documents(
    data: np.ndarray, kinds: np.ndarray, starts: np.ndarray, ends: np.ndarray, name: bytes = b""
) -> pa.Array:
    """Copy values to a column of documents.

    Args:
        data: The buffer.
        kinds: BSON type of each, 0 for none.
        starts: Start of each value.
        ends: End of each value.
        name: The document's only member, which has the value, or null for a missing value; without it, values
            must be documents.

    Returns:
        ``large_binary``; without a name, null for a missing value.
    """
    kinds = np.where((kinds == 0) & bool(name), NULL, kinds).astype(np.uint8)
    valid = kinds != 0
    extra = len(name) + 7 if name else 0  # length, type, two zeros
    offsets = np.zeros(len(kinds) + 1, np.int64)
    np.cumsum(np.where(valid, np.where(kinds == NULL, 0, ends - starts) + extra, 0), out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    _copy_values(data, kinds, starts, ends, np.frombuffer(name, np.uint8), offsets, out)
    return text_array(out, offsets, valid, binary=True, wide=True)


def shard_keys(
    data: np.ndarray, kinds: np.ndarray, starts: np.ndarray, ends: np.ndarray, shard_key: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Build the ``documentKey`` of documents, as in change events: shard key and ``_id``.

    Args:
        data: The buffer.
        kinds: 3 for a document (``uint8``).
        starts: Start of each document.
        ends: End of each document.
        shard_key: Dotted paths of the shard key's fields. Missing fields are left out of the key.

    Returns:
        The buffer of the keys; type, start and end of each.
    """
    names = dict.fromkeys([*shard_key, "_id"])
    starts = np.where(kinds == DOCUMENT, starts, -1)
    out, offsets = _chosen(data, starts, ends, [(name, tuple(name.split("."))) for name in names])
    return out, kinds, offsets[:-1], offsets[1:]


def chosen_members(documents: pa.Array, names: Sequence[str]) -> pa.Array:
    """Return documents with only the named members, in this order; null stays null.

    Args:
        documents: Valid documents (binary).
        names: The members' names.
    """
    data, starts, ends, valid = binary_slices(documents)
    distinct = dict.fromkeys(names)
    out, offsets = _chosen(data, np.where(valid, starts, -1), ends, [(name, (name,)) for name in distinct])
    return text_array(out, offsets, valid, binary=True, wide=True)


def member_of(documents: pa.Array, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Find a member of documents (binary): the buffer, and type, start and end of its values in it."""
    data, starts, ends, valid = binary_slices(documents)
    found = Paths([(name,)]).find(data, np.where(valid, starts, -1), ends).values(0)
    return data, found.kinds.astype(np.uint8), found.starts, found.ends


def with_id(documents: pa.Array, keys: pa.Array) -> pa.Array:
    """Return documents with an ``_id`` appended unless they have one; null stays null.

    Args:
        documents: Valid documents (binary).
        keys: Per document ``{id: value}``, from :func:`values_as_documents`.
    """
    data, starts, ends, valid = binary_slices(documents)
    _, kinds, _, _ = member_of(documents, "_id")
    key_data, key_starts, key_ends, _ = binary_slices(keys)
    adds = valid & (kinds == 0)
    # The member takes one byte more than in the key, for its longer name, and the key has 5 around it.
    sizes = np.where(valid, ends - starts, 0) + np.where(adds, key_ends - key_starts - 4, 0)
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    _write_with_id(data, starts, ends, valid, adds, key_data, key_starts, key_ends, offsets, out)
    return text_array(out, offsets, valid, binary=True, wide=True)


def _chosen(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, members: Sequence[tuple[str, tuple[str, ...]]]
) -> tuple[np.ndarray, np.ndarray]:
    """Write documents of chosen values; a start of -1 means no value."""
    found = Paths([path for _, path in members]).find(data, starts, ends)
    texts = [name.encode() for name, _ in members]
    bounds = np.cumsum([0, *map(len, texts)]).astype(np.int64)
    there = found.kinds != 0
    sizes = np.where(there, found.ends.astype(np.int64) - found.starts, 0)
    sizes += np.where(there, np.diff(bounds)[:, None] + 2, 0)
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(np.where(starts >= 0, sizes.sum(axis=0) + 5, 0), out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    member_names = np.frombuffer(b"".join(texts), np.uint8)
    _write_members(data, found.kinds, found.starts, found.ends, member_names, bounds, offsets, out)
    return out, offsets


@walker
def _copy_values(
    data: Bytes, kinds: Ints, starts: Ints, ends: Ints, name: Bytes, offsets: Ints, out: Bytes
) -> None:
    for row in range(len(kinds)):
        if kinds[row] == 0:
            continue
        at = offsets[row]
        if len(name):
            store_little32(out, at, offsets[row + 1] - at)
            out[at + 4] = kinds[row]
            at = copy(name, 0, len(name), out, at + 5)
            out[at] = 0
            at += 1
            out[offsets[row + 1] - 1] = 0
        if kinds[row] != NULL:
            copy(data, starts[row], ends[row] - starts[row], out, at)


@walker
def _write_members(
    data: Bytes, kinds: Ints, starts: Ints, ends: Ints, names: Bytes, bounds: Ints, offsets: Ints, out: Bytes
) -> None:
    for row in range(len(offsets) - 1):
        if offsets[row] == offsets[row + 1]:
            continue
        store_little32(out, offsets[row], offsets[row + 1] - offsets[row])
        at = offsets[row] + 4
        for member in range(len(kinds)):
            if kinds[member, row] == 0:
                continue
            out[at] = kinds[member, row]
            at = copy(names, bounds[member], bounds[member + 1] - bounds[member], out, at + 1)
            out[at] = 0
            size = np.int64(ends[member, row]) - np.int64(starts[member, row])
            at = copy(data, np.int64(starts[member, row]), size, out, at + 1)
        out[at] = 0


@walker
def _write_with_id(
    data: Bytes,
    starts: Ints,
    ends: Ints,
    valid: Flags,
    adds: Flags,
    keys: Ints,
    key_starts: Ints,
    key_ends: Ints,
    offsets: Ints,
    out: Bytes,
) -> None:
    for row in range(len(starts)):
        if not valid[row]:
            continue
        at = offsets[row]
        size = ends[row] - starts[row]
        at = copy(data, starts[row], size, out, at)
        if adds[row]:
            store_little32(out, offsets[row], offsets[row + 1] - offsets[row])
            element = at - 1  # overwrites the NUL that ended the document
            out[element] = keys[key_starts[row] + 4]
            out[element + 1] = 95
            # "id", its zero, the value and the zero that ends the key
            copy(keys, key_starts[row] + 5, key_ends[row] - key_starts[row] - 5, out, element + 2)
