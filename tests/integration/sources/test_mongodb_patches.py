"""Update descriptions of a real server, applied to documents: every operator, on random documents."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import bson
import numpy as np
import pyarrow as pa
import pytest
from bson import SON
from bson.raw_bson import RawBSONDocument
from pymongo.errors import OperationFailure

from airflow_cdc_provider.sources.mongodb.decoding.patches import apply_patches
from tests.integration.sources.patch_workload import Workload
from tests.seeds import seeds

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


@pytest.mark.parametrize("seed", seeds(0, 1, 2, 3))
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
