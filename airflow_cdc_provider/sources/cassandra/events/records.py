"""Events from records of Cassandra, whether of a recording or of the changes table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events import cloud_events
from airflow_cdc_provider.events.encoder import Envelope, in_order
from airflow_cdc_provider.events.event_batches import EventBatch
from airflow_cdc_provider.events.json_converter import to_json
from airflow_cdc_provider.events.skipped_records import OPERATIONS, SkippedRecords
from airflow_cdc_provider.events.transforms.pieces import Piece
from airflow_cdc_provider.formats.arrow_bytes import join
from airflow_cdc_provider.sources import encoding
from airflow_cdc_provider.sources.cassandra.events import envelope as cassandra_envelope
from airflow_cdc_provider.sources.cassandra.events.changes import (
    EventSettings,
    Numbered,
    converters_of,
    excluded_columns,
    excluded_of,
    nodes_of,
    note,
    selected_changes,
    table_ids_of,
    truncations,
)
from airflow_cdc_provider.sources.cassandra.events.datastax_records import whole_rows
from airflow_cdc_provider.sources.cassandra.events.decode import EventDecoder
from airflow_cdc_provider.sources.cassandra.events.grouping import Grouping
from airflow_cdc_provider.sources.cassandra.events.types import EventTypes
from airflow_cdc_provider.sources.encoding import encoded_events, without_skipped

_WORDS: Final = {**OPERATIONS, "r": "range deletion"}


def build_events(
    settings: EventSettings,
    batches: Iterable[Numbered],
    skipped: SkippedRecords,
    earlier: Iterable[pa.RecordBatch] = (),
) -> Iterator[EventBatch]:
    """Build the records of events, in the order of their source records or of their write times.

    Args:
        settings: The settings of events.
        batches: Records in order; kinds other than changes, snapshot rows and truncations have no events.
        skipped: Collects skipped records.
        earlier: Records of earlier batches, without numbers, for the field ``before``; they have no events
            here.

    Yields:
        Records, batch by batch; for envelope ``datastax`` and the order of write times after all input was
        read. If the events of all batches are ordered grouping, the number is 0.

    Raises:
        ConfigurationError: The declaration doesn't match the tables.
        CorruptInput: A record can't be decoded and ``skipped`` is strict.
    """
    if settings.connector.publish.envelope == "datastax":
        return whole_rows(settings, batches, skipped)
    return _cells_of_rows(settings, batches, skipped, earlier)


def _cells_of_rows(
    settings: EventSettings,
    batches: Iterable[Numbered],
    skipped: SkippedRecords,
    earlier: Iterable[pa.RecordBatch],
) -> Iterator[EventBatch]:
    """Build the events of each update's rows."""
    connector, source = settings.connector, settings.source
    excluded = excluded_columns(connector, source)
    publish, choices = connector.publish, connector.publish.cassandra
    captured = settings.tables()
    types = EventTypes(choices.decimals, choices.varints, choices.frozen)
    converters = converters_of(connector, captured)
    decoders = {bytes.fromhex(schema.id): EventDecoder(schema, types, converters) for schema in captured}
    former = {schema.id for schema in source.former_tables()}
    left_out = {
        bytes.fromhex(schema.id): excluded_of(schema, excluded, former=schema.id in former)
        for schema in captured
    }
    options = envelope_options(connector, settings.cluster, settings.now_ns)
    grouping: Grouping | None = None
    if choices.before or choices.order == "write_time":
        grouping = Grouping(settings, batches, earlier, types, converters)
        batches = grouping.batches()
    end = 0
    for number, batch in batches:
        start, end = end, end + batch.num_rows
        selected = grouping.selected[start:end] if grouping else None
        skipped.removed |= truncations(batch if selected is None else batch.filter(selected))
        rows: list[np.ndarray] = []
        parts: list[pa.RecordBatch] = []
        table_ids = table_ids_of(batch, source)
        for table_id in pc.unique(table_ids).drop_null().to_pylist():
            if table_id not in decoders:
                continue  # the declaration no longer selects the table
            indexes = np.flatnonzero(pc.equal(table_ids, table_id).fill_null(False))
            indexes = indexes if selected is None else indexes[selected[indexes]]
            indexes = indexes[selected_changes(source, table_id.hex(), batch.take(pa.array(indexes)))]
            part = batch.take(pa.array(indexes))
            decoder = decoders[table_id]
            decoded = decoder.decode(part)
            schema = decoder.schema
            note(schema.full_name, part, decoded.undecodable, decoded.reasons, skipped)
            events = without_skipped(
                decoded.events, connector, skipped.by_kind, () if options.ranges else ("r",), _WORDS
            )
            if events.num_rows:
                if grouping and choices.before:
                    before = grouping.before(table_id, events, start + indexes, part["key"])
                    events = events.append_column("before", before)
                if choices.node_header:
                    events = events.append_column("node", nodes_of(part).take(events["row"]))
                envelope = cassandra_envelope.build(
                    events, schema.keyspace, schema.name, replace(options, excluded=left_out[table_id])
                )
                if publish.envelope == "cloudevents":
                    envelope = _cloud_events(envelope, events, schemas=publish.schemas)
                piece = Piece(envelope, np.arange(len(envelope.key)))
                records = encoded_events(connector, [piece], settings.registrar, settings.owners)
                rows.append(indexes[events["row"].take(records["row"]).to_numpy()])
                parts.append(records)
        if parts:
            yield EventBatch(number, in_order(parts, np.concatenate(rows)))


def envelope_options(
    connector: Connector, cluster: str, now_ns: int, excluded: Sequence[tuple[str, ...]] = ()
) -> cassandra_envelope.EnvelopeOptions:
    """Return the options of a connector's envelopes of cells.

    Args:
        connector: The declaration.
        cluster: The cluster's name.
        now_ns: Build time of events, ns since 1970.
        excluded: Paths of columns to exclude from values.
    """
    publish, choices = connector.publish, connector.publish.cassandra
    as_datastax = publish.envelope == "datastax-cells"
    return cassandra_envelope.EnvelopeOptions(
        **vars(encoding.envelope_options(connector, now_ns)),
        cluster=cluster,
        namespace=cassandra_envelope.DATASTAX if as_datastax else cassandra_envelope.DEBEZIUM,
        source="documented" if as_datastax else choices.source,
        common_operations=as_datastax or choices.operations == "common",
        excluded=excluded,
        index=publish.event_index,
        deletion_in_key=publish.deletions_in_keys,
        ranges=choices.ranges or not as_datastax,
    )


def _cloud_events(envelope: Envelope, events: pa.RecordBatch, *, schemas: bool) -> Envelope:
    """Wrap events in CloudEvents.

    The id of an event has its position in the node's log and its number within the change; a row of a
    snapshot has no position, so its id has its key and time.
    """
    (destination,) = envelope.destinations
    number = cassandra_envelope.event_index(events["row"]).cast(pa.large_utf8())
    read = join(to_json(destination.key, envelope.key), "@", events["ts_us"].cast(pa.large_utf8()))
    parts = {"index": pc.if_else(events["snapshot"], read, number)}
    if "node" in events.schema.names:
        parts = {"node": events["node"], **parts}
    names = [(name, name) for name in ("name", "file", "pos")]
    return cloud_events.wrap(envelope, names, schemas=schemas, id_parts=parts)
