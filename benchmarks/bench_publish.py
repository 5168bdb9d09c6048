"""How fast events reach a local broker, and where the time goes: ``python benchmarks/bench_publish.py``.

Change events of MongoDB with documents of about 200 bytes, in memory, to Debezium's form in JSON without
schemas, to one topic of three partitions, in transactions. Steps are timed by CPU, each on the same events:
making them (decode, envelope, encode), sending them, and all of it, in rounds. Of the whole it shows how long
nothing was left to do but wait for acknowledgements, and beside each round the load. It checks first
that a reader of committed records sees what was made.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import bson
import pyarrow as pa

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.events.made import Made, Wanted
from airflow_cdc_provider.jobs.events.mongodb.records import MongodbRecords
from airflow_cdc_provider.jobs.publishing.batches import BatchPublisher
from airflow_cdc_provider.jobs.topics.settings import headers_of
from airflow_cdc_provider.kafka.positions import PositionsTopic, PublishPosition
from airflow_cdc_provider.kafka.producer import RecordProducer
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.sources.mongodb import events as mongodb_events
from server_kit import KafkaServer

_AT_ONCE = 10_000
NAME = "bench"
TOPIC = f"{NAME}.shop.orders"


@dataclass(frozen=True)
class Spent:
    """What a step took, in seconds."""

    wall: float
    cpu: float

    def per(self, events: int) -> str:
        """Say it per event."""
        return f"{events / self.wall:>9,.0f} events/s, {self.cpu / events * 1e6:6.2f} µs of CPU each"


def timed(step: Callable[[], object]) -> Spent:
    """Run a step."""
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    step()
    after, ended = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Spent(ended - began, cpu)


def change_events(count: int) -> list[pa.Array]:
    """Return change events as the changes table holds them, some thousands in an array."""
    arrays = []
    for start in range(0, count, _AT_ONCE):
        events = [
            bson.encode(
                {
                    "_id": {"_data": f"8266{n:060x}"},
                    "operationType": "insert",
                    "clusterTime": bson.Timestamp(1_700_000_000 + n // 1000, n % 1000 + 1),
                    "ns": {"db": "shop", "coll": "orders"},
                    "documentKey": {"_id": n},
                    "fullDocument": {
                        "_id": n,
                        "name": f"customer {n % 1000}",
                        "notes": "n" * 100,
                        "total": n / 7,
                    },
                }
            )
            for n in range(start, min(start + _AT_ONCE, count))
        ]
        arrays.append(pa.array(events, pa.binary()))
    return arrays


def make(connector: Connector, arrays: list[pa.Array]) -> Iterator[Made]:
    """Make the records of change events."""
    maker = MongodbRecords(connector, 1_800_000_000_000_000_000)
    form = maker.form()
    for array in arrays:
        decoded = mongodb_events.decode_stream(array, full_document="lookup", pre_images=False, form=form)
        yield Made(1, maker.records(decoded.events)[0])


def publisher(
    producer: RecordProducer, connector: Connector, made: Callable[[Wanted], Iterator[Made]]
) -> BatchPublisher:
    """Return what publishes one batch."""
    return BatchPublisher(
        producer, made, headers_of(connector), "", 50_000, lambda: False, None, PublishPosition(NAME, 1)
    )


class TimedProducer(RecordProducer):
    """Knows how long it has waited for acknowledgements of what was handed over, in seconds."""

    waited = 0.0

    def _flush(self) -> None:
        began = time.perf_counter()
        super()._flush()
        self.waited += time.perf_counter() - began


def main() -> None:
    """Check, then time."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--events", type=int, default=200_000)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a producer's setting"
    )
    arguments.add_argument("--no-headers", action="store_true", help="without Debezium's context headers")
    options = arguments.parse_args()
    connector = Connector.from_dict(
        {
            "name": NAME,
            "source": {"type": "mongodb"},
            "publish": {"headers": not options.no_headers, "kafka": {"connection": "kafka"}},
        }
    )
    arrays = change_events(options.events)
    few = list(make(connector, arrays[:1]))  # kernels are compiled
    size = sum(len(value.as_buffer()) for value in few[0].records["value"].slice(0, 100)) / 100
    tuning = dict(setting.split("=", 1) for setting in options.set)
    with KafkaServer(heap_mib=512) as server:
        settings = ClientSettings({"bootstrap.servers": server.bootstrap}, tuning)
        positions = PositionsTopic(settings, f"{NAME}.cdc-positions", NAME)
        positions.make(1)
        server.create_topic(TOPIC, 3)
        producer = TimedProducer(settings, positions, transactional_id=NAME)
        producer.take_over()
        publisher(producer, connector, lambda wanted: iter(few)).publish(1, 0)
        sent = {bytes(value.as_buffer()) for value in few[0].records["value"]}
        assert {message.value() for message in server.read(TOPIC)} == sent

        print(f"{options.events:,} events of {size:.0f} bytes; producer {tuning or 'as it is by default'}")
        made: list[Made] = []

        def send(events: Callable[[], Iterable[Made]]) -> None:
            publisher(producer, connector, lambda wanted: iter(events())).publish(1, 0)

        for number in range(options.rounds):
            made.clear()
            making = timed(lambda: made.extend(make(connector, arrays)))
            sending = timed(lambda: send(lambda: made))
            producer.waited = 0.0
            both = timed(lambda: send(lambda: make(connector, arrays)))
            load = os.getloadavg()[0]
            print(f"round {number + 1}, load {load:.1f} on {os.cpu_count()} CPUs")
            for name, spent in (("making", making), ("sending", sending), ("both", both)):
                print(f"  {name:8} {spent.per(options.events)}")
            print(f"  waited for acknowledgements: {producer.waited / both.wall:.0%} of the time")
        producer.close()


if __name__ == "__main__":
    main()
