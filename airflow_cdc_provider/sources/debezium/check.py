"""Prerequisite checks of a capture from topics: brokers, topics, message formats."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from airflow_cdc_provider.changes.record import QUARANTINE
from airflow_cdc_provider.exceptions import CdcError, ConfigurationError
from airflow_cdc_provider.kafka.consumer import MessageRange, read_range
from airflow_cdc_provider.kafka.partitions import ClusterTopics, Topic
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.sources.contract import Finding, ReadMetrics
from airflow_cdc_provider.sources.debezium.options import FRAMED, DebeziumOptions
from airflow_cdc_provider.sources.debezium.reader import SliceReader, TopicSlice, table_of

_MOST_SAMPLED: Final = 20
_LAST: Final = 3
"""Number of offsets at the end of a partition to sample: the last one may be a transaction marker."""


def check_topics(settings: ClientSettings, options: DebeziumOptions, reader: SliceReader) -> list[Finding]:
    """Check the topics. Problems are returned as findings, not raised.

    Args:
        settings: Client settings.
        options: The source's options.
        reader: The reader that a capture would use.
    """
    selects = reader.selects
    cluster = ClusterTopics(settings, options.isolation)
    try:
        topics = cluster.topics(options.topics)
        if options.tables_from == "topic":
            topics = {name: one for name, one in topics.items() if selects(table_of(name))}
        partitions = [(name, number) for name, topic in topics.items() for number in topic.partitions]
        begins, ends = cluster.begins(partitions), cluster.ends(partitions)
    except CdcError as error:
        return [
            Finding(
                "error", "brokers", error.message + (f": {error.found}" if error.found else ""), error.remedy
            )
        ]
    findings = [Finding("ok", "brokers", f"{settings.servers} answers")]
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
    if options.tables_from == "topic":
        findings += _shared_tables(topics)
    messages = sum(ends[one] - begins[one] for one in partitions)
    findings.append(
        Finding("ok", "topics", f"{len(topics)} topics, {len(partitions)} partitions, {messages} offsets")
    )
    filled = [one for one in partitions if ends[one] > begins[one]]
    for partition in filled[:_MOST_SAMPLED]:
        first = max(begins[partition], ends[partition] - _LAST)
        findings += _sample(reader, topics[partition[0]], MessageRange(*partition, first, ends[partition]))
    return findings


def require_one_topic(table: str, topics: Collection[str]) -> None:
    """Refuse a table whose rows are in several topics: which of two rows of a key is newer is unknown.

    Raises:
        ConfigurationError: There are several topics.
    """
    if len(topics) > 1:
        raise ConfigurationError(
            f"the rows of {table} are in several topics, whose order is unknown",
            expected="one topic, since a key's newest row has the greatest offset",
            found=", ".join(sorted(topics)),
            remedy="select one of them in source.topics, by a connector with a name and a lake.namespace of "
            "its own for each",
        )


def _shared_tables(topics: Iterable[str]) -> Iterator[Finding]:
    """Report tables whose rows are in several topics."""
    of_tables: dict[str, list[str]] = {}
    for topic in topics:
        of_tables.setdefault(table_of(topic), []).append(topic)
    for table, own in of_tables.items():
        try:
            require_one_topic(table, own)
        except ConfigurationError as error:
            yield Finding("warning", table, f"it is left out: {error.message}: {error.found}", error.remedy)


def _sample(reader: SliceReader, topic: Topic, last: MessageRange) -> list[Finding]:
    """Read the last messages of a partition as a capture would."""
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
