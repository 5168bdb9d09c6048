"""A workload of events as Debezium writes them, and the rows that must come of it, replayed in Python."""

from __future__ import annotations

import base64
import json
import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

PLACEHOLDER = "__debezium_unavailable_value"
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_MOMENT = "io.debezium.time.MicroTimestamp"

_SOURCE = [
    *({"type": "string", "optional": False, "field": name} for name in ("connector", "db", "table")),
    {"type": "int64", "optional": False, "field": "ts_ms"},
]

Message = tuple[str, int, "bytes | None", "bytes | None"]
"""Topic, partition, key and value."""


def _fields(version: int) -> list[dict[str, Any]]:
    found = [
        {"type": "int64", "optional": False, "field": "id"},
        {"type": "string", "optional": True, "field": "name"},
        {
            "type": "bytes",
            "optional": True,
            "name": _DECIMAL,
            "version": 1,
            "parameters": {"scale": "2", "connect.decimal.precision": "12"},
            "field": "amount",
        },
        {"type": "int64", "optional": True, "name": _MOMENT, "version": 1, "field": "seen_at"},
        {"type": "string", "optional": True, "field": "story"},
    ]
    if version > 1:
        found.append({"type": "int32", "optional": True, "field": "stars"})
    return found


@dataclass
class Workload:
    """Rows of one table and the messages with their changes.

    Args:
        topic: Where the messages go.
        partitions: How many it has.
        seed: Of its randomness.
        schemas: Whether messages bring their schemas.
    """

    topic: str
    partitions: int
    seed: int
    schemas: bool
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    version: int = 1

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._next = 1

    def messages(self, changes: int) -> list[Message]:
        """Make changes; some messages come twice, as after a restart of Debezium that goes back a little."""
        found: list[Message] = []
        for _ in range(changes):
            found += self._change()
            if self._random.random() < 0.02:
                found += found[-self._random.randint(1, 30) :]
        return found

    def copy(self) -> Workload:
        """Return a workload on the same rows; what it does, this one doesn't know."""
        rows = {number: dict(row) for number, row in self.rows.items()}
        found = Workload(self.topic, self.partitions, self.seed + 1, self.schemas, rows, self.version)
        found._next = self._next
        return found

    def _change(self) -> list[Message]:
        chance = self._random.random()
        ids = list(self.rows)
        if not ids or chance < 0.35:
            return self._insert()
        row_id = self._random.choice(ids)
        if chance < 0.75:
            return self._update(row_id)
        if chance < 0.85:
            row = self.rows.pop(row_id)
            self._next += 1
            moved = {**row, "id": self._next}
            self.rows[self._next] = moved
            return [*self._gone(row), self._event("c", None, moved)]
        return self._gone(self.rows.pop(row_id))

    def _insert(self) -> list[Message]:
        self._next += 1
        row = {"id": self._next, **self._values()}
        self.rows[self._next] = row
        return [self._event("r" if self._random.random() < 0.2 else "c", None, row)]

    def _update(self, row_id: int) -> list[Message]:
        before = self.rows[row_id]
        after = {**before, **self._values()}
        shown = dict(after)
        if self._random.random() < 0.3:
            after["story"] = before["story"]
            shown["story"] = PLACEHOLDER
        self.rows[row_id] = after
        return [self._event("u", before, shown)]

    def _gone(self, row: dict[str, Any]) -> list[Message]:
        topic, partition, key, _ = self._event("d", row, None)
        found = [self._event("d", row, None)]
        if self._random.random() < 0.8:
            found.append((topic, partition, key, None))
        return found

    def _values(self) -> dict[str, Any]:
        words = ['a "quoted" word', "zwölf\n", "", "\\slash", "😀", "plain"]
        values: dict[str, Any] = {
            "name": self._random.choice([*words, None]),
            "amount": self._random.choice([None, Decimal(self._random.randint(-(10**11), 10**11)) / 100]),
            "seen_at": datetime(2024, 1, 1) + timedelta(microseconds=self._random.randrange(10**14)),
            "story": self._random.choice(words) * self._random.randint(1, 5),
        }
        if self.version > 1:
            values["stars"] = self._random.choice([None, 1, 5])
        return values

    def _event(self, op: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> Message:
        row = after or before
        assert row is not None
        key, value = (
            {"id": row["id"]},
            {
                "before": self._written(before),
                "after": self._written(after),
                "source": {"connector": "mysql", "db": "shop", "table": "orders", "ts_ms": 1_700_000_000_000},
                "op": op,
                "ts_ms": 1_700_000_000_001,
            },
        )
        return self.topic, row["id"] % self.partitions, self._framed(key, "key"), self._framed(value, "value")

    def _written(self, row: dict[str, Any] | None) -> dict[str, Any] | None:
        if row is None:
            return None
        written = dict(row)
        if self.schemas:
            written["amount"] = _unscaled(row["amount"])
            written["seen_at"] = (row["seen_at"] - datetime(1970, 1, 1)) // timedelta(microseconds=1)
        else:
            written["amount"] = None if row["amount"] is None else float(row["amount"])
            written["seen_at"] = row["seen_at"].isoformat()
        return written

    def _framed(self, content: dict[str, Any], side: str) -> bytes:
        if not self.schemas:
            return json.dumps(content, ensure_ascii=self._random.random() < 0.5).encode()
        if side == "key":
            schema: dict[str, Any] = {"type": "struct", "fields": _fields(1)[:1], "optional": False}
        else:
            fields = _fields(self.version)
            schema = {
                "type": "struct",
                "fields": [
                    {"type": "struct", "fields": fields, "optional": True, "field": "before"},
                    {"type": "struct", "fields": fields, "optional": True, "field": "after"},
                    {"type": "struct", "fields": _SOURCE, "optional": False, "field": "source"},
                    {"type": "string", "optional": False, "field": "op"},
                    {"type": "int64", "optional": True, "field": "ts_ms"},
                ],
                "name": "Envelope",
            }
        return json.dumps({"schema": schema, "payload": content}).encode()


def _unscaled(amount: Decimal | None) -> str | None:
    if amount is None:
        return None
    number = int(amount.scaleb(2))
    raw = number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)
    return base64.b64encode(raw).decode()
