"""What records of kind ``schema`` tell: fields that rows came with, statements, what shards were made of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_cdc_provider.changes.record import SCHEMA
from airflow_cdc_provider.sources.vitess.schema_ids import DDL, LINEAGE


@dataclass(frozen=True)
class Statement:
    """A DDL statement.

    Args:
        text: As MySQL logged it.
        shard: ``keyspace/shard`` where it ran.
        position: Its place there.
        at_us: When it ran, in us since 1970.
    """

    text: str
    shard: str
    position: bytes
    at_us: int


@dataclass(frozen=True)
class FieldsRecord:
    """Fields of a table, as they were met first.

    Args:
        message: The ``FieldEvent``.
        shard: Where they were met.
        position: And where there.
        captured_us: And when, in us since 1970.
    """

    message: bytes
    shard: str
    position: bytes
    captured_us: int


@dataclass(frozen=True)
class Learned:
    """All that is recorded.

    Args:
        fields: Per ``keyspace.table`` and ``schema_id``, in the order in which they were captured.
        statements: In the order of their shards' positions.
        lineage: Per shard its ancestors, the nearest first.
    """

    fields: Mapping[str, Mapping[str, FieldsRecord]] = field(default_factory=dict)
    statements: tuple[Statement, ...] = ()
    lineage: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, records: pa.Table) -> Learned:
        """Read records; those of other kinds are passed over."""
        fields: dict[str, dict[str, FieldsRecord]] = {}
        statements: dict[tuple[str, bytes], Statement] = {}
        lineage: dict[str, tuple[str, ...]] = {}
        for row in sorted(_rows(records), key=lambda row: (row["captured_us"], row["position"])):
            name, payload, shard = row["schema_id"], bytes(row["payload"]), row["origin"]
            position = bytes(row["position"])
            if name == DDL:
                text = payload.decode(errors="replace")
                statements[shard, position] = Statement(text, shard, position, row["committed_us"] or 0)
            elif name == LINEAGE:
                lineage |= {child: tuple(parents) for child, parents in json.loads(payload).items()}
            elif row["source_table"]:
                of_table = fields.setdefault(row["source_table"], {})
                of_table.setdefault(name, FieldsRecord(payload, shard, position, row["captured_us"]))
        ordered = tuple(statements[place] for place in sorted(statements))
        return cls(fields, ordered, lineage)

    def knows(self, table: str, schema_id: str) -> bool:
        """Tell whether the fields of a table are recorded."""
        return schema_id in self.fields.get(table, {})


def _rows(records: pa.Table) -> list[Mapping[str, Any]]:
    kinds = records["kind"].to_pylist()
    chosen = records.take([number for number, kind in enumerate(kinds) if kind == SCHEMA])
    for name in ("committed_at", "captured_at"):
        times = chosen[name].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        chosen = chosen.append_column(name.replace("_at", "_us"), times)
    rows: list[Mapping[str, Any]] = chosen.to_pylist()
    return rows
