"""Captured changes as an origin: events of the changes table, batch by batch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.events.event_batches import EventBatch, EventRequest
from airflow_cdc_provider.events.sliced import Sliced
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.publishing.batches import BatchPublisher, require_matching
from airflow_cdc_provider.jobs.publishing.publication import Origin
from airflow_cdc_provider.kafka.positions import PublishPosition
from airflow_cdc_provider.sources.registry import source_plugin


class Changes(Origin):
    """Events of all captured changes."""

    @cached_property
    def through(self) -> int:
        """The last batch: the newest one when it was first read."""
        return self.stores.changes.state().batch

    @property
    def first(self) -> PublishPosition:
        """The position of the first run."""
        earliest = self.job.connector.publish.start == "earliest"
        return PublishPosition(self.name, 1 if earliest else self.through + 1)

    def start(self, stored: PublishPosition | None) -> PublishPosition:
        """Return the position to start with, if its form still fits."""
        position = stored or self.first
        require_matching(position, self.form, self.through)
        return position

    def build(self, request: EventRequest) -> Iterator[EventBatch]:
        """Build events, oldest first."""
        request = replace(request, tables=self.job.spec.tables)
        events = source_plugin(self.job.connector.type).events()
        return events.captured_records(self.stores, self.source, request, self.skipped)

    def sliced(self, after: int) -> Sliced:
        """Partition the records of the batches after one, so that each row of the source is in one slice."""
        self.add_removals(after)
        events = source_plugin(self.job.connector.type).events()
        return events.sliced_records(self.stores, self.source, after, self.through)

    def add_removals(self, after: int) -> None:
        """Report the tables that were truncated or dropped after a batch."""
        if after < self.through:
            tables = self.job.spec.tables or None
            rows = self.stores.changes.pending(after, self.through, tables, (record.TRUNCATE, record.DROP))
            self.skipped.removed |= set(map(tuple, rows.select("kind", "source_table").collect()))

    def publish(self, publisher: BatchPublisher) -> None:
        """Publish the batches from the publisher's position on."""
        self.add_removals(publisher.position.batch - 1)
        publisher.publish(self.through, time.time_ns())

    def published_through(self, position: PublishPosition) -> int:
        """Return the last batch that is published completely."""
        return position.batch - 1

    def require(self, batch: int) -> None:
        """Refuse a batch that neither exists nor is the next one.

        Raises:
            ConfigurationError: It is another one.
        """
        following = self.through + 1
        if not 1 <= batch <= following:
            raise ConfigurationError(
                f"publishing can't continue with batch {batch}",
                expected=f"a batch from 1 to {following}, the next one",
                found=str(batch),
            )

    def at(self, batch: int) -> PublishPosition:
        """Return the position before a batch."""
        return PublishPosition(self.name, batch)
