"""The shop's other half in MongoDB: documents of several shapes, and updates of every kind.

All randomness is seeded, so a difference can be made again.
"""

from __future__ import annotations

import datetime as dt
import random
import uuid
from typing import TYPE_CHECKING, Any

import bson
from pymongo import DeleteMany, DeleteOne, InsertOne, ReplaceOne, UpdateMany, UpdateOne

if TYPE_CHECKING:
    from pymongo import MongoClient

DATABASE = "store"
COLLECTIONS = ("customers", "baskets", "events", "settings")
_EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
_WORDS = ("red", "green", "blau", "名", "")

Operation = InsertOne | ReplaceOne | UpdateOne | UpdateMany | DeleteOne | DeleteMany


def load(client: MongoClient, documents: int, seed: int = 1) -> int:
    """Write the documents that exist before the first run.

    Returns:
        The number of documents.
    """
    rng = random.Random(seed)
    database = client[DATABASE]
    database.customers.insert_many([_customer(rng, number) for number in range(documents)])
    database.baskets.insert_many([_basket(rng, number) for number in range(documents)])
    database.events.insert_many([_event(rng, number) for number in range(documents)])
    database.settings.insert_many([{"_id": key, "value": str(key)} for key in _KEYS])
    return 3 * documents + len(_KEYS)


def change(client: MongoClient, operations: int, seed: int) -> int:
    """Write a mixed workload: bulk writes, and every tenth time a transaction over two collections.

    Returns:
        The number of operations.
    """
    rng = random.Random(seed)
    database = client[DATABASE]
    done = 0
    while done < operations:
        collection, make = rng.choice(
            [
                (database.customers, _change_customer),
                (database.baskets, _change_basket),
                (database.baskets, _change_basket),
                (database.events, _change_event),
                (database.settings, _change_setting),
            ]
        )
        bulk = [make(rng, rng.randrange(10**6)) for _ in range(50)]
        if rng.random() < 0.1:
            with client.start_session() as session, session.start_transaction():
                collection.bulk_write(bulk[:10], session=session)
                database.customers.update_one(
                    {"_id": rng.randrange(100)}, {"$inc": {"transactions": 1}}, session=session
                )
            done += 11
        else:
            collection.bulk_write(bulk, ordered=True)
            done += len(bulk)
    return done


_KEYS: tuple[Any, ...] = (
    1,
    2.5,
    "one",
    "",
    True,
    bson.Int64(2**40),
    bson.ObjectId("65f000000000000000000001"),
    _EPOCH,
    bson.Decimal128("7.25"),
    {"a": 1, "b": "x"},
    b"bytes",
    bson.Binary.from_uuid(uuid.UUID(int=7)),
)
"""Keys of many types in one collection."""


def _customer(rng: random.Random, number: int) -> dict[str, Any]:
    return {
        "_id": number,
        "name": f"customer {number}",
        "joined": _EPOCH + dt.timedelta(minutes=rng.randrange(10**6)),
        "balance": bson.Decimal128(f"{rng.randrange(10**6)}.{rng.randrange(100):02d}"),
        "address": {"city": rng.choice(_WORDS), "geo": [rng.random(), rng.random()]},
        "vip": rng.random() < 0.1,
    }


def _basket(rng: random.Random, number: int) -> dict[str, Any]:
    return {
        "_id": f"basket-{number}",
        "lines": [_line(rng) for _ in range(rng.randrange(5))],
        "tags": rng.sample(_WORDS, rng.randrange(4)),
        "total": rng.random() * 100,
        "counts": {"items": rng.randrange(9), "seen": bson.Int64(rng.randrange(2**40))},
    }


def _event(rng: random.Random, number: int) -> dict[str, Any]:
    return {
        "_id": bson.ObjectId(f"{number:024x}"),
        "kind": rng.choice(["click", 7, None]),  # a member whose type changes from document to document
        "at": _EPOCH + dt.timedelta(seconds=number),
        "detail": rng.choice([{"x": 1}, [1, "two", None], "text", 2**40, 1.5]),
    }


def _line(rng: random.Random) -> dict[str, Any]:
    return {"sku": f"sku-{rng.randrange(50)}", "quantity": rng.randrange(1, 9), "open": rng.random() < 0.5}


def _change_customer(rng: random.Random, number: int) -> Operation:
    where = {"_id": number % 4000}
    choices: list[Operation] = [
        ReplaceOne(where, _customer(rng, number % 4000), upsert=True),
        UpdateOne(where, {"$set": {"address.city": rng.choice(_WORDS), "nick": number}}),
        UpdateOne(where, {"$inc": {"visits": 1}, "$unset": {"vip": ""}}),
        UpdateOne(where, {"$rename": {"nick": "alias"}}),
        UpdateOne(where, {"$currentDate": {"seen": True}}),
        UpdateOne(where, [{"$set": {"label": {"$concat": ["#", {"$toString": "$_id"}]}}}]),
        UpdateMany({"_id": {"$gte": number % 4000, "$lt": number % 4000 + 5}}, {"$mul": {"score": 2}}),
        DeleteOne(where),
    ]
    return rng.choice(choices)


def _change_basket(rng: random.Random, number: int) -> Operation:
    where = {"_id": f"basket-{number % 4000}"}
    several = {"$each": [_line(rng), _line(rng)], "$position": 0, "$slice": -6}
    choices: list[Operation] = [
        UpdateOne(where, {"$push": {"lines": _line(rng)}}),
        UpdateOne(where, {"$push": {"lines": several}}),
        UpdateOne(where, {"$pop": {"lines": rng.choice([1, -1])}}),
        UpdateOne(where, {"$pull": {"lines": {"quantity": {"$lt": 3}}}}),
        UpdateOne(where, {"$addToSet": {"tags": {"$each": ["sale", rng.choice(_WORDS)]}}}),
        UpdateOne({**where, "lines.open": True}, {"$set": {"lines.$.open": False}}),
        UpdateOne(
            where, {"$inc": {"lines.$[many].quantity": 10}}, array_filters=[{"many.quantity": {"$gt": 5}}]
        ),
        UpdateOne(where, {"$set": {"counts.items": number, "counts.new": [number, None]}}),
        UpdateOne({**where, "lines.2": {"$exists": True}}, {"$set": {"lines.2.quantity": 0}}),
        UpdateOne(where, [{"$set": {"n": {"$size": "$lines"}}}]),
        ReplaceOne(where, {k: v for k, v in _basket(rng, number).items() if k != "_id"}, upsert=True),
        DeleteOne(where),
    ]
    return rng.choice(choices)


def _change_event(rng: random.Random, number: int) -> Operation:
    key = bson.ObjectId(f"{number % 4000:024x}")
    document = _event(rng, number % 4000)
    choices: list[Operation] = [
        ReplaceOne({"_id": key}, document, upsert=True),
        UpdateOne({"_id": key}, {"$set": {"detail": document["detail"]}}),
        UpdateOne({"_id": key}, {"$unset": {"detail": ""}}),
        DeleteMany({"at": _EPOCH + dt.timedelta(seconds=number % 4000)}),
    ]
    return rng.choice(choices)


def _change_setting(rng: random.Random, number: int) -> Operation:
    where = {"_id": {"$eq": rng.choice(_KEYS)}}
    choices: list[Operation] = [
        UpdateOne(where, {"$set": {"value": number}}),
        UpdateOne(where, {"$set": {"value": {"nested": [number, {"deep": None}]}}}),
        UpdateOne(where, {"$max": {"highest": number}}),
    ]
    return rng.choice(choices)
