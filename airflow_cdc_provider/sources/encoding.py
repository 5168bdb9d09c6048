"""Settings of the encoder and of all sources' envelopes, from a connector's ``publish`` options."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
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
from airflow_cdc_provider.events.transforms.chain import Chain
from airflow_cdc_provider.events.transforms.faults import encode_with_faults
from airflow_cdc_provider.events.transforms.pieces import Piece, encode_pieces
from airflow_cdc_provider.exceptions import SchemaRejected
from airflow_cdc_provider.kafka.registry import RegistrySettings, client_settings
from airflow_cdc_provider.sources.own_topics import heartbeats_topic
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


def clash_of(connector: Connector, topic: str, table: str, tables: dict[str, str]) -> SchemaRejected | None:
    """Return the error of a table whose name is equal to another one's after adjustment; None if it isn't.

    Args:
        connector: The connector.
        topic: The table's topic.
        table: The table.
        tables: Earlier tables by their adjusted names; gets this one.
    """
    name = adjusted_schema(topic, converters_of(connector).adjustments()[0])
    if (other := tables.setdefault(name, table)) == table:
        return None
    return SchemaRejected(
        f"{other} and {table} would share schemas and topic under the name {name}",
        remedy="set publish.schema_names to avro_unicode, or topic names by publish.topic_naming",
    )


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
    publish = connector.publish
    documents = publish.unwrap.enabled or publish.outbox.enabled
    chain = Chain(
        publish.transforms, lenient=documents and source_plugin(connector.type).event_values == "documents"
    )
    return encode_pieces(chain.apply(pieces), converters or converters_of(connector))


def encoded_events(
    connector: Connector,
    pieces: Sequence[Piece],
    registrar: Registrar | None = None,
    clashes: Mapping[int, SchemaRejected] | None = None,
) -> pa.RecordBatch:
    """Encode events of the source like :func:`encoded`; records that can't be built may become dead letters.

    Such records keep their position and have a ``fault``.

    Args:
        connector: The connector.
        pieces: The events.
        registrar: Assigns ids to schemas; None for none.
        clashes: By row, why the schemas of its records can't be used.

    Raises:
        SchemaRejected: A schema is rejected, and its records don't become dead letters.
        ConfigurationError: A record can't be built, and ``on_record_error`` doesn't allow dead letters.
    """
    publish = connector.publish
    return encode_with_faults(
        [piece for piece in pieces if len(piece.rows)],
        lambda some, converters: encoded(connector, some, converters),
        converters_of(connector, registrar),
        dead_letters=publish.writes_dead_letters,
        rejected_schemas=publish.passes_rejected_topics,
        rejected_rows=clashes or {},
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
