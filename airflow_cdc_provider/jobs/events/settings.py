"""What a connector's ``publish`` options mean to the encoder and to envelopes of every source."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import Converters, encode
from airflow_cdc_provider.events.heartbeats import build as build_heartbeat
from airflow_cdc_provider.events.heartbeats import heartbeat_topic
from airflow_cdc_provider.events.topics import TopicNaming, load_strategy


def converters_of(connector: Connector) -> Converters:
    """Return how a connector's keys and values are written."""
    publish = connector.publish
    return Converters(publish.key, publish.value, publish.schemas, publish.schema_names, publish.field_names)


def topics_of(connector: Connector) -> TopicNaming:
    """Return how a connector's topics are named.

    Raises:
        ConfigurationError: The class that is to name them can't be loaded.
    """
    publish = connector.publish
    strategy = load_strategy(publish.topic_naming) if publish.topic_naming else None
    return TopicNaming(connector.topic_prefix, publish.topic_delimiter, publish.topic_pattern, strategy)


def heartbeat_of(connector: Connector, now_ms: int) -> pa.RecordBatch:
    """Make a connector's heartbeat.

    Args:
        connector: The connector.
        now_ms: When it is made, ms since 1970.

    Returns:
        One record, as the encoder makes them.
    """
    publish, prefix = connector.publish, connector.topic_prefix
    topic = heartbeat_topic(
        prefix, publish.topic_delimiter, publish.heartbeat_prefix, publish.heartbeat_topic
    )
    return encode(build_heartbeat(topic, prefix, now_ms), converters_of(connector))


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
