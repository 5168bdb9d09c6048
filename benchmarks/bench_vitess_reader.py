"""Vitess's stream to typed columns against a plain reader in Python, and two processes against one.

A stream of a real VTGate (a table of ten columns, recorded once) is sent again to both by another process.
The rival reads it with grpcio, parses messages with protobuf's generated classes, and builds a typed
Python value of each cell: int, float, Decimal, datetime, date, str, bytes. Of a delete it reads the key. We
read it as a capture and a merge do: change records, contributions, and the mirror's typed columns in Arrow.
The tables are compared before anything is timed. CPU seconds of the whole process count, the best of some
rounds after a first one.

Then the change records of one stream are made into typed columns by one process, and by two that share them;
their CPU seconds are compared.

It ends with an error if a ratio isn't what is asked for.

Usage: python benchmarks/bench_vitess_reader.py [--rounds 5] [--streams copy single tens]
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import grpc
import pyarrow as pa

from airflow_cdc_provider.sources.vitess import protocol
from airflow_cdc_provider.sources.vitess.codec import VitessCodec
from airflow_cdc_provider.sources.vitess.protocol import (
    EVENT_TYPES,
    TABLET_TYPES,
    TYPES,
    VGtid,
    VStreamRequest,
    VStreamResponse,
)
from airflow_cdc_provider.sources.vitess.requests import filter_of
from airflow_cdc_provider.sources.vitess.schema_history import TableHistory
from benchmarks.vitess_reading import Reading
from benchmarks.vitess_recording import COPY, KEYSPACE, ROWS, SINGLE, TABLE, TENS, Recording, recording

_LEAST_RATIOS: Final = {COPY: 1.5, TENS: 1.5, SINGLE: 1}
"""A transaction is a message of gRPC's, which costs both sides many times what a row does."""
_MOST_FOR_TWO: Final = 1.15
_ROUNDS_OF_WORKERS: Final = 20
"""Each takes but some tenths of a second."""
_SHOWN: Final = {
    COPY: "copied rows",
    SINGLE: "streamed, in transactions of 1 row",
    TENS: "streamed, in transactions of 10 rows",
}
_ROW, _FIELD = EVENT_TYPES["ROW"], EVENT_TYPES["FIELD"]
_READERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "INT32": int,
    "INT64": int,
    "FLOAT64": float,
    "DECIMAL": lambda text: Decimal(text.decode()),
    "DATETIME": lambda text: datetime.fromisoformat(text.decode()),
    "DATE": lambda text: date.fromisoformat(text.decode()),
    "ENUM": bytes.decode,
    "VARCHAR": bytes.decode,
    "JSON": bytes.decode,
    "VARBINARY": bytes,
}
"""By the type's name in the stream's fields."""


def main() -> None:
    """Compare, time and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", nargs="+", choices=_SHOWN, default=list(_SHOWN))
    arguments = parser.parse_args()
    rounds = arguments.rounds
    recorded = recording()
    wrong = []
    print(f"{'CPU us per row':40}{'plain reader':>14}{'ours':>10}{'ratio':>8}")
    for stream in arguments.streams:
        shown = _SHOWN[stream]
        with recorded.served(stream) as port:
            compare(plain_table(recorded, port, stream), our_table(recorded, port, stream), shown)
            theirs = best(lambda: plain_rows(recorded, port, stream), rounds)  # noqa: B023  called at once
            ours = best(lambda: our_columns(recorded, port, stream), rounds)  # noqa: B023
        theirs, ours = 1e6 * theirs / ROWS[stream], 1e6 * ours / ROWS[stream]
        print(f"{shown:40}{theirs:14.2f}{ours:10.2f}{theirs / ours:8.1f}", flush=True)
        if theirs / ours < _LEAST_RATIOS[stream]:
            wrong.append(f"{shown}: less than {_LEAST_RATIOS[stream]} times as fast as the plain reader")
    one, two = (workers(recorded, count, _ROUNDS_OF_WORKERS) for count in (1, 2))
    print(f"CPU seconds of two processes to those of one: {two:.2f} / {one:.2f} = {two / one:.2f}")
    if two / one > _MOST_FOR_TWO:
        wrong.append(f"two processes take more than {_MOST_FOR_TWO} times the CPU seconds of one")
    if wrong:
        sys.exit("\n".join(wrong))


def plain_rows(recorded: Recording, port: int, stream: str) -> list[tuple[Any, ...] | Any]:
    """Read a stream; return the values of each row that was put, and the key of each that was deleted."""
    vgtid = VGtid()
    vgtid.shard_gtids.add(keyspace=KEYSPACE, shard="0", gtid=recorded.starts.get(stream, ""))
    request = VStreamRequest(tablet_type=TABLET_TYPES["PRIMARY"], vgtid=vgtid, filter=filter_of(None))
    found: list[Any] = []
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_stream(
            protocol.service("VStream"),
            request_serializer=VStreamRequest.SerializeToString,
            response_deserializer=VStreamResponse.FromString,
        )(request)
        readers: list[Callable[[bytes], Any]] = []
        for response in call:
            for event in response.events:
                if event.type == _FIELD:
                    readers = [_READERS[TYPES[field.type]] for field in event.field_event.fields]
                elif event.type == _ROW:
                    for change in event.row_event.row_changes:
                        if change.HasField("after"):
                            found.append(_values(change.after, readers))
                        else:
                            before = change.before
                            found.append(readers[0](before.values[: before.lengths[0]]))
            if len(found) == ROWS[stream]:
                break
        call.cancel()
    return found


def _values(row: Any, readers: list[Callable[[bytes], Any]]) -> tuple[Any, ...]:
    values: list[Any] = []
    data, place = row.values, 0
    for read, length in zip(readers, row.lengths, strict=True):
        if length < 0:
            values.append(None)
        else:
            values.append(read(data[place : place + length]))
            place += length
    return tuple(values)


def our_columns(
    recorded: Recording, port: int, stream: str
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Read a stream; give contributions, and the columns of those that put a row."""
    reading = Reading(recorded, port)
    for records in reading.records(stream, in_order=False):
        yield from columns_of(records, reading.schema)


def columns_of(
    records: pa.RecordBatch, schema: list[dict[str, Any]]
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Decode change records as a merge does."""
    changes = records.filter(records["source_table"].is_valid())
    if changes.num_rows:
        name = f"{KEYSPACE}.{TABLE}"
        codec = VitessCodec(name, TableHistory.of(name, schema))
        contributions = codec.decode(changes, ()).contributions
        yield contributions, codec.project(contributions.filter(contributions["state"].is_valid()))


def plain_table(recorded: Recording, port: int, stream: str) -> tuple[list[Any], list[int]]:
    """Return the rows that were put, sorted, and the keys of those that were deleted, by the plain reader."""
    found = plain_rows(recorded, port, stream)
    return sorted((r for r in found if isinstance(r, tuple)), key=repr), sorted(
        r for r in found if not isinstance(r, tuple)
    )


def our_table(recorded: Recording, port: int, stream: str) -> tuple[list[Any], list[int]]:
    """Return the same by our kernels."""
    rows: list[Any] = []
    deleted: list[int] = []
    for contributions, columns in our_columns(recorded, port, stream):
        shown = columns.drop_columns(["_rest"])
        rows += zip(*(column.to_pylist() for column in shown.columns), strict=True)
        gone = contributions.filter(contributions["state"].is_null())
        prefix = 2 + len(f"{KEYSPACE}/0") + 4
        deleted += [int(key[prefix:]) for key in gone["key"].to_pylist()]
    return sorted(rows, key=repr), sorted(deleted)


def compare(theirs: Any, ours: Any, shown: str) -> None:
    """End with an error unless both found the same."""
    for their, our in zip(theirs, ours, strict=True):
        for number, (one, other) in enumerate(zip(their, our, strict=True)):
            if one != other:
                sys.exit(f"{shown}, row {number} differs:\nplain reader {one}\nours         {other}")


def best(run: Callable[[], Any], rounds: int) -> float:
    """Return the least CPU seconds of a run, after a first one."""
    seconds = []
    for _ in range(rounds + 1):
        before = time.process_time()
        for _ in run():
            pass
        seconds.append(time.process_time() - before)
    return min(seconds[1:])


def workers(recorded: Recording, count: int, rounds: int) -> float:
    """Return the CPU seconds of so many processes that share the records of a stream, each its best."""
    with recorded.served(TENS) as port:
        reading = Reading(recorded, port)
        records = list(reading.records(TENS, in_order=False))
    context = multiprocessing.get_context("spawn")
    with context.Pool(count) as pool:
        jobs = [(records[number::count], reading.schema, rounds) for number in range(count)]
        return sum(pool.map(_work, jobs, chunksize=1))


def _work(job: tuple[list[pa.RecordBatch], list[dict[str, Any]], int]) -> float:
    records, schema, rounds = job
    return best(lambda: (one for batch in records for one in columns_of(batch, schema)), rounds)


if __name__ == "__main__":
    main()
