"""A producer of records without a publishing position, such as notifications.

The producer is idempotent, so retries don't duplicate records, and not transactional. Enqueueing never waits
for a broker: records are sent in the background, and :meth:`NotificationProducer.flush` waits for their
delivery.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from airflow_cdc_provider.exceptions import CdcError
from airflow_cdc_provider.kafka import errors
from airflow_cdc_provider.kafka.settings import ClientSettings

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

_TOPIC_PART: Final = 4
"""The fraction of the delivery timeout to wait for a topic that the broker creates automatically."""


class NotificationProducer:
    """Sends records. Use it from one thread.

    Args:
        settings: Client settings.
        deliver_seconds: Delivery timeout of a record, unless the settings contain one.
        build: Builds the client; librdkafka's producer by default.
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
        self._last = errors.LastError()
        self._client: Any = None
        self._failed: list[tuple[str, KafkaError]] = []
        self._topic = ""
        self.waiting = 0
        """Number of records that were enqueued but not acknowledged yet."""

    def enqueue(self, records: pa.RecordBatch) -> None:
        """Enqueue records as the encoder returns them, without the headers that all data records have.

        Raises:
            BrokersUnavailable: The client's queue is full.
            ConfigurationError: A setting is invalid.
            RecordsRejected: The client rejects a record.
        """
        from confluent_kafka import KafkaException

        if self._client is None:
            self._client = self._new_client()
        for row in records.to_pylist():
            self._topic = row["topic"]
            try:
                self._client.produce(row["topic"], row["value"], row["key"])
            except BufferError:
                raise errors.BrokersUnavailable(
                    f"the queue is full of undelivered records for topic {row['topic']}"
                ) from None
            except KafkaException as error:
                reported = error.args[0]
                try:
                    if reported.name() == errors.FATAL:
                        errors.serve_callbacks(self._client.poll, errors.CAUSE_SECONDS, self._error)
                finally:
                    if reported.fatal() or reported.name() == errors.FATAL:
                        self.close()
                raise errors.rejection_of(reported, row["topic"]) or self._error(reported) from None
            self.waiting += 1
        try:
            errors.serve_callbacks(self._client.poll, 0, self._error)
        except CdcError:
            self.close()
            raise

    def flush(self) -> None:
        """Wait until the brokers have acknowledged all enqueued records, up to the delivery timeout.

        After an error, undelivered records are dropped.

        Raises:
            RecordsRejected: The broker rejects a record, or its topic doesn't exist.
            BrokersUnavailable: The brokers don't answer.
            ConfigurationError: A permission or a setting is invalid.
        """
        if not self.waiting:
            return
        try:
            deadline = time.monotonic() + self._seconds + 2
            while errors.serve_callbacks(self._client.flush, 0.5, self._error) and not self._failed:
                if time.monotonic() > deadline:
                    break
            self._raise_failed()
            if self.waiting:
                raise errors.BrokersUnavailable("sending records takes too long")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the producer; undelivered records are dropped."""
        client, self._client = self._client, None
        self._failed.clear()
        self.waiting = 0
        if client is not None:
            client.purge()
            with suppress(CdcError):  # a fatal error was raised by the call that met it
                errors.serve_callbacks(client.flush, 0.1, self._error)

    def _new_client(self) -> Any:
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
        return errors.client_of(self._build or Producer, values, self._last)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.waiting -= 1
        elif error.name() not in ("_PURGE_QUEUE", "_PURGE_INFLIGHT"):
            self._failed.append((message.topic() or "", error))

    def _raise_failed(self) -> None:
        for topic, error in self._failed:
            raise errors.rejection_of(error, topic) or self._error(error)

    def _error(self, error: KafkaError) -> CdcError:
        right = f"WRITE on topic {self._topic}; {errors.IDEMPOTENT_WRITE}"
        return errors.error_of(error, "sending records", self._last.error, right=right)
