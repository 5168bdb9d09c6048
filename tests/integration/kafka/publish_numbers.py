"""A publisher in a process of its own, which can be killed: numbers up to a total, by 97 keys.

``python publish_numbers.py SERVERS NAME TOTAL [BROKER]``; BROKER is the process id of a broker that it kills
in its third transaction.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from airflow_cdc_provider.connector.publish.kafka import KafkaOptions
from airflow_cdc_provider.events.encoder import Converters
from airflow_cdc_provider.exceptions import CommitConflict
from airflow_cdc_provider.jobs.publishing.batches import wait_for_servers
from airflow_cdc_provider.kafka.positions import PositionsTopic, PublishPosition
from airflow_cdc_provider.kafka.producer import RecordProducer
from airflow_cdc_provider.kafka.settings import ClientSettings
from tests.integration.kafka.broker_kills import killing_producer

FENCED = 3
"""Exit code of one that another has taken over from."""
_AT_ONCE = 100


def main(servers: str, name: str, total: int, broker: int = 0) -> int:
    """Publish what is left, as long as brokers return within 100 s; a process that hangs shows where."""
    build: Callable[[dict[str, Any]], Any] | None = None
    if broker:
        build = killing_producer(lambda: os.kill(broker, signal.SIGKILL), commits=3)
    faulthandler.dump_traceback_later(110)
    settings = ClientSettings(
        {"bootstrap.servers": servers}, {"transaction.timeout.ms": 10_000}, retry_timeout_seconds=10
    )
    sent = 0

    def publish() -> None:
        nonlocal sent
        positions = PositionsTopic(settings, f"{name}.positions", name)
        producer = RecordProducer(settings, positions, transactional_id=name, build=build)
        try:
            position = producer.take_over() or PublishPosition(name, 1)
            while position.records < total:
                numbers = range(position.records, min(position.records + _AT_ONCE, total))
                position = position.advanced_by(len(numbers))
                producer.publish([_records(name, numbers)], (), position)
                sent += 1
        finally:
            producer.close()

    options = KafkaOptions(retry_interval_seconds=0.2, retry_timeout_seconds=100)
    try:
        wait_for_servers(publish, lambda: sent, options, lambda: False, name)
    except CommitConflict:
        return FENCED
    return 0


def _records(topic: str, numbers: range) -> pa.RecordBatch:
    rows = [
        {"topic": topic, "bare": False, "headers": "", "key": str(n % 97), "value": str(n)} for n in numbers
    ]
    return pa.RecordBatch.from_pylist(rows, schema=Converters().record_schema)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))
