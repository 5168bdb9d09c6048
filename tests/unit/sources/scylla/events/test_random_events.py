"""Log rows of random requests as events of every form: of each row that a change touches there is one."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from airflow_cdc_provider.events.encoder import Converters
from airflow_cdc_provider.events.transforms.pieces import Piece, encode_pieces
from airflow_cdc_provider.sources.scylla.events.decode import EventDecoder
from airflow_cdc_provider.sources.scylla.events.envelope import build
from airflow_cdc_provider.sources.scylla.events.tables import event_table
from server_kit.scylla.base_table import BaseTable
from server_kit.scylla.cluster import LoggedChange
from server_kit.scylla.log_rows import INSERT, PARTITION_DELETE, ROW_DELETE, UPDATE
from server_kit.scylla.tables import CdcOptions, Preimage
from server_kit.scylla.workload import draw_table
from tests.unit.sources.scylla.events.published import options
from tests.unit.sources.scylla.logged import payloads, record_of, schema_payload
from tests.unit.sources.scylla.random_log_rows import random_changes

FORMS = (
    {
        "format": "legacy",
        "preimages": True,
        "all_types": True,
        "collection_changes": True,
        "source_details": True,
    },
    {
        "format": "advanced",
        "before": "full",
        "after": "full",
        "collection_changes": True,
        "source_details": True,
    },
    {"format": "advanced", "before": "only-updated", "after": "only-updated"},
)


def touched(logged: list[LoggedChange]) -> list[set[tuple[bool, tuple[bytes, ...]]]]:
    """Return of each change which rows it deletes and which it writes to."""
    found = []
    for one in logged:
        deletes = (ROW_DELETE,) if one.table.clustering else (PARTITION_DELETE,)
        rows = [row for row in one.change.rows if row.operation in (INSERT, UPDATE, *deletes)]
        found.append({(row.operation in deletes, row.clustering) for row in rows})
    return found


@pytest.mark.parametrize("seed", range(25))
def test_each_row_that_a_change_touches_has_an_event_in_every_form(seed: int) -> None:
    chance = random.Random(seed)
    cdc = CdcOptions(preimage=chance.choice(list(Preimage)), postimage=chance.random() < 0.5)
    table = draw_table(chance, "shop", "drawn", cdc=cdc)
    logged = list(random_changes(chance, BaseTable(table), 40))
    decoder = EventDecoder(event_table(schema_payload(table)), "my.shop.drawn.")
    found = decoder.decode(payloads(map(record_of, logged)))
    assert found.undecodable == {}
    events = found.events.to_pylist()
    shown: list[set[tuple[bool, str]]] = [set() for _ in logged]
    for event in events:
        shown[event["row"]].add((event["op"] == "d", repr(event["key"])))
    assert [len(rows) for rows in shown] == [len(rows) for rows in touched(logged)]
    names = [column.name for column in table.partition]
    for form in FORMS:
        for converters in (Converters(schemas=True), Converters("avro", "avro")):
            pieces = []
            for static in (False, True):
                places = np.array([n for n, event in enumerate(events) if event["static"] == static])
                if len(places):
                    part = found.events.take(pa.array(places))
                    envelope = build(part, "shop", "drawn", names, *options(tombstones=False, **form))
                    pieces.append(Piece(envelope, places))
            assert encode_pieces(pieces, converters).num_rows == len(events)
