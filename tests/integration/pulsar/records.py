"""Records for a producer of Pulsar: numbers by key, in the columns that it wants."""

from __future__ import annotations

import sys
import time

import pyarrow as pa

from airflow_cdc_provider.events.avro_converter import to_avro
from airflow_cdc_provider.events.avro_schema import avro_of_struct
from airflow_cdc_provider.pulsar.errors import BrokersUnavailable
from airflow_cdc_provider.pulsar.producer import PulsarProducer
from airflow_cdc_provider.pulsar.settings import ClientSettings

KEYS = 7


def records(topic: str, first: int, end: int) -> pa.RecordBatch:
    """Return records whose sequence ids are their values; each fifth is a deletion."""
    key = pa.StructArray.from_arrays(
        [pa.array([-1000 * (n % KEYS) for n in range(first, end)], pa.int64())],
        fields=[pa.field("id", pa.int64(), nullable=False)],
    )
    value = pa.StructArray.from_arrays([pa.array([f"n{n}" for n in range(first, end)])], names=["name"])
    schemas = [avro_of_struct("ks.numbers", "Table ks.numbers", part.type) for part in (key, value)]
    values = to_avro(schemas[1], value).to_pylist()
    count = end - first
    return pa.record_batch(
        {
            "topic": [topic] * count,
            "key_schema": [schemas[0].to_json()] * count,
            "value_schema": [schemas[1].to_json()] * count,
            "sequence": pa.array(range(first, end), pa.int64()),
            "key": to_avro(schemas[0], key),
            "value": pa.array([None if n % 5 == 4 else values[n - first] for n in range(first, end)]),
            "headers": [f'["writetime","\\"{n}\\""]' for n in range(first, end)],
        }
    )


def send(producer: PulsarProducer, batch: pa.RecordBatch) -> None:
    """Send, again while the broker hasn't seen that the one before is dead."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return producer.send([batch])
        except BrokersUnavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def main() -> None:
    """Send numbers from 0 on until killed: service URL, topic, name."""
    url, topic, name = sys.argv[1:]
    producer = PulsarProducer(ClientSettings(url), name, "public/default")
    for first in range(0, 1_000_000, 500):
        send(producer, records(topic, first, first + 500))
        print(first + 500, flush=True)  # noqa: T201  # the test waits for it


if __name__ == "__main__":
    main()
