"""Random updates of documents, from which servers log patches."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bson import Decimal128, Int64

if TYPE_CHECKING:
    pass


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
