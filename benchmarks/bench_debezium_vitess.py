"""Vitess to JSON events, copied and streamed, against Debezium's connector on the same stream.

A stream of a real VTGate (a table of ten columns, recorded once) is sent again to both by another process.
Debezium's connector (its jars from Maven Central) runs in its own engine and makes key and value of each
event as JSON without schemas; nothing is sent. We read the stream as a capture does, make change records of
it and of these the same texts. Before figures count they are compared, but for the moments at which events
were made and, of copied rows, the VGTID, which change records don't keep with each packet.

CPU seconds of the whole process count, with the reading from the server, which is another process. Of
Debezium's those of the events after the first third, when its code is compiled; of ours the best round after
a first one.

It ends with an error if a ratio is below what is asked for.

Usage: python benchmarks/bench_debezium_vitess.py [--rounds 5] [--streams copy single tens]
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.sources.vitess.events.records import VitessRecords
from airflow_cdc_provider.sources.vitess.events.stored_records import decode_records
from benchmarks.debezium_engine import DebeziumEngine, compare, record_texts
from benchmarks.vitess_reading import Reading
from benchmarks.vitess_recording import COPY, KEYSPACE, ROWS, SINGLE, TABLE, TENS, Recording, recording
from server_kit.jars import DEBEZIUM_VITESS_VERSION, debezium_vitess_jars

_LEAST_RATIOS: Final = {COPY: 5, TENS: 5, SINGLE: 1}
"""A transaction is a message of gRPC's, whose cost in Python and in Java leaves little to win by the row."""
_SHOWN: Final = {
    COPY: "copied rows",
    SINGLE: "streamed, in transactions of 1 row",
    TENS: "streamed, in transactions of 10 rows",
}
_MADE_AT: Final = re.compile(r'(?<="op":"[cud]"),"ts_ms":\d+,"ts_us":\d+,"ts_ns":\d+')
_VGTID: Final = re.compile(r'"vgtid":"(?:[^"\\]|\\.)*"')


def main() -> None:
    """Run it and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", nargs="+", choices=_SHOWN, default=list(_SHOWN))
    arguments = parser.parse_args()
    rounds = arguments.rounds
    recorded = recording()
    wrong = []
    print("the same texts from both")
    print(f"{'CPU us per event':40}{f'Debezium {DEBEZIUM_VITESS_VERSION}':>24}{'ours':>12}{'ratio':>8}")
    with tempfile.TemporaryDirectory() as scratch:
        engine = DebeziumEngine(debezium_vitess_jars(), Path(scratch))
        for stream in arguments.streams:
            shown = _SHOWN[stream]
            with recorded.served(stream) as port:
                run(engine, port, stream, keep=True)
                check(recorded, port, stream, engine.texts)
                run(engine, port, stream, keep=False)
                ours = best(lambda: events(recorded, port, stream), rounds)  # noqa: B023  called at once
            theirs, our = 1e6 / engine.per_second, 1e6 * ours / ROWS[stream]
            print(f"{shown:40}{theirs:24.1f}{our:12.2f}{theirs / our:8.1f}", flush=True)
            if theirs / our < _LEAST_RATIOS[stream]:
                wrong.append(f"{shown}: less than {_LEAST_RATIOS[stream]} times as fast as Debezium")
    if wrong:
        sys.exit("\n".join(wrong))


def run(engine: DebeziumEngine, port: int, stream: str, *, keep: bool) -> None:
    """Let Debezium read a stream."""
    properties = {
        "connector.class": "io.debezium.connector.vitess.VitessConnector",
        "database.hostname": "127.0.0.1",
        "database.port": str(port),
        "vitess.keyspace": KEYSPACE,
        "vitess.tablet.type": "MASTER",
        "topic.prefix": "cdc",
        "tasks.max": "1",
        "schema.history.internal": "io.debezium.relational.history.MemorySchemaHistory",
        "snapshot.mode": "initial" if stream == COPY else "never",
    }
    with engine.start(properties, f"cdc.{KEYSPACE}.{TABLE}", ROWS[stream], keep=keep) as process:
        engine.finish(process)


def check(recorded: Recording, port: int, stream: str, theirs: Path) -> None:
    """End with an error unless we make the same texts."""

    def comparable(text: str) -> str:
        text = _MADE_AT.sub("", text)
        return _VGTID.sub("", text, count=1) if stream == COPY else text

    our = [comparable(text) for text in record_texts(events(recorded, port, stream))]
    compare(our, [comparable(line) for line in theirs.read_text().splitlines()])


def events(recorded: Recording, port: int, stream: str) -> Iterator[pa.RecordBatch]:
    """Read a stream from the server and make events of it."""
    connector = Connector.from_dict(
        {
            "name": "cdc",
            "source": {"type": "vitess", "keyspace": KEYSPACE},
            "publish": {"schemas": False, "tombstones": False, "version": DEBEZIUM_VITESS_VERSION},
        }
    )
    maker = VitessRecords(connector, time.time_ns(), lambda *_: True)
    reading = Reading(recorded, port)
    for records in reading.records(stream, in_order=True):
        decoded = decode_records(records, reading.fields, maker.form, lambda *_: True)
        if decoded.unread:
            raise SystemExit(f"rows that can't be read: {decoded.unread}")
        yield maker.build(decoded)


def best(run: Callable[[], Iterator[pa.RecordBatch]], rounds: int) -> float:
    """Return the least CPU seconds of a run, after a first one."""
    seconds = []
    for _ in range(rounds + 1):
        before = time.process_time()
        for _ in run():
            pass
        seconds.append(time.process_time() - before)
    return min(seconds[1:])


if __name__ == "__main__":
    main()
