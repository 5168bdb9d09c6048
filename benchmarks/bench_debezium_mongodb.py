"""MongoDB to JSON events, streamed and from a snapshot, against Debezium's connector on the same collection.

A real server gets documents of about 300 bytes: inserts, updates whose documents are looked up, deletes.
Debezium's connector (its jars from Maven Central) runs in its own engine and makes key and value of each
event as JSON without schemas; nothing is sent. We read the same events, and then the same collection, and
make the same texts. Before figures count they are compared, but for the moments at which events were made and
snapshots read.

CPU seconds of the whole process count, with the reading from the server. Of Debezium's those of the events
after the first third, when its code is compiled; of ours the best round after a first one.

Usage: python benchmarks/bench_debezium_mongodb.py [--events 300000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bson
import pyarrow as pa
import pyarrow.compute as pc
from bson import Decimal128, Int64
from bson.raw_bson import RawBSONDocument
from pymongo import DeleteOne, UpdateOne

from airflow_cdc_provider.changes.record import CHANGE
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.sources.contract import ReadMetrics
from airflow_cdc_provider.sources.mongodb.events import decode as mongodb_events
from airflow_cdc_provider.sources.mongodb.events.records import MongodbRecords
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.mongodb.position import StreamPosition
from airflow_cdc_provider.sources.mongodb.reader import TimeSlice
from airflow_cdc_provider.sources.mongodb.selection import Selection
from airflow_cdc_provider.sources.mongodb.source import MongodbSource
from benchmarks.debezium_engine import DebeziumEngine, compare, record_texts
from server_kit import MongoServer
from server_kit.jars import DEBEZIUM_MONGODB_VERSION, debezium_mongodb_jars

if TYPE_CHECKING:
    from pymongo import MongoClient

_DATABASE, _COLLECTION = "bench", "events"
_AT_A_TIME = 5_000
_MADE_AT = re.compile(r'(?<="op":"[rcud]"),"ts_ms":\d+(,"ts_us":\d+,"ts_ns":\d+)?')
_READ_AT = re.compile(r'"source":{[^}]*}')


def main() -> None:
    """Run it and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    events, rounds = arguments.events, arguments.rounds
    with tempfile.TemporaryDirectory() as scratch, MongoServer() as server:
        rival = Debezium(server, Path(scratch))
        with closing(OurEvents(server)) as ours:
            client = server.client()
            part = rival.stream(events, lambda: write(client, events))
            compare_sorted(ours.streamed(part), rival.engine.texts, _streamed)
            part = rival.stream(events, lambda: write(client, events), keep=False)
            streamed = rival.per_second, events / best(lambda: ours.streamed(part), rounds)
            rows = client[_DATABASE][_COLLECTION].count_documents({})
            ranges = ours.ranges()
            rival.snapshot(rows)
            compare_sorted(ours.read(ranges), rival.engine.texts, _read)
            rival.snapshot(rows, keep=False)
            read = rival.per_second, rows / best(lambda: ours.read(ranges), rounds)
    print(f"{events} streamed events and {rows} rows of a snapshot, the same texts from both")
    print(f"{'per CPU second':30}{f'Debezium {DEBEZIUM_MONGODB_VERSION}':>24}{'ours':>12}{'ratio':>8}")
    for what, (theirs, our) in (("streamed events", streamed), ("rows of a snapshot", read)):
        print(f"{what:30}{theirs:24,.0f}{our:12,.0f}{our / theirs:8.1f}")


def write(client: MongoClient, events: int) -> TimeSlice:
    """Write documents: 60 % inserts, 30 % updates, 10 % deletes, none of a document that was updated.

    Returns:
        What holds their events, and no other of the collection.
    """
    collection = client[_DATABASE][_COLLECTION]
    collection.drop()
    client[_DATABASE].create_collection(_COLLECTION)
    start = StreamPosition.after(client.admin.command("ping")["operationTime"])
    inserts, updates = events * 6 // 10, events * 3 // 10
    for first in range(0, inserts, _AT_A_TIME):
        numbers = range(first, min(first + _AT_A_TIME, inserts))
        collection.insert_many([RawBSONDocument(bson.encode(_document(n))) for n in numbers])
    changes: list[UpdateOne | DeleteOne] = [
        *(UpdateOne({"_id": n}, {"$set": {"status": "paid", "total": Int64(n)}}) for n in range(updates)),
        *(DeleteOne({"_id": n}) for n in range(updates, events - inserts)),
    ]
    for first in range(0, len(changes), _AT_A_TIME):
        collection.bulk_write(changes[first : first + _AT_A_TIME])
    end = StreamPosition.after(client.admin.command("ping")["operationTime"])
    client[_DATABASE]["marker"].insert_one({})  # the head moves beyond what is measured
    return TimeSlice(start, end.time + 1, time.time_ns() // 1000)


def _document(number: int) -> dict[str, Any]:
    return {
        "_id": number,
        "number": Int64(number),
        "status": "new",
        "total": Decimal128(f"{number % 10_000}.{number % 100:02d}"),
        "tags": ["a", "b"],
        "ship": {"city": "Graz", "zip": "8010", "geo": {"lat": number * 0.01, "lon": 15.43}},
        "created": datetime(2024, 1, number % 28 + 1, tzinfo=UTC),
        "note": "some text to fill the row",
    }


class OurEvents:
    """The events by this package."""

    def __init__(self, server: MongoServer) -> None:
        self.connector = Connector.from_dict(
            {
                "name": "cdc",
                "source": {"type": "mongodb"},
                "publish": {"schemas": False, "tombstones": False, "version": DEBEZIUM_MONGODB_VERSION},
            }
        )
        selection = Selection((rf"{_DATABASE}\.{_COLLECTION}",))
        self.source = MongodbSource(MongodbOptions(), {"host": server.uri}, selection)

    def close(self) -> None:
        """Close its connections."""
        self.source.close()

    def ranges(self) -> Sequence[Any]:
        """Plan a snapshot."""
        return self.source.plan_snapshot(f"{_DATABASE}.{_COLLECTION}").ranges

    def streamed(self, part: TimeSlice) -> Iterator[pa.RecordBatch]:
        """Read change events from the server and make records of them."""
        maker = MongodbRecords(self.connector, time.time_ns())
        reader = self.source.reader()
        for records in reader.read([part], ReadMetrics()):
            changes = records.filter(pc.equal(records["kind"], CHANGE))
            if changes.num_rows:
                decoded = mongodb_events.decode_stream(
                    changes["payload"], full_document="lookup", pre_images=False, form=maker.form()
                )
                yield maker.records(decoded.events)[0]

    def read(self, ranges: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        """Read documents from the server and make records of them."""
        maker = MongodbRecords(self.connector, time.time_ns())
        form = maker.form(_DATABASE, _COLLECTION)
        reader = self.source.snapshot_reader()
        for documents in reader.read(ranges, ReadMetrics()):
            decoded = mongodb_events.decode_snapshot(documents["payload"], _DATABASE, _COLLECTION, form)
            yield maker.records(decoded.events)[0]


def best(run: Callable[[], Iterator[pa.RecordBatch]], rounds: int) -> float:
    """Return the least CPU seconds of a run, after a first one."""
    seconds = []
    for _ in range(rounds + 1):
        before = time.process_time()
        for _ in run():
            pass
        seconds.append(time.process_time() - before)
    return min(seconds[1:])


class Debezium:
    """Debezium's connector in its own engine.

    Args:
        server: What it captures.
        folder: For its files.
    """

    def __init__(self, server: MongoServer, folder: Path) -> None:
        self.engine = DebeziumEngine(debezium_mongodb_jars(), folder)
        self._server = server

    @property
    def per_second(self) -> float:
        """Events per CPU second of the newest run."""
        return self.engine.per_second

    def stream(self, events: int, write: Callable[[], TimeSlice], *, keep: bool = True) -> TimeSlice:
        """Let it stream what is written once it does."""
        client = self._server.client()
        with self._start("no_data", events, keep=keep) as process:
            output = process.stdout
            assert output is not None
            waiting = threading.Thread(target=output.readline)
            waiting.start()
            while waiting.is_alive():
                client[_DATABASE]["marker"].insert_one({})
                waiting.join(0.2)
            part = write()
            self.engine.finish(process)
        return part

    def snapshot(self, rows: int, *, keep: bool = True) -> None:
        """Let it take a snapshot."""
        with self._start("initial_only", rows, keep=keep) as process:
            self.engine.finish(process)

    def _start(self, mode: str, events: int, *, keep: bool) -> subprocess.Popen[str]:
        properties = {
            "connector.class": "io.debezium.connector.mongodb.MongoDbConnector",
            "mongodb.connection.string": self._server.uri,
            "topic.prefix": "cdc",
            "collection.include.list": rf"{_DATABASE}\\.({_COLLECTION}|marker)",
            "snapshot.mode": mode,
        }
        return self.engine.start(properties, f"cdc.{_DATABASE}.{_COLLECTION}", events, keep=keep)


def compare_sorted(ours: Iterator[pa.RecordBatch], theirs: Path, comparable: Callable[[str], str]) -> None:
    """Exit with an error unless both have the same events, in the same order per key."""
    our = [comparable(text) for text in record_texts(ours)]
    their = [comparable(line) for line in theirs.read_text().splitlines()]
    compare(sorted(our), sorted(their))


def _streamed(text: str) -> str:
    """Remove the event's time of creation."""
    return _MADE_AT.sub("", text)


def _read(text: str) -> str:
    """Leave out when the document was read, and which was the last."""
    return _READ_AT.sub("", _streamed(text))


if __name__ == "__main__":
    main()
