"""Changes of the imitation's model as published records, by decoder, envelope and encoder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.connector.publish.scylla import ScyllaPublishOptions
from airflow_cdc_provider.events.encoder import Converters
from airflow_cdc_provider.events.envelopes import EnvelopeOptions
from airflow_cdc_provider.events.topics import TopicNaming
from airflow_cdc_provider.events.transforms.pieces import Piece, encode_pieces
from airflow_cdc_provider.sources.scylla.events.decode import EventDecoder, TableEvents
from airflow_cdc_provider.sources.scylla.events.envelope import build, schema_name_prefix
from airflow_cdc_provider.sources.scylla.events.tables import event_table
from server_kit.scylla.log_rows import Change
from server_kit.scylla.tables import Table
from tests.unit.sources.scylla.logged import payloads, record_of_change, schema_payload

NOW_NS = 1_700_000_009_123_456_789


def decoded(table: Table, changes: Sequence[Change], partition: Sequence[bytes]) -> TableEvents:
    """Decode changes of one partition."""
    form = event_table(schema_payload(table))
    decoder = EventDecoder(form, schema_name_prefix("my", table.keyspace, table.name))
    return decoder.decode(payloads(record_of_change(table, change, partition) for change in changes))


def options(**given: Any) -> tuple[EnvelopeOptions, ScyllaPublishOptions]:
    """Return options of an envelope, of prefix ``my``."""
    of_all: dict[str, Any] = {
        "topics": TopicNaming("my"),
        "version": "2.0.4",
        "tombstones": True,
        "now_ns": NOW_NS,
    }
    of_all |= {name: given.pop(name) for name in of_all.keys() & given.keys()}
    return EnvelopeOptions(**of_all), ScyllaPublishOptions(**given)


def encoded(
    table: Table,
    changes: Sequence[Change],
    partition: Sequence[bytes],
    converters: Converters | None = None,
    **given: Any,
) -> pa.RecordBatch:
    """Return the encoded records of changes."""
    events = decoded(table, changes, partition).events
    pieces = []
    for static in (False, True):
        chosen = np.flatnonzero(events["static"].to_numpy(zero_copy_only=False) == static)
        if len(chosen):
            names = [column.name for column in table.partition]
            part = events.take(pa.array(chosen))
            pieces.append(Piece(build(part, table.keyspace, table.name, names, *options(**given)), chosen))
    return encode_pieces(pieces, converters or Converters())


def published(*given: Any, **options: Any) -> list[dict[str, Any]]:
    """Return the records of changes: topic, key and value as JSON, headers.

    Arguments as of :func:`encoded`.
    """
    return [
        {
            "topic": record["topic"],
            "key": record["key"] and json.loads(record["key"]),
            "value": record["value"] and json.loads(record["value"]),
            "headers": json.loads(f"[{record['headers']}]"),
        }
        for record in encoded(*given, **options).to_pylist()
    ]
