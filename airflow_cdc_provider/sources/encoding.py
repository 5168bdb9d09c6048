"""Settings of the encoder and of all sources' envelopes, from a connector's ``publish`` options."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import Converters
from airflow_cdc_provider.events.envelopes import EnvelopeOptions
from airflow_cdc_provider.events.framing import Registrar
from airflow_cdc_provider.events.headers import context_headers
from airflow_cdc_provider.events.heartbeats import build as build_heartbeat
from airflow_cdc_provider.events.names import adjusted_schema
from airflow_cdc_provider.events.skipped_records import OPERATIONS
from airflow_cdc_provider.events.topics import TopicNaming, load_strategy
from airflow_cdc_provider.events.transforms.chain import Chain, some_rows
from airflow_cdc_provider.events.transforms.faults import encode_with_faults
from airflow_cdc_provider.events.transforms.pieces import Piece, encode_pieces
from airflow_cdc_provider.exceptions import SchemaRejected
from airflow_cdc_provider.kafka.registry import RegistrySettings, client_settings
from airflow_cdc_provider.patterns import matches
from airflow_cdc_provider.sources.own_topics import heartbeats_topic, own_topics
from airflow_cdc_provider.sources.registry import source_plugin


def converters_of(connector: Connector, registrar: Registrar | None = None) -> Converters:
    """Return the converters of a connector's keys and values.

    Args:
        connector: The connector.
        registrar: Assigns ids to schemas; without it encoded bytes have no schema id.
    """
    publish = connector.publish
    return Converters(
        key=publish.key,
        value=publish.value,
        schemas=publish.schemas,
        schema_names=publish.schema_names,
        field_names=publish.field_names,
        nullables=publish.protobuf_nullables,
        registrar=registrar,
    )


def registry_settings(connector: Connector, values: Mapping[str, Any]) -> RegistrySettings | None:
    """Return the settings of a connector's schema registry; None without a registry.

    Args:
        connector: The connector.
        values: Values of the registry's connection; empty for none.

    Raises:
        ConfigurationError: The connection is invalid or has no address.
    """
    registry = connector.publish.registry
    if not registry.enabled:
        return None
    return RegistrySettings(
        client_settings(values, registry.url),
        registry.key_subjects,
        registry.value_subjects,
        registry.auto_register,
        registry.normalize,
    )


def topic_of_table(connector: Connector, table: str) -> str:
    """Return the topic of a table's events, before transforms that route them elsewhere.

    Args:
        connector: The declaration.
        table: ``keyspace.table`` or ``database.collection``.
    """
    naming = topics_of(connector)
    own = connector.publish.vitess
    if own.topic_prefix and not any(matches(one, table) for one in own.topic_prefix_excluded_tables):
        naming = replace(naming, prefix=own.topic_prefix)
    database, _, name = table.partition(".")
    return naming.topic(database, name)


def topic_claim(connector: Connector, table: str) -> tuple[str, str]:
    """Return the name of a table's topic after the adjustment of schema names, and its owner by that table.

    Tables with one name and different owners clash.
    """
    database, _, name = table.partition(".")
    adjustment = converters_of(connector).adjustments()[0]
    topic = adjusted_schema(topic_of_table(connector, table), adjustment)
    return topic, topics_of(connector).owner(database, name)


def clash_of(connector: Connector, table: str, owners: dict[str, str]) -> SchemaRejected | None:
    """Return the error of a table whose topic, or names of schemas, belong to another one, or to no table.

    Args:
        connector: The connector.
        table: The table.
        owners: By adjusted name of a topic the table that has it; gets this one, if none has.
    """
    name, owner = topic_claim(connector, table)
    own, topic = own_topics(connector), topic_of_table(connector, table)
    if owner and topic in own:
        return SchemaRejected(
            f"the topic of {table}, {topic}, is that of the connector's {own[topic]}",
            remedy="exclude the table, or set topic names by publish.topic_naming",
        )
    other = owners.setdefault(name, table)
    if other == table or topic_claim(connector, other)[1] == owner:
        return None
    return SchemaRejected(
        f"{other} and {table} would share schemas and topic under the name {name}, which {other} had first",
        remedy="set publish.schema_names to avro_unicode, or topic names by publish.topic_naming",
    )


def _without_clashes(connector: Connector, piece: Piece, owners: dict[str, str]) -> Iterator[Piece]:
    """Separate the records of tables whose topics belong to others; they get a fault."""
    of_record = piece.envelope.destination
    tables = (one.table for one in piece.envelope.destinations)
    found = ((n, clash_of(connector, table, owners)) for n, table in enumerate(tables) if table)
    clashes = {number: fault for number, fault in found if fault is not None}
    clashing = np.isin(of_record, list(clashes))
    others = some_rows(piece, np.flatnonzero(~clashing))
    if len(others.rows):
        yield others
    if clashing.any():
        part = some_rows(piece, np.flatnonzero(clashing))
        pairs = zip(part.rows.tolist(), part.envelope.destination.tolist(), strict=True)
        yield replace(part, faults={row: clashes[number] for row, number in pairs})


def headers_of(connector: Connector) -> tuple[tuple[str, str], ...]:
    """Return the headers of all data records of a run, as names and JSON texts; empty for none."""
    publish = connector.publish
    if not publish.headers or not source_plugin(connector.type).event_headers:
        return ()
    return context_headers(connector.topic_prefix, publish.task_id, connector.type, str(uuid.uuid4()))


def topics_of(connector: Connector) -> TopicNaming:
    """Return the naming of a connector's topics.

    Raises:
        ConfigurationError: The declared naming class can't be loaded.
    """
    publish = connector.publish
    strategy = load_strategy(publish.topic_naming) if publish.topic_naming else None
    return TopicNaming(connector.topic_prefix, publish.topic_delimiter, publish.topic_pattern, strategy)


def envelope_options(connector: Connector, now_ns: int) -> EnvelopeOptions:
    """Return the options of a connector's envelopes that are built at a time, ns since 1970."""
    return EnvelopeOptions(
        topics=topics_of(connector),
        version=connector.event_version,
        tombstones=connector.tombstones,
        now_ns=now_ns,
        wraps=connector.publish.times_beyond_64_bits == "wrap",
    )


def encoded(
    connector: Connector, pieces: Sequence[Piece], converters: Converters | None = None
) -> pa.RecordBatch:
    """Apply a connector's transforms to records, and encode them.

    Args:
        connector: The connector.
        pieces: Its records.
        converters: By default those of the connector, without ids of schemas.

    Returns:
        Records in the order of their rows, whose number is in ``row``.

    Raises:
        ConfigurationError: A transform doesn't support the records.
    """
    return encode_pieces(_transformed(connector, pieces), converters or converters_of(connector))


def _transformed(connector: Connector, pieces: Sequence[Piece]) -> list[Piece]:
    publish = connector.publish
    documents = publish.unwrap.enabled or publish.outbox.enabled
    chain = Chain(
        publish.transforms, lenient=documents and source_plugin(connector.type).event_values == "documents"
    )
    return chain.apply(pieces)


def _refuse_topics(pieces: Sequence[Piece], own: Mapping[str, str]) -> None:
    """Refuse records of tables that transforms send to the connector's own topics."""
    for piece in pieces:
        for number in np.unique(piece.envelope.destination).tolist():
            destination = piece.envelope.destinations[number]
            if destination.table and destination.topic in own:
                raise SchemaRejected(
                    f"transforms give {destination.table} the topic {destination.topic}, which "
                    f"is that of the connector's {own[destination.topic]}",
                    remedy="exclude the table, or change the names that publish.transforms give to topics",
                )


def encoded_events(
    connector: Connector,
    pieces: Sequence[Piece],
    registrar: Registrar | None = None,
    owners: dict[str, str] | None = None,
) -> pa.RecordBatch:
    """Encode events of the source like :func:`encoded`; records that can't be built may become dead letters.

    Such records keep their position and have a ``fault``.

    Args:
        connector: The connector.
        pieces: The events.
        registrar: Assigns ids to schemas; None for none.
        owners: By adjusted name of a topic the table that has it; gets those of further tables.

    Raises:
        SchemaRejected: A schema is rejected, and its records don't become dead letters.
        ConfigurationError: A record can't be built, and ``on_record_error`` doesn't allow dead letters.
    """
    publish = connector.publish
    parts = [piece for piece in pieces if len(piece.rows)]
    if publish.enabled or converters_of(connector).adjustments()[0] != "none":
        names = {} if owners is None else owners
        parts = [part for piece in parts for part in _without_clashes(connector, piece, names)]
    own = own_topics(connector) if publish.enabled and publish.transforms else {}

    def encode_some(some: Sequence[Piece], converters: Converters) -> pa.RecordBatch:
        found = _transformed(connector, some)
        _refuse_topics(found, own)
        return encode_pieces(found, converters)

    return encode_with_faults(
        parts,
        encode_some,
        converters_of(connector, registrar),
        dead_letters=publish.writes_dead_letters,
        rejected_schemas=publish.passes_rejected_topics,
        keeps_keys=not any(
            step.type in ("filter", "drop", "value_to_key") or getattr(step, "target", "") == "key"
            for step in publish.transforms
        ),
    )


def heartbeat_of(connector: Connector, now_ms: int, registrar: Registrar | None = None) -> pa.RecordBatch:
    """Build a connector's heartbeat.

    Args:
        connector: The connector.
        now_ms: Build time, ms since 1970.
        registrar: Assigns ids to schemas; None for none.

    Returns:
        One encoded record.
    """
    envelope = build_heartbeat(heartbeats_topic(connector), connector.topic_prefix, now_ms)
    beat = Piece(envelope, np.zeros(1, np.int64))
    return encoded(connector, [beat], converters_of(connector, registrar))


def without_skipped(
    events: pa.RecordBatch,
    connector: Connector,
    skipped: Counter[str],
    more: Sequence[str] = (),
    words: Mapping[str, str] = OPERATIONS,
) -> pa.RecordBatch:
    """Drop events whose kind the connector skips, and count them.

    Args:
        events: Decoded events with a column ``op``, in the source's codes; ``c`` and ``i`` are equivalent.
        connector: The connector.
        skipped: Counts them by kind, in words.
        more: Further operations that are skipped.
        words: The kind of each code.
    """
    operations = {*connector.publish.skipped_operations, *more}
    if not operations:
        return events
    if operations & {"c", "i"}:
        operations |= {"c", "i"}
    out = pc.is_in(events["op"], value_set=pa.array(sorted(operations), pa.utf8()))
    skipped.update(words[op] for op in events["op"].filter(out).to_pylist())
    return events.filter(pc.invert(out))
