"""What the envelopes of all sources share: options, the source block, tombstones and schema changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.events.connect import (
    INT64,
    OPTIONAL_INT64,
    OPTIONAL_STRING,
    SNAPSHOT,
    STRING,
    Member,
    Values,
    struct_values,
)
from airflow_cdc_provider.events.encoder import Destination, Envelope
from airflow_cdc_provider.events.topics import TopicNaming
from airflow_cdc_provider.formats.products import fits

NO_TEXT: Final = pa.scalar(None, pa.utf8())
NO_INTEGER: Final = pa.scalar(None, pa.int64())


@dataclass(frozen=True, kw_only=True)
class EnvelopeOptions:
    """Options of every envelope.

    Args:
        topics: Topic names; the prefix is also ``source.name`` and part of schema names.
        version: Value of ``source.version``.
        tombstones: Whether a tombstone follows each deletion.
        now_ns: Current time, ns since 1970.
        wraps: Whether a time of the source block beyond 64 bits is its low 64 bits, as in Debezium, or null.
    """

    topics: TopicNaming
    version: str
    tombstones: bool
    now_ns: int
    wraps: bool = True

    @property
    def times(self) -> tuple[Member, Member, Member]:
        """The fields ``ts_ms``, ``ts_us`` and ``ts_ns`` of the envelope."""
        units = {"ts_ms": 1_000_000, "ts_us": 1000, "ts_ns": 1}
        ms, us, ns = ((name, OPTIONAL_INT64, self.now_ns // unit) for name, unit in units.items())
        return ms, us, ns

    def tombstones_after(self, events: pa.RecordBatch) -> Any:
        """Return which events a tombstone follows (bool array)."""
        return pc.and_(pc.equal(events["op"], "d"), self.tombstones).to_numpy(zero_copy_only=False)


def source_block(
    name: str,
    connector: str,
    options: EnvelopeOptions,
    times: Sequence[pa.Array],
    *own: Member,
    snapshot: pa.Array | str = "false",
    database: pa.Array | str,
    version: int | None = 1,
) -> Values:
    """Build the field ``source``.

    Args:
        name: Name of its schema.
        connector: Name of the connector.
        options: Options of the envelope.
        times: Times of the changes in ms, us and ns since 1970.
        own: The fields after those of all connectors.
        snapshot: Values of ``snapshot``.
        database: Values of ``db``.
        version: Version of its schema.
    """
    ts_ms, ts_us, ts_ns = times
    return struct_values(
        name,
        ("version", STRING, options.version),
        ("connector", STRING, connector),
        ("name", STRING, options.topics.prefix),
        ("ts_ms", INT64, ts_ms),
        ("snapshot", SNAPSHOT, snapshot),
        ("db", STRING, database),
        ("sequence", OPTIONAL_STRING, NO_TEXT),
        ("ts_us", OPTIONAL_INT64, ts_us),
        ("ts_ns", OPTIONAL_INT64, ts_ns),
        *own,
        version=version,
    )


def times_of(times: pa.Array, unit_ns: int, options: EnvelopeOptions) -> list[pa.Array]:
    """Return times since 1970 in ms, rounded down, us and ns.

    Args:
        times: The times.
        unit_ns: Their unit, in ns.
        options: Options of the envelope.
    """
    return [_in_unit(times, unit_ns, to_ns, options) for to_ns in (1_000_000, 1000, 1)]


def _in_unit(times: pa.Array, unit_ns: int, to_ns: int, options: EnvelopeOptions) -> pa.Array:
    if unit_ns < to_ns:
        return pa.array(times.to_numpy(zero_copy_only=False) // (to_ns // unit_ns))
    product = pc.multiply(times, unit_ns // to_ns)
    return product if options.wraps else pc.if_else(fits(times, unit_ns // to_ns), product, NO_INTEGER)


def schema_changes(
    prefix: str, topic: str, options: EnvelopeOptions, databases: pa.Array, source: Values, *own: Member
) -> Envelope:
    """Build the envelope of schema changes, without headers.

    Args:
        prefix: Prefix of schema names.
        topic: Topic of schema changes.
        options: Options of the envelope.
        databases: The database of each change.
        source: The field ``source``.
        own: The fields after ``source`` and ``ts_ms``.
    """
    key_schema, key = struct_values(
        f"{prefix}.SchemaChangeKey", ("databaseName", STRING, databases), version=1
    )
    now_ms = options.now_ns // 1_000_000
    schema, value = struct_values(
        f"{prefix}.SchemaChangeValue", ("source", *source), ("ts_ms", INT64, now_ms), *own, version=1
    )
    return Envelope.of_topic(Destination(topic, key_schema, schema), key, value, bare=True)
