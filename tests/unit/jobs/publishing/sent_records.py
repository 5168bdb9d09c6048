"""Records that were sent, to compare by key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pyarrow as pa

from airflow_cdc_provider.events.event_batches import EventBatch

Sent = tuple[str, str | None, str | None, str]
"""Topic, key, value and headers of a record."""


def sent_of(batches: Sequence[pa.RecordBatch]) -> list[Sent]:
    names = ("topic", "key", "value", "headers")
    return [
        row for batch in batches for row in zip(*(batch[name].to_pylist() for name in names), strict=True)
    ]


def by_key(records: Sequence[Sent]) -> dict[tuple[str, str | None], list[Sent]]:
    found: dict[tuple[str, str | None], list[Sent]] = defaultdict(list)
    for one in records:
        found[one[:2]].append(one)
    return found


def records_of(made: Sequence[EventBatch]) -> list[Sent]:
    assert [one.batch for one in made] == sorted(one.batch for one in made), "batch after batch"
    return sent_of([one.records for one in made])
