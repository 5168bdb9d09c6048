"""What a sample of a collection tells of its fields, and the columns that follow: schema discovery.

The server draws the documents (``$sample``) and is given a limit of time; what it has sent by then counts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pymongo import MongoClient

from airflow_cdc_provider.sources.mongodb.field_tally import FieldCount, FieldTally, tally_fields
from airflow_cdc_provider.sources.mongodb.inferred import TYPE_NAMES, InferredColumns, InferredField
from airflow_cdc_provider.sources.mongodb.raw_cursor import RawCursor
from airflow_cdc_provider.sources.mongodb.server_errors import ServerTimeout

_BATCH: Final = 1000
_MOST_COLUMNS: Final = 10_000


@dataclass(frozen=True)
class SchemaSample:
    """What was found.

    Args:
        table: ``database.collection``, or a view.
        documents: How many were looked at.
        complete: Whether these are all that were asked for, or all that there are; else the time was up.
        fields: Their fields, by path and type; counts of several batches are added up.
    """

    table: str
    documents: int
    complete: bool
    fields: Sequence[FieldCount]


def sample_schema(client: MongoClient, table: str, *, size: int, seconds: float, depth: int) -> SchemaSample:
    """Look at a sample of a collection.

    Args:
        client: Of the deployment.
        table: ``database.collection``, or a view.
        size: How many documents, at the most.
        seconds: How long it may take, about.
        depth: 1: documents' own fields; 2: also those of documents in them; and so on.

    Raises:
        CdcError: The server can't be reached, or refuses.
    """
    database, _, collection = table.partition(".")
    deadline = time.monotonic() + seconds
    command: dict[str, Any] = {
        "aggregate": collection,
        "pipeline": [{"$sample": {"size": size}}],
        "cursor": {"batchSize": min(size, _BATCH)},
        "allowDiskUse": True,
        "maxTimeMS": max(int(1000 * seconds), 1),
    }
    tallies: list[FieldTally] = []
    documents = 0
    complete = True
    try:
        cursor = RawCursor(client, database, command, min(size, _BATCH), f"{table} can't be sampled")
        while cursor.alive and complete:
            reply = cursor.next()
            spans = reply.documents
            documents += len(spans)
            tallies.append(tally_fields(reply.data, spans.starts, spans.ends, depth=depth))
            complete = time.monotonic() < deadline or not cursor.alive
        cursor.close()
    except ServerTimeout:
        complete = False
    return SchemaSample(table, documents, complete, _added(tallies))


def _added(tallies: Sequence[FieldTally]) -> list[FieldCount]:
    found: dict[tuple[tuple[str, ...], int], FieldCount] = {}
    for tally in tallies:
        for one in tally.fields:
            before = found.get((one.path, one.kind))
            count, place = (0, one.place) if before is None else (before.count, min(before.place, one.place))
            found[one.path, one.kind] = FieldCount(one.path, one.kind, count + one.count, place)
    return list(found.values())


def describe(sample: SchemaSample) -> Iterator[str]:
    """Write the columns of a sample as lines of YAML: the declaration's ``source.columns`` of one collection.

    A comment tells what was seen; ``conflict`` leads the types whose values the column can't hold.
    """
    told = "" if sample.complete else "; the time was up"
    yield f"# {sample.table}: {sample.documents} documents{told}"
    fields = [one for one in sample.fields if one.path != ("_id",)]
    if not fields:
        yield f"{_quoted(sample.table)}: {{}}"
        return
    yield f"{_quoted(sample.table)}:"
    for path, field, counts in _columns(fields, ()):
        if not all(path) or any(set(name) & {".", " "} for name in path):
            yield f"  # {_quoted('.'.join(path))} can't be written as a path; it stands in the document"
            continue
        seen = ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda c: -c[1]))
        strays = ", ".join(field.strays)
        conflict = f"; conflict: {strays}" if strays else ""
        name = _quoted("_".join(path))
        yield f"  {name}: {_quoted('.'.join(path) + ' ' + field.column.type_name)}  # {seen}{conflict}"


def _columns(
    fields: Sequence[FieldCount], owner: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], InferredField, dict[str, int]]]:
    """Yield the columns of the members of one document, those of a document after it."""
    own = [one for one in fields if one.path[:-1] == owner]
    names = sorted({one.path[-1] for one in own}, key=lambda n: (_place(own, n), n))
    for name in names:
        counts: dict[str, int] = {}
        for one in own:
            if one.path[-1] == name:
                counts[TYPE_NAMES[one.kind]] = counts.get(TYPE_NAMES[one.kind], 0) + one.count
        member = [FieldCount(("v",), one.kind, one.count, 0) for one in own if one.path[-1] == name]
        (field,) = InferredColumns().learn(member, (), _MOST_COLUMNS).fields or (_ONLY_NULL,)
        yield (*owner, name), field, counts
        yield from _columns(fields, (*owner, name))


def _place(fields: Sequence[FieldCount], name: str) -> int:
    return min(one.place for one in fields if one.path[-1] == name)


_ONLY_NULL: Final = InferredField("v", "any", ("null",))


def _quoted(text: str) -> str:
    """Write a text as YAML's single-quoted scalar."""
    return "'" + text.replace("'", "''") + "'"
