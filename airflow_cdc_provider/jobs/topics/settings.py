"""What a connector's ``publish`` options mean to the encoder and to envelopes of every source."""

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
from airflow_cdc_provider.events.framing import Registrar
from airflow_cdc_provider.events.headers import context_headers
from airflow_cdc_provider.events.heartbeats import build as build_heartbeat
from airflow_cdc_provider.events.topics import TopicNaming, load_strategy
from airflow_cdc_provider.events.transforms.chain import Chain
from airflow_cdc_provider.events.transforms.faults import Answering, made_with_faults
from airflow_cdc_provider.events.transforms.pieces import Piece, encode_pieces
from airflow_cdc_provider.jobs.topics.own import heartbeats_topic
from airflow_cdc_provider.kafka.registry import RegistrySettings, client_settings


def converters_of(connector: Connector, registrar: Registrar | None = None) -> Converters:
    """Return how a connector's keys and values are written.

    Args:
        connector: The connector.
        registrar: Gives schemas their ids; without it bytes have none before them.
    """
    publish = connector.publish
    return Converters(
        publish.key,
        publish.value,
        publish.schemas,
        publish.schema_names,
        publish.field_names,
        publish.protobuf_nullables,
        registrar,
    )


def registry_settings(connector: Connector, values: Mapping[str, Any]) -> RegistrySettings | None:
    """Return how a connector's registry is used; None where none takes part.

    Args:
        connector: The connector.
        values: Values of the registry's connection; empty for none.

    Raises:
        ConfigurationError: The connection is wrong, or nothing tells the address.
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


def headers_of(connector: Connector) -> tuple[tuple[str, str], ...]:
    """Return the headers that all data records of a run have: names and JSON texts; none of Cassandra's."""
    publish = connector.publish
    if connector.type == "cassandra" or not publish.headers:
        return ()
    return context_headers(connector.topic_prefix, publish.task_id, connector.type, str(uuid.uuid4()))


def topics_of(connector: Connector) -> TopicNaming:
    """Return how a connector's topics are named.

    Raises:
        ConfigurationError: The class that is to name them can't be loaded.
    """
    publish = connector.publish
    strategy = load_strategy(publish.topic_naming) if publish.topic_naming else None
    return TopicNaming(connector.topic_prefix, publish.topic_delimiter, publish.topic_pattern, strategy)


def encoded(
    connector: Connector, pieces: Sequence[Piece], registrar: Registrar | None = None
) -> pa.RecordBatch:
    """Transform records as a connector wants it, and encode them.

    Args:
        connector: The connector.
        pieces: Its records.
        registrar: Gives schemas their ids; None for none.

    Returns:
        Records in the order of their rows, whose number is in ``row``.

    Raises:
        ConfigurationError: A transform doesn't fit the records.
    """
    publish = connector.publish
    documents = publish.unwrap.enabled or publish.outbox.enabled
    chain = Chain(publish.transforms, lenient=connector.type == "mongodb" and documents)
    transformed = chain.apply([piece for piece in pieces if len(piece.rows)])
    return encode_pieces(transformed, converters_of(connector, registrar))


def encoded_events(
    connector: Connector, pieces: Sequence[Piece], registrar: Registrar | None = None
) -> pa.RecordBatch:
    """Do as :func:`encoded`, with what the source told: records that can't be made may be set apart.

    That is what ``publish.kafka.refused: quarantine`` asks for. They are in the place of what they should be,
    with their ``fault``.
    """
    if not connector.publish.kafka.sets_apart:
        return encoded(connector, pieces, registrar)
    asked = None if registrar is None else Answering(registrar)
    return made_with_faults(
        [piece for piece in pieces if len(piece.rows)],
        lambda some: encoded(connector, some, asked),
        converters_of(connector),
        asked,
    )


def heartbeat_of(connector: Connector, now_ms: int, registrar: Registrar | None = None) -> pa.RecordBatch:
    """Make a connector's heartbeat.

    Args:
        connector: The connector.
        now_ms: When it is made, ms since 1970.
        registrar: Gives schemas their ids; None for none.

    Returns:
        One record, as the encoder makes them.
    """
    envelope = build_heartbeat(heartbeats_topic(connector), connector.topic_prefix, now_ms)
    beat = Piece(envelope, np.zeros(1, np.int64))
    return encoded(connector, [beat], registrar)


def without_skipped(events: pa.RecordBatch, connector: Connector, skipped: Counter[str]) -> pa.RecordBatch:
    """Leave out events whose kind the connector skips, and count them.

    Args:
        events: Decoded events with a column ``op``, in the source's own codes; ``c`` and ``i`` are one.
        connector: The connector.
        skipped: Gets their number by code.
    """
    wanted = set(connector.publish.skipped_operations)
    if not wanted:
        return events
    if wanted & {"c", "i"}:
        wanted |= {"c", "i"}
    out = pc.is_in(events["op"], value_set=pa.array(sorted(wanted), pa.utf8()))
    skipped.update(events["op"].filter(out).to_pylist())
    return events.filter(pc.invert(out))
