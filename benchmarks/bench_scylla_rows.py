"""ScyllaDB's log rows to contributions: our kernels against the Python driver's own types, CPU on one core.

Both sides get the same bytes: the rows of a log table as the native protocol brings them (inserts, updates,
deletes of rows and of ranges, a set, TTLs), one change each. We make contributions of them. The rival makes a
tuple of Python values of each row and does nothing with it, which is the least that any reader must do that
works with the driver's values.

Before anything is timed the contributions are reconciled, and the rows that live are compared with what the
driver's values give when they are applied one after the other.

Usage: python benchmarks/bench_scylla_rows.py [--rows 200000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from cassandra import cqltypes

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.lake.reconcile import reconcile_cells
from airflow_cdc_provider.sources.cql.native_rows import native_rows
from airflow_cdc_provider.sources.cql.schema import Column, CqlType, TableSchema, number_columns
from airflow_cdc_provider.sources.scylla.codec import recall_scylla_codec
from airflow_cdc_provider.sources.scylla.payload import (
    META_COLUMNS,
    Position,
    schema_digest,
)
from airflow_cdc_provider.sources.scylla.stream_ids import EPOCH_TICKS
from tests.oracles.scylla_payload import change_payload

TABLE_ID = "5a1c395e4b0d11efb1a1325096b39f47"
BEGIN_US = 1_700_000_000_000_000
LOG_TTL = 86400
BATCH = 10_000
"""Changes that are decoded at once: ``spark.sql.execution.arrow.maxRecordsPerBatch``."""
INT, TEXT = CqlType("int"), CqlType("text")
BASE = {
    "shop": INT,
    "sku": INT,
    "city": TEXT,
    "name": TEXT,
    "note": TEXT,
    "price": CqlType("bigint"),
    "qty": INT,
    "tags": CqlType("set", (TEXT,)),
}
SCHEMA = number_columns(
    TableSchema(
        "shop",
        "orders",
        TABLE_ID,
        (
            Column("shop", "partition_key", 0, INT),
            Column("sku", "clustering", 0, INT),
            *(Column(name, "regular", -1, kind) for name, kind in list(BASE.items())[2:]),
        ),
    )
)
TYPES: dict[str, Any] = {
    "cdc$stream_id": cqltypes.BytesType,
    "cdc$time": cqltypes.TimeUUIDType,
    "cdc$batch_seq_no": cqltypes.Int32Type,
    "cdc$operation": cqltypes.ByteType,
    "cdc$ttl": cqltypes.LongType,
    "cdc$end_of_batch": cqltypes.BooleanType,
    "ttl(cdc$operation)": cqltypes.Int32Type,
}
STRINGS = cqltypes.SetType.apply_parameters([cqltypes.UTF8Type])
DRIVER = {"int": cqltypes.Int32Type, "bigint": cqltypes.LongType, "text": cqltypes.UTF8Type, "set": STRINGS}


def log_columns() -> list[str]:
    """Name the log's columns in the order in which they are read, and note the driver's types of them."""
    others = list(BASE)
    TYPES.update({name: DRIVER[kind.name] for name, kind in BASE.items()})
    for name in list(BASE)[2:]:
        others.append(f"cdc$deleted_{name}")
        TYPES[others[-1]] = cqltypes.BooleanType
    others.append("cdc$deleted_elements_tags")
    TYPES[others[-1]] = STRINGS
    return [*META_COLUMNS, *sorted(others)]


COLUMNS = log_columns()
SCHEMA_PAYLOAD = json.dumps(
    {
        "v": 1,
        "keyspace": "shop",
        "table": "orders",
        "id": TABLE_ID,
        "partition_key": ["shop"],
        "clustering": [["sku", "asc"]],
        "static": [],
        "columns": [[name, "not used"] for name in COLUMNS],
        "base": {name: kind.name for name, kind in BASE.items()},
        "types": {},
        "log_ttl": LOG_TTL,
        "delta": "full",
    }
).encode()


def make_rows(count: int) -> Iterator[tuple[int, bytes, list[dict[str, bytes]]]]:
    """Make changes of a plain workload: write time in us, ``cdc$time``, and log rows as native values."""
    rng = random.Random(1)
    made = 0
    while made < count:
        at = BEGIN_US + 10 * made
        kind = rng.choices(["insert", "update", "delete", "range"], [50, 40, 8, 2])[0]
        row = {"shop": _int(rng.randrange(count // 20)), "sku": _int(rng.randrange(20))}
        rows = [{**row, "cdc$operation": b"\3"}]
        if kind == "insert":
            values = {
                "city": rng.choice([b"Graz", b"Oslo", b"Lima"]),
                "name": b"article %d" % made,
                "note": b"some text to fill the row, as rows have it",
                "price": struct.pack(">q", made),
                "qty": _int(made % 1000),
                "tags": _strings([b"new", b"sale"]),
                "cdc$deleted_tags": b"\1",
            }
            rows = [{**row, **values, "cdc$operation": b"\2"}]
            if rng.random() < 0.1:
                del values["tags"], values["cdc$deleted_tags"]
                rows = [{**row, **values, "cdc$operation": b"\2", "cdc$ttl": struct.pack(">q", 1 << 29)}]
        elif kind == "update":
            values = {"qty": _int(made % 1000), "tags": _strings([b"old"]), "cdc$deleted_note": b"\1"}
            rows = [{**row, **values, "cdc$operation": b"\1"}]
        elif kind == "range":
            rows = [
                {**row, "cdc$operation": b"\5"},
                {**row, "sku": _int(_number(row["sku"]) + 3), "cdc$operation": b"\10"},
            ]
        ticks = at * 10 + EPOCH_TICKS
        half = struct.pack(">IHH", ticks & 0xFFFFFFFF, ticks >> 32 & 0xFFFF, ticks >> 48 | 0x1000)
        moment = half + rng.randbytes(8)
        for number, one in enumerate(rows):
            one |= {
                "cdc$stream_id": row["shop"] * 4,
                "cdc$time": moment,
                "cdc$batch_seq_no": _int(number),
                "ttl(cdc$operation)": _int(LOG_TTL - 30),
            }
        rows[-1]["cdc$end_of_batch"] = b"\1"
        made += len(rows)
        yield at, moment, rows


def make_changes(count: int) -> pa.RecordBatch:
    """Make the records of about ``count`` log rows."""
    records = [
        {
            "source_table": "shop.orders",
            "kind": "change",
            "origin": "shop.orders/0",
            "position": Position(BEGIN_US // 1000, moment, rows[0]["cdc$stream_id"]).pack(),
            "generation": 0,
            "captured_at": datetime.fromtimestamp(at / 1e6 + 30, UTC),
            "schema_id": schema_digest(SCHEMA_PAYLOAD),
            "payload": change_payload([[row.get(name) for name in COLUMNS] for row in rows]),
        }
        for at, moment, rows in make_rows(count)
    ]
    (batch,) = pa.Table.from_pylist(records, CHANGE_SCHEMA).combine_chunks().to_batches()
    return batch


CODEC = recall_scylla_codec(SCHEMA, {schema_digest(SCHEMA_PAYLOAD): SCHEMA_PAYLOAD}, None)


def ours(changes: pa.RecordBatch) -> pa.Table:
    """Decode to contributions, in batches as Spark hands them out."""
    decoded = [CODEC.decode(changes.slice(first, BATCH), ()) for first in range(0, changes.num_rows, BATCH)]
    for reason in (reason for one in decoded for reason in one.reasons):
        raise SystemExit(reason)
    return pa.Table.from_batches([one.contributions for one in decoded])


def driver(payloads: list[bytes]) -> Iterator[tuple[Any, ...]]:
    """Make a tuple of Python values of each row, as the driver's row parser in Python does."""
    types = [TYPES[name] for name in COLUMNS]
    unpack = struct.Struct(">i").unpack_from
    for payload in payloads:
        at = 1
        while at < len(payload):
            at += 4
            values: list[Any] = []
            for kind in types:
                (length,) = unpack(payload, at)
                at += 4
                if length < 0:
                    values.append(None)
                else:
                    values.append(kind.from_binary(payload[at : at + length], 4))
                    at += length
            yield tuple(values)


def applied(rows: Iterator[tuple[Any, ...]]) -> dict[tuple[int, int], dict[str, Any]]:
    """Apply the driver's rows, which are in the order of their times, and return the rows that live."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    regular = list(BASE)[2:]
    first = 0
    for values in rows:
        row = dict(zip(COLUMNS, values, strict=True))
        key, operation = (row["shop"], row["sku"]), row["cdc$operation"]
        if operation == 5:
            first = row["sku"]
        elif operation in (3, 8):
            for sku in range(first, row["sku"]) if operation == 8 else [row["sku"]]:
                found.pop((row["shop"], sku), None)
        else:
            state = found.setdefault(key, {"marker": False, **dict.fromkeys(regular)})
            state["marker"] |= operation == 2
            for name in regular:
                if name == "tags" and row["tags"] is not None:
                    before = set() if row["cdc$deleted_tags"] else state["tags"] or set()
                    state["tags"] = {*before, *row["tags"]}
                elif row[name] is not None or row[f"cdc$deleted_{name}"]:
                    state[name] = row[name]
    return {key: {name: state[name] for name in regular} for key, state in found.items()}


def reconciled(contributions: pa.Table) -> dict[tuple[int, int], dict[str, Any]]:
    """Return the live rows of our result, with the driver's types of values."""
    live = reconcile_cells(contributions, BEGIN_US // 1_000_000, "scylla").live
    found: dict[Any, dict[str, Any]] = {}
    for batch in live.combine_chunks().to_batches():
        for row in native_rows(SCHEMA, batch):
            shown = {n: None if v is None else TYPES[n].from_binary(v, 4) for n, v in row.items()}
            shown["tags"] = None if shown["tags"] is None else set(shown["tags"])
            found[shown.pop("shop"), shown.pop("sku")] = shown
    return found


def _int(number: int) -> bytes:
    return struct.pack(">i", number)


def _number(value: bytes) -> int:
    return int.from_bytes(value, "big")


def _strings(values: list[bytes]) -> bytes:
    return _int(len(values)) + b"".join(_int(len(value)) + value for value in values)


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
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    pa.set_cpu_count(1)
    changes = make_changes(arguments.rows)
    payloads = changes["payload"].to_pylist()
    contributions = ours(changes)
    live = reconciled(contributions)
    if live != applied(driver(payloads)):
        raise SystemExit("the rows that live differ")
    count = sum(1 for _ in driver(payloads))
    size = sum(map(len, payloads)) / count
    print(f"{count} log rows, {size:.0f} bytes each; the {len(live)} rows that live are equal")
    now = BEGIN_US // 1_000_000
    seconds = {
        "kernels": best_cpu(lambda: ours(changes), arguments.rounds),
        "kernels, reconciled": best_cpu(
            lambda: reconcile_cells(ours(changes), now, "scylla"), arguments.rounds
        ),
        "driver's types, tuples": best_cpu(lambda: [None for _ in driver(payloads)], 2),
    }
    for name, taken in seconds.items():
        print(f"{name:24} {count / taken:12,.0f} rows per CPU second   x {taken / seconds['kernels']:.1f}")


if __name__ == "__main__":
    main()
