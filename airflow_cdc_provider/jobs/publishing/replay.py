"""The replay stage: publishes events of a range of batches again, to their topics or to others.

Consumers that lost or misread events get them again, and a new consumer gets a history. The published
position doesn't change: a replay has its own transactional id and position (``<transactional id>.replay``),
so it may run concurrently with syncs. Like publishing it sends records in transactions with the position
after them: an interrupted replay that is requested again resumes there.

A range can be sent only while the changes table has its batches (``lake.retention_seconds``).
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.event_batches import EventBatch, EventRequest
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.exceptions import ConfigurationError, OffsetMissing, TransientError
from airflow_cdc_provider.jobs.context.clients import Connections
from airflow_cdc_provider.jobs.context.job import Job, log
from airflow_cdc_provider.jobs.context.run import Run
from airflow_cdc_provider.jobs.publishing.batches import BatchPublisher, wait_for_servers
from airflow_cdc_provider.jobs.publishing.dead_letters import DeadLetters
from airflow_cdc_provider.jobs.publishing.form import form_of
from airflow_cdc_provider.jobs.publishing.publish import (
    client_settings,
    positions_topic,
    published,
    registrar_of,
)
from airflow_cdc_provider.jobs.spec import JobResult, ReplayResult
from airflow_cdc_provider.jobs.topics.rules import topic_maker
from airflow_cdc_provider.kafka.errors import BrokersUnavailable
from airflow_cdc_provider.kafka.positions import PositionsTopic, PublishPosition
from airflow_cdc_provider.kafka.producer import RecordProducer
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.sources.base import Source
from airflow_cdc_provider.sources.encoding import headers_of
from airflow_cdc_provider.sources.registry import source_plugin


def replay(run: Run) -> JobResult:
    """Publish the events of batches again.

    Options of the spec: ``first_batch`` and ``last_batch``, or ``since`` and ``until`` (ISO 8601: batches
    that were committed in that time). The range defaults to the first batch that is kept up to the last
    published one, or with another prefix up to the newest. ``topic_prefix``: of the topics to send to; empty
    for the same ones. ``request``: an id; only a replay of the same request resumes an interrupted one. With
    tables in the spec only theirs.

    Raises:
        ConfigurationError: Batches of the range have expired, don't exist or aren't published yet; or as for
            publishing.
        TransientError: The brokers, or the registry, didn't respond for
            ``publish.kafka.retry_timeout_seconds``.
        CommitConflict: Another replay of this connector runs.
        CorruptInput: A record can't be decoded and the source is strict.
    """
    job, stores, source, clients, report = run
    settings = client_settings(job.connector, clients.connections)
    if job.connector.publish.kafka.after_merge:
        raise ConfigurationError(
            "batches of changes can't be replayed by a connector that publishes after merges",
            expected="publish.kafka.mode: changes",
            found="after_merge",
            remedy="airflow cdc offsets publish-from --batch 1 publishes all rows again, as they are now",
        )
    prefix = str(job.spec.options.get("topic_prefix") or "")
    if prefix == job.connector.topic_prefix:
        prefix = ""
    done = published(job.connector, clients.connections)
    through = None if prefix else done.batch - 1 if done else 0
    sending = _Replay(
        job,
        stores,
        source,
        clients.connections,
        settings,
        prefix,
        through,
        SkippedRecords(strict=job.connector.source.strict),
    )
    started = time.monotonic()
    kafka, name = job.connector.publish.kafka, job.connector.name
    wait_for_servers(sending.send, lambda: sending.transactions, kafka, job.stopping, name)
    sent = sending.range
    result = ReplayResult(
        sent.first,
        sent.last,
        sum(one.records for one in sending.tries),
        sum(one.dead_letters for one in sending.tries),
        sending.transactions,
        round(time.monotonic() - started, 3),
    )
    if sending.tries[-1].position.batch <= sent.last:
        raise TransientError(
            f"the replay was stopped in batch {sending.tries[-1].position.batch}",
            remedy="run it again: it resumes there",
        )
    log.info("%s: replayed %s", job.connector.name, result)
    report.callbacks.append(sending.store_end)
    findings = [f"replaying: {one}" for one in sending.skipped.report()]
    if (
        not prefix
        and done is not None
        and sent.last < _published_now(job.connector, clients.connections, done).batch - 1
    ):
        findings.append(
            f"events of batches {sent.first} to {sent.last} are now after or among those of later ones: "
            "consumers that take the last event of a key as its state get an older state; replay up to the "
            "newest batch, while publishing pauses"
        )
    return JobResult(ok=True, replayed=result, findings=tuple(findings))


def _published_now(
    connector: Connector, connections: Connections, before: PublishPosition
) -> PublishPosition:
    """Return the published position after a replay, as publishing may have continued concurrently.

    All records are sent: an error of brokers must not fail the job, as a retry would send them again.
    """
    try:
        return published(connector, connections) or before
    except BrokersUnavailable as error:
        log.warning("%s: can't check whether batches were published meanwhile: %s", before.connector, error)
        return before


_REPORTED: Final = ":reported"
"""Suffix of the form in the position of a replay that has ended and whose result is written."""


@dataclass(frozen=True)
class BatchRange:
    """Batches from ``first`` to ``last``."""

    first: int
    last: int


def kept_batches(connector: Connector, changes: ChangesTable) -> dict[int, datetime]:
    """Return the commit time of each batch in the changes table, oldest first.

    Raises:
        ConfigurationError: There are no batches.
    """
    from pyspark.sql import functions as f

    state = changes.state()
    if not state.batch:
        raise ConfigurationError(
            f"the changes table {connector.changes_table} is empty or doesn't exist",
            remedy="run a capture or sync first",
        )
    rows = changes.pending(0, state.batch, kinds=(record.OFFSET,))
    found = rows.select("batch", f.unix_micros("captured_at").alias("us")).collect()
    return {row["batch"]: datetime.fromtimestamp(row["us"] / 1e6, UTC) for row in sorted(found)}


def chosen_range(
    kept: Mapping[int, datetime], options: Mapping[str, Any], published_through: int | None
) -> BatchRange:
    """Return the requested range of batches.

    Args:
        kept: Commit time of each existing batch, oldest first; at least one.
        options: Options of the spec; see :func:`replay`.
        published_through: The last published batch, if later ones may not be sent; else None.

    Raises:
        ConfigurationError: Batches of the range have expired, don't exist or aren't published yet; the range
            is empty; or numbers and times are mixed.
    """
    first, last = options.get("first_batch"), options.get("last_batch")
    since, until = (_time_of(name, options.get(name)) for name in ("since", "until"))
    if (first is not None or last is not None) and (since or until):
        raise ConfigurationError(
            "a replay takes batch numbers or times",
            expected="first_batch and last_batch, or since and until",
            found="both",
        )
    oldest, newest = next(iter(kept)), max(kept)
    end = newest if published_through is None else min(newest, published_through)
    if since or until:
        if since and oldest > 1 and since < kept[oldest]:
            raise _expired(oldest, kept[oldest], f"since {since.isoformat()}")
        chosen = [n for n, at in kept.items() if (not since or at >= since) and (not until or at <= until)]
        chosen = [n for n in chosen if n <= end]
        if not chosen:
            raise ConfigurationError(
                "no batch that may be replayed was committed in that time",
                expected=f"a time from {kept[oldest].isoformat()} on, and batches up to {end}",
            )
        return BatchRange(chosen[0], chosen[-1])
    first = oldest if first is None else int(first)
    last = end if last is None else int(last)
    if first < oldest and oldest > 1:
        raise _expired(oldest, kept[oldest], f"batch {first}")
    if end < last <= newest:
        raise ConfigurationError(
            f"batch {last} isn't published yet",
            expected=f"a batch up to {end}, or another topic_prefix",
            remedy="publish first: otherwise its topics would get the events twice",
        )
    if not 1 <= first <= last <= newest:
        raise ConfigurationError(
            "there are no such batches to replay",
            expected=f"batches from {oldest} to {end}",
            found=f"{first} to {last}",
        )
    return BatchRange(first, last)


@dataclass
class _Replay:
    """One replay of one or more tries.

    Args:
        job: The job.
        stores: The lake.
        source: The source.
        connections: Connection values.
        settings: Client settings.
        prefix: Prefix of the topics to send to; empty for the same ones.
        published_through: As for :func:`chosen_range`.
        skipped: Collects skipped records.
        range: The batches, once a try has started.
        tries: The publisher of each try.
    """

    job: Job
    stores: Stores
    source: Source
    connections: Connections
    settings: ClientSettings
    prefix: str
    published_through: int | None
    skipped: SkippedRecords
    range: BatchRange = BatchRange(0, 0)
    tries: list[BatchPublisher] = field(default_factory=list)

    @property
    def transactions(self) -> int:
        """Number of transactions of all tries."""
        return sum(one.transactions for one in self.tries)

    @property
    def _name(self) -> str:
        """Key of the stored position."""
        return f"{self.job.connector.name}.replay"

    def send(self) -> None:
        """Send from the position of this replay to the end of the range.

        Raises:
            BrokersUnavailable: The brokers don't respond; the next try resumes.
            CdcError: As :func:`replay`.
        """
        kept = kept_batches(self.job.connector, self.stores.changes)
        connector = self.job.connector
        options = connector.publish.kafka
        producer = self._producer()
        try:
            try:
                stored = producer.take_over()
            except OffsetMissing as error:
                log.warning("%s starts over: %s", self._name, error)
                stored = None
            position, self.range = self._start(stored, kept)
            registrar = registrar_of(self.job.connector, self.connections)
            publisher = BatchPublisher(
                producer,
                lambda request: self._events(replace(request, registrar=registrar)),
                headers_of(connector),
                position.form,
                options.records_per_commit,
                self.job.stopping,
                DeadLetters.of(self.job.connector, self.stores).add if options.writes_dead_letters else None,
                position,
            )
            self.tries.append(publisher)
            publisher.publish(self.range.last, time.time_ns())
        finally:
            producer.close()

    def store_end(self) -> None:
        """Store that this replay has ended and its result is written, so that the next one starts over.

        A job that is killed before this sends nothing when it is run again; a replay that is requested later
        sends all records.

        Raises:
            BrokersUnavailable: The brokers don't respond; the next replay of the same request sends nothing
                then.
            CommitConflict: Another replay has started.
        """
        last = self.tries[-1].position
        producer = self._producer()
        try:
            if producer.take_over() == last:
                producer.publish((), (), replace(last, form=f"{last.form}{_REPORTED}"))
        finally:
            producer.close()

    def _producer(self) -> RecordProducer:
        connector = self.job.connector
        options = connector.publish.kafka
        own_id = f"{options.transactional_id or connector.name}.replay"
        shared = positions_topic(connector, self.settings)
        shared.make(1)
        positions = PositionsTopic(self.settings, shared.topic, self._name)
        transactional_id = own_id if options.delivery == "exactly_once" else ""
        return RecordProducer(
            self.settings,
            positions,
            transactional_id=transactional_id,
            topics=topic_maker(connector, self.settings),
        )

    def _start(
        self, stored: PublishPosition | None, kept: Mapping[int, datetime]
    ) -> tuple[PublishPosition, BatchRange]:
        """Return position and range to start with: those of an unfinished replay of the same request, if any.

        An open range changes with each published batch: a replay keeps the range of its start. It counts as
        unfinished until its result is written (:meth:`store_end`), since a job may be killed, or brokers may
        become unavailable, after the last transaction.

        Args:
            stored: The position of the last replay; None for none.
            kept: As for :func:`chosen_range`.

        Raises:
            ConfigurationError: As :func:`chosen_range`.
        """
        options = self.job.spec.options
        request = [
            form_of(self.job.connector),
            [str(options.get(name) or "") for name in ("first_batch", "last_batch", "since", "until")],
            self.prefix,
            sorted(self.job.spec.tables),
            str(options.get("request", "")),
        ]
        digest = hashlib.sha256(json.dumps(request).encode()).hexdigest()[:32]
        found = re.fullmatch(rf"{digest}:(\d+)-(\d+)", stored.form) if stored is not None else None
        if stored is None or found is None:
            chosen = chosen_range(kept, options, self.published_through)
            form = f"{digest}:{chosen.first}-{chosen.last}"
            return PublishPosition(self._name, chosen.first, form=form), chosen
        oldest = next(iter(kept))
        if stored.batch < min(oldest, int(found[2]) + 1) and oldest > 1:
            raise _expired(oldest, kept[oldest], f"batch {stored.batch}, with which the replay has to resume")
        log.info(
            "%s: resuming with batch %d, record %d, up to batch %s",
            self._name,
            stored.batch,
            stored.records,
            found[2],
        )
        return stored, BatchRange(int(found[1]), int(found[2]))

    def _events(self, request: EventRequest) -> Iterator[EventBatch]:
        """Build the events as publishing does, for the topics of the other prefix."""
        connector = self.job.connector
        own = source_plugin(connector.type).events()
        request = replace(request, tables=self.job.spec.tables)
        for events in own.captured_records(self.stores, self.source, request, self.skipped):
            yield replace(events, records=_with_prefix(events.records, connector, self.prefix))


def _with_prefix(records: pa.RecordBatch, connector: Connector, prefix: str) -> pa.RecordBatch:
    """Replace the prefix of the topics of records."""
    if not prefix:
        return records
    topics = pc.dictionary_encode(records["topic"])
    names = [
        other_topic(name, connector.topic_prefix, prefix, connector.publish.topic_delimiter)
        for name in topics.dictionary.to_pylist()
    ]
    moved = pa.array(names, pa.large_utf8()).take(topics.indices)
    return records.set_column(records.schema.get_field_index("topic"), "topic", moved)


def other_topic(topic: str, before: str, now: str, delimiter: str) -> str:
    """Return a topic's name with another prefix; a name without the old prefix gets the new one.

    Args:
        topic: The topic's name.
        before: The connector's topic prefix.
        now: The other prefix.
        delimiter: The delimiter after prefixes.
    """
    rest = topic.removeprefix(f"{before}{delimiter}")
    return f"{now}{delimiter}{rest}"


def _expired(oldest: int, committed_at: datetime, found: str) -> ConfigurationError:
    return ConfigurationError(
        f"batches before {oldest} have expired",
        expected=f"batches from {oldest} on, which was committed at {committed_at.isoformat()}",
        found=found,
        remedy="a snapshot of the tables publishes their current rows; raise lake.retention_seconds to keep "
        "batches longer",
    )


def _time_of(name: str, text: object) -> datetime | None:
    if not text:
        return None
    try:
        time_given = datetime.fromisoformat(str(text))
    except ValueError as error:
        raise ConfigurationError(
            f"invalid value for option {name}",
            expected="a time such as 2026-11-23T12:00:00Z",
            found=repr(text),
        ) from error
    return time_given if time_given.tzinfo else time_given.replace(tzinfo=UTC)
