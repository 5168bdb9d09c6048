"""The replay stage: publishes events of a range of batches again, to their topics or to others.

Consumers that lost or misread events get them again, and a new consumer gets a history. The published
position doesn't change: a replay has its own transactional id and position (``<transactional id>.replay``),
so it may run concurrently with syncs. Like publishing it sends records in transactions with the position
after them: an interrupted replay that is requested again resumes there.

A range can be sent only while the changes table has its batches (``lake.retention_seconds``).
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Final

from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.jobs.context.job import log
from airflow_cdc_provider.jobs.context.run import Run
from airflow_cdc_provider.jobs.publishing.origins.replayed import Replayed
from airflow_cdc_provider.jobs.publishing.publication import Publication
from airflow_cdc_provider.jobs.publishing.targets.dead_letters import DeadLetters
from airflow_cdc_provider.jobs.publishing.targets.kafka import KafkaTarget, Producers
from airflow_cdc_provider.jobs.spark.failures import of_refused_topics
from airflow_cdc_provider.jobs.spec import JobResult, ReplayResult
from airflow_cdc_provider.kafka.errors import BrokersUnavailable
from airflow_cdc_provider.kafka.positions import PositionsTopic, PublishPosition

_REPORTED: Final = ":reported"
"""Suffix of the form in the position of a replay that has ended and whose result is written."""


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
    published = Producers.of(job.connector, clients.connections).topic
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
    skipped = SkippedRecords(strict=job.connector.source.strict)
    origin = Replayed(job, stores, source, skipped, prefix, published)
    producers = Producers.of(job.connector, clients.connections, Replayed.suffix)
    target = KafkaTarget[Replayed](job, DeadLetters.of(job.connector, stores), clients.connections, producers)
    sending = Publication(lambda: origin, target)
    sending.run()
    sent = origin.range
    result = ReplayResult(
        sent.first,
        sent.last,
        sending.records,
        sending.dead_letters,
        sending.transactions,
        sending.seconds,
    )
    if sending.position.batch <= sent.last:
        raise TransientError(
            f"the replay was stopped in batch {sending.position.batch}",
            remedy="run it again: it resumes there",
        )
    log.info("%s: replayed %s", job.connector.name, result)
    report.callbacks.append(lambda: store_end(producers, sending.position))
    findings = [f"replaying: {one}" for one in (*skipped.report(), *target.findings)]
    before = origin.published_before
    if before is not None and sent.last < _published_now(published, before).batch - 1:
        findings.append(
            f"events of batches {sent.first} to {sent.last} are now after or among those of later ones: "
            "consumers that take the last event of a key as its state get an older state; replay up to the "
            "newest batch, while publishing pauses"
        )
    outcome = JobResult(ok=True, replayed=result, findings=tuple(findings))
    error = of_refused_topics(sending.refused)
    return outcome if error is None else replace(outcome, ok=False, error_code=error.code, error=str(error))


def _published_now(published: PositionsTopic, before: PublishPosition) -> PublishPosition:
    """Return the published position after a replay, as publishing may have continued concurrently.

    All records are sent: an error of brokers must not fail the job, as a retry would send them again.
    """
    try:
        return published.slowest() or before
    except BrokersUnavailable as error:
        log.warning("%s: can't check whether batches were published meanwhile: %s", before.connector, error)
        return before


def store_end(producers: Producers, last: PublishPosition) -> None:
    """Store that a replay has ended and its result is written, so that the next one starts over.

    A job that is killed before this sends nothing when it is run again; a replay that is requested later
    sends all records.

    Args:
        producers: Builds the replay's producer.
        last: The position after the replay.

    Raises:
        BrokersUnavailable: The brokers don't respond; the next replay of the same request sends nothing then.
        CommitConflict: Another replay has started.
    """
    producers.topic.make(1)
    with closing(producers.of_slice()) as producer:
        if producer.take_over() == last:
            producer.publish((), (), replace(last, form=f"{last.form}{_REPORTED}"))
