"""Random statements on a base table that has materialized views of every kind."""

from __future__ import annotations

import random
from typing import Any

VIEWS = {
    "by_v": "SELECT * FROM {ks}.base WHERE v IS NOT NULL AND p IS NOT NULL AND c IS NOT NULL "
    "PRIMARY KEY (v, p, c)",
    "low": "SELECT p, c, v, t FROM {ks}.base WHERE c < 3 AND p IS NOT NULL AND v IS NOT NULL "
    "PRIMARY KEY ((p, c), v)",
    "turned": "SELECT p, c, t, l FROM {ks}.base WHERE p IS NOT NULL AND c IS NOT NULL PRIMARY KEY (c, p)",
    "whole": "SELECT * FROM {ks}.base WHERE p IS NOT NULL AND c IS NOT NULL PRIMARY KEY (c, p)",
}
"""Views that move rows, one of them with a condition; and views whose key is the base's in another order."""

EPOCH_US = 1_700_000_000_000_000


def create(session: Any, keyspace: str) -> None:
    session.execute(
        f"CREATE TABLE {keyspace}.base (p int, c int, v int, t text, x text, l list<int>, "
        "m map<text, int>, PRIMARY KEY (p, c)) WITH cdc = true"
    )
    for name, text in VIEWS.items():
        session.execute(
            f"CREATE MATERIALIZED VIEW {keyspace}.{name} AS {text.format(ks=keyspace)} WITH cdc = true"
        )


def write(session: Any, keyspace: str, rng: random.Random, count: int) -> None:
    """Execute random statements on the base: rows move between keys, end, expire and come back.

    Write times go back and forth, the more so as some are the server's own.
    """
    for _ in range(count):
        statements = [statement(rng, keyspace) for _ in range(1 if rng.random() < 0.8 else 3)]
        if len(statements) > 1:
            statements = ["BEGIN UNLOGGED BATCH", *statements, "APPLY BATCH"]
        session.execute("; ".join(statements).replace("BATCH;", "BATCH"), timeout=60)


def statement(rng: random.Random, keyspace: str) -> str:
    p, c = rng.randrange(4), rng.randrange(4)
    key = f"p = {p} AND c = {c}"
    stamp = f"TIMESTAMP {EPOCH_US + rng.randrange(60)}" if rng.random() < 0.6 else ""
    ttl = f"TTL {rng.choice([2, 3, 100_000])}" if rng.random() < 0.3 else ""
    using = " AND ".join(part for part in (stamp, ttl) if part)
    using, deleting = (f" USING {part}" if part else "" for part in (using, stamp))
    values = {
        "v": rng.choice(["null", *map(str, range(5))]),
        "t": rng.choice(["null", "'a'", "'b'"]),
        "x": rng.choice(["null", "'x'"]),
        "l": rng.choice(["null", "[1, 2]", "[3]"]),
        "m": rng.choice(["null", "{'k': 1}"]),
    }
    columns = rng.sample(sorted(values), rng.randrange(1, 5))
    kind = rng.randrange(12)
    if kind < 5:
        sets = ", ".join(f"{column} = {values[column]}" for column in columns)
        return f"UPDATE {keyspace}.base{using} SET {sets} WHERE {key}"
    if kind < 9:
        named = ", ".join(["p", "c", *columns])
        given = ", ".join([str(p), str(c), *(values[column] for column in columns)])
        return f"INSERT INTO {keyspace}.base ({named}) VALUES ({given}){using}"
    if kind == 9:
        return f"DELETE {', '.join(columns)} FROM {keyspace}.base{deleting} WHERE {key}"
    if kind == 10:
        return f"DELETE FROM {keyspace}.base{deleting} WHERE {key}"
    whole = rng.choice([f"p = {p}", f"p = {p} AND c > {c}"])
    return f"DELETE FROM {keyspace}.base{deleting} WHERE {whole}"
