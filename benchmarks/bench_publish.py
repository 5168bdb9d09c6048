"""How fast events reach a local broker, and where the time goes: ``python benchmarks/bench_publish.py``.

Change events of MongoDB with documents of about 200 bytes, in memory, to Debezium's form in one format after
the other, each to a topic of three partitions, in transactions; formats with a registry register with a real
one. Steps are timed by CPU, each on the same events: making them (decode, envelope, encode), sending, and
all of it, in rounds. Of the whole it shows how long nothing was left to do but wait for acknowledgements, and
next to each round the load. It checks first that a reader of committed records sees what was made.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import bson
import pyarrow as pa

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.event_batches import EventBatch, EventRequest
from airflow_cdc_provider.jobs.publishing.batches import BatchPublisher
from airflow_cdc_provider.kafka.positions import PositionsTopic, PublishPosition
from airflow_cdc_provider.kafka.producer import RecordProducer
from airflow_cdc_provider.kafka.registry import Registry
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.sources.encoding import headers_of, registry_settings
from airflow_cdc_provider.sources.mongodb.events import decode as mongodb_events
from airflow_cdc_provider.sources.mongodb.events.records import MongodbRecords
from server_kit import KafkaServer, RegistryServer

_AT_ONCE = 10_000
FORMATS: Final[dict[str, dict[str, Any]]] = {
    "json": {},
    "json with schemas": {"schemas": True},
    "avro": {"key": "avro", "value": "avro"},
    "protobuf": {"key": "protobuf", "value": "protobuf"},
    "json_schema": {"key": "json_schema", "value": "json_schema"},
}
"""Options of ``publish`` by what is measured."""


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


def make(connector: Connector, arrays: list[pa.Array], registry: Registry | None) -> Iterator[EventBatch]:
    """Make the records of change events."""
    maker = MongodbRecords(connector, 1_800_000_000_000_000_000, registrar=registry)
    form = maker.form()
    for array in arrays:
        decoded = mongodb_events.decode_stream(array, full_document="lookup", pre_images=False, form=form)
        yield EventBatch(1, maker.records(decoded.events)[0])


def publisher(
    producer: RecordProducer, connector: Connector, made: Callable[[EventRequest], Iterator[EventBatch]]
) -> BatchPublisher:
    """Return what publishes one batch."""
    start = PublishPosition(connector.name, 1)
    return BatchPublisher(
        sender=producer,
        build=made,
        form="",
        records_per_commit=50_000,
        position=start,
        headers=headers_of(connector),
    )


class TimedProducer(RecordProducer):
    """Knows how long it has waited for acknowledgements of what was handed over, in seconds."""

    waited = 0.0

    def _flush(self) -> None:
        began = time.perf_counter()
        super()._flush()
        self.waited += time.perf_counter() - began


def measure(
    name: str,
    connector: Connector,
    arrays: list[pa.Array],
    rounds: int,
    server: KafkaServer,
    tuning: dict[str, str],
    registry: Registry | None,
) -> None:
    """Check one format, then time it."""
    topic = f"{connector.name}.shop.orders"
    settings = ClientSettings({"bootstrap.servers": server.bootstrap}, tuning)
    positions = PositionsTopic(settings, f"{connector.name}.cdc-positions", connector.name)
    positions.make(1)
    server.create_topic(topic, 3)
    producer = TimedProducer(settings, positions, transactional_id=connector.name)
    producer.take_over()
    few = list(make(connector, arrays[:1], registry))  # kernels are compiled
    size = sum(len(value.as_buffer()) for value in few[0].records["value"].slice(0, 100)) / 100
    publisher(producer, connector, lambda wanted: iter(few)).publish(1, 0)
    sent = {bytes(value.as_buffer()) for value in few[0].records["value"]}
    assert {message.value() for message in server.read(topic)} == sent

    print(f"{name}: events of {size:.0f} bytes")
    made: list[EventBatch] = []

    def send(events: Callable[[], Iterable[EventBatch]]) -> None:
        publisher(producer, connector, lambda wanted: iter(events())).publish(1, 0)

    count = sum(map(len, arrays))
    for number in range(rounds):
        made.clear()
        making = timed(lambda: made.extend(make(connector, arrays, registry)))
        sending = timed(lambda: send(lambda: made))
        producer.waited = 0.0
        both = timed(lambda: send(lambda: make(connector, arrays, registry)))
        load = os.getloadavg()[0]
        print(f"  round {number + 1}, load {load:.1f} on {os.cpu_count()} CPUs")
        for step, spent in (("making", making), ("sending", sending), ("both", both)):
            print(f"    {step:8} {spent.per(count)}")
        print(f"    waited for acknowledgements: {producer.waited / both.wall:.0%} of the time")
    producer.close()


def main() -> None:
    """Run the requested measurements."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--events", type=int, default=200_000)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--formats", default=",".join(FORMATS), help="with commas; default: %(default)s")
    arguments.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a producer's setting"
    )
    arguments.add_argument("--no-headers", action="store_true", help="without Debezium's context headers")
    options = arguments.parse_args()
    arrays = change_events(options.events)
    tuning = dict(setting.split("=", 1) for setting in options.set)
    print(f"{options.events:,} events; producer {tuning or 'as it is by default'}")
    with ExitStack() as servers:
        server = servers.enter_context(KafkaServer(heap_mib=512))
        registry: RegistryServer | None = None
        for number, name in enumerate(options.formats.split(",")):
            publish = {"headers": not options.no_headers, "kafka": {"connection": "kafka"}, **FORMATS[name]}
            if "value" in FORMATS[name]:
                registry = registry or servers.enter_context(RegistryServer())
                publish["registry"] = {"url": registry.url}
            connector = Connector.from_dict(
                {"name": f"bench{number}", "source": {"type": "mongodb"}, "publish": publish}
            )
            named = registry_settings(connector, {})
            registrar = Registry(named) if named else None
            measure(name, connector, arrays, options.rounds, server, tuning, registrar)


if __name__ == "__main__":
    main()
