"""Events to bytes, format by format, against the libraries that others write them with, row by row.

One envelope as Debezium's connectors for relational tables have it: row before and after (eight columns),
source block, operation, times. JSON against Python's own encoder, Avro against fastavro (C), Protobuf against
Google's library (C, ``upb``), the last two with a registry's framing. Before figures count, both sides must
have made the same: of Avro and Protobuf the same bytes, of JSON the same values.

CPU seconds of this process count, the best of some rounds. The rivals get rows as dictionaries that are there
already: what making them costs is not counted.

Usage: python benchmarks/bench_event_formats.py [--rows 100000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

from airflow_cdc_provider.events.connect import (
    INT64,
    OPTIONAL_STRING,
    SNAPSHOT,
    STRING,
    ConnectSchema,
    struct,
)
from airflow_cdc_provider.events.encoder import ConverterName, Converters, Destination, Envelope, encode
from airflow_cdc_provider.events.framing import TopicSchema

_SECONDS_OF_A_DAY = 86_400
_ID = 17


@dataclass
class OneRegistrar:
    """Gives all schemas one id, and keeps the last one of values."""

    text: str = ""
    name: str = ""

    def schema_id(self, schema: TopicSchema) -> int:
        """Return the id."""
        if schema.side == "value":
            self.text, self.name = schema.text, schema.record
        return _ID


def main() -> None:
    """Run it and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rows = arguments.rows
    events = envelope(rows)
    print(f"{rows} events, the same from both sides")
    print(f"{'':34}events per CPU s   ratio")
    rivals: list[tuple[ConverterName, str, Callable[[Envelope, OneRegistrar], Callable[[], list[bytes]]]]] = [
        ("json", "json of Python", with_json),
        ("avro", "fastavro", with_fastavro),
        ("protobuf", "Google's protobuf", with_protobuf),
    ]
    for name, rival, made_by in rivals:
        registrar = OneRegistrar()
        converters = Converters(name, name, registrar=registrar)
        ours = encode(events, converters)["value"].to_pylist()
        theirs = made_by(events, registrar)
        require_same(name, ours, theirs())
        slow = rows / best(theirs, arguments.rounds)
        fast = rows / best(partial(encode, events, converters), arguments.rounds)
        print(f"{rival:34}{slow:16,.0f}   {1:5.1f}")
        print(f"{f'ours, {name}':34}{fast:16,.0f}   {fast / slow:5.1f}")
    fast = rows / best(partial(encode, events, Converters("string", "string")), arguments.rounds)
    print(f"{'ours, string':34}{fast:16,.0f}")


def envelope(rows: int) -> Envelope:
    """Return updates of a table with eight columns."""
    random = np.random.default_rng(1)
    numbers = np.arange(rows)
    texts = pa.array([f"customer {n} of Åre" for n in random.integers(0, rows, rows)])
    columns: dict[str, tuple[ConnectSchema, pa.Array]] = {
        "id": (INT64, pa.array(numbers)),
        "name": (OPTIONAL_STRING, texts),
        "mail": (
            OPTIONAL_STRING,
            pa.array([f"{n:x}@example.org" for n in random.integers(0, 1 << 60, rows)]),
        ),
        "age": (ConnectSchema("int32", optional=True), pa.array(random.integers(0, 99, rows), pa.int32())),
        "score": (ConnectSchema("double", optional=True), pa.array(random.random(rows))),
        "active": (ConnectSchema("boolean", optional=True), pa.array(random.integers(0, 2, rows) == 1)),
        "seen": (
            ConnectSchema("int64", optional=True, name="io.debezium.time.Timestamp", version=1),
            pa.array(1_700_000_000_000 + numbers, mask=numbers % 3 == 0),
        ),
        "note": (OPTIONAL_STRING, pa.array(["-" * int(n) for n in random.integers(0, 60, rows)])),
    }
    value = struct("shop.public.customers.Value", *((n, s) for n, (s, _) in columns.items()), optional=True)
    after = pa.StructArray.from_arrays([a for _, a in columns.values()], list(columns))
    source = {
        "version": (STRING, pa.repeat("3.6.1.Final", rows)),
        "connector": (STRING, pa.repeat("vitess", rows)),
        "name": (STRING, pa.repeat("shop", rows)),
        "ts_ms": (INT64, pa.array(1_700_000_000_000 + numbers // 10)),
        "snapshot": (SNAPSHOT, pa.repeat("false", rows)),
        "table": (STRING, pa.repeat("customers", rows)),
    }
    block = struct("io.debezium.connector.shop.Source", *((n, s) for n, (s, _) in source.items()))
    parts = {
        "before": (value, after.take(pa.array((numbers + 1) % rows))),
        "after": (value, after),
        "source": (block, pa.StructArray.from_arrays([a for _, a in source.values()], list(source))),
        "op": (STRING, pa.repeat("u", rows)),
        "ts_ms": (ConnectSchema("int64", optional=True), pa.array(1_700_000_100_000 + numbers // 7)),
    }
    schema = struct("shop.public.customers.Envelope", *((n, s) for n, (s, _) in parts.items()))
    return Envelope(
        [Destination("shop.public.customers", struct("shop.public.customers.Key", ("id", INT64)), schema)],
        np.zeros(rows, np.int64),
        pa.StructArray.from_arrays([after.field("id")], ["id"]),
        pa.StructArray.from_arrays([a for _, a in parts.values()], list(parts)),
        np.zeros(rows, np.bool_),
    )


def with_json(events: Envelope, registrar: OneRegistrar) -> Callable[[], list[bytes]]:
    """Return what writes keys and values by Python's own encoder."""
    keys, values = events.key.to_pylist(), events.value.to_pylist()

    def run() -> list[bytes]:
        dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
        for key in keys:
            dump(key).encode()
        return [dump(value).encode() for value in values]

    return run


def with_fastavro(events: Envelope, registrar: OneRegistrar) -> Callable[[], list[bytes]]:
    """Return what writes keys and values by fastavro."""
    keys, values = events.key.to_pylist(), events.value.to_pylist()
    key_schema = fastavro.parse_schema(
        {"type": "record", "name": "K", "fields": [{"name": "id", "type": "long"}]}
    )
    schema = fastavro.parse_schema(json.loads(registrar.text))
    lead = b"\0" + _ID.to_bytes(4, "big")

    def written(parsed: Any, row: Any) -> bytes:
        out = io.BytesIO()
        out.write(lead)
        fastavro.schemaless_writer(out, parsed, row)
        return out.getvalue()

    def run() -> list[bytes]:
        for key in keys:
            written(key_schema, key)
        return [written(schema, value) for value in values]

    return run


def with_protobuf(events: Envelope, registrar: OneRegistrar) -> Callable[[], list[bytes]]:
    """Return what writes keys and values by Google's library."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "schema.proto").write_text(registrar.text)
        if protoc.main(["protoc", f"-I{name}", f"--descriptor_set_out={name}/out", "schema.proto"]):
            sys.exit("protoc can't read the schema")
        files = descriptor_pb2.FileDescriptorSet.FromString((folder / "out").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(registrar.name))
    key_kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{registrar.name}.Value"))
    keys, values = events.key.to_pylist(), events.value.to_pylist()
    lead = b"\0" + _ID.to_bytes(4, "big") + b"\0"

    def run() -> list[bytes]:
        for key in keys:
            lead + key_kind(**key).SerializeToString()
        return [lead + kind(**row).SerializeToString() for row in values]

    return run


def require_same(name: str, ours: list[Any], theirs: list[bytes]) -> None:
    """End the benchmark if the outputs of both sides differ."""
    if name == "json":
        same = [json.loads(a) for a in ours] == [json.loads(b) for b in theirs]
    else:
        same = ours == theirs
    if not same:
        number = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
        sys.exit(f"{name}: event {number} differs: {ours[number]!r} and {theirs[number]!r}")


def best(run: Callable[[], object], rounds: int) -> float:
    """Return the CPU seconds of the best round."""
    seconds = []
    for _ in range(rounds):
        before = time.process_time()
        run()
        seconds.append(time.process_time() - before)
    return min(seconds)


if __name__ == "__main__":
    main()
