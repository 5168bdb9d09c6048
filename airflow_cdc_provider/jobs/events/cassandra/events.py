"""Records of Cassandra to events: the same for a recording and for the changes table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.text_kernels import join
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import Envelope, in_order
from airflow_cdc_provider.events.envelopes import cassandra as cassandra_envelope
from airflow_cdc_provider.events.envelopes import cloud_events
from airflow_cdc_provider.events.json_converter import to_json
from airflow_cdc_provider.events.transforms.pieces import Piece
from airflow_cdc_provider.jobs.events.cassandra.datastax_rows import whole_rows
from airflow_cdc_provider.jobs.events.cassandra.records import (
    EventSettings,
    Numbered,
    count_truncations,
    excluded_columns,
    excluded_of,
    nodes_of,
    note,
    table_ids_of,
    wanted_changes,
)
from airflow_cdc_provider.jobs.events.cassandra.together import Together
from airflow_cdc_provider.jobs.events.damage import Damage
from airflow_cdc_provider.jobs.events.made import Made
from airflow_cdc_provider.jobs.topics.settings import encoded_events, topics_of, without_skipped
from airflow_cdc_provider.sources.cassandra.debezium.events import EventDecoder
from airflow_cdc_provider.sources.cassandra.debezium.types import EventTypes
from airflow_cdc_provider.sources.converters import (
    load_converters,
    require_columns,
)


def made_of_records(
    settings: EventSettings,
    batches: Iterable[Numbered],
    damage: Damage,
    earlier: Iterable[pa.RecordBatch] = (),
) -> Iterator[Made]:
    """Make the records of events, in the order of what they come from or that of their write times.

    Args:
        settings: How.
        batches: In order; of other kinds than changes, snapshot rows and truncations nothing comes.
        damage: Collects what is left out.
        earlier: Likewise, what was before, without numbers; no events come of it. Only the field ``before``
            needs it.

    Yields:
        Records, batch after batch; of envelope ``datastax`` and in the order of write times when all was
        read, since they need it. Where events of all batches are ordered together, the number is 0.

    Raises:
        ConfigurationError: The declaration doesn't fit the tables.
        CorruptInput: A record can't be decoded and ``damage`` is strict.
    """
    if settings.connector.publish.envelope == "datastax":
        return whole_rows(settings, batches, damage)
    return _cells_of_rows(settings, batches, damage, earlier)


def _cells_of_rows(
    settings: EventSettings,
    batches: Iterable[Numbered],
    damage: Damage,
    earlier: Iterable[pa.RecordBatch],
) -> Iterator[Made]:
    """Make what each update says of rows."""
    connector, source = settings.connector, settings.source
    excluded = excluded_columns(connector, source)
    publish, choices = connector.publish, connector.publish.cassandra
    captured = settings.tables()
    types = EventTypes(choices.decimals, choices.varints, choices.frozen)
    converters = load_converters(choices.converters)
    require_columns(
        converters, [f"{schema.full_name}.{c.name}" for schema in captured for c in schema.columns]
    )
    decoders = {bytes.fromhex(schema.id): EventDecoder(schema, types, converters) for schema in captured}
    former = {schema.id for schema in source.former_tables()}
    left_out = {
        bytes.fromhex(schema.id): excluded_of(schema, excluded, former=schema.id in former)
        for schema in captured
    }
    options = envelope_options(connector, settings.cluster, settings.now_ns)
    together: Together | None = None
    if choices.before or choices.order == "write_time":
        together = Together(settings, batches, earlier, types, converters)
        batches = together.batches()
    end = 0
    for number, batch in batches:
        start, end = end, end + batch.num_rows
        wanted = together.wanted[start:end] if together else None
        kinds = batch["kind"] if wanted is None else batch["kind"].filter(wanted)
        damage.skipped["t"] += count_truncations(kinds)
        rows: list[np.ndarray] = []
        made: list[pa.RecordBatch] = []
        table_ids = table_ids_of(batch, source)
        for table_id in pc.unique(table_ids).drop_null().to_pylist():
            if table_id not in decoders:
                continue  # the declaration selects it no longer
            places = np.flatnonzero(pc.equal(table_ids, table_id).fill_null(False))
            places = places if wanted is None else places[wanted[places]]
            places = places[wanted_changes(source, table_id.hex(), batch.take(pa.array(places)))]
            part = batch.take(pa.array(places))
            decoder = decoders[table_id]
            decoded = decoder.decode(part)
            schema = decoder.schema
            note(schema.full_name, part, decoded.undecodable, decoded.reasons, damage)
            events = without_skipped(decoded.events, connector, damage.skipped)
            if events.num_rows:
                if together and choices.before:
                    before = together.before(table_id, events, start + places, part["key"])
                    events = events.append_column("before", before)
                if choices.node_header:
                    events = events.append_column("node", nodes_of(part).take(events["row"]))
                envelope = cassandra_envelope.build(
                    events, schema.keyspace, schema.name, replace(options, excluded=left_out[table_id])
                )
                if publish.envelope == "cloudevents":
                    envelope = _cloud_events(envelope, events, schemas=publish.schemas)
                piece = Piece(envelope, np.arange(len(envelope.key)))
                records = encoded_events(connector, [piece], settings.registrar)
                rows.append(places[events["row"].take(records["row"]).to_numpy()])
                made.append(records)
        if made:
            yield Made(number, in_order(made, np.concatenate(rows)))


def envelope_options(
    connector: Connector, cluster: str, now_ns: int, excluded: Sequence[tuple[str, ...]] = ()
) -> cassandra_envelope.EnvelopeOptions:
    """Return what a connector's envelopes of cells look like.

    Args:
        connector: The declaration.
        cluster: The cluster's name.
        now_ns: When events are built, ns since 1970.
        excluded: Columns to leave out of values, each as the path to it.
    """
    publish, choices = connector.publish, connector.publish.cassandra
    as_datastax = publish.envelope == "datastax-cells"
    return cassandra_envelope.EnvelopeOptions(
        topics_of(connector),
        connector.event_version,
        cluster,
        publish.tombstones,
        now_ns,
        namespace=cassandra_envelope.DATASTAX if as_datastax else cassandra_envelope.DEBEZIUM,
        source="documented" if as_datastax else choices.source,
        common_operations=as_datastax or choices.operations == "common",
        excluded=excluded,
        index=publish.event_index,
        deletion_in_key=as_datastax,
    )


def _cloud_events(envelope: Envelope, events: pa.RecordBatch, *, schemas: bool) -> Envelope:
    """Make CloudEvents.

    The place in a node's log and the number among a change's events name one; a row that was read is in no
    log, and has its key and time for a number.
    """
    (destination,) = envelope.destinations
    number = cassandra_envelope.event_index(events["row"]).cast(pa.large_utf8())
    read = join(to_json(destination.key, envelope.key), "@", events["ts_us"].cast(pa.large_utf8()))
    parts = {"index": pc.if_else(events["snapshot"], read, number)}
    if "node" in events.schema.names:
        parts = {"node": events["node"], **parts}
    names = [(name, name) for name in ("name", "file", "pos")]
    return cloud_events.wrap(envelope, names, schemas=schemas, id_parts=parts)
