"""Schema discovery: samples a collection and derives columns from the fields of the sample.

The server samples the documents (``$sample``) within a time limit; the documents received by then are used.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pymongo import MongoClient

from airflow_cdc_provider.changes.column_names import PREFIX, RESERVED, TakenNames
from airflow_cdc_provider.changes.inferred_columns import InferredField, infer_field
from airflow_cdc_provider.exceptions import printable
from airflow_cdc_provider.sources.mongodb.declared_columns import OWN_COLUMNS
from airflow_cdc_provider.sources.mongodb.decoding.field_tally import (
    TYPE_NAMES,
    FieldCount,
    FieldTally,
    tally_fields,
)
from airflow_cdc_provider.sources.mongodb.driver.raw_cursor import RawCursor
from airflow_cdc_provider.sources.mongodb.driver.server_errors import ServerTimeout

_BATCH: Final = 1000


@dataclass(frozen=True)
class SchemaSample:
    """The result of sampling.

    Args:
        table: ``database.collection``, or a view.
        documents: Number of documents in the sample.
        complete: Whether the sample has the requested size, or all documents; False after a timeout.
        fields: Their fields, by path and type; counts of several batches are summed.
    """

    table: str
    documents: int
    complete: bool
    fields: Sequence[FieldCount]


def sample_schema(client: MongoClient, table: str, *, size: int, seconds: float, depth: int) -> SchemaSample:
    """Sample a collection.

    Args:
        client: A client of the deployment.
        table: ``database.collection``, or a view.
        size: Maximum number of documents.
        seconds: Approximate time limit.
        depth: 1: top-level fields; 2: also fields of nested documents; and so on.

    Raises:
        CdcError: The server is unreachable, or refuses the command.
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
    return SchemaSample(table, documents, complete, _sum_counts(tallies))


def _sum_counts(tallies: Sequence[FieldTally]) -> list[FieldCount]:
    found: dict[tuple[tuple[str, ...], int], FieldCount] = {}
    for tally in tallies:
        for one in tally.fields:
            before = found.get((one.path, one.kind))
            count, index = (
                (0, one.first_index)
                if before is None
                else (before.count, min(before.first_index, one.first_index))
            )
            found[one.path, one.kind] = FieldCount(one.path, one.kind, count + one.count, index)
    return list(found.values())


def describe(sample: SchemaSample) -> Iterator[str]:
    """Yield the columns of a sample as lines of YAML: the option ``source.columns`` of one collection.

    A comment lists the types in the sample; ``conflict`` precedes types whose values the column can't hold.
    """
    incomplete = "" if sample.complete else "; the time limit was reached"
    yield f"# {printable(sample.table)}: {sample.documents} documents{incomplete}"
    fields = [one for one in sample.fields if one.path != ("_id",)]
    if not fields:
        yield f"{_quoted(sample.table)}: {{}}"
        return
    yield f"{_quoted(sample.table)}:"
    taken = TakenNames([*RESERVED, *OWN_COLUMNS], PREFIX)
    for path, field, counts in _columns(fields, ()):
        if not all(path) or any(set(name) & {".", " "} for name in path):
            yield f"  # {_quoted('.'.join(path))} can't be written as a path; see the column document"
            continue
        seen = ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda c: -c[1]))
        strays = ", ".join(field.strays)
        conflict = f"; conflict: {strays}" if strays else ""
        name = _quoted(taken.add("_".join(path)))
        yield f"  {name}: {_quoted('.'.join(path) + ' ' + field.type_name)}  # {seen}{conflict}"


def _columns(
    fields: Sequence[FieldCount], owner: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], InferredField, dict[str, int]]]:
    """Yield the columns of the members of one document; those of a nested document follow it."""
    own = [one for one in fields if one.path[:-1] == owner]
    names = sorted({one.path[-1] for one in own}, key=lambda n: (_first_index(own, n), n))
    for name in names:
        counts: dict[str, int] = {}
        for one in own:
            if one.path[-1] == name:
                counts[TYPE_NAMES[one.kind]] = counts.get(TYPE_NAMES[one.kind], 0) + one.count
        only_nulls = InferredField(name, "any", ("null",), name)
        yield (*owner, name), infer_field(name, counts) or only_nulls, counts
        yield from _columns(fields, (*owner, name))


def _first_index(fields: Sequence[FieldCount], name: str) -> int:
    return min(one.first_index for one in fields if one.path[-1] == name)


def _quoted(text: str) -> str:
    """Return a text as a quoted YAML scalar in one printable line."""
    if text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    escaped = (c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text)
    return f'"{"".join(escaped)}"'
