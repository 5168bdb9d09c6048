"""The stage compare_topics: the last event of each key in a table's topics against the mirror's rows.

Topics are read as source ``debezium`` reads them, from their start to their current end, compacted or not;
for each key the last event counts, and a delete or tombstone means no row. The other side are the events as
which the mirror's rows would be published (:mod:`airflow_cdc_provider.sources.row_events`). Rows are compared
member by member. Events of CQL databases contain parts of rows: :mod:`.cql_topics`.

Changes that are captured and not merged, or merged and not published, differ: compare after a sync.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA
from airflow_cdc_provider.changes.contribution import SPARK_DDL as CONTRIBUTION_DDL
from airflow_cdc_provider.changes.worker import map_in_arrow
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput
from airflow_cdc_provider.jobs.comparing.cql_topics import compared_rows, row_form
from airflow_cdc_provider.jobs.comparing.differences import (
    OUTCOME_DDL,
    Sides,
    compared_tables,
    judged,
    outcome_of,
    table_result,
    total,
)
from airflow_cdc_provider.jobs.comparing.mirrors import existing_mirror
from airflow_cdc_provider.jobs.context.clients import Connections
from airflow_cdc_provider.jobs.context.job import Job, log
from airflow_cdc_provider.jobs.context.run import Run
from airflow_cdc_provider.jobs.context.tables import selected_tables
from airflow_cdc_provider.jobs.publishing.origins.replayed import other_topic
from airflow_cdc_provider.jobs.publishing.stage import published_through
from airflow_cdc_provider.jobs.publishing.targets.kafka import client_settings, registrar_of
from airflow_cdc_provider.jobs.reporting.report import build_result
from airflow_cdc_provider.jobs.spark.failures import of_one_table
from airflow_cdc_provider.jobs.spark.read import new_metrics, read_partitions
from airflow_cdc_provider.jobs.spec import JobResult, TableResult
from airflow_cdc_provider.kafka.consumer import MessageRange
from airflow_cdc_provider.kafka.partitions import ClusterTopics
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.lake.compare import Comparison, compare_tables
from airflow_cdc_provider.lake.reconcile.rows import reconcile_rows
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.sources.contract import Source
from airflow_cdc_provider.sources.cql.codec import CqlCodec
from airflow_cdc_provider.sources.cql.events.source_events import CqlSourceEvents
from airflow_cdc_provider.sources.debezium.decode import Form, decode
from airflow_cdc_provider.sources.debezium.json_members import Members, members_of, read_values
from airflow_cdc_provider.sources.debezium.json_texts import compact
from airflow_cdc_provider.sources.debezium.options import (
    FRAMED,
    DebeziumAdvanced,
    DebeziumOptions,
    RegistryAddress,
)
from airflow_cdc_provider.sources.debezium.reader import SliceReader, TopicSlice
from airflow_cdc_provider.sources.debezium.registered import Registered
from airflow_cdc_provider.sources.debezium.states import read_states
from airflow_cdc_provider.sources.encoding import topic_of_table
from airflow_cdc_provider.sources.registry import source_plugin
from airflow_cdc_provider.sources.row_events import as_json

_SIDES: Final = Sides("topic", "mirror")
_READ: Final = ("json", *FRAMED)
"""Supported converters."""
_SLICE_MESSAGES: Final = 50_000
_ROWS_PER_PARTITION: Final = 50_000
_MAX_REPORTED: Final = 5
_MOST_MEMBERS: Final = 500
"""Number of distinct member names above which rows are compared as a whole."""
_KEY: Final = "\0key"
"""Column of keys; no member has this name."""
_WHOLE: Final = "\0row"
_STATES_DDL: Final = f"{CONTRIBUTION_DDL}, of_mirror boolean"


def compare_topics(run: Run) -> JobResult:
    """Compare the topics of the job's tables with their mirrors; differences make the result not ok.

    Options of the spec: ``topic_prefix`` (of the topics, in place of the connector's) and ``topics`` (by
    table, lists of topics with other names). A replay to another prefix creates no topics for tables without
    events: such topics count as empty if others exist.

    A table without a mirror or topic, or with messages that can't be read, doesn't stop the others. Nor
    does a row that no event can be built of: the result of its table counts and names such rows.

    Raises:
        ConfigurationError: The connector's events don't contain whole rows or have an unsupported form.
        TransientError: The brokers don't respond.
    """
    job, stores, source, clients, _ = run
    require_comparable(job.connector)
    settings = client_settings(job.connector, clients.connections)
    any_exists = bool(job.spec.options.get("topic_prefix")) and _any_exists(job, stores, source, settings)
    results = compared_tables(
        run,
        lambda table: _compare_table(job, stores, source, clients.connections, table, settings, any_exists),
    )
    return judged(build_result(run, tables=results), results, _SIDES)


def require_comparable(connector: Connector) -> None:
    """Refuse events where the last one of a key doesn't contain the row.

    Raises:
        ConfigurationError: The events can't be compared.
    """
    publish = connector.publish
    try:
        events = source_plugin(connector.type).events()
    except ConfigurationError as error:
        raise ConfigurationError(
            f"events of source {connector.type} can't be compared with mirrors",
            expected="source.type cassandra, scylla, mongodb or vitess",
            remedy="source debezium builds its mirrors from topics: compare them with the database by other "
            "means",
        ) from error
    events.require_rows(publish)
    texts = () if isinstance(events, CqlSourceEvents) else ("string",)
    if publish.value not in _READ or publish.key not in (*_READ, *texts):
        raise ConfigurationError(
            "topics in this form can't be compared",
            expected=f"publish.value {' or '.join(_READ)}, and publish.key likewise"
            + (" or string" if texts else ""),
            found=f"{publish.value} and {publish.key}",
        )
    if publish.value == "protobuf" and publish.protobuf_nullables == "plain":
        raise ConfigurationError(
            "events of this form don't distinguish a null from 0 or an empty text",
            expected="publish.protobuf_nullables optional or wrapper",
            found="plain",
        )


def topic_reader(
    connector: Connector, settings: ClientSettings, names: Sequence[str], registry: Registered | None
) -> SliceReader:
    """Return a reader for topics that a connector writes.

    Args:
        connector: The declaration.
        settings: Consumer settings.
        names: The topics.
        registry: Has the schemas of messages; None without a registry.
    """
    return SliceReader(
        settings,
        _options(connector, names),
        _everything,
        registry=registry,
        takes_envelopes=True,
    )


def _options(connector: Connector, names: Sequence[str]) -> DebeziumOptions:
    """Return the source options for topics that a connector writes."""
    publish = connector.publish
    framed = {publish.key, publish.value} & set(FRAMED)
    address = (
        RegistryAddress(publish.registry.connection, publish.registry.url) if framed else RegistryAddress()
    )
    return DebeziumOptions(
        topics=tuple(re.escape(name) for name in names),
        # This stage reads cells and whole rows of CQL itself.
        envelope="unwrapped" if _is_cql(connector) or _is_unwrapped(connector) else "debezium",
        key_converter=publish.key,  # type: ignore[arg-type]  # checked by require_comparable
        value_converter=publish.value,  # type: ignore[arg-type]
        registry=address,
        advanced=DebeziumAdvanced(strict=True),
    )


def _is_cql(connector: Connector) -> bool:
    return isinstance(source_plugin(connector.type).events(), CqlSourceEvents)


def _is_unwrapped(connector: Connector) -> bool:
    """Return whether values are rows, without an envelope."""
    return connector.publish.unwrap.enabled or connector.publish.envelope == "document"


def _any_exists(job: Job, stores: Stores, source: Source, settings: ClientSettings) -> bool:
    """Return whether any table has a topic."""
    options = job.spec.options
    names = [
        name
        for table in selected_tables(job, stores, source)
        for name in topics_of_table(job.connector, table, options)
    ]
    return bool(ClusterTopics(settings).topics([re.escape(name) for name in names]))


def _compare_table(
    job: Job,
    stores: Stores,
    source: Source,
    connections: Connections,
    table: str,
    settings: ClientSettings,
    may_be_missing: bool,
) -> TableResult:
    started = time.monotonic()
    mirror = existing_mirror(stores, table)
    state = mirror.state()
    _log_progress(job, stores, source, connections, table, state.merged_through)
    connector = job.connector
    names = topics_of_table(connector, table, job.spec.options)
    slices = _slices(settings, names, table, may_be_missing)
    reader = topic_reader(connector, settings, names, registrar_of(job.connector, connections))
    records = read_partitions(stores.spark, reader, slices)
    rows = mirror.row_count(state)
    messages = sum(one.range.end - one.range.start for one in slices)
    partitions = max(rows, messages) // _ROWS_PER_PARTITION + 1
    now_us = time.time_ns() // 1000
    plain = replace(stores, connector=as_json(connector))
    own = source_plugin(connector.type).events()
    metrics = new_metrics(stores.spark)
    events = own.mirror_events(plain, source, table, state, now_us, metrics)
    left_out: tuple[str, ...] = ()
    if isinstance(own, CqlSourceEvents):
        codec = source.codec(table, state.memory)
        assert isinstance(codec, CqlCodec)
        row_form_of_table = row_form(connector, codec.schema)
        left_out = row_form_of_table.left_out
        outcomes = compared_rows(records, events, row_form_of_table, partitions, now_us)
    else:
        form = Form(_is_unwrapped(connector))
        reported = map_in_arrow(records, _TopicStates(form), _STATES_DDL)
        expected = map_in_arrow(events, _MirrorStates(form, connector.publish.key == "string"), _STATES_DDL)
        both = reported.unionByName(expected).repartition(partitions, "key")
        outcomes = map_in_arrow(both, _compared, OUTCOME_DDL)
    result = table_result(
        table,
        total(outcomes),
        _SIDES,
        merged_through=state.merged_through,
        mirror_rows=rows,
        seconds=time.monotonic() - started,
        columns_left_out=left_out,
    )
    if not (count := metrics.value.counts["skipped"]):
        return result
    named = "; ".join(text for _, text in sorted(metrics.value.skipped)[:_MAX_REPORTED])
    error = CorruptInput(f"{count} rows of the mirror {mirror.name} have no event", found=named)
    return of_one_table(result, error)


def topics_of_table(connector: Connector, table: str, options: Mapping[str, Any]) -> list[str]:
    """Name the topics that have a table's events.

    Args:
        connector: The declaration.
        table: ``keyspace.table`` or ``database.collection``.
        options: Of the spec; see :func:`compare_topics`.
    """
    named = (options.get("topics") or {}).get(table)
    if named:
        return [named] if isinstance(named, str) else [str(name) for name in named]
    topic = topic_of_table(connector, table)
    prefix = str(options.get("topic_prefix") or "")
    if not prefix or prefix == connector.topic_prefix:
        return [topic]
    return [other_topic(topic, connector.topic_prefix, prefix, connector.publish.topic_delimiter)]


def _log_progress(
    job: Job, stores: Stores, source: Source, connections: Connections, table: str, merged_through: int
) -> None:
    """Log how far both sides are: changes in between differ only because they are in flight."""
    through = published_through(job, stores, source, connections)
    log.info(
        "%s: the mirror has merged batches through %d; batches through %d are published",
        table,
        merged_through,
        through or 0,
    )


def _slices(
    settings: ClientSettings, names: Sequence[str], table: str, may_be_missing: bool
) -> list[TopicSlice]:
    """Split the current contents of topics into slices.

    Raises:
        ConfigurationError: A required topic doesn't exist.
    """
    cluster = ClusterTopics(settings)
    found = cluster.topics([re.escape(name) for name in names])
    missing = ", ".join(sorted(set(names) - set(found)))
    if missing and may_be_missing:
        log.warning("there is no topic %s: %s is treated as having no events", missing, table)
    elif missing:
        raise ConfigurationError(
            f"there is no topic {missing} with events of {table}",
            expected=f"a topic of that name on {settings.servers}",
            remedy="publish first; or set topics or topic_prefix to where the events are; or grant the "
            "connection's user READ on the topic",
        )
    partitions = [(name, number) for name, topic in found.items() for number in topic.partitions]
    starts, ends = cluster.begins(partitions), cluster.ends(partitions)
    now_us = time.time_ns() // 1000
    return [
        TopicSlice(
            MessageRange(topic, number, start, min(start + _SLICE_MESSAGES, ends[topic, number])),
            0,
            len(found[topic].partitions),
            table,
            now_us,
        )
        for topic, number in partitions
        for start in range(starts[topic, number], ends[topic, number], _SLICE_MESSAGES)
    ]


def _everything(table: str) -> bool:
    return True


class _AnySchema:
    """Contains the names of all schemas: rows are compared as they are written."""

    def __contains__(self, name: object) -> bool:
        return True


@dataclass(frozen=True)
class _TopicStates:
    """Converts records of topics to contributions. Picklable."""

    form: Form

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if pc.any(pc.equal(batch["kind"], record.TRUNCATE)).as_py():
                raise CorruptInput(
                    "a topic has a TRUNCATE of its table",
                    remedy="earlier events can't be compared; publish a snapshot to another prefix",
                )
            # An event without a row after the change is followed by an event with it, or by the delete.
            yield _of_side(decode(batch, self.form, _AnySchema(), ()).contributions, of_mirror=False)


@dataclass(frozen=True)
class _MirrorStates:
    """Converts events of a mirror's rows to contributions. Picklable."""

    form: Form
    text_keys: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            count = batch.num_rows
            changes = record.change_batch(
                count,
                kind=record.CHANGE,
                origin="mirror",
                position=b"\0",
                key=batch["key"] if self.text_keys else compact(*read_values(batch["key"])),
                version=b"\0",
                payload=batch["value"],
            )
            decoded = decode(changes, self.form, _AnySchema(), ())
            if decoded.undecodable:
                raise CorruptInput("an event of a mirror's row can't be read", found=decoded.reasons[0])
            yield _of_side(decoded.contributions, of_mirror=True)


def _of_side(contributions: pa.RecordBatch, *, of_mirror: bool) -> pa.RecordBatch:
    return contributions.append_column("of_mirror", pa.repeat(of_mirror, contributions.num_rows))


def _compared(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Compare both sides of some keys."""
    found = [batch for batch in batches if batch.num_rows]
    if not found:
        return
    table = pa.Table.from_batches(found)
    sides = [table.filter(pc.invert(table["of_mirror"])), table.filter(table["of_mirror"])]
    live = [reconcile_rows(side.select(CONTRIBUTION_SCHEMA.names), 0).live for side in sides]
    yield outcome_of(compare_rows(live[0], live[1]))


def compare_rows(topic: pa.Table, mirror: pa.Table) -> Comparison:
    """Compare rows by key: tables of ``LIVE_ROW_SCHEMA`` whose states are JSON objects."""
    sides = [_Rows.of(side) for side in (topic, mirror)]
    names = sorted(sides[0].names | sides[1].names)
    whole = len(names) > _MOST_MEMBERS
    tables = [side.whole() if whole else side.by_member(names) for side in sides]
    return compare_tables(tables[0], tables[1], _KEY)


@dataclass(frozen=True)
class _Rows:
    """Rows of one side.

    Args:
        keys: The keys, as text.
        texts: JSON objects.
        members: The members of these objects.
    """

    keys: pa.Array
    texts: pa.Array
    members: Members

    @classmethod
    def of(cls, live: pa.Table) -> _Rows:
        _, texts = read_states(live["state"].combine_chunks().cast(pa.binary()))
        keys = live["key"].combine_chunks().cast(pa.binary()).cast(pa.string())
        return cls(keys, texts, members_of(*read_values(texts)))

    @property
    def names(self) -> set[str]:
        return set(self.members.numbered[1]) if len(self.members.owners) else set()

    def by_member(self, names: Sequence[str]) -> pa.Table:
        """Return a column for each member."""
        columns: dict[str, pa.Array] = {_KEY: self.keys}
        if not len(self.members.owners):
            return pa.table({**columns, **{name: pa.nulls(len(self.keys), pa.binary()) for name in names}})
        found = self.members.find(*names)
        data = self.members.data
        columns |= {name: compact(data, spans) for name, spans in zip(names, found, strict=True)}
        return pa.table(columns)

    def whole(self) -> pa.Table:
        """Return the rows in canonical form, as one column."""
        return pa.table({_KEY: self.keys, _WHOLE: compact(*read_values(self.texts))})
