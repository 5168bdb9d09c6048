"""A publish run: events of an origin to a target, in one or more tries."""

from __future__ import annotations

import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import ClassVar, Final, Generic, Protocol, TypeVar

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.connector.publish.kafka import KafkaOptions
from airflow_cdc_provider.connector.publish.pulsar import PulsarOptions
from airflow_cdc_provider.events.event_batches import EventBatch, EventRequest
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.jobs.context.job import Job
from airflow_cdc_provider.jobs.publishing.batches import BatchPublisher, wait_for_servers
from airflow_cdc_provider.jobs.spec import PublishResult
from airflow_cdc_provider.kafka.positions import PublishPosition
from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.options import to_plain
from airflow_cdc_provider.sources.contract import Source

_MOST_REFUSED: Final = 400


@dataclass
class Origin(ABC):
    """Events in an order that is the same each time they are built, up to what exists at first use.

    Args:
        job: The job. To publish, it is for all tables: a batch's events must be the same each time.
        stores: The lake.
        source: The source.
        skipped: Collects skipped records.

    Attributes:
        errors: By table that could not be published, its error in the form of ``TableResult.error``.
        suffix: Suffix of the origin's name and transactional id; empty for captured changes.
        restarts: Whether a run starts over if its position can't be read. Then the first position is stored
            only with records.
        form: Digest of all that determines the events; valid after :meth:`start`.
    """

    suffix: ClassVar[str] = ""
    restarts: ClassVar[bool] = False

    job: Job
    stores: Stores
    source: Source
    skipped: SkippedRecords
    errors: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Take the form of the declaration's events."""
        self.form = form_of(self.job.connector)

    @property
    def name(self) -> str:
        """Key of the stored position."""
        return name_of(self.job.connector, self.suffix)

    @abstractmethod
    def start(self, stored: PublishPosition | None) -> PublishPosition:
        """Return the position to start with: the stored one, which is final; the first one for None.

        Raises:
            ConfigurationError: The form of events changed within a batch; or there are no such events.
            OffsetMissing: The position is of another changes table.
        """

    @abstractmethod
    def build(self, request: EventRequest) -> Iterator[EventBatch]:
        """Build events, oldest first.

        Raises:
            CdcError: As the source's builder of events.
        """

    @abstractmethod
    def publish(self, publisher: BatchPublisher) -> None:
        """Publish from the publisher's position to the end. Called once, after :meth:`start`.

        Raises:
            CdcError: As :meth:`.BatchPublisher.publish`.
        """

    @abstractmethod
    def published_through(self, position: PublishPosition) -> int:
        """Return the last batch of the changes table whose events precede a position."""

    @abstractmethod
    def require(self, batch: int) -> None:
        """Refuse a batch that publishing can't continue with.

        Raises:
            ConfigurationError: It can't.
        """

    @abstractmethod
    def at(self, batch: int) -> PublishPosition:
        """Return the position before a batch. Called when no other run can publish."""


class Try(Protocol):
    """One try; its counters are valid also after a failure."""

    transactions: int
    records: int
    dead_letters: int
    refused: dict[str, str]

    @property
    def position(self) -> PublishPosition:
        """The position reached."""
        ...


OriginT = TypeVar("OriginT", bound=Origin)
OriginT_contra = TypeVar("OriginT_contra", bound=Origin, contravariant=True)


class Target(Protocol[OriginT_contra]):
    """Where events go. It stores the position after them."""

    @property
    def job(self) -> Job:
        """The job."""
        ...

    @property
    def retries(self) -> KafkaOptions | PulsarOptions:
        """How long, and how often, a run retries servers that don't respond."""
        ...

    @property
    def findings(self) -> Sequence[str]:
        """What operators should know about the run."""
        ...

    def publish(self, origin: OriginT_contra, tries: list[Try]) -> None:
        """Publish from the stored position to the end of the origin: one try.

        Other runs may publish the same origin: the target must notice, or make them harmless.

        Args:
            origin: The origin.
            tries: Gets this try before anything is sent.

        Raises:
            CdcError: One of :data:`.batches.RETRIED_ERRORS` leads to another try.
        """
        ...

    def stored(self) -> PublishPosition | None:
        """Return the stored position, None for none. No producer is fenced.

        Raises:
            BrokersUnavailable: The brokers don't respond.
            OffsetMissing: The position can't be read.
        """
        ...

    def reset(self, origin: OriginT_contra, batch: int) -> None:
        """Let the next run start with a batch, even if the stored position can't be read."""
        ...


@dataclass
class Publication(Generic[OriginT]):
    """One run.

    Args:
        origin: Returns the origin for a try; what is new since the last try may be in it.
        target: The target.
        tries: All tries so far.
        seconds: Duration of the run.
        errors: Of the last try: see :class:`Origin`.
    """

    origin: Callable[[], OriginT]
    target: Target[OriginT]
    tries: list[Try] = field(default_factory=list)
    seconds: float = 0.0
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def transactions(self) -> int:
        """Number of transactions of all tries."""
        return sum(one.transactions for one in self.tries)

    @property
    def records(self) -> int:
        """Number of records sent in all tries."""
        return sum(one.records for one in self.tries)

    @property
    def dead_letters(self) -> int:
        """Number of dead letters of all tries."""
        return sum(one.dead_letters for one in self.tries)

    @property
    def refused(self) -> dict[str, str]:
        """By topic whose records, or their schemas, are refused, the error; of many, only some."""
        return dict(islice(chain.from_iterable(one.refused.items() for one in self.tries), _MOST_REFUSED))

    @property
    def position(self) -> PublishPosition:
        """The position that the last try reached."""
        return self.tries[-1].position

    def run(self) -> None:
        """Publish to the end of the origin, and retry while servers don't respond.

        Raises:
            ConfigurationError: A login, permission, topic or setting is invalid; the options changed within a
                batch; or the broker refuses records.
            TransientError: The brokers, or the registry, didn't respond for ``retry_timeout_seconds``.
            CommitConflict: Another run publishes the same origin.
            CorruptInput: A record can't be decoded and the source is strict.
            OffsetMissing: The stored position is of another changes table, or of snapshots that expired.
        """
        started = time.monotonic()
        wait_for_servers(
            self._try,
            lambda: self.transactions,
            self.target.retries,
            self.target.job.stopping,
            self.target.job.connector.name,
        )
        self.seconds = round(time.monotonic() - started, 3)

    def _try(self) -> None:
        origin = self.origin()
        self.errors = origin.errors
        self.target.publish(origin, self.tries)

    def result(self) -> PublishResult:
        """Return what :meth:`run` published and what is pending."""
        origin = self.origin()
        changes = origin.stores.changes
        batch = origin.published_through(self.position)
        return PublishResult(
            batch=batch,
            records=self.records,
            dead_letters=self.dead_letters,
            transactions=self.transactions,
            pending_batches=changes.state().batch - batch,
            lag_seconds=publishing_lag(changes, batch),
            seconds=self.seconds,
            findings=(*origin.skipped.report(), *self.target.findings),
            errors=self.errors,
            refused=self.refused,
        )


def name_of(connector: Connector, suffix: str = "") -> str:
    """Return the key of an origin's position."""
    return f"{connector.name}.{suffix}" if suffix else connector.name


def form_of(connector: Connector) -> str:
    """Return a digest of all options that determine the records of a batch."""
    plain = to_plain(connector)
    excluded = ("kafka", "pulsar", "registry", "topics", "heartbeat_interval_seconds")
    form = {name: value for name, value in plain.get("publish", {}).items() if name not in excluded}
    source = {k: v for k, v in plain.get("source", {}).items() if k not in ("conn_id", "advanced")}
    tables = {name: plain.get(name) for name in ("name", "type", "tables", "exclude_tables")}
    text = json.dumps([form, source, tables], sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    pulsar = connector.publish.pulsar
    return f"{digest} {pulsar.namespace}" if pulsar.enabled else digest


def publishing_lag(changes: ChangesTable, batch: int) -> float:
    """Return the age of the oldest batch that is not published, in seconds; 0 for none."""
    from pyspark.sql import functions as f

    state = changes.state()
    if batch >= state.batch:
        return 0.0
    rows = changes.pending(batch, state.batch, kinds=(record.OFFSET,))
    (found,) = rows.agg(f.unix_micros(f.min("captured_at"))).collect()
    return 0.0 if found[0] is None else round(max(time.time() - found[0] / 1_000_000, 0.0), 3)
