"""Log rows of random requests, decoded and reconciled, give the tables that the requests made.

The requests, what they do to a table and what the log says of them are the imitation's
(``server_kit/scylla``), which shares no code with what is tested.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import pyarrow as pa
import pytest

from airflow_cdc_provider.lake.reconcile import reconcile_cells
from airflow_cdc_provider.sources.cql.native_rows import native_rows
from airflow_cdc_provider.sources.cql.schema import TableSchema
from airflow_cdc_provider.sources.scylla.codec import ScyllaCodec
from server_kit.scylla.base_table import BaseTable
from server_kit.scylla.cluster import LoggedChange
from server_kit.scylla.tables import CdcOptions, Preimage
from server_kit.scylla.workload import draw_table
from tests.unit.server_kit.scylla.item import NOW
from tests.unit.sources.scylla.logged import changes, codec_of, record_of
from tests.unit.sources.scylla.random_log_rows import random_changes

Shown = list[tuple[tuple[str, bytes | None], ...]]


@pytest.mark.parametrize("seed", range(60))
def test_log_rows_of_random_requests_give_the_table_in_any_order_and_with_copies(seed: int) -> None:
    chance = random.Random(seed)
    options = CdcOptions(preimage=chance.choice(list(Preimage)), postimage=chance.random() < 0.5)
    base = BaseTable(draw_table(chance, "k", "t", cdc=options))
    logged = list(random_changes(chance, base, 60))
    codec = codec_of(base.table)

    chance.shuffle(logged)
    again = [change for change in logged if chance.random() < 0.3]
    decoded = [_decode(codec, part) for part in _portions(chance, [*logged, *again])]

    for now in (NOW, NOW + 2):
        expected = _shown(base.select(now))
        assert _select(codec.schema, pa.Table.from_batches(decoded), now) == expected
        merged: list[pa.Table] = []
        for part in decoded:  # each merge has what the one before left
            merged = _merge([*merged, pa.Table.from_batches([part])], now)
        assert _select(codec.schema, pa.concat_tables(merged), now) == expected


def _portions(chance: random.Random, logged: list[LoggedChange]) -> list[list[LoggedChange]]:
    cuts = sorted(chance.randrange(len(logged) + 1) for _ in range(2))
    return [logged[: cuts[0]], logged[cuts[0] : cuts[1]], logged[cuts[1] :]]


def _decode(codec: ScyllaCodec, logged: list[LoggedChange]) -> pa.RecordBatch:
    decoded = codec.decode(changes(map(record_of, logged)), [])
    assert not decoded.reasons
    return decoded.contributions


def _merge(parts: list[pa.Table], now: int) -> list[pa.Table]:
    found = reconcile_cells(pa.concat_tables(parts), now, "scylla")
    rows = found.live.filter(found.live["state"].is_valid())
    columns = {name: rows[name] for name in ("key", "clustering", "generation", "state")}
    empty = {
        "scope": pa.array([0] * len(rows), pa.int8()),
        "clustering_end": pa.nulls(len(rows), pa.binary()),
        "version": pa.nulls(len(rows), pa.binary()),
        "op": pa.array([0] * len(rows), pa.int8()),
    }
    schema = found.tombstones.schema
    live = pa.table({**columns, **empty}).select(schema.names).cast(schema)
    return [live, found.tombstones]


def _select(schema: TableSchema, contributions: pa.Table, now: int) -> Shown:
    live = reconcile_cells(contributions, now, "scylla").live.combine_chunks().to_batches()
    return _shown(row for batch in live for row in native_rows(schema, batch))


def _shown(rows: object) -> Shown:
    found: list[Mapping[str, bytes | None]] = list(rows)  # type: ignore[call-overload]
    return sorted((tuple(sorted(row.items())) for row in found), key=repr)
