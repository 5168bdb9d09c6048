"""Rows of recordings against what the server that was recorded showed, table by table and text by text."""

from __future__ import annotations

import json
import re
from collections import defaultdict

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.offline import Damage, Recording, row_lines, text_of
from tests.unit.sources.cql.recordings import read_at_seconds, recorded_rows, recorded_schemas, recording

CASSANDRA = Connector.from_dict({"name": "shop", "source": {"type": "cassandra"}})
LINE = re.compile(r'\{"table":("[^"]+"),"row":(.*)\}')


# The last segment of "midway" was open when it was copied.
@pytest.mark.parametrize("variant", ["v7-plain", "v7-plain/midway", "v8-plain", "v7-lz4", "v7-zstd"])
def test_the_log_alone_adds_up_to_the_rows_that_the_server_shows(variant: str) -> None:
    folder = recording(variant)
    damage = Damage(strict=False)
    source = Recording(
        folder / "cdc_raw", str(folder / "schema.cql"), now_ns=read_at_seconds(folder) * 1_000_000_000
    )
    shown: dict[str, list[str]] = defaultdict(list)
    for chunk in row_lines(CASSANDRA, source, damage):
        for line in text_of(chunk).decode().split("\n")[:-1]:
            match = LINE.fullmatch(line)
            assert match
            shown[json.loads(match[1])].append(match[2])
    tables = [t for t in recorded_schemas(folder).tables.values() if t.cdc and not t.view]
    for table in tables:
        wanted = sorted(row["json"] for row in recorded_rows(folder, table.full_name))
        # A counter's log holds contexts, not values; only snapshots bring them.
        assert sorted(shown.pop(table.full_name, [])) == ([] if table.counter else wanted), table.full_name
    assert not shown
    # Writes to the first life of the table reborn, whose id no schema knows any more.
    assert len(damage.places) == 5
    assert all("unknown-table" in place for place in damage.places)
