"""Rows of mirrors as events: the expected content of the last event of each key.

A mirror keeps the source form of its rows: the Row messages of Vitess, the documents of MongoDB, the cell
rows of CQL databases (:mod:`.mirrored_cql`). They pass through the same decoder, envelope and transforms as
published snapshot rows, in JSON without schemas whatever format the topics have. So each option of
``publish`` (masks, names, time formats) applies to both sides of a comparison.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from airflow_cdc_provider.changes.worker import map_in_arrow
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput
from airflow_cdc_provider.jobs.events.mirrored_cql import cql_mirror_events
from airflow_cdc_provider.jobs.events.mongodb.records import MongodbRecords
from airflow_cdc_provider.jobs.events.vitess import lake as vitess_lake
from airflow_cdc_provider.jobs.events.vitess.kept_rows import everything, kept_rows
from airflow_cdc_provider.jobs.events.vitess.records import VitessRecords
from airflow_cdc_provider.jobs.topics.settings import converters_of
from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.lake.mirror import CDC_COLUMN, Mirror, MirrorState
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.contract import Source
from airflow_cdc_provider.sources.cql.codec import CqlCodec
from airflow_cdc_provider.sources.mongodb import events as mongodb_events
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.scylla.options import ScyllaOptions
from airflow_cdc_provider.sources.vitess.event_records import decode_records
from airflow_cdc_provider.sources.vitess.options import VitessOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EVENT_DDL: Final = "key binary, value binary"
_EVENT_SCHEMA: Final = pa.schema([pa.field("key", pa.binary()), pa.field("value", pa.binary())])

Builder = Callable[[pa.Array], pa.RecordBatch]
"""Builds encoded records from a mirror's stored rows."""


def mirror_events(
    connector: Connector,
    changes: ChangesTable,
    source: Source,
    table: str,
    mirror: Mirror,
    state: MirrorState,
    now_us: int,
) -> DataFrame:
    """Return key and value of the event of each row of a mirror, in the columns of :data:`EVENT_DDL`.

    Args:
        connector: The declaration.
        changes: The changes table.
        source: The source.
        table: The source table of the mirror.
        mirror: The mirror.
        state: The state of the mirror to read.
        now_us: The time at which expiry is evaluated, us since 1970.

    Raises:
        ConfigurationError: The mirror's rows have no form that events can be built from.
    """
    rows = mirror.table.read(state.head)
    if isinstance(connector.source, (CassandraOptions, ScyllaOptions)):
        cql_codec = source.codec(table, state.memory)
        assert isinstance(cql_codec, CqlCodec)
        return cql_mirror_events(
            connector, changes, source, mirror, state, cql_codec, as_json(connector), EVENT_DDL, now_us
        )
    plain = as_json(connector).to_dict()
    if isinstance(connector.source, VitessOptions):
        fields = vitess_lake.recorded_schema(changes, changes.state().batch).fields
        own = {name: text for (of, name), text in fields.items() if of == table}
        return map_in_arrow(
            rows.selectExpr(f"{CDC_COLUMN}.state state"), _VitessEvents(plain, table, own), EVENT_DDL
        )
    assert isinstance(connector.source, MongodbOptions)
    codec = source.codec(table, state.memory)
    if getattr(codec, "stores_state", False):
        return map_in_arrow(
            rows.selectExpr(f"{CDC_COLUMN}.state state"), _MongodbEvents(plain, table), EVENT_DDL
        )
    if connector.source.document_column != "extended_json":
        raise ConfigurationError(
            f"the mirror of {table} doesn't keep its documents in a form that events can be built from",
            expected="source.document_column: extended_json, or columns inferred by source.infer",
            found=connector.source.document_column,
        )
    return map_in_arrow(rows.selectExpr("document state"), _MongodbEvents(plain, table), EVENT_DDL)


def as_json(connector: Connector) -> Connector:
    """Return the connector with events in JSON without schemas, and without other records."""
    publish = connector.publish
    schema_names, field_names = converters_of(connector).adjustments()
    return replace(
        connector,
        publish=replace(
            publish,
            key="string" if publish.key == "string" else "json",
            value="json",
            schemas=False,
            schema_names=schema_names,
            field_names=field_names,
            transactions=False,
            skipped_operations=(),
            skip_unchanged=False,
            registry=type(publish.registry)(),
        ),
    )


@dataclass(frozen=True)
class _VitessEvents:
    """Builds events of stored Vitess rows. Picklable.

    Args:
        connector: The declaration, as plain data.
        table: ``keyspace.table``.
        fields: ``FieldEvent`` messages by the schema id in states.
    """

    connector: Mapping[str, Any]
    table: str
    fields: Mapping[str, bytes]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        builder = VitessRecords(
            Connector.from_dict(self.connector), time.time_ns(), lambda keyspace, table: True
        )
        for batch in batches:
            states = batch["state"]
            if not len(states):
                continue
            origins = pa.repeat(f"{self.table.partition('.')[0]}/-", len(states))
            rows = kept_rows(self.table, origins, states, pa.repeat(pa.scalar(False), len(states)))
            decoded = decode_records(rows, self._fields, builder.form, everything)
            if decoded.unread:
                raise CorruptInput(
                    f"a row of the mirror of {self.table} can't be read",
                    found=next(iter(decoded.unread.values())),
                )
            yield _events(builder.build(decoded))

    def _fields(self, table: str, schema_id: str) -> bytes:
        if schema_id not in self.fields:
            raise CorruptInput(f"the schema records don't have the fields {schema_id} of {table}")
        return self.fields[schema_id]


@dataclass(frozen=True)
class _MongodbEvents:
    """Builds events of documents: BSON, or canonical Extended JSON. Picklable.

    Args:
        connector: The declaration, as plain data.
        table: ``database.collection``.
    """

    connector: Mapping[str, Any]
    table: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        builder = MongodbRecords(Connector.from_dict(self.connector), time.time_ns())
        database, _, collection = self.table.partition(".")
        for batch in batches:
            documents = batch["state"]
            if not len(documents):
                continue
            if pa.types.is_string(documents.type) or pa.types.is_large_string(documents.type):
                documents = as_bson(documents)
            form = builder.form(database, collection)
            decoded = mongodb_events.decode_snapshot(documents, database, collection, form)
            records, reasons = builder.records(decoded.events)
            if found := [*decoded.reasons, *reasons.values()]:
                raise CorruptInput(f"a document of the mirror of {self.table} has no event", found=found[0])
            yield _events(records)


def as_bson(texts: pa.Array) -> pa.Array:
    """Parse documents that a mirror keeps only as text, one at a time with the driver's parser."""
    import bson
    from bson import json_util

    form = json_util.JSONOptions(
        json_mode=json_util.JSONMode.CANONICAL, datetime_conversion=bson.DatetimeConversion.DATETIME_AUTO
    )
    return pa.array(
        [bson.encode(json_util.loads(text, json_options=form)) for text in texts.to_pylist()], pa.binary()
    )


def _events(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return keys and values of encoded records."""
    both = [records[name].cast(pa.large_binary()).cast(pa.binary()) for name in ("key", "value")]
    return pa.RecordBatch.from_arrays(both, schema=_EVENT_SCHEMA)
