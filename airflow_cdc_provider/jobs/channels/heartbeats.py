"""Heartbeats on a clock: that a connector is alive and has nothing to tell, as Debezium says it.

A heartbeat is no part of a batch: it is sent by a producer of its own, without a transaction, so that no
position counts it and nothing that is open holds it back. It is sent by whoever publishes, never by a thread
beside it: a job that hangs sends none.

* A run that publishes sends one as it ends, and between the records of a long one.
* A stream also sends them while it waits for its next round.

Never more than one per ``publish.heartbeat_interval_seconds`` and process. What moves the stored position on
is the capture, which commits it each time also where nothing was captured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import CdcError
from airflow_cdc_provider.jobs.topics.rules import topic_maker
from airflow_cdc_provider.kafka.positions import PositionsTopic
from airflow_cdc_provider.kafka.producer import RecordProducer
from airflow_cdc_provider.kafka.settings import ClientSettings

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

_ANSWER_SECONDS: Final = 10.0
"""How long brokers are waited for: the next heartbeat comes soon."""


class Heartbeats:
    """Sends a connector's heartbeats.

    Args:
        interval_seconds: The least time from one to the next.
        make: Makes one, of the time (ns since 1970) and the batch through which events are published; no
            records where it would tell a position beyond that, or there is none.
        open_producer: Opens what sends it.
        clock: Seconds that only go forward.

    Attributes:
        published: The batch through which events are published.
    """

    def __init__(
        self,
        interval_seconds: float,
        make: Callable[[int, int], pa.RecordBatch],
        open_producer: Callable[[], RecordProducer],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval_seconds = interval_seconds
        self._make = make
        self._open_producer = open_producer
        self._clock = clock
        self._due = clock()
        self._producer: RecordProducer | None = None
        self.published = -1

    def beat(self) -> bool:
        """Send one if it is time.

        Returns:
            Whether it was sent.

        Raises:
            CdcError: As :meth:`~airflow_cdc_provider.kafka.producer.RecordProducer.send`; it is still due.
        """
        now = self._clock()
        if now < self._due:
            return False
        record = self._make(time.time_ns(), self.published)
        if not record.num_rows:
            return False
        if self._producer is None:
            self._producer = self._open_producer()
        try:
            self._producer.send([record])
        except CdcError:
            self.close()  # after a failure a client numbers its records anew
            raise
        # By the clock, not by the moment of sending: a late one doesn't make all others late.
        self._due += self._interval_seconds * (1 + (now - self._due) // self._interval_seconds)
        return True

    def between(self, made: Iterator[T]) -> Iterator[T]:
        """Yield what is made, and send a heartbeat before each of it if it is time."""
        for one in made:
            self.beat()
            yield one

    def close(self) -> None:
        """End the producer; the next heartbeat opens another one."""
        if self._producer is not None:
            self._producer.close()
            self._producer = None


def heartbeat_producer(
    connector: Connector, settings: ClientSettings, positions: PositionsTopic
) -> RecordProducer:
    """Return what sends heartbeats: it gives brokers that don't answer up soon.

    Args:
        connector: The declaration.
        settings: Of the clients.
        positions: The connector's topic of positions, which it doesn't write to.
    """
    tuning = {n: v for n, v in settings.producer.items() if n not in ("message.timeout.ms", "linger.ms")}
    tuning |= {"delivery.timeout.ms": int(_ANSWER_SECONDS * 1000), "linger.ms": 0}
    hasty = replace(settings, producer=tuning, retry_seconds=min(_ANSWER_SECONDS, settings.retry_seconds))
    return RecordProducer(hasty, positions, topics=topic_maker(connector, hasty))
