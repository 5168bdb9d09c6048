"""Captured changes as an origin: events of the changes table, batch by batch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.events.event_batches import EventBatch, EventRequest
from airflow_cdc_provider.events.sliced import Sliced
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.publishing.batches import BatchPublisher, require_matching
from airflow_cdc_provider.jobs.publishing.publication import Origin
from airflow_cdc_provider.jobs.publishing.topic_owners import MOST_STORED, topic_owners
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.kafka.positions import PublishPosition
from airflow_cdc_provider.lake.changes_table import ChangesState
from airflow_cdc_provider.sources.registry import source_plugin


@dataclass
class Changes(Origin):
    """Events of all captured changes.

    Attributes:
        owners: The tables of topics that several claim (:mod:`..topic_owners`); valid after :meth:`survey`.
    """

    owners: Mapping[str, str] = field(default_factory=dict, init=False)

    @cached_property
    def _state(self) -> ChangesState:
        return self.stores.changes.state()

    @property
    def through(self) -> int:
        """The last batch: the newest one when it was first read."""
        return self._state.batch

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
        request = replace(request, tables=self.job.spec.tables, owners=self.owners)
        events = source_plugin(self.job.connector.type).events()
        return events.captured_records(self.stores, self.source, request, self.skipped)

    def sliced(self, after: int) -> Sliced:
        """Partition the records of the batches after one, so that each row of the source is in one slice."""
        events = source_plugin(self.job.connector.type).events()
        return events.sliced_records(self.stores, self.source, after, self.through)

    def survey(self, after: int, known: Sequence[str] = ()) -> tuple[str, ...]:
        """Report the tables that were truncated or dropped after a batch, and find the owners of topics.

        Args:
            after: The batch.
            known: Tables that are known to have their topics, which the position has.

        Returns:
            The tables that are known now, for the position.
        """
        if after >= self.through:
            return tuple(known)
        chosen = self.job.spec.tables
        found = self._recorded(after)
        self.skipped.removed |= {
            (kind, table)
            for kind, table in found
            if kind in (record.TRUNCATE, record.DROP) and (not chosen or table in chosen)
        }
        return self.find_owners(found, known)

    def find_owners(self, found: set[tuple[str, str]], known: Sequence[str]) -> tuple[str, ...]:
        """Find the owners of topics of recorded tables; see :meth:`survey`.

        Of too many, those of topics that several tables claim now are stored, those that were known first.
        """
        connector = self.job.connector
        snapshots = Progress.from_offset(self._state.offset).snapshots
        tables = {table for _, table in found if connector.selects(table)}
        if not tables <= snapshots.keys():  # others may have no snapshot either, and have been first
            tables = {table for _, table in self._recorded(0)}
        tables = set(filter(connector.selects, {*snapshots, *tables}))
        self.owners = topic_owners(connector, self.stores.changes, known, tables)
        current = sorted(self.owners.values(), key=lambda table: table not in known)
        return tuple(dict.fromkeys([*current, *known]))[:MOST_STORED]

    def _recorded(self, after: int) -> set[tuple[str, str]]:
        """Return the kinds and tables of the records after a batch."""
        rows = self.stores.changes.pending(after, self.through).select("kind", "source_table").distinct()
        return {(row["kind"], row["source_table"]) for row in rows.collect() if row["source_table"]}

    def publish(self, publisher: BatchPublisher) -> None:
        """Publish the batches from the publisher's position on."""
        at = publisher.position
        publisher.position = replace(at, owners=self.survey(at.batch - 1, at.owners))
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
