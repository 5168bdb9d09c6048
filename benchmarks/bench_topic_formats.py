"""Events out of topics, format by format: bytes of messages to records, against fastavro to dictionaries.

The messages are those of :mod:`.bench_event_formats`: row before and after (eight columns), source block, key
and value framed for a registry. Ours goes all the way to a batch of the changes table: JSON, kinds, keys,
positions, moments, schemas. The rival decodes keys and values with fastavro (C), a dictionary each, and does
nothing with them.
Before figures count, the values of both must be the same.

CPU seconds of this process count, of each round: all are printed.

Usage: python benchmarks/bench_topic_formats.py [--rows 20000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa

from airflow_cdc_provider.events.encoder import ConverterName, Converters, encode
from airflow_cdc_provider.events.framing import TopicSchema
from airflow_cdc_provider.kafka.registry import RegisteredSchema
from airflow_cdc_provider.sources.debezium.converters import Converter, FramedConverter, JsonConverter
from airflow_cdc_provider.sources.debezium.recorded_schemas import RecordedSchemas
from airflow_cdc_provider.sources.debezium.records import Feed, Messages, read_messages
from airflow_cdc_provider.sources.debezium.registered import RegisteredSchemas
from benchmarks.bench_event_formats import envelope

FORMATS: tuple[ConverterName, ...] = ("json", "avro", "protobuf", "json_schema")
_HEAD_BYTES = 5


@dataclass
class Memory:
    """A registry in memory."""

    schemas: list[RegisteredSchema] = field(default_factory=list)

    def schema_id(self, schema: TopicSchema) -> int:
        """Keep a schema; return its id."""
        self.schemas.append(RegisteredSchema(schema.type, schema.text))
        return len(self.schemas)

    def schema_of(self, schema_id: int) -> RegisteredSchema | None:
        """Return a schema."""
        return self.schemas[schema_id - 1]


def main() -> None:
    """Make messages, compare, time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    events = envelope(options.rows)
    for name in FORMATS:
        memory = Memory()
        made = encode(events, Converters(name, name, registrar=memory))
        messages = Messages(
            made["key"].cast(pa.binary()),
            made["value"].cast(pa.binary()),
            np.arange(made.num_rows),
            np.full(made.num_rows, 1_700_000_000_000),
            np.zeros(made.num_rows, np.bool_),
        )
        records = ours(messages, feed_of(name, memory))
        if name == "avro":
            rival = theirs(messages, memory)
            require_same(records().column("payload"), rival())
            print_rate("fastavro, to dictionaries", made.num_rows, options.rounds, rival)
        print_rate(f"{name}, to records", made.num_rows, options.rounds, records)


def feed_of(name: ConverterName, memory: Memory) -> Feed:
    """Say what messages are of."""
    converter: Converter = JsonConverter()
    if name in ("avro", "protobuf", "json_schema"):
        converter = FramedConverter(RegisteredSchemas(memory, name))
    return Feed("shop.orders", 0, 0, 0, False, "shop.orders", True, True, bool, {}, converter, converter)


def ours(messages: Messages, feed: Feed) -> Callable[[], pa.RecordBatch]:
    """Return what makes records."""

    def run() -> pa.RecordBatch:
        return read_messages(messages, feed, RecordedSchemas(), Counter())

    return run


def theirs(messages: Messages, memory: Memory) -> Callable[[], list[Any]]:
    """Return what makes a dictionary of each key and value."""
    parsed = [fastavro.parse_schema(json.loads(one.text)) for one in memory.schemas]
    keys, values = messages.keys.to_pylist(), messages.values.to_pylist()

    def decoded(message: bytes) -> Any:
        number = int.from_bytes(message[1:_HEAD_BYTES], "big")
        return fastavro.schemaless_reader(io.BytesIO(message[_HEAD_BYTES:]), parsed[number - 1], None)

    def run() -> list[Any]:
        for key in keys:
            decoded(key)
        return [decoded(value) for value in values]

    return run


def require_same(payload: pa.Array, values: list[Any]) -> None:
    """End the benchmark if both sides haven't read the same rows."""
    for text, value in zip(payload.to_pylist(), values, strict=False):
        shown = json.loads(text)
        if shown != json.loads(json.dumps(value)):
            sys.exit(f"avro: {shown} and {value} differ")


def print_rate(what: str, count: int, rounds: int, run: Callable[[], object]) -> None:
    """Print the rate of each round."""
    rates = []
    run()  # compiles
    for _ in range(rounds):
        before = time.process_time()
        run()
        rates.append(count / (time.process_time() - before))
    print(f"{what:32}" + " ".join(f"{rate:10,.0f}" for rate in rates) + "  messages per CPU second")


if __name__ == "__main__":
    main()
