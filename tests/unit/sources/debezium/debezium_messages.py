"""Messages and what becomes of them, without a broker and without Spark."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.changes.fence import FenceRecord, add_fences
from airflow_cdc_provider.lake.reconcile import reconcile_patched
from airflow_cdc_provider.lake.row_fences import RowFences
from airflow_cdc_provider.sources.debezium.codec import DebeziumCodec
from airflow_cdc_provider.sources.debezium.decode import Form
from airflow_cdc_provider.sources.debezium.reader import table_of
from airflow_cdc_provider.sources.debezium.recorded_schemas import RecordedSchemas
from airflow_cdc_provider.sources.debezium.records import Feed, Messages, read_messages
from airflow_cdc_provider.sources.debezium.schema_history import TableRows
from airflow_cdc_provider.sources.debezium.states import spellings

PLACEHOLDER = "__debezium_unavailable_value"


def everything(table: str) -> bool:
    return bool(table)


FEED = Feed(
    topic="server.shop.orders",
    partition=0,
    epoch=0,
    captured_us=1_700_000_000_000_000,
    unwrapped=False,
    table="shop.orders",
    is_only=True,
    strict=False,
    selects=everything,
)


def feed_of(topic: str, **other: Any) -> Feed:
    return replace(FEED, topic=topic, table=table_of(topic), **other)


def text(content: Any) -> bytes | None:
    """Write JSON without blanks, as Kafka Connect does; halves of surrogate pairs are escaped."""
    if content is None or isinstance(content, bytes):
        return content
    written = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", written).encode()


def messages(pairs: Sequence[tuple[Any, Any]], first: int = 0) -> Messages:
    count = len(pairs)
    return Messages(
        pa.array([text(key) for key, _ in pairs], pa.binary()),
        pa.array([text(value) for _, value in pairs], pa.binary()),
        np.arange(first, first + count),
        np.full(count, 1_700_000_000_000),
        np.zeros(count, np.bool_),
    )


def event(op: str, before: Any = None, after: Any = None, **other: Any) -> dict[str, Any]:
    return {"before": before, "after": after, "source": {"ts_ms": 1_700_000_000_000}, "op": op, **other}


def framed(content: Any, fields: list[dict[str, Any]]) -> dict[str, Any]:
    """Write an envelope as the JSON converter does with its schemas on."""
    sides = [
        {"type": "struct", "fields": fields, "optional": True, "name": "s.Value", "field": side}
        for side in ("before", "after")
    ]
    return {"schema": {"type": "struct", "fields": sides, "name": "s.Envelope"}, "payload": content}


def column(name: str, kind: str, logical: str = "", **parameters: str) -> dict[str, Any]:
    found: dict[str, Any] = {"type": kind, "optional": True, "field": name}
    if logical:
        found |= {"name": logical, "version": 1}
    return found | ({"parameters": parameters} if parameters else {})


@dataclass
class Table:
    """One table's mirror, kept in memory: what a merge does, without a lake."""

    feed: Feed = FEED
    form: Form = field(default_factory=lambda: Form(False, spellings(PLACEHOLDER)))
    skipped: Counter[tuple[str, str]] = field(default_factory=Counter)
    memory: Any = None
    next_offset: int = 0

    def __post_init__(self) -> None:
        self.records: list[pa.RecordBatch] = []
        self.schemas: list[dict[str, Any]] = []
        self.known: pa.Table | None = None
        self.seen = RecordedSchemas()
        self.reasons: list[str] = []
        self.fences: Any = ()
        self.codec: DebeziumCodec | None = None

    def take(self, *pairs: tuple[Any, Any], feed: Feed | None = None) -> pa.RecordBatch:
        """Read messages, merge them, show the mirror."""
        records = read_messages(messages(pairs, self.next_offset), feed or self.feed, self.seen, self.skipped)
        self.next_offset += len(pairs)
        return self.merge(records)

    def merge(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Merge records, show the mirror."""
        self.records.append(records)
        rows = records.to_pylist()
        self.schemas += [row for row in rows if row["kind"] == "schema"]
        fences = [FenceRecord.of(row) for row in rows if row["kind"] == "truncate"]
        self.fences = add_fences(self.fences, fences)
        codec = DebeziumCodec.of(TableRows.of(self.feed.table, self.schemas), self.form, 500, self.memory)
        decoded = codec.decode(records, self.fences)
        self.reasons += decoded.reasons
        contributions = pa.Table.from_batches([decoded.contributions])
        if codec.infers_columns:
            codec = codec.learn(pa.Table.from_batches([codec.tally(decoded.contributions)]))
        if self.known is not None:
            contributions = pa.concat_tables([contributions, self.known])
        contributions = RowFences.of(self.fences, codec).filter(contributions)
        merged = reconcile_patched(contributions, 0, codec.patch)
        live = merged.live.combine_chunks()
        self.known = pa.concat_tables([_as_contributions(live), merged.tombstones]).combine_chunks()
        self.memory, self.codec = json.loads(json.dumps(codec.remember())), codec
        batches = live.to_batches()
        return codec.project(batches[0]) if batches else codec.project(_no_rows(live))

    @property
    def kinds(self) -> Counter[str]:
        """How many records of each kind there are."""
        return Counter(kind for batch in self.records for kind in batch.column("kind").to_pylist())


def _no_rows(live: pa.Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=live.schema)


def _as_contributions(live: pa.Table) -> pa.Table:
    from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, ROW, UPSERT

    count = live.num_rows
    columns = {name: live[name] for name in ("key", "clustering", "generation", "version", "state")}
    columns |= {"scope": pa.array([ROW] * count, pa.int8()), "op": pa.array([UPSERT] * count, pa.int8())}
    columns["clustering_end"] = pa.nulls(count, pa.binary())
    return pa.table([columns[one.name] for one in CONTRIBUTION_SCHEMA], schema=CONTRIBUTION_SCHEMA)


def rows(shown: pa.RecordBatch, key: str = "id") -> dict[Any, dict[str, Any]]:
    """Return a mirror's rows by their key, without what is null."""
    found = {}
    for row in shown.to_pylist():
        found[row[key]] = {name: value for name, value in row.items() if value is not None and name != key}
    assert len(found) == shown.num_rows
    return found
