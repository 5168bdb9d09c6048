"""Records that no position tells of, such as notifications: handed over at once, waited for when asked.

The producer is idempotent, so none is doubled by a retry, and not transactional. Handing over never waits for
a broker: what is handed over goes out in the background, and :meth:`NoticeProducer.deliver` tells what became
of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from airflow_cdc_provider.exceptions import CdcError
from airflow_cdc_provider.kafka.errors import (
    FATAL,
    FATAL_SECONDS,
    IDEMPOTENT_WRITE,
    BrokersAway,
    LastError,
    client_of,
    error_of,
    refused_by,
    require_library,
    served,
)
from airflow_cdc_provider.kafka.settings import ClientSettings

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

_TOPIC_PART: Final = 4
"""A topic that a broker makes by itself is waited for a part of the time that delivery may take."""


class NoticeProducer:
    """Sends records. Use it from one thread.

    Args:
        settings: Of the client.
        deliver_seconds: How long a record may take, unless the settings say so.
        build: Makes it; by default librdkafka's.
    """

    def __init__(
        self,
        settings: ClientSettings,
        deliver_seconds: float = 20.0,
        build: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        self._settings = settings
        self._seconds = deliver_seconds
        self._build = build
        self._last = LastError()
        self._client: Any = None
        self._failed: list[tuple[str, KafkaError]] = []
        self._topic = ""
        self.waiting = 0
        """Records that were handed over and of which it isn't known that they were delivered."""

    def hand_over(self, records: pa.RecordBatch) -> None:
        """Take records, as the encoder makes them; headers that all data records have are none of theirs.

        Raises:
            BrokersAway: As many wait as the client keeps.
            ConfigurationError: A setting is wrong.
        """
        from confluent_kafka import KafkaException

        if self._client is None:
            self._client = self._new_client()
        for row in records.to_pylist():
            self._topic = row["topic"]
            try:
                self._client.produce(row["topic"], row["value"], row["key"])
            except BufferError:
                raise BrokersAway(f"too many records wait for topic {row['topic']}") from None
            except KafkaException as error:
                told = error.args[0]
                try:
                    if told.name() == FATAL:
                        served(self._client.poll, FATAL_SECONDS, self._error)
                finally:
                    if told.fatal() or told.name() == FATAL:
                        self.close()
                raise refused_by(told, row["topic"]) or self._error(told) from None
            self.waiting += 1
        try:
            served(self._client.poll, 0, self._error)
        except CdcError:
            self.close()
            raise

    def deliver(self) -> None:
        """Wait until the brokers have acknowledged all that was handed over, some seconds at most.

        Raises:
            RecordsRefused: They won't take a record, or its topic isn't there.
            BrokersAway: They don't answer.
            ConfigurationError: A right or a setting is wrong. What waited is given up in each of these cases.
        """
        if not self.waiting:
            return
        try:
            deadline = time.monotonic() + self._seconds + 2
            while served(self._client.flush, 0.5, self._error) and not self._failed:
                if time.monotonic() > deadline:
                    break
            self._raise_failed()
            if self.waiting:
                raise BrokersAway("sending records takes too long")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End it; what wasn't delivered is given up."""
        client, self._client = self._client, None
        self._failed.clear()
        self.waiting = 0
        if client is not None:
            client.purge()
            with suppress(CdcError):  # a fatal error was raised by the call that met it
                served(client.flush, 0.1, self._error)

    def _new_client(self) -> Any:
        require_library()
        from confluent_kafka import Producer

        milliseconds = int(self._seconds * 1000)
        values = {
            "message.timeout.ms": milliseconds,
            "topic.metadata.propagation.max.ms": milliseconds // _TOPIC_PART,
            "partitioner": "murmur2_random",
            **self._settings.of_producer(),
            "delivery.report.only.error": False,
            "on_delivery": self._delivered,
        }
        return client_of(self._build or Producer, values, self._last)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.waiting -= 1
        elif error.name() not in ("_PURGE_QUEUE", "_PURGE_INFLIGHT"):
            self._failed.append((message.topic() or "", error))

    def _raise_failed(self) -> None:
        for topic, error in self._failed:
            raise refused_by(error, topic) or self._error(error)

    def _error(self, error: KafkaError) -> CdcError:
        right = f"WRITE on topic {self._topic}; {IDEMPOTENT_WRITE}"
        return error_of(error, "sending records", self._last.error, right=right)
