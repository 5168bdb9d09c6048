"""Prerequisite checks of a capture from topics: brokers, topics, message formats."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.inferred_columns import FIELD_COUNTS
from airflow_cdc_provider.changes.record import CHANGE, CHANGE_SCHEMA, QUARANTINE, SCHEMA
from airflow_cdc_provider.exceptions import CdcError
from airflow_cdc_provider.kafka.consumer import MessageRange, read_range
from airflow_cdc_provider.kafka.partitions import ClusterTopics, Topic
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.patterns import matches
from airflow_cdc_provider.sources.contract import Finding, ReadMetrics
from airflow_cdc_provider.sources.debezium.codec import DebeziumCodec
from airflow_cdc_provider.sources.debezium.decode import Form
from airflow_cdc_provider.sources.debezium.options import FRAMED, DebeziumOptions
from airflow_cdc_provider.sources.debezium.reader import SliceReader, TopicSlice, table_of
from airflow_cdc_provider.sources.debezium.schema_history import TableRows
from airflow_cdc_provider.sources.findings import kafka_findings, name_findings

_MOST_SAMPLED: Final = 20
_LAST: Final = 3
"""Number of offsets at the end of a partition to sample: the last one may be a transaction marker."""


def check_topics(
    settings: ClientSettings, options: DebeziumOptions, reader: SliceReader, form: Form
) -> list[Finding]:
    """Check the topics. Problems are returned as findings, not raised.

    Args:
        settings: Client settings.
        options: The source's options.
        reader: The reader that a capture would use.
        form: The format of rows in values.
    """
    selects = reader.selects
    cluster = ClusterTopics(settings, options.isolation)
    try:
        found = cluster.topics(options.topics)
        topics = {
            name: one
            for name, one in found.items()
            if options.tables_from != "topic" or selects(table_of(name))
        }
        partitions = [(name, number) for name, topic in topics.items() for number in topic.partitions]
        begins, ends = cluster.begins(partitions), cluster.ends(partitions)
    except CdcError as error:
        return [
            Finding(
                "error", "brokers", error.message + (f": {error.found}" if error.found else ""), error.remedy
            )
        ]
    findings = [Finding("ok", "brokers", f"{settings.servers} answers")]
    findings += kafka_findings(settings)
    if not topics:
        return [
            *findings,
            Finding(
                "error",
                "topics",
                f"no topic matches {', '.join(options.topics)}",
                "correct source.topics and tables, or give the user the right to describe the topics",
            ),
        ]
    findings += [
        Finding(
            "warning", "topics", missing, "correct source.topics, or ignore this until Debezium creates it"
        )
        for missing in missing_topics(options.topics, found)
    ]
    if options.tables_from == "topic":
        findings += _shared_tables(topics)
    messages = sum(ends[one] - begins[one] for one in partitions)
    findings.append(
        Finding("ok", "topics", f"{len(topics)} topics, {len(partitions)} partitions, {messages} offsets")
    )
    filled = [one for one in partitions if ends[one] > begins[one]]
    sampled: list[pa.RecordBatch] = []
    for partition in filled[:_MOST_SAMPLED]:
        first = max(begins[partition], ends[partition] - _LAST)
        last = MessageRange(*partition, first, ends[partition])
        findings += _sample(reader, topics[partition[0]], last, sampled)
    return [*findings, *name_findings(_names(sampled, form, options))]


def missing_topics(patterns: Sequence[str], topics: Collection[str]) -> list[str]:
    """Return a message for each pattern that no topic matches: the others are read."""
    missing = [one for one in patterns if not any(matches(one, topic) for topic in topics)]
    return [f"no topic matches {one} of source.topics: nothing is read for it" for one in missing]


def _names(
    sampled: Sequence[pa.RecordBatch], form: Form, options: DebeziumOptions
) -> dict[str, list[tuple[str, str]]]:
    """Return the columns of sampled rows by table: their names at the source and in a new mirror."""
    records = pa.Table.from_batches(sampled, CHANGE_SCHEMA)
    schemas = records.filter(pc.field("kind") == SCHEMA).to_pylist()
    names: dict[str, list[tuple[str, str]]] = {}
    for table in sorted({one["source_table"] for one in schemas}):
        rows = TableRows.of(table, schemas)
        codec = DebeziumCodec.of(rows, form, options.advanced.max_inferred_columns, None)
        own = records.filter((pc.field("kind") == CHANGE) & (pc.field("source_table") == table))
        tallied = [codec.tally(codec.decode(batch, ()).contributions) for batch in own.to_batches()]
        inferred = codec.learn(pa.Table.from_batches(tallied, FIELD_COUNTS)).inferred.fields
        names[table] = [*rows.lake_names.items(), *((one.name, one.column) for one in inferred)]
    return names


def _shared_tables(topics: Iterable[str]) -> Iterator[Finding]:
    """Report tables whose rows are in several topics."""
    of_tables: dict[str, list[str]] = {}
    for topic in topics:
        of_tables.setdefault(table_of(topic), []).append(topic)
    for table, own in of_tables.items():
        if len(own) > 1:
            yield Finding(
                "warning",
                table,
                f"its rows are in several topics, whose order is unknown: {', '.join(sorted(own))}. Those of "
                "the topic that is captured first are merged, the others are quarantined",
                "select one of them in source.topics, by a connector with a name and a lake.namespace of its "
                "own for each",
            )


def _sample(
    reader: SliceReader, topic: Topic, last: MessageRange, sampled: list[pa.RecordBatch]
) -> list[Finding]:
    """Read the last messages of a partition as a capture would; add the records to a list."""
    options = reader.options
    where = f"partition {last.partition} of topic {last.topic}"
    table = table_of(topic.name) if options.tables_from == "topic" else ""
    part = TopicSlice(last, 0, len(topic.partitions), table, 0)
    try:
        batches = list(reader.read([part], ReadMetrics()))
    except CdcError as error:
        return [
            Finding("error", where, error.message + (f": {error.found}" if error.found else ""), error.remedy)
        ]
    sampled += batches
    reasons = [
        reason
        for batch in batches
        for kind, reason in zip(
            batch.column("kind").to_pylist(), batch.column("reason").to_pylist(), strict=True
        )
        if kind == QUARANTINE
    ]
    if not reasons:
        return []
    framed = options.value_converter not in FRAMED and _is_framed(reader, last)
    remedy = (
        "they are framed for a schema registry: set source.value_converter (and key_converter) to avro, "
        "protobuf or json_schema, and source.registry"
        if framed
        else "such messages are quarantined; check source.envelope, key_converter, value_converter and "
        "tables_from"
    )
    return [Finding("error" if framed else "warning", where, reasons[-1], remedy)]


def _is_framed(reader: SliceReader, last: MessageRange) -> bool:
    """Return whether values start with the framing of a schema registry: a zero byte and an id."""
    values = [m.value() for some in read_range(reader.settings, last, reader.options.isolation) for m in some]
    return any(value is not None and len(value) > 5 and value[0] == 0 for value in values)
