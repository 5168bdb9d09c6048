"""Change events to Arrow: our kernels against PyMongo decoding to dicts, CPU per event on one core.

Both sides get the same bytes, concatenated change events as a raw batch holds them (about 570 bytes each:
inserts, updates with a looked-up document, deletes), and make the same table: the contributions (key,
version, operation, document) of one collection, and six declared columns. The tables are compared before
anything is timed.

The rival decodes each event to a dict and encodes the document again for the ``state`` column; a second line
leaves that column out of the rival's work only.

Usage: python benchmarks/bench_bson_events.py [--events 100000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import datetime as dt
import random
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import bson
import pyarrow as pa
from bson import Decimal128, Int64, ObjectId, Timestamp

from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA
from airflow_cdc_provider.formats.arrow_bytes import binary_buffer
from airflow_cdc_provider.sources.mongodb.change_stream.stream_events import EventSlice
from airflow_cdc_provider.sources.mongodb.codec import MongodbCodec
from airflow_cdc_provider.sources.mongodb.decoding.columns import arrow_type, read_columns
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.mongodb.reader import read_slice
from airflow_cdc_provider.sources.mongodb.selection import Selection

TABLE = "shop.orders"
COLUMNS = {
    "number": "number bigint",
    "status": "status string",
    "total": "total decimal(12,2)",
    "city": "ship.city string",
    "lat": "ship.geo.lat double",
    "created": "created timestamp",
}
UTC = dt.UTC


def make_events(count: int) -> bytes:
    """Make events of a plain workload, in stream order."""
    rng = random.Random(1)
    events = []
    for n in range(count):
        kind = rng.choices(["insert", "update", "delete"], [5, 4, 1])[0]
        identity = ObjectId(f"65a0000000000000{rng.randrange(count):08x}")
        event: dict[str, Any] = {
            "_id": {"_data": "826B016DEF0000000" + "7" * 120},
            "operationType": kind,
            "clusterTime": Timestamp(1_700_000_000 + n // 1000, n % 1000 + 1),
            "wallTime": dt.datetime(2024, 1, 1, tzinfo=UTC),
        }
        document = {
            "_id": identity,
            "number": Int64(n),
            "status": rng.choice(["new", "paid", "sent"]),
            "total": Decimal128(f"{n % 10_000}.{n % 100:02d}"),
            "tags": ["a", "b"],
            "ship": {"city": "Graz", "zip": "8010", "geo": {"lat": n * 0.01, "lon": 15.43}},
            "created": dt.datetime(2024, 1, n % 28 + 1, tzinfo=UTC),
            "note": "some text to fill the row",
        }
        if kind != "delete":
            event["fullDocument"] = document
        event["ns"] = {"db": "shop", "coll": "orders"}
        event["documentKey"] = {"_id": identity}
        if kind == "update":
            changed = {"status": document["status"]}
            event["updateDescription"] = {
                "updatedFields": changed,
                "removedFields": [],
                "truncatedArrays": [],
            }
        events.append(bson.encode(event))
    return b"".join(events)


CODEC = MongodbCodec.of(TABLE, MongodbOptions(columns={TABLE: COLUMNS}))
SCHEMA = pa.schema([*CONTRIBUTION_SCHEMA, *(pa.field(c.name, arrow_type(c)) for c in CODEC.columns)])
SELECTION = Selection((r"shop\..*",))


def ours(events: bytes) -> pa.RecordBatch:
    """Read, decode and take the declared columns as a merge does."""
    records = read_slice(EventSlice(events, 0, 0), SELECTION, strict=False)
    contributions = CODEC.decode(records, ()).contributions
    data, starts, ends = binary_buffer(contributions.column("state"))
    declared = [array for array, _ in read_columns(CODEC.columns, data, starts, ends)]
    return pa.RecordBatch.from_arrays([*contributions.columns, *declared], schema=SCHEMA)


def pymongo(events: bytes, *, state: bool = True) -> pa.RecordBatch:
    """Decode to dicts and build the same table."""
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    last, index = None, 0
    options = bson.CodecOptions(tz_aware=True)
    for event in bson.decode_iter(events, options):
        if event["ns"] != {"db": "shop", "coll": "orders"}:
            continue
        moment = event["clusterTime"]
        index = index + 1 if moment == last else 0
        last = moment
        document = event.get("fullDocument")
        columns["key"].append(b"\x07" + event["documentKey"]["_id"].binary)
        columns["scope"].append(0)
        columns["clustering"].append(b"")
        columns["clustering_end"].append(None)
        columns["generation"].append(0)
        columns["version"].append(b"".join(n.to_bytes(4, "big") for n in (moment.time, moment.inc, index)))
        columns["op"].append(1 if event["operationType"] == "delete" else 0)
        columns["state"].append(bson.encode(document) if document and state else None)
        document = document or {}
        ship = document.get("ship", {})
        total = document.get("total")
        columns["number"].append(document.get("number"))
        columns["status"].append(document.get("status"))
        columns["total"].append(total and total.to_decimal().quantize(Decimal("0.01")))
        columns["city"].append(ship.get("city"))
        columns["lat"].append(ship.get("geo", {}).get("lat"))
        columns["created"].append(document.get("created"))
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def best_cpu(work: Callable[[], object], rounds: int) -> float:
    """Return the smallest CPU time of some rounds, in seconds."""
    times = []
    for _ in range(rounds):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return min(times)


def main() -> None:
    """Compare, time and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    events = make_events(arguments.events)
    pa.set_cpu_count(1)
    if not ours(events).equals(pymongo(events)):
        raise SystemExit("the two tables differ")
    print(f"{arguments.events} events, {len(events) / arguments.events:.0f} bytes each; tables are equal")
    per_event = {
        "kernels": best_cpu(lambda: ours(events), arguments.rounds),
        "PyMongo, dicts": best_cpu(lambda: pymongo(events), arguments.rounds),
        "PyMongo, dicts, no state": best_cpu(lambda: pymongo(events, state=False), arguments.rounds),
    }
    for name, seconds in per_event.items():
        microseconds = seconds / arguments.events * 1e6
        print(f"{name:26} {microseconds:7.2f} us CPU per event   x {seconds / per_event['kernels']:.1f}")


if __name__ == "__main__":
    main()
