"""Periodic heartbeats in Debezium's form: they show that a connector without changes is alive.

A heartbeat is not part of a batch: a separate producer sends it, without a transaction, so that no position
counts it and no open transaction delays it. The publishing thread sends it, not another thread: a job that
hangs sends none.

* A publishing run sends one when it ends, and between the records of a long run.
* A stream also sends them while it waits for its next round.

A process sends at most one per ``publish.heartbeat_interval_seconds``. Heartbeats don't advance the stored
position: each capture commits it, even if nothing was captured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import CdcError, RecordsRejected, SchemaRejected
from airflow_cdc_provider.jobs.topics.rules import topic_maker
from airflow_cdc_provider.kafka.positions import PositionsTopic
from airflow_cdc_provider.kafka.producer import RecordProducer
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.logs import logger

if TYPE_CHECKING:
    import pyarrow as pa

log = logger("airflow_cdc_provider.jobs")

T = TypeVar("T")

_RESPONSE_SECONDS: Final = 10.0
"""How long to wait for brokers; short, as the next heartbeat follows soon."""


class Heartbeats:
    """Sends a connector's heartbeats.

    Args:
        interval_seconds: The least time from one to the next.
        build: Builds a heartbeat from the time (ns since 1970) and the batch through which events are
            published; returns no records if there is no position, or one beyond that batch.
        open_producer: Opens the producer.
        clock: Monotonic seconds.
        passes_refused: Whether a topic that is refused is no error, so that events are published.

    Attributes:
        published: The batch through which events are published.
        refused: The error of the last heartbeat if its topic or schema is refused; empty if not.
    """

    def __init__(
        self,
        interval_seconds: float,
        build: Callable[[int, int], pa.RecordBatch],
        open_producer: Callable[[], RecordProducer],
        clock: Callable[[], float] = time.monotonic,
        *,
        passes_refused: bool = False,
    ) -> None:
        self._interval_seconds = interval_seconds
        self._build = build
        self._open_producer = open_producer
        self._clock = clock
        self._passes_refused = passes_refused
        self._due = clock()
        self._producer: RecordProducer | None = None
        self.published = -1
        self.refused = ""

    def beat(self) -> bool:
        """Send a heartbeat if one is due.

        Returns:
            Whether it was sent, or its topic is refused and that is no error.

        Raises:
            CdcError: See :meth:`~airflow_cdc_provider.kafka.producer.RecordProducer.send`; it remains due.
        """
        now = self._clock()
        if now < self._due:
            return False
        try:
            record = self._build(time.time_ns(), self.published)
            if not record.num_rows:
                return False
            if self._producer is None:
                self._producer = self._open_producer()
            self._producer.send([record])
            self.refused = ""
        except CdcError as error:
            self.close()  # after a failure a client restarts its sequence numbers
            if not self._passes_refused or not isinstance(error, RecordsRejected | SchemaRejected):
                raise
            self.refused = str(error)
            log.warning("a heartbeat was not sent: %s", error)
        # Relative to the due time, not to the time sent: a late heartbeat doesn't delay the next ones.
        self._due += self._interval_seconds * (1 + (now - self._due) // self._interval_seconds)
        return True

    def between(self, items: Iterator[T]) -> Iterator[T]:
        """Yield items, and send a heartbeat before each of them if one is due."""
        for item in items:
            self.beat()
            yield item

    def close(self) -> None:
        """Close the producer; the next heartbeat opens another one."""
        if self._producer is not None:
            self._producer.close()
            self._producer = None


def heartbeat_producer(
    connector: Connector, settings: ClientSettings, positions: PositionsTopic
) -> RecordProducer:
    """Return a producer for heartbeats, with short timeouts for brokers that don't respond.

    Args:
        connector: The declaration.
        settings: Client settings.
        positions: The connector's positions topic, which this producer doesn't write to.
    """
    tuning = {n: v for n, v in settings.producer.items() if n not in ("message.timeout.ms", "linger.ms")}
    tuning |= {"delivery.timeout.ms": int(_RESPONSE_SECONDS * 1000), "linger.ms": 0}
    fast = replace(
        settings,
        producer=tuning,
        retry_timeout_seconds=min(_RESPONSE_SECONDS, settings.retry_timeout_seconds),
    )
    return RecordProducer(fast, positions, topics=topic_maker(connector, fast))
