"""Random workloads for the two databases: seeded statements of every kind on tables of different shapes."""

from __future__ import annotations

import datetime as dt
import random
import uuid
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

import bson
from pymongo.collection import Collection

CASSANDRA_TABLES = {
    "plain": "CREATE TABLE {ks}.plain (id int PRIMARY KEY, a text, b bigint, c double, d boolean, e blob, "
    "f timestamp, g decimal) WITH cdc = true",
    "wide": "CREATE TABLE {ks}.wide (p text, c1 int, c2 text, s int static, t text static, v text, w varint, "
    "PRIMARY KEY (p, c1, c2)) WITH CLUSTERING ORDER BY (c1 DESC, c2 ASC) AND cdc = true",
    "bags": "CREATE TABLE {ks}.bags (p int, c uuid, l list<int>, s set<text>, "
    "m map<text, int>, u {ks}.pair, fu frozen<{ks}.pair>, fl frozen<list<int>>, "
    "t tuple<int, text>, PRIMARY KEY (p, c)) WITH cdc = true",
    "keys_only": "CREATE TABLE {ks}.keys_only (p int, c int, PRIMARY KEY (p, c)) WITH cdc = true",
}

SHORT_TTL_SECONDS = 2
"""After this time what was written with a short TTL has expired."""

_WORDS = ["", "a", "ab", "b", "ü", "名", "long " * 20, "x\x00y"]


def create_cassandra(session: Any, keyspace: str, replicas: int = 1) -> None:
    """Create the keyspace and its tables."""
    replication = f"{{'class': 'SimpleStrategy', 'replication_factor': {replicas}}}"
    session.execute(f"CREATE KEYSPACE {keyspace} WITH replication = {replication}")
    session.execute(f"CREATE TYPE {keyspace}.pair (x int, y text)")
    for statement in CASSANDRA_TABLES.values():
        session.execute(statement.format(ks=keyspace))


def write_cassandra(
    session: Any, keyspace: str, seed: int, count: int, tables: Iterable[str] = CASSANDRA_TABLES
) -> None:
    """Execute random statements; write times go back and forth, TTLs are long or already short."""
    rng = random.Random(seed)
    of_table = {"plain": _plain, "wide": _wide, "bags": _bags, "keys_only": _keys_only}
    writers = [of_table[table] for table in tables]
    session.encoder.mapping[tuple] = session.encoder.cql_encode_tuple  # else a tuple becomes a list
    for _ in range(count):
        statement, values = rng.choice(writers)(rng, keyspace)
        session.execute(statement, values)


def _using(rng: random.Random) -> str:
    base = 1_700_000_000_000_000
    parts = []
    if rng.random() < 0.5:
        parts.append(f"TIMESTAMP {base + rng.randrange(50)}")
    if rng.random() < 0.2:
        parts.append(f"TTL {rng.choice([1, SHORT_TTL_SECONDS, 100_000])}")
    return f" USING {' AND '.join(parts)}" if parts else ""


def _stamp(rng: random.Random) -> str:
    return f" USING TIMESTAMP {1_700_000_000_000_000 + rng.randrange(50)}" if rng.random() < 0.5 else ""


def _plain(rng: random.Random, ks: str) -> tuple[str, tuple[Any, ...]]:
    key = rng.randrange(30)
    values: dict[str, Any] = {
        "a": rng.choice([None, *_WORDS]),
        "b": rng.choice([None, -1, 2**62, rng.randrange(1000)]),
        "c": rng.choice([None, 0.0, -0.0, 1.5, float("nan"), float("inf")]),
        "d": rng.choice([None, True, False]),
        "e": rng.choice([None, b"", b"\x00\xff", rng.randbytes(30)]),
        "f": rng.choice([None, dt.datetime(2020, 1, 2, 3, 4, 5, 678_000, tzinfo=dt.UTC)]),
        "g": rng.choice([None, Decimal("1.0"), Decimal("1.00"), Decimal("-1e-30"), Decimal(10) ** 40]),
    }
    kind = rng.randrange(10)
    columns = rng.sample(sorted(values), rng.randrange(1, 7))
    if kind < 4:
        names = ", ".join(["id", *columns])
        marks = ", ".join(["%s"] * (len(columns) + 1))
        return f"INSERT INTO {ks}.plain ({names}) VALUES ({marks}){_using(rng)}", (
            key,
            *(values[c] for c in columns),
        )
    if kind < 8:
        sets = ", ".join(f"{c} = %s" for c in columns)
        return f"UPDATE {ks}.plain{_using(rng)} SET {sets} WHERE id = %s", (
            *(values[c] for c in columns),
            key,
        )
    if kind == 8:
        return f"DELETE {', '.join(columns)} FROM {ks}.plain{_stamp(rng)} WHERE id = %s", (key,)
    return f"DELETE FROM {ks}.plain{_stamp(rng)} WHERE id = %s", (key,)


def _wide(rng: random.Random, ks: str) -> tuple[str, tuple[Any, ...]]:
    p, c1, c2 = rng.choice("pqr"), rng.randrange(6), rng.choice(["", "a", "ab", "b"])
    kind = rng.randrange(12)
    if kind < 4:
        return (
            f"INSERT INTO {ks}.wide (p, c1, c2, v, w) VALUES (%s, %s, %s, %s, %s){_using(rng)}",
            (p, c1, c2, rng.choice(_WORDS), rng.choice([0, -1, 127, 128, -(2**70)])),
        )
    if kind < 6:
        return f"UPDATE {ks}.wide{_using(rng)} SET v = %s WHERE p = %s AND c1 = %s AND c2 = %s", (
            rng.choice([None, *_WORDS]),
            p,
            c1,
            c2,
        )
    if kind < 8:
        return f"UPDATE {ks}.wide{_using(rng)} SET s = %s, t = %s WHERE p = %s", (
            rng.choice([None, 1, 2]),
            rng.choice([None, "s"]),
            p,
        )
    if kind == 8:
        low, high = sorted((rng.randrange(6), rng.randrange(6)))
        upper, lower = rng.choice(["<", "<="]), rng.choice([">", ">="])
        return (
            f"DELETE FROM {ks}.wide{_stamp(rng)} WHERE p = %s AND c1 {lower} %s AND c1 {upper} %s",
            (p, low, high),
        )
    if kind == 9:
        return f"DELETE FROM {ks}.wide{_stamp(rng)} WHERE p = %s AND c1 = %s AND c2 >= %s", (p, c1, c2)
    if kind == 10:
        return f"DELETE FROM {ks}.wide{_stamp(rng)} WHERE p = %s AND c1 = %s AND c2 = %s", (p, c1, c2)
    return f"DELETE FROM {ks}.wide{_stamp(rng)} WHERE p = %s", (p,)


def _bags(rng: random.Random, ks: str) -> tuple[str, tuple[Any, ...]]:
    p, c = rng.randrange(3), uuid.UUID(int=rng.randrange(4))
    where = " WHERE p = %s AND c = %s"
    number, word = rng.randrange(5), rng.choice(["", "a", "b", "c"])
    choices: list[tuple[str, tuple[Any, ...]]] = [
        (
            f"INSERT INTO {ks}.bags (p, c, l, s, m, fl, t) VALUES (%s, %s, %s, %s, %s, %s, %s){_using(rng)}",
            (p, c, [number, 1], {word, "z"}, {word: number}, [number], (number, word)),
        ),
        (f"UPDATE {ks}.bags{_using(rng)} SET l = l + %s{where}", ([number], p, c)),
        (f"UPDATE {ks}.bags{_using(rng)} SET l = %s + l{where}", ([number], p, c)),
        (f"UPDATE {ks}.bags SET l = l - %s{where}", ([number], p, c)),
        (f"UPDATE {ks}.bags{_using(rng)} SET s = s + %s{where}", ({word}, p, c)),
        (f"UPDATE {ks}.bags{_using(rng)} SET s = s - %s{where}", ({word}, p, c)),
        (f"UPDATE {ks}.bags{_using(rng)} SET m[%s] = %s{where}", (word, number, p, c)),
        (f"DELETE m[%s] FROM {ks}.bags{_stamp(rng)}{where}", (word, p, c)),
        (f"UPDATE {ks}.bags{_using(rng)} SET u.x = %s{where}", (number, p, c)),
        (f"UPDATE {ks}.bags{_using(rng)} SET u = {{x: {number}, y: '{word}'}}{where}", (p, c)),
        (f"UPDATE {ks}.bags{_using(rng)} SET fu = {{x: {number}}}{where}", (p, c)),
        (f"DELETE l, s, m FROM {ks}.bags{_stamp(rng)}{where}", (p, c)),
        (f"DELETE FROM {ks}.bags{_stamp(rng)}{where}", (p, c)),
        (f"DELETE FROM {ks}.bags{_stamp(rng)} WHERE p = %s", (p,)),
    ]
    return rng.choice(choices)


def _keys_only(rng: random.Random, ks: str) -> tuple[str, tuple[Any, ...]]:
    p, c = rng.randrange(4), rng.randrange(4)
    if rng.random() < 0.7:
        return f"INSERT INTO {ks}.keys_only (p, c) VALUES (%s, %s){_using(rng)}", (p, c)
    return f"DELETE FROM {ks}.keys_only{_stamp(rng)} WHERE p = %s AND c = %s", (p, c)


_IDS: tuple[Any, ...] = (
    1, 2.5, bson.Int64(2**40), "one", "", True, None, bson.ObjectId("65f000000000000000000001"),
    dt.datetime(2021, 5, 6, tzinfo=dt.UTC), bson.Decimal128("7.25"), {"a": 1, "b": "x"}, b"bytes",
    bson.Binary.from_uuid(uuid.UUID(int=7)), bson.MinKey(), bson.MaxKey(), bson.Timestamp(5, 6),
)  # fmt: skip


def write_mongodb(collection: Collection, seed: int, count: int) -> None:
    """Apply random operations: inserts, replaces, every update operator that matters, deletes."""
    rng = random.Random(seed)
    for number in range(count):
        _one(collection, rng, rng.choice(_IDS) if rng.random() < 0.5 else rng.randrange(40), number)


def _document(rng: random.Random, number: int) -> dict[str, Any]:
    values: Iterator[tuple[str, Any]] = iter(
        {
            "n": number,
            "f": rng.choice([0.1, -0.0, 1e300, float("inf")]),
            "s": rng.choice(_WORDS),
            "a": [rng.randrange(5) for _ in range(rng.randrange(6))],
            "d": {"x": rng.choice([None, 1, "mixed"]), "y": {"z": bson.Int64(number)}},
            "dec": bson.Decimal128("1.10"),
            "when": dt.datetime(2024, 2, 3, tzinfo=dt.UTC),
            "name.with.dots": 1,
        }.items()
    )
    return {k: v for k, v in values if rng.random() < 0.7}


def _one(collection: Collection, rng: random.Random, key: Any, number: int) -> None:
    where = {"_id": {"$eq": key}}
    kind = rng.randrange(10)
    if kind < 3:
        collection.replace_one(where, _document(rng, number), upsert=False)
        if collection.find_one(where) is None:
            collection.insert_one({"_id": key, **_document(rng, number)})
    elif kind < 4:
        collection.update_one(where, {"$set": {"d.y.z": number, "new": number}})
    elif kind < 5:
        collection.update_one(where, {"$unset": {"s": ""}, "$inc": {"counter": 1}})
    elif kind < 6:
        collection.update_one(where, {"$push": {"list": {"$each": [number, None], "$slice": -4}}})
    elif kind < 7:
        collection.update_one(where, {"$pull": {"list": None}})
    elif kind < 8:
        collection.update_one(where, [{"$set": {"computed": {"$concat": ["x", {"$toString": "$n"}]}}}])
    else:
        collection.delete_one(where)
