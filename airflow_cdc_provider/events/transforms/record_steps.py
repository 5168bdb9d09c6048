"""Transforms of topics, headers, keys and partitions of records."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.events.connect import INT64, OPTIONAL_STRING, STRING, ConnectSchema
from airflow_cdc_provider.events.encoder import Envelope
from airflow_cdc_provider.events.json_converter import to_json
from airflow_cdc_provider.events.names import Adjustment, adjusted_schema
from airflow_cdc_provider.events.topics import topic_name
from airflow_cdc_provider.events.transforms.columns import Column, at_path, reshaped, typed
from airflow_cdc_provider.events.transforms.field_steps import find
from airflow_cdc_provider.events.transforms.java_patterns import replaced
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.arrow_bytes import binary_slices
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Ints, kernel

ENVELOPE: Final = ".Envelope"
"""Suffixes of schema names of Debezium's envelopes."""


def routed(envelope: Envelope, topics: pa.Array) -> Envelope:
    """Route records to topics.

    Args:
        envelope: The records.
        topics: Topic of each record; null keeps its topic.
    """
    codes = topics.dictionary_encode()
    names = [topic_name(name) for name in codes.dictionary.to_pylist()]
    chosen = codes.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    width = len(names) + 1
    pairs, which = np.unique(envelope.destination * width + chosen + 1, return_inverse=True)
    destinations = []
    for pair in pairs:
        old, new = divmod(int(pair), width)
        destination = envelope.destinations[old]
        destinations.append(replace(destination, topic=names[new - 1]) if new else destination)
    return replace(envelope, destinations=destinations, destination=which.reshape(-1))


def renamed_topics(envelope: Envelope, regex: str, replacement: str) -> Envelope:
    """Rename topics (RegexRouter)."""
    destinations = []
    for destination in envelope.destinations:
        new = replaced(regex, replacement, destination.topic)
        destinations.append(
            replace(destination, topic=topic_name(_some(new))) if new is not None else destination
        )
    return replace(envelope, destinations=destinations)


def _some(topic: str) -> str:
    if not topic:
        raise ConfigurationError("a transform returns an empty topic name", remedy="correct its replacement")
    return topic


def logical_table(
    envelope: Envelope,
    new_topic: str,
    physical: str,
    *,
    key_field: str,
    adjustment: Adjustment,
) -> Envelope:
    """Route records of a table to a shared topic (ByLogicalTableRouter).

    Args:
        envelope: Records of one destination.
        new_topic: The topic.
        physical: Identifier of the table.
        key_field: Field of the key for the identifier; empty for none.
        adjustment: Adjustment of schema names for Avro.
    """

    def rename_key(column: Column) -> Column:
        if not column.is_struct():
            raise ConfigurationError(
                "the table can't be added to a key without fields",
                remedy="convert it to a struct first with a transform of type hoist, or set "
                "unique_keys: false",
            )
        if key_field:
            count = len(column.values)
            constant = Column(STRING, pa.repeat(pa.scalar(physical, pa.utf8()), count))
            column = column.with_members([*column.members(), (key_field, constant)])
        name = adjusted_schema(f"{new_topic}.Key", adjustment)
        return Column(replace(column.schema, name=name, default=None), column.values)

    def rename_value(column: Column) -> Column:
        members = []
        inner_name = adjusted_schema(f"{new_topic}.Value", adjustment)
        for name, member in column.members():
            schema = member.schema
            if name in ("before", "after") and schema.type == "struct":
                schema = replace(schema, name=inner_name, default=None)
            members.append((name, Column(schema, member.values)))
        changed = column.with_members(members)
        name = adjusted_schema(f"{new_topic}{ENVELOPE}", adjustment)
        return Column(replace(changed.schema, name=name, default=None), changed.values)

    if envelope.key.null_count < len(envelope.key):
        envelope = reshaped(envelope, "key", rename_key)
    if is_envelope(envelope) and envelope.value.null_count < len(envelope.value):
        envelope = reshaped(envelope, "value", rename_value)
    return replace(envelope, destinations=[replace(d, topic=new_topic) for d in envelope.destinations])


def is_envelope(envelope: Envelope) -> bool:
    """Return whether values are Debezium's envelopes, by schema name like Debezium."""
    return envelope.destinations[0].value.name.endswith(ENVELOPE)


def with_header(envelope: Envelope, name: str, literal: str) -> Envelope:
    """Add or replace a header (InsertHeader)."""
    text = (
        literal
        if re.fullmatch(r"true|false|-?(0|[1-9]\d{0,17})(\.\d+)?", literal)
        else json.dumps(literal, ensure_ascii=False)
    )
    texts = pa.repeat(pa.scalar(text, pa.large_utf8()), len(envelope.key))
    return replace(envelope, headers={**envelope.headers, name: texts})


def without_headers(envelope: Envelope, names: Sequence[str]) -> Envelope:
    """Drop headers (DropHeaders)."""
    return replace(envelope, headers={name: t for name, t in envelope.headers.items() if name not in names})


def header_to_value(
    envelope: Envelope, headers: Sequence[str], fields: Sequence[str], *, move: bool
) -> Envelope:
    """Copy or move headers to fields (HeaderToValue); headers that no record has are ignored."""
    found = [
        (field, _header_column(name, envelope.headers[name]))
        for name, field in zip(headers, fields, strict=True)
        if name in envelope.headers
    ]
    if not found:
        return envelope

    def add(column: Column) -> Column:
        for path, header in found:
            some = (
                header
                if len(header.values) == len(column.values)
                else Column(header.schema, header.values.slice(0, 0))
            )
            column = _with_field(column, path, some)
        return column

    changed = reshaped(envelope, "value", add)
    return without_headers(changed, headers) if move else changed


def _with_field(column: Column, path: str, new: Column) -> Column:
    parent, _, name = path.rpartition(".")
    if parent:
        if find(column, parent) is None:
            raise ConfigurationError(f"field {parent} for a header doesn't exist", remedy="correct the path")
        return at_path(column, parent, lambda struct: _with_field(struct, name, new)).without_options()
    if not column.is_struct():
        raise ConfigurationError(
            "a header can't be added to a value without fields", found=column.schema.type
        )
    return column.with_members([*column.members(), (name, new)]).without_options()


def _header_column(name: str, texts: pa.Array) -> Column:
    """Return a header's values in the type of their JSON."""
    texts = texts.cast(pa.large_utf8())
    non_null = texts.filter(pc.not_equal(texts, "null").fill_null(False))
    kinds = {
        "text": bool(pc.any(pc.starts_with(non_null, '"')).as_py()),
        "truth": bool(pc.any(pc.is_in(non_null, pa.array(["true", "false"], pa.large_utf8()))).as_py()),
        "other": bool(pc.any(pc.match_substring_regex(non_null, r"^[\[{]")).as_py()),
    }
    if kinds["other"] or sum(kinds.values()) > 1:
        raise ConfigurationError(
            f"header {name} has values of several types, or nested values", expected="one type"
        )
    optional = len(non_null) < len(texts)
    if kinds["text"]:
        from airflow_cdc_provider.events.transforms.evaluate import plain_texts

        return Column(OPTIONAL_STRING if optional else STRING, plain_texts(texts))
    kept = pc.if_else(pc.equal(texts, "null"), pa.scalar(None, pa.large_utf8()), texts)
    if kinds["truth"]:
        return Column(ConnectSchema("boolean", optional=optional), pc.equal(kept, "true"))
    if pc.any(pc.match_substring_regex(non_null, r"[.eE]")).as_py():
        return Column(ConnectSchema("double", optional=optional), kept.cast(pa.float64()))
    return Column(replace(INT64, optional=optional), kept.cast(pa.int64()))


def value_to_header(
    envelope: Envelope, side: str, fields: Sequence[str], headers: Sequence[str], *, move: bool
) -> Envelope:
    """Copy or move fields to headers (HeaderFrom).

    Raises:
        ConfigurationError: The field doesn't exist.
    """
    column = Column.of(envelope, side)
    added = dict(envelope.headers)
    for field, header in zip(fields, headers, strict=True):
        found = find(column, field)
        if found is None:
            raise ConfigurationError(
                f"field {field} for header {header} doesn't exist",
                remedy="correct it, or select topics that have it with when.topic",
            )
        added[header] = to_json(found.schema, typed(found))
    changed = replace(envelope, headers=added)
    if not move:
        return changed

    def without(one: Column) -> Column:
        for field in fields:
            one = at_path(one, field, lambda _: None)
        return one.without_options()

    return reshaped(changed, "key" if side == "key" else "value", without)


def value_to_key(envelope: Envelope, fields: Sequence[str]) -> Envelope:
    """Build the key from fields of the value (ValueToKey).

    Raises:
        ConfigurationError: A field doesn't exist; or a record is a tombstone, which would keep the old key,
            so compaction would not remove records with the new key.
    """
    column = Column.of(envelope, "value")
    if envelope.value.null_count:
        raise ConfigurationError(
            "a tombstone has no fields for the key",
            found=f"topic {envelope.destinations[0].topic}",
            remedy="drop tombstones before with type drop and when.tombstone: true; or keep their keys with "
            "when.tombstone: false",
        )
    if envelope.verbatim:
        raise ConfigurationError("values that are text have no fields for a key")
    members = []
    for field in fields:
        found = find(column, field)
        if found is None:
            raise ConfigurationError(
                f"field {field} for the key doesn't exist",
                remedy="correct it, or select topics that have it with when.topic",
            )
        members.append((field, found))
    schema = ConnectSchema("struct", fields=tuple((name, member.schema) for name, member in members))
    key = pa.StructArray.from_arrays([typed(member) for _, member in members], [name for name, _ in members])
    destinations = [replace(d, key=schema, avro_key=None) for d in envelope.destinations]
    return replace(envelope, destinations=destinations, key=key)


def partitioned(envelope: Envelope, fields: Sequence[str], partitions: int) -> Envelope:
    """Set partitions by Java's hash of fields (PartitionRouting); unchanged if all are null."""
    if not is_envelope(envelope):
        return envelope
    value = Column.of(envelope, "value")
    op = find(value, "op")
    count = len(envelope.key)
    codes = typed(op) if op is not None else pa.nulls(count, pa.utf8())
    deleted = pc.equal(codes, "d").fill_null(False).to_numpy(zero_copy_only=False)
    total, known = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    for path in fields:
        for field_path, selected in _places(path, deleted):
            found = find(value, field_path)
            if found is not None:
                hashes, there = _java_hashes(field_path, found)
                total += np.where(there & selected, hashes, 0)
                known |= there & selected
    excluded = pc.is_in(codes, pa.array(["t", "m"], codes.type)).to_numpy(zero_copy_only=False)
    known &= ~excluded
    normal = total & 0x7FFFFFFF
    normal[normal == 0x7FFFFFFF] = 0
    old = pa.nulls(count, pa.int32()) if envelope.partition is None else envelope.partition
    new = pa.array((normal % partitions).astype(np.int32))
    return replace(envelope, partition=pc.if_else(pa.array(known), new, old))


def _places(path: str, deleted: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Return the fields of a path, and for which records each exists."""
    head, dot, rest = path.partition(".")
    if head != "change" or not dot:
        return [(path, np.ones(len(deleted), np.bool_))]
    return [(f"before.{rest}", deleted), (f"after.{rest}", ~deleted)]


def _java_hashes(path: str, column: Column) -> tuple[np.ndarray, np.ndarray]:
    """Return ``Object.hashCode`` of values, and which are not null."""
    values, kind = typed(column), column.schema.type
    there = values.is_valid().to_numpy(zero_copy_only=False)
    if kind == "string":
        hashes = np.zeros(len(values), np.int64)
        _hash_texts(*binary_slices(values.cast(pa.large_utf8())), hashes)
        return hashes, there
    if kind not in ("boolean", "int8", "int16", "int32", "int64", "double", "float"):
        raise ConfigurationError(
            f"field {path} can't determine a partition", expected="a plain value", found=kind
        )
    if kind == "boolean":
        truth = values.fill_null(False).to_numpy(zero_copy_only=False)
        return np.where(truth, 1231, 1237).astype(np.int64), there
    numbers = values.fill_null(0).to_numpy(zero_copy_only=False)
    if kind == "float":
        return (numbers + np.float32(0)).view(np.int32).astype(np.int64), there
    if kind == "double":
        bits = numbers.view(np.uint64)
    elif kind == "int64":
        bits = numbers.astype(np.int64).view(np.uint64)
    else:
        return numbers.astype(np.int64), there
    folded = (bits ^ (bits >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
    return folded.astype(np.uint32).view(np.int32).astype(np.int64), there


@kernel
def _hash_texts(data: Bytes, starts: Ints, ends: Ints, valid: Flags, out: Bytes) -> None:
    """Hash texts like ``String.hashCode``, over UTF-16 units; four-byte characters have two."""
    for row in range(len(starts)):
        code = 0
        i = starts[row]
        while valid[row] and i < ends[row]:
            byte = int(data[i])
            size = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            point = byte if size == 1 else byte & (0x7F >> size)
            for more in range(1, size):
                if i + more < ends[row]:
                    point = point << 6 | int(data[i + more]) & 0x3F
            i += size
            if point > 0xFFFF:
                point -= 0x10000
                code = (code * 31 + 0xD800 + (point >> 10)) & 0xFFFFFFFF
                point = 0xDC00 + (point & 0x3FF)
            code = (code * 31 + point) & 0xFFFFFFFF
        out[row] = code - (1 << 32) if code >= 1 << 31 else code
