"""Replayed changes as an origin: events of a range of batches again, to their topics or to others.

The position is separate from the published one: its form has the range, which an interrupted replay keeps.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.event_batches import EventBatch, EventRequest
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.context.job import log
from airflow_cdc_provider.jobs.publishing.batches import BatchPublisher
from airflow_cdc_provider.jobs.publishing.origins.changes import Changes
from airflow_cdc_provider.jobs.publishing.publication import form_of
from airflow_cdc_provider.kafka.positions import PositionsTopic, PublishPosition
from airflow_cdc_provider.lake.changes_table import ChangesTable


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
        options: Options of the spec; see :func:`~..replay.replay`.
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
class Replayed(Changes):
    """Events of a range of batches; of some tables if the job is for them.

    Args:
        prefix: Prefix of the topics to send to; empty for the same ones.
        published: Topic of the published positions.

    Attributes:
        range: The batches; valid after :meth:`start`.
    """

    suffix = "replay"
    restarts = True

    prefix: str
    published: PositionsTopic = field(repr=False)
    range: BatchRange = field(default=BatchRange(0, 0), init=False)

    @cached_property
    def published_before(self) -> PublishPosition | None:
        """The published position at the start; None for none, and for topics of another prefix.

        First read in :meth:`start`, after the replay's producer has fenced earlier ones: the open transaction
        of a killed replay would hide positions in the same topic until it times out.
        """
        return None if self.prefix else self.published.slowest()

    def start(self, stored: PublishPosition | None) -> PublishPosition:
        """Return the position to start with: that of an unfinished replay of the same request, if any.

        An open range changes with each published batch: a replay keeps the range of its start. It counts as
        unfinished until its result is written (:func:`~..replay.store_end`), since a job may be killed, or
        brokers may become unavailable, after the last transaction.

        Args:
            stored: The position of the last replay; None for none.

        Raises:
            ConfigurationError: As :func:`chosen_range`.
            CdcError: As :meth:`.PositionsTopic.slowest`.
        """
        before = self.published_before
        kept = kept_batches(self.job.connector, self.stores.changes)
        digest = self._digest()
        found = re.fullmatch(rf"{digest}:(\d+)-(\d+)", stored.form) if stored is not None else None
        if stored is None or found is None:
            limit = None if self.prefix else before.batch - 1 if before else 0
            self.range = chosen_range(kept, self.job.spec.options, limit)
            self.form = f"{digest}:{self.range.first}-{self.range.last}"
            return PublishPosition(self.name, self.range.first, form=self.form)
        self.range, self.form = BatchRange(int(found[1]), int(found[2])), stored.form
        oldest = next(iter(kept))
        if stored.batch < min(oldest, self.range.last + 1) and oldest > 1:
            raise _expired(oldest, kept[oldest], f"batch {stored.batch}, with which the replay has to resume")
        log.info(
            "%s: resuming with batch %d, record %d, up to batch %d",
            self.name,
            stored.batch,
            stored.records,
            self.range.last,
        )
        return stored

    def build(self, request: EventRequest) -> Iterator[EventBatch]:
        """Build the events as publishing does, for the topics of the other prefix."""
        events = super().build(request)
        if not self.prefix:
            return events
        connector = self.job.connector
        return (replace(one, records=_with_prefix(one.records, connector, self.prefix)) for one in events)

    def publish(self, publisher: BatchPublisher) -> None:
        """Publish from the publisher's position to the end of the range."""
        known = self.published_before.owners if self.published_before else ()
        self.find_owners(self._recorded(publisher.position.batch - 1), known)
        publisher.publish(self.range.last, time.time_ns())

    def _digest(self) -> str:
        options = self.job.spec.options
        request = [
            form_of(self.job.connector),
            [str(options.get(name) or "") for name in ("first_batch", "last_batch", "since", "until")],
            self.prefix,
            sorted(self.job.spec.tables),
            str(options.get("request", "")),
        ]
        return hashlib.sha256(json.dumps(request).encode()).hexdigest()[:32]


def _with_prefix(records: pa.RecordBatch, connector: Connector, prefix: str) -> pa.RecordBatch:
    """Replace the prefix of the topics of records."""
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
