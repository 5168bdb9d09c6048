"""Update descriptions of a real server, applied to documents: every operator, on random documents."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import bson
import numpy as np
import pyarrow as pa
import pytest
from bson import SON, Decimal128, Int64
from bson.raw_bson import RawBSONDocument
from pymongo.errors import OperationFailure

from airflow_cdc_provider.sources.mongodb.patches import apply_patches

if TYPE_CHECKING:
    from pymongo import MongoClient

pytestmark = pytest.mark.integration

RAW = bson.CodecOptions(document_class=RawBSONDocument)
_NOTHING = object()
ORDERED = bson.CodecOptions(document_class=SON)


@pytest.fixture
def collection(mongo_client: MongoClient) -> Iterator[Any]:
    name = f"p{random.randrange(10**9)}"
    yield mongo_client[name].things
    mongo_client.drop_database(name)


class Workload:
    """Random documents and updates; ``seed`` decides all of it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def scalar(self) -> Any:
        pick: Callable[[], Any] = self.chance.choice(
            [
                lambda: self.chance.randrange(-5, 50),
                lambda: Int64(self.chance.randrange(2**40)),
                lambda: self.chance.random() * 10,
                lambda: "x" * self.chance.randrange(30),
                lambda: Decimal128("1.50"),
                lambda: None,
                lambda: self.chance.random() < 0.5,
            ]
        )
        return pick()

    def value(self, depth: int = 2) -> Any:
        kind = self.chance.randrange(6) if depth else 0
        if kind == 4:
            return [self.value(depth - 1) for _ in range(self.chance.randrange(12))]
        if kind == 5:
            return {name: self.value(depth - 1) for name in self.names(3)}
        return self.scalar()

    def names(self, most: int) -> list[str]:
        return self.chance.sample(["a", "b", "c", "0", "1", "$d", "e.f", "x"], self.chance.randrange(most))

    def document(self) -> dict[str, Any]:
        numbers = [self.chance.randrange(20) for _ in range(self.chance.randrange(8))]
        items = [{"k": n, "v": self.chance.randrange(9)} for n in range(self.chance.randrange(6))]
        own = {
            "n": self.chance.randrange(50),
            "list": numbers,
            "items": items,
            "d": {"a": 1, "l": [1, [2, 3]]},
        }
        return {**own, **{f"f{n}": self.value() for n in range(self.chance.randrange(5))}}

    def update(self) -> tuple[Any, dict[str, Any]]:
        """Return an update with its options. Some don't fit each document: the server refuses those."""
        some = self.chance.randrange
        item = {"k": some(9), "v": some(9)}
        field = self.chance.choice(
            ["n", "new", "f0", "f1", "f2", "d.a", "d.b", "d.new.deep", "list.3", "items.1.v"]
        )
        updates: list[tuple[Any, dict[str, Any]]] = [
            ({"$set": {field: self.value()}}, {}),
            ({"$set": {field: self.value(), "z": self.value(), "n": some(9)}}, {}),
            ({"$set": {f"list.{some(15)}": self.scalar()}}, {}),
            ({"$set": {"d.l.1.0": self.scalar(), "d.l.3": 5}}, {}),
            ({"$unset": {field: 1}}, {}),
            ({"$unset": {"d.a": 1, "z": 1, "list.0": 1}}, {}),
            ({"$inc": {"n": some(5), "d.count": 1}}, {}),
            ({"$mul": {"n": 1.5, "absent": 2}}, {}),
            ({"$min": {"n": some(20)}, "$max": {"d.a": some(20)}}, {}),
            ({"$rename": {"f0": "f9", "d.a": "d.renamed"}}, {}),
            ({"$rename": {"f1": "f2"}}, {}),
            ({"$currentDate": {"at": True, "d.ts": {"$type": "timestamp"}}}, {}),
            ({"$setOnInsert": {"never": 1}, "$set": {"n": some(9)}}, {}),
            ({"$push": {"list": some(30)}}, {}),
            ({"$push": {"list": {"$each": [some(30), some(30)], "$position": some(4)}}}, {}),
            ({"$push": {"list": {"$each": [some(30)], "$slice": -some(1, 6)}}}, {}),
            ({"$push": {"list": {"$each": [some(30), 3], "$sort": some(2) * 2 - 1}}}, {}),
            ({"$push": {"items": {"$each": [item], "$sort": {"v": 1}, "$slice": some(1, 8)}}}, {}),
            ({"$pop": {"list": self.chance.choice([-1, 1])}}, {}),
            ({"$pull": {"list": {"$gte": some(20)}}}, {}),
            ({"$pull": {"items": {"v": some(9)}}}, {}),
            ({"$pullAll": {"list": [some(20), some(20)]}}, {}),
            ({"$addToSet": {"list": {"$each": [some(20), some(20)]}, "set": self.scalar()}}, {}),
            ({"$bit": {"n": {self.chance.choice(["and", "or", "xor"]): some(1, 200)}}}, {}),
            ({"$set": {"items.$.v": some(99)}}, {"filter": {"items.k": some(5)}}),
            ({"$inc": {"items.$[].v": 1, "list.$[]": 1}}, {}),
            ({"$set": {"items.$[x].seen": True}}, {"array_filters": [{"x.v": {"$gt": some(9)}}]}),
            ({"$unset": {"items.$[x].v": 1}}, {"array_filters": [{"x.k": some(5)}]}),
            ([{"$set": {"sum": {"$size": {"$ifNull": ["$list", []]}}, "d.p": "$n"}}], {}),
            ([{"$unset": ["f0", "d.a"]}], {}),
            ([{"$set": {"list": {"$slice": ["$list", some(1, 5)]}}}], {}),
            ([{"$set": {"items": {"$reverseArray": "$items"}}}], {}),
            ([{"$replaceWith": {"$mergeObjects": ["$$ROOT", {"moved": "$n", "d": {"l": "$list"}}]}}], {}),
            ([{"$replaceWith": {"$setField": {"field": "do.t", "input": "$$ROOT", "value": some(9)}}}], {}),
            ([{"$set": {"f1": [], "f2": {}}}], {}),
        ]
        return self.chance.choice(updates)


@pytest.mark.parametrize("seed", range(4))
def test_documents_follow_every_operator_byte_for_byte(collection: Any, seed: int) -> None:
    """Each update alone, on the document before it; and all of a document's, on its first one."""
    workload = Workload(seed)
    count = 60
    collection.insert_many([{"_id": n, **workload.document()} for n in range(count)])
    raw = collection.with_options(codec_options=RAW)
    states = {d["_id"]: [d.raw] for d in raw.find()}
    patches: dict[int, list[bytes]] = {n: [] for n in range(count)}
    refused = 0
    with raw.watch() as stream:
        for _ in range(1200):
            update, options = workload.update()
            number = workload.chance.randrange(count)
            options = {**options, "filter": {"_id": number, **options.get("filter", {})}}
            try:
                changed = collection.update_one(update=update, **options).modified_count
            except OperationFailure:
                refused += 1
                continue
            if changed:
                event = bson.decode(stream.next().raw, RAW)
                assert (event["operationType"], event["documentKey"]["_id"]) == ("update", number)
                patches[number].append(event["updateDescription"].raw)
                states[number].append(raw.find_one({"_id": number}).raw)
    assert refused < 600
    each = [
        (*pair, patch) for n in states for pair, patch in zip(pairwise(states[n]), patches[n], strict=True)
    ]
    assert len(each) > 500

    found = applied([before for before, _, _ in each], [[patch] for _, _, patch in each])

    for (before, after, patch), document in zip(each, found, strict=True):
        description = "\n".join(
            str(bson.decode(b, ORDERED)) for b in (before, patch, document or after, after)
        )
        assert document in (None, after), description
        assert document or may_be_read_in_two_ways(bson.decode(before), bson.decode(patch)), description
    unresolved = {
        n for n in states if any(d is None for d in applied(states[n][:-1], [[p] for p in patches[n]]))
    }
    chains = [n for n in states if n not in unresolved]
    ends = applied([states[n][0] for n in chains], [patches[n] for n in chains])
    assert ends == [states[n][-1] for n in chains]
    assert len(chains) > count / 3


def applied(documents: Sequence[bytes], patches: Sequence[Sequence[bytes]]) -> list[bytes | None]:
    flat = pa.array([patch for some in patches for patch in some], pa.binary())
    offsets = np.cumsum([0, *map(len, patches)])
    return list(apply_patches(pa.array(documents, pa.binary()), flat, offsets).to_pylist())


def may_be_read_in_two_ways(before: Any, description: Any) -> bool:
    """Return whether a path has an ambiguous name with dots, or an update sets a current value."""
    paths = [
        *description["updatedFields"],
        *description["removedFields"],
        *(t["field"] for t in description["truncatedArrays"]),
    ]
    if any("e.f" in path for path in paths):
        return True
    return any(_at(before, path.split(".")) == value for path, value in description["updatedFields"].items())


def _at(value: Any, path: Sequence[str]) -> Any:
    for name in path:
        if isinstance(value, list) and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        elif isinstance(value, dict) and name in value:
            value = value[name]
        else:
            return _NOTHING
    return value
